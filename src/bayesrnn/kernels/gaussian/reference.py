"""Diagonal Gaussian weights in plain torch operations: the truth that the other paths are compared with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesrnn.kernels.cpu.memory import Pool
from bayesrnn.kernels.dispatch import reference_path
from bayesrnn.kernels.gaussian.plan import Drawn, DrawSpec


class Sample(NamedTuple):
    """One draw of the weights, and the sums over it that the KL needs."""

    weights: list[Tensor]
    log_sigma: Tensor
    """Sum of log sigma over all weights."""
    sigma_squared: Tensor
    """Sum of sigma^2 over all weights."""
    squares: list[Tensor]
    """For each tensor the sums of its squared weights, one per group; empty where no groups were asked for."""


def group_log_density(squares: Tensor, n: int, pi: float, sigma1: float, sigma2: float) -> Tensor:
    """log(pi N(0, sigma1^2) + (1 - pi) N(0, sigma2^2)) of groups of n weights, given each group's sum of squares."""
    parts = []
    for share, sigma in ((pi, sigma1), (1 - pi, sigma2)):
        constant = math.log(share) - n * (math.log(sigma) + 0.5 * math.log(2 * math.pi))
        parts.append(constant - squares * (0.5 / sigma**2))
    return torch.logaddexp(*parts)


def group_squares(weight: Tensor, group_dim: int | None) -> Tensor:
    """Sum of squares for each index along `group_dim`; None: one sum for the whole tensor."""
    dims = [d for d in range(weight.ndim) if d != group_dim]
    return weight.square().sum(dims) if dims else weight.square()


def sample(
    means: Sequence[Tensor],
    rhos: Sequence[Tensor],
    noise: Sequence[Tensor],
    group_dims: Sequence[int | None] | None = None,
    *,
    sums: bool = True,
) -> Sample:
    """theta = mean + sigma * noise with sigma = softplus(rho); without `sums` they are zeros."""
    sigmas = [F.softplus(rho) for rho in rhos]
    weights = [m + s * e.to(m) for m, s, e in zip(means, sigmas, noise, strict=True)]
    if not sums:
        return Sample(weights, means[0].new_zeros(()), means[0].new_zeros(()), [])
    pairs = zip(weights, group_dims or (), strict=group_dims is not None)
    return Sample(
        weights,
        torch.stack([_log_sigma(rho) for rho in rhos]).sum(),
        torch.stack([_wide(s).square().sum() for s in sigmas]).sum(),
        [] if group_dims is None else [group_squares(_wide(w), g) for w, g in pairs],
    )


def _wide(x: Tensor) -> Tensor:
    """At least float32: sums of many weights are more than half precision holds."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _log_sigma(rho: Tensor) -> Tensor:
    """The sum of log softplus(rho), which is rho itself where softplus underflows."""
    wide = _wide(rho)
    bounded = wide.clamp_min(-36.0)
    return (F.softplus(bounded).log() + (wide - bounded)).sum()


def kl_of(
    sample: Sample,
    spec: DrawSpec,
    means: Sequence[Tensor],
    noise: Sequence[Tensor],
) -> Tensor:
    """KL(q || p): exact for a normal prior, log q(theta) - log p(theta) for a mixture, log q alone for "none"."""
    prior, count = spec.prior, sum(m.numel() for m in means)
    if prior.kind == "normal":
        squares = sum(torch.linalg.vector_norm(_wide(m)).square() for m in means)
        squared = (sample.sigma_squared + squares) / (2 * prior.sigma1**2)
        return squared - sample.log_sigma + count * (math.log(prior.sigma1) - 0.5)
    half_squares = sum(0.5 * torch.linalg.vector_norm(_wide(e)).square() for e in noise)
    log_q = -sample.log_sigma - half_squares - 0.5 * count * math.log(2 * math.pi)
    if prior.kind == "none":
        return log_q
    if prior.kind == "groups":
        pairs = zip(means, sample.squares, strict=True)
        terms = [group_log_density(s, m.numel() // max(s.numel(), 1), *prior[1:]).sum() for m, s in pairs]
    else:
        terms = [group_log_density(_wide(w).square(), 1, *prior[1:]).sum() for w in sample.weights]
    return log_q - torch.stack(terms).sum()


def draw(
    noise: Sequence[Tensor],
    spec: DrawSpec,
    means: Sequence[Tensor],
    rhos: Sequence[Tensor],
    *,
    pool: Pool | None = None,
    sums: bool = True,
) -> Drawn:
    """theta = mean + softplus(rho) * noise, and with `sums` the KL.

    Args:
        noise, means, rhos: one tensor for each shape of the spec.
        pool: not used here.
    """
    found = sample(means, rhos, noise, spec.group_dims if spec.prior.kind == "groups" else None, sums=sums)
    return Drawn(tuple(found.weights), kl_of(found, spec, means, noise) if sums else None)


def sharpen(
    noise: Sequence[Tensor] | None,
    spec: DrawSpec,
    phis: Sequence[Tensor],
    etas: Sequence[Tensor],
    gradients: Sequence[Tensor],
    *,
    sigma0: float,
) -> tuple[Tensor, list[Tensor]]:
    """The sum of (eta g)^2, and theta = phi - eta g + sigma0 noise (arXiv 1704.02798, section 4)."""
    steps = [eta * g for eta, g in zip(etas, gradients, strict=True)]
    thetas = [phi - step for phi, step in zip(phis, steps, strict=True)]
    if noise is not None:
        thetas = [theta + sigma0 * eps for theta, eps in zip(thetas, noise, strict=True)]
    return torch.stack([step.square().sum() for step in steps]).sum(), thetas


PATHS = (reference_path("gaussian", draw), reference_path("sharpening", sharpen))
