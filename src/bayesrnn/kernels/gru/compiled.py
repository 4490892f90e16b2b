"""The GRU recurrence in C: all steps of a layer in one call, forward and backward. kernels/cpu/README.md has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bayesrnn.kernels.cpu import recurrent
from bayesrnn.kernels.cpu.paths import compiled_path
from bayesrnn.kernels.gru import loop, reference
from bayesrnn.kernels.shared.derivatives import OnceFunction, once_differentiable
from bayesrnn.kernels.shared.recurrent import weight_gradient
from bayesrnn.kernels.shared.rows import previous_rows
from bayesrnn.kernels.shared.tensors import transformed, with_nones


class _GRU(OnceFunction):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Tensor, Tensor]:
        gx, h0, w_hh, b_hn, z_h, batch_sizes, reverse = given
        layer = recurrent.Layer("gru", h0, z_h, None, batch_sizes, reverse)
        out, inner = gx.new_empty(gx.shape[0], h0.shape[1]), gx.new_empty(gx.shape[0], h0.shape[1])
        h = recurrent.own_copy(h0, h0)
        layer.forward(gx, w_hh, h, None, out, inner, b_hn)
        h_prev = previous_rows(out, h0, batch_sizes, reverse=reverse) if any(ctx.needs_input_grad) else None
        ctx.save_for_backward(gx, h0, w_hh, z_h, h_prev, inner)
        ctx.batch_sizes, ctx.reverse = batch_sizes, reverse
        ctx.set_materialize_grads(False)
        return out, h

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor | None, d_h: Tensor | None) -> tuple[Any, ...]:
        gates, h0, w_hh, z_h, h_prev, inner = ctx.saved_tensors
        sizes, size = ctx.batch_sizes, h0.shape[1]
        layer = recurrent.Layer("gru", h0, z_h, None, sizes, ctx.reverse)
        dh = recurrent.own_copy(d_h, h0)
        d_gx, d_product = torch.empty_like(gates), torch.empty_like(gates)
        layer.backward(gates, h_prev, inner, h0, None, w_hh, d_out, dh, None, d_gx, d_product)
        d_w_hh = d_b_hn = None
        if ctx.needs_input_grad[2]:
            d_w_hh = weight_gradient(d_product, h_prev, z_h, sizes)
        if ctx.needs_input_grad[3]:
            d_b_hn = d_product[:, 2 * size :].sum(0)
        return d_gx, dh, d_w_hh, d_b_hn, None, None, None


def gru(*tensors: Any, batch_sizes: Sequence[int], reverse: bool = False) -> tuple[Tensor, ...]:
    """Like `reference.gru`; what is not float32 on a CPU runs in `loop`. `gx` is used as scratch."""
    gx, h, w_hh, b_hn, z_h = tensors = with_nones(tensors, 5)
    if not transformed() and recurrent.serves(*tensors):
        return _GRU.apply(gx.contiguous(), h, w_hh, b_hn, z_h, batch_sizes, reverse)  # type: ignore[no-any-return]
    return recurrent.elsewhere(
        "gru", (gx, h, None, w_hh, b_hn), (z_h,), tensors, loop.gru, reference.gru,
        batch_sizes=batch_sizes, reverse=reverse,
    )  # fmt: skip


PATHS = (compiled_path("GRU", gru, mapped=True),)
