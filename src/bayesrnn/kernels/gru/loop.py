"""The GRU recurrence with a hand-written backward: no autograd inside the loop, weight gradients as one GEMM.

README.md beside this file has the derivation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bayesrnn.kernels.dispatch import loop_path
from bayesrnn.kernels.gru import reference
from bayesrnn.kernels.shared.derivatives import OnceFunction, once_differentiable
from bayesrnn.kernels.shared.recurrent import backward_product, forward_product, weight_gradient
from bayesrnn.kernels.shared.rows import is_rectangular, previous_rows
from bayesrnn.kernels.shared.tensors import ordinary, with_nones


class _GRU(OnceFunction):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Tensor, Tensor]:
        gx, h0, w_hh, b_hn, z_h, batch_sizes, reverse = given
        size, sizes, steps = h0.shape[1], list(batch_sizes), len(batch_sizes)
        product = forward_product(w_hh, z_h, rows=h0.shape[0], repeats=steps)
        out, inner = gx.new_empty(gx.shape[0], size), gx.new_empty(gx.shape[0], size)
        r_z = gx[:, : 2 * size].split(sizes)
        r, z = gx[:, :size].split(sizes), gx[:, size : 2 * size].split(sizes)
        n_gate = gx[:, 2 * size :].split(sizes)
        outs, inners = out.split(sizes), inner.split(sizes)
        ragged = not is_rectangular(sizes)
        h = h0.clone() if ragged else h0
        for t in range(steps - 1, -1, -1) if reverse else range(steps):
            n = sizes[t]
            h_n = h[:n] if ragged else h
            recurrent = product(h_n, n)
            r_z[t].add_(recurrent[:, : 2 * size]).sigmoid_()
            if b_hn is None:
                inners[t].copy_(recurrent[:, 2 * size :])
            else:
                torch.add(recurrent[:, 2 * size :], b_hn, out=inners[t])
            new = n_gate[t].addcmul_(r[t], inners[t]).tanh_()
            torch.lerp(new, h_n, z[t], out=outs[t])
            if ragged:
                h[:n] = outs[t]
            else:
                h = outs[t]
        h_prev = previous_rows(out, h0, sizes, reverse=reverse) if any(ctx.needs_input_grad) else None
        ctx.save_for_backward(gx, h0, w_hh, z_h, h_prev, inner)
        ctx.batch_sizes, ctx.reverse = sizes, reverse
        ctx.set_materialize_grads(False)
        return (out, h) if ragged else (out, h.clone())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor | None, d_h: Tensor | None) -> tuple[Any, ...]:
        gates, h0, w_hh, z_h, h_prev, inner = ctx.saved_tensors
        sizes, reverse, size = ctx.batch_sizes, ctx.reverse, h0.shape[1]
        steps = len(sizes)
        r, z, new = gates.chunk(3, dim=1)

        # What multiplies dh for all steps at once: the recurrent parts of r, z, n, then the input part of n.
        local = gates.new_empty(gates.shape[0], 4 * size)
        l_r, l_z, l_hn, l_xn = local.chunk(4, dim=1)
        torch.addcmul(torch.ones_like(new), new, new, value=-1, out=l_xn).mul_(1 - z)
        torch.mul(l_xn, r, out=l_hn)
        torch.mul(l_hn, inner, out=l_r).mul_(1 - r)
        torch.addcmul(z, z, z, value=-1, out=l_z).mul_(h_prev - new)

        ragged = not is_rectangular(sizes)
        dh = torch.zeros_like(h0) if d_h is None else d_h.clone()
        d_outs = None if d_out is None else d_out.split(sizes)
        product = backward_product(w_hh, z_h, rows=h0.shape[0], repeats=steps)
        locals_, zs = local.split(sizes), z.split(sizes)
        for t in range(steps) if reverse else range(steps - 1, -1, -1):
            n = sizes[t]
            dh_n = dh[:n] if ragged else dh
            if d_outs is not None:
                dh_n.add_(d_outs[t])
            locals_[t].view(n, 4, size).mul_(dh_n.unsqueeze(1))
            new_dh = product(locals_[t][:, : 3 * size].contiguous(), n).addcmul_(dh_n, zs[t])
            if ragged:
                dh[:n] = new_dh
            else:
                dh = new_dh
        d_w_hh = d_b_hn = None
        recurrent = local[:, : 3 * size]
        if ctx.needs_input_grad[2]:
            d_w_hh = weight_gradient(recurrent, h_prev, z_h, sizes)
        if ctx.needs_input_grad[3]:
            d_b_hn = l_hn.sum(0)
        d_gx = torch.cat([local[:, : 2 * size], l_xn], dim=1)
        return d_gx, dh, d_w_hh, d_b_hn, None, None, None


def gru(*tensors: Any, batch_sizes: Sequence[int], reverse: bool = False) -> tuple[Tensor, ...]:
    """Like `reference.gru`. `gx` is used as scratch: hand over a tensor that nothing else reads."""
    if not ordinary(*tensors):
        return reference.gru(*tensors, batch_sizes=batch_sizes, reverse=reverse)
    return _GRU.apply(*with_nones(tensors, 5), batch_sizes, reverse)  # type: ignore[no-any-return]


PATHS = (loop_path("GRU", gru),)
