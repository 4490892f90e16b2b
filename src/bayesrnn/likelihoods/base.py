"""What a likelihood is: two methods for training; a `Distribution` has three more for prediction."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from bayesrnn.likelihoods.quantiles import solve_count, solve_quantile

_SPACING = 0.04  # of the points of the double exponential rule


@runtime_checkable
class Likelihood(Protocol):
    """p(y | output), an `nn.Module` too: a likelihood of your own is one class with these two methods."""

    def nll(self, output: Any, target: Any) -> Tensor:
        """Sum of -log p(target) over all targets."""
        ...

    def count(self, target: Any) -> int | Tensor:
        """Number of targets that count."""
        ...


class Distribution(nn.Module):
    """A likelihood whose parameters are the last axis of the model's output.

    A new one is one subclass with ``size``, ``log_prob``, ``mean``, ``variance``, ``cdf`` and ``reach``; `br.ELBO` and
    `br.predict` take it as it is. Example::

        class Exponential(Distribution):                      # the output is the log of the mean
            size = 1
            def log_prob(self, output, y):
                return -output[..., 0] - y * torch.exp(-output[..., 0])
            def mean(self, output):
                return output[..., 0].exp()
            def variance(self, output):
                return self.mean(output).square()
            def cdf(self, output, y):
                return 1 - torch.exp(-y.clamp_min(0) * torch.exp(-output[..., 0]))
            def reach(self, output):
                return torch.zeros_like(output[..., 0]), 5 * self.mean(output)

    Shapes: output (..., size), target (...) or (..., 1); all results (...).
    """

    size: int
    discrete = False  # the quantity is a count: 0, 1, 2, ...

    def log_prob(self, output: Tensor, y: Tensor) -> Tensor:
        """log p(y | output), with y (...)."""
        raise NotImplementedError

    def mean(self, output: Tensor) -> Tensor:
        raise NotImplementedError

    def variance(self, output: Tensor) -> Tensor:
        """Infinite or NaN where it does not exist."""
        raise NotImplementedError

    def cdf(self, output: Tensor, y: Tensor) -> Tensor:
        """P(Y <= y)."""
        raise NotImplementedError

    def reach(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """(low, high): where most of the probability lies, a first guess for quantiles. It need not be exact."""
        raise NotImplementedError

    def nll(self, output: Tensor, target: Tensor) -> Tensor:
        """Sum of -log p(target) over all targets."""
        return -self.log_prob(output, self.matched(output, target)).sum()

    def count(self, target: Tensor) -> int:
        return target.numel()

    def matched(self, output: Tensor, target: Tensor) -> Tensor:
        """The target as (...), for an output (..., size)."""
        name = f"br.{type(self).__name__}"
        if output.ndim == 0 or output.shape[-1] != self.size:
            raise ValueError(
                f"{name} reads {self.size} parameters from the output's last axis, which is {tuple(output.shape)}"
            )
        if target.shape == (*output.shape[:-1], 1):
            target = target.squeeze(-1)
        if target.shape != output.shape[:-1]:
            raise ValueError(
                f"target must have the shape {tuple(output.shape[:-1])}, or 1 more axis of length 1, for an output "
                f"{tuple(output.shape)} of {name}, got {tuple(target.shape)}"
            )
        return target

    def quantile(self, parameters: Tensor, q: float) -> Tensor:
        """The q-quantile of the even mixture over the first axis (draws) of ``parameters`` (S, ..., size)."""
        low, high = (end.double() for end in self.reach(parameters))
        cdf = self.mixed(parameters)
        if self.discrete:
            return solve_count(cdf, q, high.amax(0))
        return solve_quantile(cdf, q, low.amin(0), high.amax(0))

    def mixed(self, parameters: Tensor) -> Callable[[Tensor], Tensor]:
        """The distribution function of the mixture over draws, in float64."""
        wide = parameters.double()
        return lambda y: self.cdf(wide, y.expand(wide.shape[:-1])).mean(0)

    def crps(self, parameters: Tensor, y: Tensor) -> Tensor:
        r"""Continuous ranked probability score of the mixture over draws (S, ..., size) at y (...).

        .. math:: \int (F(x) - 1[x \ge y])^2 dx = |y - m| + 2 T(y) - \int F(x) (1 - F(x)) dx

        with the mean m and the tail T beyond y, :math:`\int_y^\infty 1 - F` if y > m, else :math:`\int_{-\infty}^y F`.
        By the double exponential rule from y and from m on, which reaches far into heavy tails; for counts, the sum
        over whole numbers.
        """
        cdf, y = self.mixed(parameters), y.double()
        if self.discrete:
            last = int(max(float(self.quantile(parameters, 1 - 1e-7).max()), float(y.max()))) + 1
            stride = -(-last // 4096)  # counts in the thousands are all but continuous
            points = torch.arange(0, last + stride, stride, dtype=torch.float64, device=y.device)
            return torch.stack([(cdf(k.expand_as(y)) - (k >= y).double()).square() for k in points]).sum(0) * stride
        low, high = self.reach(parameters)
        scale = (high.double().amax(0) - low.double().amin(0)) / 8
        centre = self.mean(parameters.double()).mean(0)
        side = torch.where(y > centre, 1.0, -1.0).to(y)
        tail, spread = torch.zeros_like(y), torch.zeros_like(y)
        for u in torch.arange(-3.2, 3.2, _SPACING, dtype=torch.float64, device="cpu").tolist():
            t = math.exp(0.5 * math.pi * math.sinh(u)) * scale
            weight = _SPACING * t * 0.5 * math.pi * math.cosh(u)
            beyond, above, below = cdf(y + side * t), cdf(centre + t), cdf(centre - t)
            tail += weight * torch.where(side > 0, 1 - beyond, beyond)
            spread += weight * (above * (1 - above) + below * (1 - below))
        return (y - centre).abs() + 2 * tail - spread
