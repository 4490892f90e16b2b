"""The simple recurrence with a hand-written backward: no autograd inside the loop, weight gradients as one GEMM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bayesrnn.kernels.dispatch import loop_path
from bayesrnn.kernels.rnn import reference
from bayesrnn.kernels.shared.derivatives import OnceFunction, once_differentiable
from bayesrnn.kernels.shared.recurrent import backward_product, forward_product, weight_gradient
from bayesrnn.kernels.shared.rows import is_rectangular, previous_rows
from bayesrnn.kernels.shared.tensors import ordinary, with_nones


class _RNN(OnceFunction):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Tensor, Tensor]:
        gx, h0, w_hh, z_h, nonlinearity, batch_sizes, reverse = given
        sizes, steps = list(batch_sizes), len(batch_sizes)
        product = forward_product(w_hh, z_h, rows=h0.shape[0], repeats=steps)
        outs = gx.split(sizes)
        ragged = not is_rectangular(sizes)
        h = h0.clone() if ragged else h0
        for t in range(steps - 1, -1, -1) if reverse else range(steps):
            n = sizes[t]
            new = outs[t].add_(product(h[:n] if ragged else h, n))
            new = new.tanh_() if nonlinearity == "tanh" else new.relu_()
            if ragged:
                h[:n] = new
            else:
                h = new
        ctx.save_for_backward(h0, w_hh, z_h, gx)  # the activations by now
        ctx.nonlinearity, ctx.batch_sizes, ctx.reverse = nonlinearity, sizes, reverse
        ctx.set_materialize_grads(False)
        return gx.clone(), h if ragged else h.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor | None, d_h: Tensor | None) -> tuple[Any, ...]:
        h0, w_hh, z_h, out = ctx.saved_tensors
        sizes, reverse = ctx.batch_sizes, ctx.reverse
        local = 1 - out * out if ctx.nonlinearity == "tanh" else (out > 0).to(out.dtype)
        ragged = not is_rectangular(sizes)
        dh = torch.zeros_like(h0) if d_h is None else d_h.clone()
        d_outs = None if d_out is None else d_out.split(sizes)
        product = backward_product(w_hh, z_h, rows=h0.shape[0], repeats=len(sizes))
        locals_ = local.split(sizes)
        for t in range(len(sizes)) if reverse else range(len(sizes) - 1, -1, -1):
            n = sizes[t]
            dh_n = dh[:n] if ragged else dh
            if d_outs is not None:
                dh_n.add_(d_outs[t])
            new_dh = product(locals_[t].mul_(dh_n), n)
            if ragged:
                dh[:n] = new_dh
            else:
                dh = new_dh
        d_w_hh = None
        if ctx.needs_input_grad[2]:
            h_prev = previous_rows(out, h0, sizes, reverse=reverse)
            d_w_hh = weight_gradient(local, h_prev, z_h, sizes)
        return local, dh, d_w_hh, None, None, None, None


def rnn(
    *tensors: Any, nonlinearity: str = "tanh", batch_sizes: Sequence[int], reverse: bool = False
) -> tuple[Tensor, ...]:
    """Like `reference.rnn`. `gx` is used as scratch: hand over a tensor that nothing else reads."""
    if not ordinary(*tensors):
        return reference.rnn(*tensors, nonlinearity=nonlinearity, batch_sizes=batch_sizes, reverse=reverse)
    return _RNN.apply(*with_nones(tensors, 4), nonlinearity, batch_sizes, reverse)  # type: ignore[no-any-return]


PATHS = (loop_path("RNN", rnn),)
