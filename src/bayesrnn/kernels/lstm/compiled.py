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
from bayesrnn.kernels.shared.tensors import transformed


class _LSTM(OnceFunction):
    @staticmethod
    def forward(
        ctx: Any,
        gx: Tensor,
        h0: Tensor,
        c0: Tensor,
        w_hh: Tensor,
        z_h: Tensor | None,
        z_c: Tensor | None,
        batch_sizes: Sequence[int],
        reverse: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        layer = recurrent.Layer("lstm", h0, z_h, z_c, batch_sizes, reverse)
        gates = gx.contiguous()
        out, cells = gates.new_empty(gates.shape[0], h0.shape[1]), gates.new_empty(gates.shape[0], h0.shape[1])
        h, c = recurrent.own_copy(h0, h0), recurrent.own_copy(c0, c0)
        layer.forward(gates, w_hh, h, c, out, cells, None)
        h_prev = previous_rows(out, h0, batch_sizes, reverse=reverse) if ctx.needs_input_grad[3] else None
        ctx.save_for_backward(gates, h0, c0, w_hh, z_h, z_c, h_prev, cells)
        ctx.batch_sizes, ctx.reverse = batch_sizes, reverse
        ctx.set_materialize_grads(False)
        return out, h, c

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor | None, d_h: Tensor | None, d_c: Tensor | None) -> tuple[Any, ...]:
        gates, h0, c0, w_hh, z_h, z_c, h_prev, cells = ctx.saved_tensors
        sizes, reverse = ctx.batch_sizes, ctx.reverse
        layer = recurrent.Layer("lstm", h0, z_h, z_c, sizes, reverse)
        dh, dc = recurrent.own_copy(d_h, h0), recurrent.own_copy(d_c, c0)
        d_gx = torch.empty_like(gates)
        layer.backward(gates, None, cells, h0, c0, w_hh, d_out, dh, dc, d_gx, d_gx)
        d_w_hh = None if h_prev is None else weight_gradient(d_gx, h_prev, z_h, sizes)
        return d_gx, dh, dc, d_w_hh, None, None, None, None


def lstm(
    gx: Tensor,
    h: Tensor,
    c: Tensor,
    w_hh: Tensor,
    w_hr: Tensor | None = None,
    z_h: Tensor | None = None,
    z_c: Tensor | None = None,
    *,
    batch_sizes: Sequence[int],
    reverse: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """As `reference.lstm`; projections, and what is not float32 on a CPU, run in `loop`. `gx` is used as scratch."""
    if transformed():
        if (
            w_hr is not None
            or z_h is not None
            or z_c is not None
            or torch.is_grad_enabled()
            or not recurrent.serves(gx, h, c, w_hh)
        ):
            return reference.lstm(gx, h, c, w_hh, w_hr, z_h, z_c, batch_sizes=batch_sizes, reverse=reverse)
        return recurrent.mapped("lstm", gx, h, c, w_hh, None, batch_sizes, reverse)  # type: ignore[return-value]
    if w_hr is not None or not recurrent.serves(gx, h, c, w_hh, z_h, z_c):
        return loop.lstm(gx, h, c, w_hh, w_hr, z_h, z_c, batch_sizes=batch_sizes, reverse=reverse)
    return _LSTM.apply(gx, h, c, w_hh, z_h, z_c, batch_sizes, reverse)  # type: ignore[no-any-return]


PATHS = (compiled_path("LSTM", lstm, mapped=True),)
