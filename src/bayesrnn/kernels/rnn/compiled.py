"""The simple recurrence in C: all steps of a layer in one call, forward and backward. kernels/cpu/README.md has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bayesrnn.kernels.cpu import recurrent
from bayesrnn.kernels.cpu.paths import compiled_path
from bayesrnn.kernels.rnn import loop, reference
from bayesrnn.kernels.shared.derivatives import OnceFunction, once_differentiable
from bayesrnn.kernels.shared.recurrent import weight_gradient
from bayesrnn.kernels.shared.rows import previous_rows
from bayesrnn.kernels.shared.tensors import transformed, with_nones


class _RNN(OnceFunction):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Tensor, Tensor]:
        gx, h0, w_hh, z_h, nonlinearity, batch_sizes, reverse = given
        layer = recurrent.Layer(nonlinearity, h0, z_h, None, batch_sizes, reverse)
        out, h = torch.empty_like(gx), recurrent.own_copy(h0, h0)
        layer.forward(gx, w_hh, h, None, out, None, None)
        ctx.save_for_backward(h0, w_hh, z_h, gx)  # a second `out` by now, since the caller may change the first
        ctx.nonlinearity, ctx.batch_sizes, ctx.reverse = nonlinearity, batch_sizes, reverse
        ctx.set_materialize_grads(False)
        return out, h

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor | None, d_h: Tensor | None) -> tuple[Any, ...]:
        h0, w_hh, z_h, out = ctx.saved_tensors
        sizes, reverse = ctx.batch_sizes, ctx.reverse
        layer = recurrent.Layer(ctx.nonlinearity, h0, z_h, None, sizes, reverse)
        dh, d_gx = recurrent.own_copy(d_h, h0), torch.empty_like(out)
        layer.backward(out, out, None, h0, None, w_hh, d_out, dh, None, d_gx, d_gx)
        d_w_hh = None
        if ctx.needs_input_grad[2]:
            d_w_hh = weight_gradient(d_gx, previous_rows(out, h0, sizes, reverse=reverse), z_h, sizes)
        return d_gx, dh, d_w_hh, None, None, None, None


def rnn(
    *tensors: Any, nonlinearity: str = "tanh", batch_sizes: Sequence[int], reverse: bool = False
) -> tuple[Tensor, ...]:
    """Like `reference.rnn`; what is not float32 on a CPU runs in `loop`. `gx` is used as scratch."""
    gx, h, w_hh, z_h = tensors = with_nones(tensors, 4)
    if not transformed() and recurrent.serves(*tensors):
        return _RNN.apply(gx.contiguous(), h, w_hh, z_h, nonlinearity, batch_sizes, reverse)  # type: ignore[no-any-return]
    return recurrent.elsewhere(
        nonlinearity, (gx, h, None, w_hh, None), (z_h,), tensors, loop.rnn, reference.rnn,
        nonlinearity=nonlinearity, batch_sizes=batch_sizes, reverse=reverse,
    )  # fmt: skip


PATHS = (compiled_path("RNN", rnn, mapped=True),)
