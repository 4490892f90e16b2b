# mypy: disable-error-code="no-untyped-def"
"""Clipping by the global norm and a step of SGD on a GPU: gradients are read twice, parameters read and written once.

Three launches, whatever the number of tensors (up to `_AT_ONCE` each): sums of squares, the norm, the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from bayesrnn.kernels.gpu.launches import on
from bayesrnn.kernels.gpu.tiles import address_of, pointer_to
from bayesrnn.kernels.shared.tables import kept
from bayesrnn.kernels.update import reference

_BLOCK = 4096
_AT_ONCE = 48  # tensors per launch


@triton.jit
def _place(blocks, program, B: tl.constexpr):
    """The tensor of this block, the block's elements, and how many of its tensor's there are from its first on."""
    own = blocks + 3 * program
    return tl.load(own), tl.load(own + 1) * B + tl.arange(0, B), tl.load(own + 2)


@triton.jit
def _select(pointers, k, N: tl.constexpr, ELEMENT: tl.constexpr, ALIGNED: tl.constexpr):
    return pointer_to(address_of(pointers, k, N), ELEMENT, ALIGNED)


@triton.jit
def _load(pointer, left, B: tl.constexpr):
    """A block; without a mask where it is whole, so that neighbours are loaded together."""
    if left >= B:
        found = tl.load(pointer).to(tl.float32)
    else:
        found = tl.load(pointer, mask=tl.arange(0, B) < left, other=0.0).to(tl.float32)
    return found


@triton.jit
def _squares(gradients, blocks, sums, N: tl.constexpr, B: tl.constexpr, ELEMENT: tl.constexpr, ALIGNED: tl.constexpr):
    k, at, left = _place(blocks, tl.program_id(0), B)
    g = _load(_select(gradients, k, N, ELEMENT, ALIGNED) + at, left, B)
    tl.store(sums + tl.program_id(0), tl.sum(g * g, 0).to(tl.float64))


@triton.jit
def _scale(sums, rate, out, count, CLIP: tl.constexpr, B: tl.constexpr):
    """The norm, and what gradients are multiplied with."""
    total = tl.zeros((B,), tl.float64)
    for first in range(0, count, B):
        at = first + tl.arange(0, B)
        total += tl.load(sums + at, mask=at < count, other=0.0)
    norm = tl.sqrt(tl.sum(total, 0))
    factor = tl.load(rate).to(tl.float64)
    if CLIP is not None:
        factor *= tl.minimum(CLIP / (norm + 1e-6), 1.0, propagate_nan=tl.PropagateNan.ALL)
    tl.store(out, norm)
    tl.store(out + 1, factor)


@triton.jit
def _step(
    weights, gradients, blocks, scale,
    DECAY: tl.constexpr, N: tl.constexpr, B: tl.constexpr, ELEMENT: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    # from the last block to the first: the gradients that were read last are still in the cache
    k, at, left = _place(blocks, tl.num_programs(0) - 1 - tl.program_id(0), B)
    place = _select(weights, k, N, ELEMENT, ALIGNED) + at
    w = _load(place, left, B)
    g = _load(_select(gradients, k, N, ELEMENT, ALIGNED) + at, left, B)
    new = (w - tl.load(scale + 1) * g - DECAY * w).to(ELEMENT)
    if left >= B:
        tl.store(place, new)
    else:
        tl.store(place, new, mask=tl.arange(0, B) < left)


class _Launch(NamedTuple):
    part: slice
    """Which of the tensors."""
    blocks: int
    first_sum: int
    places: Tensor
    """For each block: its tensor, its index in that tensor, and the elements that remain from its start."""


@kept
def _plan(sizes: tuple[int, ...], device: torch.device) -> tuple[tuple[_Launch, ...], int]:
    """The launches over tensors of these sizes, with their tables on the device; and how many blocks there are."""
    launches, total = [], 0
    for first in range(0, len(sizes), _AT_ONCE):
        part = slice(first, first + _AT_ONCE)
        lines = [(k, b, n - b * _BLOCK) for k, n in enumerate(sizes[part]) for b in range(-(-n // _BLOCK))]
        if lines:
            places = torch.tensor(lines, dtype=torch.int32, device=device)
            launches.append(_Launch(part, len(lines), total, places))
        total += len(lines)
    return tuple(launches), total


_ELEMENTS = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


def _aligned(tensors: Sequence[Tensor]) -> bool:
    """Whether all lie at multiples of 16 bytes, so that four neighbours can be loaded at once."""
    return not any(t.data_ptr() & 15 for t in tensors)


def clipped_step(
    params: Sequence[Tensor], gradients: Sequence[Tensor], *, rate: Tensor, clip: float | None, decay: float = 0.0
) -> Tensor:
    """As `reference.clipped_step`, which runs parameters that the kernels do not know: of mixed types, or not dense."""
    kinds = {(p.dtype, p.device) for p in params} | {(g.dtype, g.device) for g in gradients}
    known = len(kinds) == 1 and params[0].dtype in _ELEMENTS and max(p.numel() for p in params) < 1 << 30
    if not known or not all(p.is_contiguous() for p in params):
        return reference.clipped_step(params, gradients, rate=rate, clip=clip, decay=decay)
    device = params[0].device
    launches, blocks = _plan(tuple(p.numel() for p in params), device)
    dense = [g.contiguous() for g in gradients]
    sums = torch.empty(blocks, dtype=torch.float64, device=device)
    scale = torch.empty(2, dtype=torch.float32, device=device)
    options = {"B": _BLOCK, "ELEMENT": _ELEMENTS[params[0].dtype], "num_warps": 8}
    with on(device):
        for part, count, first, places in launches:
            own = tuple(dense[part])
            _squares[(count,)](own, places, sums[first:], N=len(own), ALIGNED=_aligned(own), **options)
        _scale[(1,)](sums, rate, scale, blocks, CLIP=clip, B=1024, num_warps=8)
        for part, count, _, places in launches:
            weights, own = tuple(p.detach() for p in params[part]), tuple(dense[part])
            aligned = _aligned((*weights, *own))
            _step[(count,)](weights, own, places, scale, DECAY=decay, N=len(own), ALIGNED=aligned, **options)
    torch.autograd.graph.increment_version(list(params))
    return scale[0]
