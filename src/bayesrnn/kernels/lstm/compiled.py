"""The LSTM recurrence in C: all steps of a layer in one call, forward and backward. kernels/cpu/README.md has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bayesrnn.kernels.cpu import recurrent
from bayesrnn.kernels.cpu.paths import compiled_path
from bayesrnn.kernels.lstm import loop, reference
from bayesrnn.kernels.shared.derivatives import OnceFunction, once_differentiable
from bayesrnn.kernels.shared.recurrent import weight_gradient
from bayesrnn.kernels.shared.rows import previous_rows
from bayesrnn.kernels.shared.tensors import transformed, with_nones


class _LSTM(OnceFunction):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Tensor, Tensor, Tensor]:
        gx, h0, c0, w_hh, z_h, z_c, sizes, reverse = given
        layer = recurrent.Layer("lstm", h0, z_h, z_c, sizes, reverse)
        out, cells = gx.new_empty(gx.shape[0], h0.shape[1]), gx.new_empty(gx.shape[0], h0.shape[1])
        h, c = recurrent.own_copy(h0, h0), recurrent.own_copy(c0, c0)
        layer.forward(gx, w_hh, h, c, out, cells, None)
        h_prev = previous_rows(out, h0, sizes, reverse=reverse) if ctx.needs_input_grad[3] else None
        ctx.save_for_backward(gx, h0, c0, w_hh, z_h, z_c, h_prev, cells)
        ctx.batch_sizes, ctx.reverse = sizes, reverse
        ctx.set_materialize_grads(False)
        return out, h, c

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor | None, d_h: Tensor | None, d_c: Tensor | None) -> tuple[Any, ...]:
        gates, h0, c0, w_hh, z_h, z_c, h_prev, cells = ctx.saved_tensors
        layer = recurrent.Layer("lstm", h0, z_h, z_c, ctx.batch_sizes, ctx.reverse)
        dh, dc = recurrent.own_copy(d_h, h0), recurrent.own_copy(d_c, c0)
        d_gx = torch.empty_like(gates)
        layer.backward(gates, None, cells, h0, c0, w_hh, d_out, dh, dc, d_gx, d_gx)
        d_w_hh = None if h_prev is None else weight_gradient(d_gx, h_prev, z_h, ctx.batch_sizes)
        return d_gx, dh, dc, d_w_hh, None, None, None, None


def lstm(*tensors: Any, batch_sizes: Sequence[int], reverse: bool = False) -> tuple[Tensor, ...]:
    """Like `reference.lstm`; projections, and what is not float32 on a CPU, run in `loop`. `gx` is used as scratch."""
    gx, h, c, w_hh, w_hr, z_h, z_c = tensors = with_nones(tensors, 7)
    if w_hr is None and not transformed() and recurrent.serves(gx, h, c, w_hh, z_h, z_c):
        return _LSTM.apply(gx.contiguous(), h, c, w_hh, z_h, z_c, batch_sizes, reverse)  # type: ignore[no-any-return]
    return recurrent.elsewhere(
        "lstm", (gx, h, c, w_hh, None), (w_hr, z_h, z_c), tensors, loop.lstm, reference.lstm,
        batch_sizes=batch_sizes, reverse=reverse,
    )  # fmt: skip


PATHS = (compiled_path("LSTM", lstm, mapped=True),)
