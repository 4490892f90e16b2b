"""What every launch over the tiles of a plan needs: its constants, its tensors and memory for drawn weights."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from bayesrnn.kernels.gaussian.plan import FIELDS, DrawSpec, Launch, TilePlan

ELEMENTS = {
    torch.float64: tl.float64,
    torch.float32: tl.float32,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
}
_WARPS = 8
_AT_ONCE = 2048  # elements that a program has in its registers at a time


def tile_options(launch: Launch, *tensors: Sequence[Tensor]) -> dict[str, int]:
    """A tile is worked on a few rows at a time, so that its numbers fit into registers.

    Four neighbours are loaded at once where all of these tensors lie at multiples of 16 bytes.
    """
    rows = min(launch.rows, max(4, _AT_ONCE // launch.columns))
    vectors = launch.vectors and not any(t.data_ptr() & 15 for part in tensors for t in part)
    return {
        "VECTORS": vectors, "R": rows, "C": launch.columns, "STEPS": launch.rows // rows, "N": len(launch.which),
        "F": len(FIELDS), "num_warps": _WARPS,
    }  # fmt: skip


def on(device: torch.device) -> AbstractContextManager[Any]:
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def pick(tensors: Sequence[Tensor], launch: Launch) -> tuple[Tensor, ...]:
    return tuple(tensors[k] for k in launch.which)


def allocate(spec: DrawSpec, made: TilePlan) -> list[Tensor]:
    """Memory for the drawn weights. Not views of one tensor, which autograd would treat as such."""
    out: dict[int, Tensor] = {}
    for buffer in made.buffers:
        memory = torch.empty(buffer.size, dtype=buffer.dtype, device=spec.device).untyped_storage()
        for k, offset in buffer.parts:
            shape = spec.shapes[k]
            empty = torch.empty(0, dtype=buffer.dtype, device=spec.device)
            out[k] = empty.set_(memory, offset, shape, _strides(shape))
    return [out[k] for k in range(len(spec.shapes))]


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))
