"""What a likelihood is: two methods for training; a `Distribution` has three more for prediction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from bayesrnn.likelihoods.quantiles import solve_count, solve_quantile
from bayesrnn.likelihoods.scores import continuous_crps, count_crps


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

    def bends(self, output: Tensor) -> Tensor:
        """Points (..., N) in any order, between which the distribution function is smooth."""
        return torch.stack([*self.reach(output), self.mean(output)], -1)

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
        if target.dtype == torch.bool:
            raise ValueError(f"targets of {name} are numbers, got torch.bool: convert them, as by target.float()")
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

        .. math:: \int (F(x) - 1[x \ge y])^2 dx

        by quadrature between the bends of all draws and beyond them; for counts, the sum over whole numbers.
        """
        cdf, y = self.mixed(parameters), y.double()
        if self.discrete:
            last = torch.maximum(self.quantile(parameters, 1 - 1e-7), y) + 1
            return count_crps(cdf, y, last)
        bends = self.bends(parameters.double()).movedim(-1, 0).flatten(0, 1)
        return continuous_crps(cdf, y, bends)
