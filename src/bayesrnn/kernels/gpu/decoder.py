# mypy: disable-error-code="no-untyped-def,assignment"
"""Softmax over the logits of some rows and its gradient on a GPU: each reads the logits once.

The products around them are cuBLAS's.
"""

from __future__ import annotations

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from bayesrnn.kernels.decoder.loop import Rows, by_rows
from bayesrnn.kernels.gpu.launches import on

_BLOCK = 4096


@triton.jit
def _score_rows(logits, targets, logs, norms, V, stride, B: tl.constexpr, COMPUTE: tl.constexpr):
    """Write the log-sum-exp of one row's V logits, and its target's log-probability."""
    row = tl.program_id(0).to(tl.int64)
    own = logits + row * stride
    largest = tl.full((), -float("inf"), COMPUTE)
    total = tl.zeros((), COMPUTE)
    for first in range(0, V, B):
        at = first + tl.arange(0, B)
        x = tl.load(own + at, mask=at < V, other=-float("inf")).to(COMPUTE)
        new = tl.maximum(largest, tl.max(x, 0))
        total = total * tl.exp(largest - new) + tl.sum(tl.exp(x - new), 0)
        largest = new
    norm = largest + tl.log(total)
    tl.store(norms + row, norm)
    tl.store(logs + row, tl.load(own + tl.load(targets + row)).to(COMPUTE) - norm)


@triton.jit
def _error_rows(logits, targets, norms, gradients, out, V, stride, B: tl.constexpr):
    """Write a block of one row of gradient * (one-hot target - softmax)."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * B + tl.arange(0, B)
    norm = tl.load(norms + row)
    x = tl.load(logits + row * stride + at, mask=at < V, other=-float("inf")).to(norm.dtype)
    error = tl.where(at == tl.load(targets + row), 1.0, 0.0) - tl.exp(x - norm)
    tl.store(out + row * stride + at, (error * tl.load(gradients + row)).to(out.dtype.element_ty), mask=at < stride)


def _score(logits: Tensor, target: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    rows, kind = len(logits), torch.promote_types(logits.dtype, torch.float32)
    logs, norms = (torch.empty(rows, dtype=kind, device=logits.device) for _ in range(2))
    compute = tl.float64 if kind == torch.float64 else tl.float32
    with on(logits.device):
        _score_rows[(rows,)](
            logits, target, logs, norms, classes, logits.stride(0), B=_BLOCK, COMPUTE=compute, num_warps=8
        )
    return logs, norms


def _error(logits: Tensor, target: Tensor, norms: Tensor, gradient: Tensor, classes: int, kept: bool) -> Tensor:
    out, width = torch.empty_like(logits) if kept else logits, logits.stride(0)
    with on(logits.device):
        _error_rows[(len(logits), triton.cdiv(width, _BLOCK))](
            logits, target, norms, gradient.contiguous(), out, classes, width, B=_BLOCK, num_warps=8
        )
    return out


target_logs = partial(by_rows, Rows(_score, _error))
