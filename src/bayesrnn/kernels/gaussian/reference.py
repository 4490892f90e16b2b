"""Diagonal Gaussian weights in plain torch operations: the truth that `fused` is compared with."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def sample(means: Sequence[Tensor], rhos: Sequence[Tensor], noise: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
    """theta = mean + sigma * noise with sigma = softplus(rho), and the sums (sum log sigma, sum sigma^2)."""
    sigmas = [F.softplus(rho) for rho in rhos]
    weights = [m + s * e.to(m) for m, s, e in zip(means, sigmas, noise, strict=True)]
    logs = torch.stack([s.log().sum() for s in sigmas]).sum()
    squares = torch.stack([s.square().sum() for s in sigmas]).sum()
    return weights, torch.stack([logs, squares])
