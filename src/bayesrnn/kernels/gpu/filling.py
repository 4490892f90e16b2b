# mypy: disable-error-code="no-untyped-def,assignment"
"""Copies of matrices in rows of whole 16 bytes on a GPU, in one launch: masked, in another precision, filled up."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from bayesrnn.kernels.gpu.launches import ELEMENTS, on

_ROWS, _COLUMNS = 4, 256


@triton.jit
def _filled(
    x, mask, beside, out, rows, columns, height, width, stride, batch, across, down,
    TAIL: tl.constexpr, BY_GATE: tl.constexpr, MASKED: tl.constexpr, BESIDE: tl.constexpr, COMPUTE: tl.constexpr,
    R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """R rows of C columns of one gate. BY_GATE: every gate has rows of its own; else all have the same."""
    gate = tl.program_id(2)
    row = tl.program_id(0) * R + tl.arange(0, R)
    column = tl.program_id(1) * C + tl.arange(0, C)
    source = row.to(tl.int64)
    if BY_GATE:
        source += gate.to(tl.int64) * rows
    there = (row < rows)[:, None]
    inside = there & (column < columns)[None, :]
    value = tl.load(x + source[:, None] * stride + column[None, :], mask=inside, other=0.0).to(COMPUTE)
    if MASKED:
        place = (row % batch)[:, None] * down + gate * across + column[None, :]
        value *= tl.load(mask + place, mask=inside, other=0.0).to(COMPUTE)
    value = tl.where((column < columns)[None, :] | (row >= rows)[:, None], value, TAIL)
    if BESIDE:
        shift = tl.load(beside + source, mask=row < rows, other=0.0).to(COMPUTE)
        value = tl.where((column == columns)[None, :], shift[:, None], value)
    to = (gate.to(tl.int64) * height + row)[:, None] * width + column[None, :]
    tl.store(out + to, value.to(out.dtype.element_ty), mask=(row < height)[:, None] & (column < width)[None, :])


def filled(
    x: Tensor,
    shape: tuple[int, int, int],
    dtype: torch.dtype,
    *,
    mask: Tensor | None = None,
    by_gate: bool = False,
    tail: float = 0.0,
    beside: Tensor | None = None,
) -> Tensor:
    """x in memory of this shape (gates, height, width), with `tail` in the columns beyond its own, 0 in rows beyond.

    Args:
        x: (rows, columns); `by_gate`: (gates * rows, columns), each gate's rows one after the other.
        mask: multiplies x: (B, columns), or (B, gates, columns), with B the sequences of time-major rows.
        beside: (gates * rows,) for the first column beyond x.
    """
    gates, height, width = shape
    out = torch.empty(shape, dtype=dtype, device=x.device)
    x = x if x.stride(1) == 1 else x.contiguous()
    mask = None if mask is None else mask.contiguous()
    columns = x.shape[1]
    rows = x.shape[0] // (gates if by_gate else 1)
    untied = mask is not None and mask.ndim == 3
    double = torch.float64 in (x.dtype, dtype)
    with on(x.device):
        _filled[(triton.cdiv(height, _ROWS), triton.cdiv(width, _COLUMNS), gates)](
            x, mask, beside, out, rows, columns, height, width, x.stride(0), 1 if mask is None else mask.shape[0],
            columns if untied else 0, columns * (gates if untied else 1),
            TAIL=tail, BY_GATE=by_gate, MASKED=mask is not None, BESIDE=beside is not None,
            COMPUTE=ELEMENTS[torch.float64 if double else torch.float32], R=_ROWS, C=_COLUMNS, num_warps=4,
        )  # fmt: skip
    return out
