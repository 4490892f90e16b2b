"""Log-density of a mixture of two Gaussians around zero, pi N(0, sigma1^2) + (1 - pi) N(0, sigma2^2)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_LOG_2PI = math.log(2 * math.pi)


def wide_first(pi: float, sigma1: float, sigma2: float) -> tuple[float, float, float]:
    """(share of the wider component, its sigma, the other's)."""
    return (pi, sigma1, sigma2) if sigma1 >= sigma2 else (1 - pi, sigma2, sigma1)


def group_log_density(squares: Tensor, n: int, pi: float, sigma1: float, sigma2: float) -> Tensor:
    """Log-density of groups of n weights, given each group's sum of squared weights; in log space throughout."""
    parts = []
    for share, sigma in ((pi, sigma1), (1 - pi, sigma2)):
        constant = math.log(share) - n * (math.log(sigma) + 0.5 * _LOG_2PI)
        parts.append(constant - squares * (0.5 / sigma**2))
    return torch.logaddexp(*parts)
