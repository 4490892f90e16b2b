"""What every launch over the tiles of a plan needs: its constants, its tensors and memory for drawn weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from bayesrnn.kernels.gaussian.plan import FIELDS, DrawSpec, Launch, plan

ELEMENTS = {
    torch.float64: tl.float64,
    torch.float32: tl.float32,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
}
_WARPS = 8
_AT_ONCE = 2048  # elements that a program has in its registers at a time


def element_options(spec: DrawSpec) -> dict[str, Any]:
    return {
        "ELEMENT": ELEMENTS[spec.dtype],
        "COMPUTE": tl.float64 if spec.dtype == torch.float64 else tl.float32,
    }


def launches(spec: DrawSpec, *lists: Sequence[Tensor]) -> Iterator[tuple[Launch, list[tuple[Tensor, ...]], Any]]:
    """Every launch over the tiles of a spec's weights, with its own tensors of each list and its constants.

    A tile is worked on a few rows at a time, so that its numbers fit into registers. Four neighbours are loaded at once
    where all of these tensors lie at multiples of 16 bytes.
    """
    with on(spec.device):
        for launch in plan(spec).launches:
            if launch.tiles:
                own = [tuple(tensors[k] for k in launch.which) for tensors in lists]
                rows = min(launch.rows, max(4, _AT_ONCE // launch.columns))
                vectors = launch.vectors and not any(t.data_ptr() & 15 for part in own for t in part)
                yield launch, own, {
                    "VECTORS": vectors, "R": rows, "C": launch.columns, "STEPS": launch.rows // rows,
                    "N": len(launch.which), "F": len(FIELDS), "num_warps": _WARPS,
                }  # fmt: skip


def on(device: torch.device) -> AbstractContextManager[Any]:
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def flat_parts(spec: DrawSpec, flat: Tensor) -> list[Tensor]:
    """Each tensor's gradient in a flat buffer of `TilePlan.size` elements."""
    pairs = zip(plan(spec).offsets, spec.shapes, strict=True)
    return [flat[at : at + math.prod(shape)].view(shape) for at, shape in pairs]


def allocate(spec: DrawSpec) -> list[Tensor]:
    """Memory for the drawn weights. Not views of one tensor, which autograd would treat as such."""
    out: dict[int, Tensor] = {}
    for buffer in plan(spec).buffers:
        memory = torch.empty(buffer.size, dtype=buffer.dtype, device=spec.device).untyped_storage()
        for k, offset in buffer.parts:
            empty: Any = torch.empty(0, dtype=buffer.dtype, device=spec.device)
            out[k] = empty.set_(memory, offset, spec.shapes[k])
    return [out[k] for k in range(len(spec.shapes))]
