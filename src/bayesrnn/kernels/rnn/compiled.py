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
from bayesrnn.kernels.shared.tensors import transformed


class _RNN(OnceFunction):
    @staticmethod
    def forward(
        ctx: Any,
        gx: Tensor,
        h0: Tensor,
        w_hh: Tensor,
        z_h: Tensor | None,
        nonlinearity: str,
        batch_sizes: Sequence[int],
        reverse: bool,
    ) -> tuple[Tensor, Tensor]:
        layer = recurrent.Layer(nonlinearity, h0, z_h, None, batch_sizes, reverse)
        out, h = gx.new_empty(gx.shape), recurrent.own_copy(h0, h0)
        layer.forward(gx.contiguous(), w_hh, h, None, out, None, None)
        kept = recurrent.own_copy(out, out) if any(ctx.needs_input_grad) else out  # who gets `out` may change it
        ctx.save_for_backward(h0, w_hh, z_h, kept)
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
    gx: Tensor,
    h: Tensor,
    w_hh: Tensor,
    z_h: Tensor | None = None,
    *,
    nonlinearity: str = "tanh",
    batch_sizes: Sequence[int],
    reverse: bool = False,
) -> tuple[Tensor, Tensor]:
    """As `reference.rnn`; what is not float32 on a CPU runs in `loop`."""
    if transformed():
        if z_h is not None or torch.is_grad_enabled() or not recurrent.serves(gx, h, w_hh):
            options: Any = {"nonlinearity": nonlinearity, "batch_sizes": batch_sizes, "reverse": reverse}
            return reference.rnn(gx, h, w_hh, z_h, **options)
        return recurrent.mapped(nonlinearity, gx, h, None, w_hh, None, batch_sizes, reverse)  # type: ignore[return-value]
    if not recurrent.serves(gx, h, w_hh, z_h):
        return loop.rnn(gx, h, w_hh, z_h, nonlinearity=nonlinearity, batch_sizes=batch_sizes, reverse=reverse)
    return _RNN.apply(gx, h, w_hh, z_h, nonlinearity, batch_sizes, reverse)  # type: ignore[no-any-return]


PATHS = (compiled_path("RNN", rnn, mapped=True),)
