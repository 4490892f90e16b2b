"""Diagonal Gaussian weights in plain torch operations: the truth that `fused` is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Sample(NamedTuple):
    """One draw of the weights, and the sums over it that the KL needs."""

    weights: list[Tensor]
    log_sigma: Tensor
    """Sum of log sigma over all weights."""
    sigma_squared: Tensor
    """Sum of sigma^2 over all weights."""
    squares: list[Tensor]
    """For each tensor the sums of its squared weights, one per group; empty where no groups were asked for."""


def group_squares(weight: Tensor, group_dim: int | None) -> Tensor:
    """Sum of squares for each index along `group_dim`; None: one sum for the whole tensor."""
    dims = [d for d in range(weight.ndim) if d != group_dim]
    return weight.square().sum(dims) if dims else weight.square()


def sample(
    means: Sequence[Tensor],
    rhos: Sequence[Tensor],
    noise: Sequence[Tensor],
    group_dims: Sequence[int | None] | None = None,
) -> Sample:
    """theta = mean + sigma * noise with sigma = softplus(rho)."""
    sigmas = [F.softplus(rho) for rho in rhos]
    weights = [m + s * e.to(m) for m, s, e in zip(means, sigmas, noise, strict=True)]
    squares = [] if group_dims is None else [group_squares(w, g) for w, g in zip(weights, group_dims, strict=True)]
    return Sample(
        weights,
        torch.stack([s.log().sum() for s in sigmas]).sum(),
        torch.stack([s.square().sum() for s in sigmas]).sum(),
        squares,
    )
