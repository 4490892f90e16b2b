"""Log-density of a mixture of two Gaussians around zero, pi N(0, sigma1^2) + (1 - pi) N(0, sigma2^2)."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesrnn.kernels.shared.derivatives import OnceFunction, once_differentiable

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


class LogDensitySum(OnceFunction):
    """`LogDensitySum.apply(w, pi, sigma1, sigma2)`: the sum of the log-densities of all weights, without temporaries.

    With a the log of the wider component's term, and d the log of the narrower one's over it, log p = a + softplus(d)
    and dlog p / dw = -w (1 / wide^2 + (1 / narrow^2 - 1 / wide^2) sigmoid(d)): nothing large cancels, at any w.
    """

    @staticmethod
    def forward(ctx: Any, w: Tensor, pi: float, sigma1: float, sigma2: float) -> Tensor:
        ctx.save_for_backward(w)
        share, wide, narrow = wide_first(pi, sigma1, sigma2)
        ctx.wide, ctx.narrow = 1 / wide**2, 1 / narrow**2
        ctx.offset = math.log((1 - share) / share) + math.log(wide / narrow)
        total = torch.zeros((), dtype=torch.float64, device=w.device)
        for block in _blocks(w):
            squares = block * block
            total -= 0.5 * ctx.wide * squares.sum(dtype=torch.float64)
            ratio = squares.mul_(0.5 * (ctx.wide - ctx.narrow)).add_(ctx.offset)
            total += F.softplus(ratio, threshold=50).sum(dtype=torch.float64)
        constant = w.numel() * (math.log(share) - math.log(wide) - 0.5 * _LOG_2PI)
        return (total + constant).to(w.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        (w,) = ctx.saved_tensors
        out = torch.empty_like(w)
        for block, result in zip(_blocks(w), _blocks(out), strict=True):
            torch.mul(block, block, out=result).mul_(0.5 * (ctx.wide - ctx.narrow)).add_(ctx.offset).sigmoid_()
            result.mul_(ctx.wide - ctx.narrow).sub_(ctx.wide).mul_(block).mul_(grad)
        return out, None, None, None


def _blocks(w: Tensor) -> tuple[Tensor, ...]:
    flat = w.view(-1)
    return flat.split(1 << 18) if w.device.type == "cpu" and w.numel() else (flat,)
