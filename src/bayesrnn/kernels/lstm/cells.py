"""The LSTM recurrence on a GPU: one GEMM and one of torch's fused cell kernels per step, forward and backward.

A third of the launches of `loop`, whose cell is made of single operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bayesrnn.kernels.dispatch import Case, Path, asked_for
from bayesrnn.kernels.lstm import loop
from bayesrnn.kernels.shared.derivatives import once_differentiable
from bayesrnn.kernels.shared.recurrent import backward_product, forward_product, weight_gradient
from bayesrnn.kernels.shared.rows import is_rectangular, previous_rows
from bayesrnn.kernels.shared.tensors import ordinary, with_nones
from bayesrnn.kernels.triton_paths import cells_beat_cudnn

_cell = torch.ops.aten._thnn_fused_lstm_cell.default
_cell_backward = torch.ops.aten._thnn_fused_lstm_cell_backward_impl.default


class _LSTM(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Tensor, Tensor, Tensor]:
        gx, h0, c0, w_hh, z_h, batch_sizes, reverse = given
        sizes, steps = list(batch_sizes), len(batch_sizes)
        product = forward_product(w_hh, z_h, rows=h0.shape[0], repeats=steps)
        parts = gx.split(sizes)
        outs: list[Any] = [None] * steps
        cells: list[Any] = [None] * steps
        gates: list[Any] = [None] * steps
        ragged = not is_rectangular(sizes)
        h, c = (h0.clone(), c0.clone()) if ragged else (h0, c0)
        for t in range(steps - 1, -1, -1) if reverse else range(steps):
            n = sizes[t]
            h_n, c_n = (h[:n], c[:n]) if ragged else (h, c)
            outs[t], cells[t], gates[t] = _cell(parts[t], product(h_n, n), c_n.contiguous())
            if ragged:
                h[:n], c[:n] = outs[t], cells[t]
            else:
                h, c = outs[t], cells[t]
        out = torch.cat(outs)
        ctx.save_for_backward(h0, c0, w_hh, z_h, out, *cells, *gates)
        ctx.batch_sizes, ctx.reverse = sizes, reverse
        ctx.set_materialize_grads(False)
        return (out, h, c) if ragged else (out, h.clone(), c.clone())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor | None, d_h: Tensor | None, d_c: Tensor | None) -> tuple[Any, ...]:
        sizes, reverse = ctx.batch_sizes, ctx.reverse
        steps = len(sizes)
        h0, c0, w_hh, z_h, out, *rest = ctx.saved_tensors
        cells, gates = rest[:steps], rest[steps:]
        before = previous_rows(torch.cat(cells), c0, sizes, reverse=reverse).split(sizes)
        d_outs = None if d_out is None else d_out.split(sizes)
        product = backward_product(w_hh, z_h, rows=h0.shape[0], repeats=steps)
        ragged = not is_rectangular(sizes)
        dh = torch.zeros_like(h0) if d_h is None else d_h.clone()
        dc = torch.zeros_like(c0) if d_c is None else d_c.clone()
        d_gates: list[Any] = [None] * steps
        for t in range(steps) if reverse else range(steps - 1, -1, -1):
            n = sizes[t]
            dh_n, dc_n = (dh[:n], dc[:n]) if ragged else (dh, dc)
            if d_outs is not None:
                dh_n = dh_n + d_outs[t]
            d_gates[t], new_dc, _ = _cell_backward(dh_n, dc_n.contiguous(), before[t], cells[t], gates[t], False)
            new_dh = product(d_gates[t], n)
            if ragged:
                dh[:n], dc[:n] = new_dh, new_dc
            else:
                dh, dc = new_dh, new_dc
        d_gx = torch.cat(d_gates)
        d_w_hh = None
        if ctx.needs_input_grad[3]:
            d_w_hh = weight_gradient(d_gx, previous_rows(out, h0, sizes, reverse=reverse), z_h, sizes)
        return d_gx, dh, dc, d_w_hh, None, None, None


def lstm(*tensors: Any, batch_sizes: Sequence[int], reverse: bool = False) -> tuple[Tensor, ...]:
    """Like `reference.lstm`; projections and cell masks, which the fused cell does not know, run in `loop`."""
    gx, h, c, w_hh, w_hr, z_h, z_c = tensors = with_nones(tensors, 7)
    if w_hr is not None or z_c is not None or not gx.is_cuda or gx.shape[0] == 0 or not ordinary(*tensors):
        return loop.lstm(*tensors, batch_sizes=batch_sizes, reverse=reverse)
    return _LSTM.apply(gx, h, c, w_hh, z_h, batch_sizes, reverse)  # type: ignore[no-any-return]


def _refuses(case: Case) -> str | None:
    if case.device != "cuda":
        return f"it needs a CUDA device, and this is {case.device}"
    if case.projection:
        return "torch's fused cell has no projection"
    if case.cell_mask:
        return "torch's fused cell has no mask on the cell state"
    if not case.plain or asked_for("cells") or cells_beat_cudnn(case):
        return None
    return "cuDNN's kernel for whole layers, which this layer can take, is faster or was not measured against it"


PATHS = (Path("cells", "LSTM", lstm, "one product and one fused cell per step", rank=20, refuses=_refuses),)
