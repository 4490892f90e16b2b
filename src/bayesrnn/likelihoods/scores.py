"""The continuous ranked probability score of a distribution function."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

_PANELS, _NODES = 96, 256  # most panels; points of all panels together, at least
_SPACING, _REACH = 0.08, 4.0  # of the points of the double exponential rule
FAR = math.exp(0.5 * math.pi * math.sinh(_REACH - _SPACING / 2)) / 8
"""How far beyond the bends the double exponential rule reaches, over the distance between the outermost."""
_STRIDES = 1024  # on each side of y; beyond that many counts, they are integrated


def continuous_crps(cdf: Callable[[Tensor], Tensor], y: Tensor, bends: Tensor) -> Tensor:
    """By Gauss and Legendre between ``bends`` (N, ...) and y (...), by the double exponential rule beyond them.

    A narrow part far from the others keeps its own panels. Many bends are thinned out: then each has little weight.
    """
    bends = torch.cat([bends, y[None]]).sort(0).values
    if len(bends) > _PANELS:
        bends = bends[torch.linspace(0, len(bends) - 1, _PANELS, device="cpu").round().long().to(bends.device)]
        bends = torch.cat([bends, y[None]]).sort(0).values
    total = torch.zeros_like(y)
    nodes, weights = np.polynomial.legendre.leggauss(max(8, _NODES // len(bends)))
    for low, high in pairwise(bends):
        half, step = (high - low) / 2, (low >= y).double()
        for node, weight in zip(nodes.tolist(), weights.tolist(), strict=True):
            total += weight * half * (cdf(low + half * (1 + node)) - step).square()
    scale = (bends[-1] - bends[0]).clamp_min(1e-300) / 8
    for u in torch.arange(-_REACH, _REACH, _SPACING, dtype=torch.float64, device="cpu").tolist():
        t = math.exp(0.5 * math.pi * math.sinh(u)) * scale
        beyond = cdf(bends[0] - t).square() + (1 - cdf(bends[-1] + t)).square()
        total += _SPACING * t * 0.5 * math.pi * math.cosh(u) * beyond
    return total


def count_crps(cdf: Callable[[Tensor], Tensor], y: Tensor, last: Tensor) -> Tensor:
    """The sum over whole numbers below ``last`` (...)."""
    below = _sum(lambda k: cdf(k).square(), torch.zeros_like(y), y)
    return below + _sum(lambda k: (1 - cdf(k)).square(), y, last)


def _sum(value: Callable[[Tensor], Tensor], begin: Tensor, end: Tensor) -> Tensor:
    """Of values at begin, begin + 1, ..., end - 1; exact where there are few, else linear between strides."""
    strides = int((end - begin).max().clamp(0, _STRIDES)) if end.numel() else 0
    total, k, here = torch.zeros_like(end), begin, value(begin)
    for i in range(1, strides + 1):
        share = i / strides
        if strides == _STRIDES:  # short strides near the ends, where a skewed distribution bends
            share *= share * (3 - 2 * share)
        following = begin + ((end - begin) * share).floor()
        there = value(following)
        total += ((following - k) * (here + there) + here - there) / 2
        k, here = following, there
    return total
