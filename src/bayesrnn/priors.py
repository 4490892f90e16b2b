"""Priors p(w) over weights. Each has `log_prob(w)`; sums over weights are taken by the posterior's KL."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from functools import cache
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from bayesrnn.checks import check_choice, is_number
from bayesrnn.kernels.gaussian import plan
from bayesrnn.kernels.gaussian.reference import group_log_density

_LOG_2PI = math.log(2 * math.pi)


@runtime_checkable
class Prior(Protocol):
    """The interface of a prior: log-densities of a weight tensor, whose sum is log p(w)."""

    def log_prob(self, w: Tensor, *, group_dim: int | None = None) -> Tensor:
        """Log-density of `w`. `group_dim` is the axis of the input units, for priors that group weights by it."""
        ...


def check_sigma(name: str, sigma: float) -> float:
    if not is_number(sigma) or not math.isfinite(sigma) or sigma <= 0:
        raise ValueError(f"{name} must be a positive number, got {sigma!r}: it is a standard deviation")
    return float(sigma)


def check_prior(prior: Any) -> Prior:
    """The prior, if it is one."""
    if isinstance(prior, type) or not isinstance(prior, Prior):
        got = f"the class {prior.__name__}: make an instance of it" if isinstance(prior, type) else repr(prior)[:100]
        raise TypeError(f"prior must be one such as br.Normal(0.1), or have a log_prob(w) method, got {got}")
    return prior


class Normal:
    """N(0, sigma^2) on every weight.

    Args:
        sigma: standard deviation.
    """

    def __init__(self, sigma: float = 1.0) -> None:
        self.sigma = check_sigma("sigma", sigma)

    def log_prob(self, w: Tensor, *, group_dim: int | None = None) -> Tensor:
        """Elementwise, the shape of `w`."""
        return -0.5 * (w / self.sigma).square() - math.log(self.sigma) - 0.5 * _LOG_2PI

    def __repr__(self) -> str:
        return f"Normal(sigma={self.sigma:g})"


class ScaleMixture:
    """pi N(0, sigma1^2) + (1 - pi) N(0, sigma2^2) (Blundell et al. 2015; arXiv 1704.02798, Eq. 18).

    Args:
        pi: weight of the first component, in (0, 1).
        sigma1: standard deviation of the first component.
        sigma2: standard deviation of the second component.
        group: what shares one mixture indicator. "input": all outgoing weights of one input unit (for an embedding
            one word's row, for a bias the whole vector), as in the authors' released code: with it whole units can
            leave the model. "weight": every weight its own, as Eq. 18 is written.
    """

    def __init__(self, pi: float, sigma1: float, sigma2: float, group: str = "input") -> None:
        if not is_number(pi) or not 0 < pi < 1:
            raise ValueError(f"pi must be a number in (0, 1), got {pi!r}: it is the weight of the first component")
        self.pi = float(pi)
        self.sigma1, self.sigma2 = check_sigma("sigma1", sigma1), check_sigma("sigma2", sigma2)
        self.group = check_choice("group", group, ("input", "weight"))

    @property
    def sigma(self) -> float:
        """Standard deviation of one weight under the mixture."""
        return math.sqrt(self.pi * self.sigma1**2 + (1 - self.pi) * self.sigma2**2)

    def log_prob(self, w: Tensor, *, group_dim: int | None = None) -> Tensor:
        """Per weight (the shape of `w`), or per group: one value for each input unit, one for a vector.

        Args:
            group_dim: the axis of the input units; None: 1 for matrices (out, in) and convolutions (out, in, …).
        """
        if self.group == "weight":
            return self.of_squares(w.square(), 1)
        if w.ndim < 2:
            return self.of_squares(_SumOfSquares.apply(w, None), w.numel())
        axis = 1 if group_dim is None else group_dim % w.ndim
        return self.of_squares(_SumOfSquares.apply(w, axis), w.numel() // w.shape[axis])

    def of_squares(self, squares: Tensor, n: int) -> Tensor:
        """Log-density of groups of n weights, given each group's sum of squared weights; in log space throughout."""
        return group_log_density(squares, n, self.pi, self.sigma1, self.sigma2)

    def __repr__(self) -> str:
        return f"ScaleMixture(pi={self.pi:g}, sigma1={self.sigma1:g}, sigma2={self.sigma2:g}, group={self.group!r})"


class _SumOfSquares(torch.autograd.Function):
    """Sum of squares over all axes but one (None: over all), without a temporary of the size of `w`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(w: Tensor, axis: int | None) -> Tensor:
        dims = None if axis is None else [d for d in range(w.ndim) if d != axis]
        return torch.linalg.vector_norm(w, dim=dims).square()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        w, ctx.axis = inputs
        ctx.save_for_backward(w)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (w,) = ctx.saved_tensors
        if ctx.axis is not None:
            grad = grad.view([-1 if d == ctx.axis else 1 for d in range(w.ndim)])
        return (2 * grad) * w, None


def kernel_prior(prior: Prior) -> plan.KernelPrior:
    """The prior as the Gaussian kernels know it; "none" for one with a density of its own."""
    density = type(prior).log_prob
    if isinstance(prior, Normal) and density is Normal.log_prob:
        return plan.KernelPrior("normal", sigma1=prior.sigma)
    if isinstance(prior, ScaleMixture) and density is ScaleMixture.log_prob:
        kind = "groups" if prior.group == "input" else "weights"
        return plan.KernelPrior(kind, prior.pi, prior.sigma1, prior.sigma2)
    return plan.KernelPrior("none")


def log_prior(prior: Prior, weights: Mapping[str, Tensor], group_dims: Mapping[str, int | None]) -> Tensor:
    """log p(w), summed over all weights; `group_dims` names the axis of the input units of each tensor."""
    options = [{"group_dim": group_dims[name]} if _takes_group_dim(type(prior)) else {} for name in weights]
    return torch.stack([prior.log_prob(w, **o).sum() for w, o in zip(weights.values(), options, strict=True)]).sum()


@cache
def _takes_group_dim(kind: type) -> bool:
    return "group_dim" in inspect.signature(kind.log_prob).parameters  # type: ignore[attr-defined]
