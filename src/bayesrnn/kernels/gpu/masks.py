# mypy: disable-error-code="no-untyped-def"
"""Masks of many draws on a GPU in one launch, each from its own seed.

A number depends on the seed of its draw and on its place in the mask alone (Philox4x32-10, Salmon et al. 2011, four
numbers for every counter), so that a draw has the same masks alone and among any others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from bayesrnn.kernels.gpu.launches import on

_BLOCK = 256  # counters of one program


@triton.jit
def _value(word, other, keep, scale, GAUSSIAN: tl.constexpr):
    """Two multipliers of two random words."""
    if GAUSSIAN:
        first, second = tl.pair_uniform_to_normal(tl.uint_to_uniform_float(word), tl.uint_to_uniform_float(other))
        return 1 + scale * first, 1 + scale * second
    else:
        return (
            tl.where((word >> 1).to(tl.int32) < keep, scale, 0.0),
            tl.where((other >> 1).to(tl.int32) < keep, scale, 0.0),
        )


@triton.jit(do_not_specialize=["count", "keep"])
def _fill(seeds, out, count, keep, scale, GAUSSIAN: tl.constexpr, BLOCK: tl.constexpr):
    """The mask of one draw: `count` numbers."""
    draw = tl.program_id(1)
    quad = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    counter = quad.to(tl.uint32)
    a, b, c, d = tl.philox(tl.load(seeds + draw), counter, counter * 0, counter * 0, counter * 0)
    first, second = _value(a, b, keep, scale, GAUSSIAN)
    third, fourth = _value(c, d, keep, scale, GAUSSIAN)
    place = 4 * quad
    here = out + draw.to(tl.int64) * count + place
    tl.store(here, first, mask=place < count)
    tl.store(here + 1, second, mask=place + 1 < count)
    tl.store(here + 2, third, mask=place + 2 < count)
    tl.store(here + 3, fourth, mask=place + 3 < count)


def masks(seeds: Sequence[int], shape: Sequence[int], p: float, *, gaussian: bool, device: torch.device) -> Tensor:
    """(draws, *shape) of float32: Bernoulli(1-p)/(1-p) multipliers, or N(1, p/(1-p)), those of draw k from seeds[k]."""
    out = torch.empty((len(seeds), *shape), dtype=torch.float32, device=device)
    count = math.prod(shape)
    if not count:
        return out
    if count >= 2**31:
        raise ValueError(f"a mask has fewer than 2^31 numbers, got {count:,}")
    keep = min(round((1 - p) * 2**31), 2**31 - 1)
    scale = (p / (1 - p)) ** 0.5 if gaussian else 1 / (1 - p)
    numbers = torch.tensor(list(seeds), dtype=torch.int64, device=device)
    grid = (triton.cdiv(count, 4 * _BLOCK), len(seeds))
    with on(device):
        _fill[grid](numbers, out, count, keep, scale, GAUSSIAN=gaussian, BLOCK=_BLOCK, num_warps=4)
    return out
