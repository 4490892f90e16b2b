# mypy: disable-error-code="no-untyped-def"
"""Clipping by the global norm and a step of SGD on a GPU: gradients are read twice, parameters read and written once.

Three launches, whatever the number of tensors (up to `_AT_ONCE` each): sums of squares, the norm, the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from bayesrnn.kernels.update import reference

_BLOCK = 4096
_AT_ONCE = 48  # tensors per launch


@triton.jit
def _place(table, N: tl.constexpr, B: tl.constexpr):
    """The tensor of this program, the elements of its block, and which of them exist."""
    program = tl.program_id(0)
    k = 0
    for j in tl.static_range(1, N):
        k += (program >= tl.load(table + 2 * j)).to(tl.int32)
    at = (program - tl.load(table + 2 * k).to(tl.int32)) * B + tl.arange(0, B)
    return k, at, at < tl.load(table + 2 * k + 1)


@triton.jit
def _select(pointers, k, N: tl.constexpr, ELEMENT: tl.constexpr):
    found = pointers[0].to(tl.int64)
    for j in tl.static_range(1, N):
        found = tl.where(k == j, pointers[j].to(tl.int64), found)
    return found.to(tl.pointer_type(ELEMENT))


@triton.jit
def _squares(gradients, table, sums, N: tl.constexpr, B: tl.constexpr, ELEMENT: tl.constexpr):
    k, at, exists = _place(table, N, B)
    g = tl.load(_select(gradients, k, N, ELEMENT) + at, mask=exists, other=0.0).to(tl.float32)
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
    weights, gradients, table, scale,
    DECAY: tl.constexpr, N: tl.constexpr, B: tl.constexpr, ELEMENT: tl.constexpr,
):  # fmt: skip
    k, at, exists = _place(table, N, B)
    place = _select(weights, k, N, ELEMENT) + at
    w = tl.load(place, mask=exists, other=0.0).to(tl.float32)
    g = tl.load(_select(gradients, k, N, ELEMENT) + at, mask=exists, other=0.0).to(tl.float32)
    tl.store(place, (w - tl.load(scale + 1) * g - DECAY * w).to(ELEMENT), mask=exists)


class _Launch(NamedTuple):
    first: int
    tensors: int
    blocks: int
    first_sum: int
    table: Tensor


@lru_cache(maxsize=64)
def _plan(sizes: tuple[int, ...], device: torch.device) -> tuple[tuple[_Launch, ...], int]:
    """Kept, since a CUDA graph cannot make the tables while it is recorded."""
    launches, total = [], 0
    for first in range(0, len(sizes), _AT_ONCE):
        lines, blocks = [], 0
        for n in sizes[first : first + _AT_ONCE]:
            lines.append((blocks, n))
            blocks += -(-n // _BLOCK)
        table = torch.tensor(lines, dtype=torch.int64, device=device)
        launches.append(_Launch(first, len(lines), blocks, total, table))
        total += blocks
    return tuple(launches), total


_ELEMENTS = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


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
    element = _ELEMENTS[params[0].dtype]
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        for launch in launches:
            part = tuple(dense[launch.first : launch.first + launch.tensors])
            if launch.blocks:
                _squares[(launch.blocks,)](
                    part, launch.table, sums[launch.first_sum :], N=launch.tensors, B=_BLOCK, ELEMENT=element,
                    num_warps=8,
                )  # fmt: skip
        _scale[(1,)](sums, rate, scale, blocks, CLIP=clip, B=1024, num_warps=8)
        for launch in launches:
            own = tuple(p.detach() for p in params[launch.first : launch.first + launch.tensors])
            part = tuple(dense[launch.first : launch.first + launch.tensors])
            if launch.blocks:
                _step[(launch.blocks,)](
                    own, part, launch.table, scale, DECAY=decay, N=launch.tensors, B=_BLOCK, ELEMENT=element,
                    num_warps=8,
                )  # fmt: skip
    torch.autograd.graph.increment_version(list(params))
    return scale[0]
