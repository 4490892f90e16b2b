"""Diagonal Gaussian weights in plain torch operations: the truth that `fused` is compared with."""

from __future__ import annotations

import math
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


def normals(seed: int, counters: Tensor) -> Tensor:
    """The noise of the kernels on a GPU in float64: four normal numbers for every counter, (..., 4).

    Philox4x32-10 (Salmon et al. 2011) with the seed as its key, and the transform of Box and Muller (1958).
    """
    word = 0xFFFFFFFF
    a, b = counters & word, (counters >> 32) & word
    c = d = torch.zeros_like(a)
    for k in range(10):
        keys = ((seed & word) + k * 0x9E3779B9) & word, ((seed >> 32) + k * 0xBB67AE85) & word
        first, second = a * 0xD2511F53, c * 0xCD9E8D57  # modulo 2^64
        a, b, c, d = (
            ((second >> 32) & word) ^ b ^ keys[0], second & word, ((first >> 32) & word) ^ d ^ keys[1], first & word
        )  # fmt: skip
    return torch.cat([box_muller(a, b), box_muller(c, d)], dim=-1)


def box_muller(a: Tensor, b: Tensor) -> Tensor:
    """Two normal numbers, (..., 2), of two 32-bit words: the radius from a, the angle from b."""
    radius = (-2 * ((a.double() + 0.5) / 2**32).log()).sqrt()
    angle = b.double() * (2 * math.pi / 2**32)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=-1)
