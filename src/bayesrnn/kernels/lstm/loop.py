"""The LSTM recurrence with a hand-written backward: no autograd inside the loop, weight gradients as one GEMM.

README.md beside this file has the derivation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bayesrnn.kernels.dispatch import loop_path
from bayesrnn.kernels.lstm import reference
from bayesrnn.kernels.shared.derivatives import OnceFunction, once_differentiable
from bayesrnn.kernels.shared.recurrent import backward_product, forward_product, weight_gradient
from bayesrnn.kernels.shared.rows import is_rectangular, previous_rows
from bayesrnn.kernels.shared.tensors import ordinary, with_nones


class _LSTM(OnceFunction):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Tensor, Tensor, Tensor]:
        gx, h0, c0, w_hh, w_hr, z_h, z_c, batch_sizes, reverse = given
        size, sizes, steps = c0.shape[1], list(batch_sizes), len(batch_sizes)
        # tanh(x) = 2 sigmoid(2x) - 1: one sigmoid over all four gates is half the price of three calls
        doubled = w_hh.clone()
        doubled[2 * size : 3 * size].mul_(2)
        gx[:, 2 * size : 3 * size].mul_(2)
        product = forward_product(doubled, z_h, rows=h0.shape[0], repeats=steps)
        out = gx.new_empty(gx.shape[0], h0.shape[1])
        cells, squashed = gx.new_empty(gx.shape[0], size), gx.new_empty(gx.shape[0], size)
        gates = gx.split(sizes)
        i, f, g, o = (gate.split(sizes) for gate in gx.chunk(4, dim=1))
        outs, cs, ss = out.split(sizes), cells.split(sizes), squashed.split(sizes)
        h, c = h0, c0
        ragged = not is_rectangular(sizes)
        if ragged:
            h, c = h0.clone(), c0.clone()
        for t in range(steps - 1, -1, -1) if reverse else range(steps):
            n = sizes[t]
            h_n, c_n = (h[:n], c[:n]) if ragged else (h, c)
            gates[t].add_(product(h_n, n)).sigmoid_()
            new_c, s, new_h = cs[t], ss[t], outs[t]
            torch.mul(f[t], c_n, out=new_c).sub_(i[t]).addcmul_(i[t], g[t], value=2)
            if z_c is not None:
                new_c.mul_(z_c[:n])
            torch.add(new_c, new_c, out=s).sigmoid_()
            if w_hr is None:
                torch.addcmul(o[t], o[t], s, value=-2, out=new_h).neg_()
            else:
                torch.mm(o[t] * (2 * s - 1), w_hr.t(), out=new_h)
            if ragged:
                h[:n], c[:n] = new_h, new_c
            else:
                h, c = new_h, new_c
        h_prev = previous_rows(out, h0, sizes, reverse=reverse) if ctx.needs_input_grad[3] else None
        ctx.save_for_backward(gx, h0, c0, w_hh, w_hr, z_h, z_c, h_prev, cells, squashed)
        ctx.batch_sizes, ctx.reverse = sizes, reverse
        ctx.set_materialize_grads(False)
        return (out, h, c) if ragged else (out, h.clone(), c.clone())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor | None, d_h: Tensor | None, d_c: Tensor | None) -> tuple[Any, ...]:
        gates, h0, c0, w_hh, w_hr, z_h, z_c, h_prev, cells, squashed = ctx.saved_tensors
        sizes, reverse, size = ctx.batch_sizes, ctx.reverse, c0.shape[1]
        steps, batch = len(sizes), h0.shape[0]
        i, f, g, o = gates.chunk(4, dim=1)  # g = sigmoid(2x), with tanh(x) = 2g - 1; squashed likewise

        # What multiplies dc~ (for i, f, g) or dm (for o), for all steps at once.
        c_prev = previous_rows(cells, c0, sizes, reverse=reverse)
        local = torch.addcmul(gates, gates, gates, value=-1)  # s (1 - s)
        l_i, l_f, l_g, l_o = local.chunk(4, dim=1)
        tanh_c = squashed * 2 - 1
        l_i.mul_(2 * g - 1)
        l_f.mul_(c_prev)
        l_g.mul_(4 * i)
        l_o.mul_(tanh_c)
        to_cell = torch.addcmul(o, tanh_c * tanh_c, o, value=-1)

        ragged = not is_rectangular(sizes)
        dh: Any = None if d_h is None else d_h.clone()
        if ragged and dh is None:
            dh = torch.zeros_like(h0)
        dc = torch.zeros_like(c0) if d_c is None else d_c.clone()
        d_outs = None if d_out is None else d_out.split(sizes)
        product = backward_product(w_hh, z_h, rows=batch, repeats=steps)
        d_gates, l_ifgs = local.split(sizes), local[:, : 3 * size].split(sizes)
        l_os, to_cells, fs = l_o.split(sizes), to_cell.split(sizes), f.split(sizes)
        # the gradient of h before its projection
        d_hidden = None if w_hr is None else gates.new_empty(len(gates), h0.shape[1])
        d_hiddens = None if d_hidden is None else d_hidden.split(sizes)
        for t in range(steps) if reverse else range(steps - 1, -1, -1):
            n = sizes[t]
            dh_n, dc_n = (dh[:n], dc[:n]) if ragged else (dh, dc)
            if d_outs is not None:
                dh_n = d_outs[t] if dh_n is None else dh_n.add_(d_outs[t])
            elif dh_n is None:
                dh_n = torch.zeros_like(h0)
            if d_hiddens is not None:
                d_hiddens[t].copy_(dh_n)
                dh_n = dh_n @ w_hr
            dc_n.addcmul_(dh_n, to_cells[t])
            if z_c is not None:
                dc_n.mul_(z_c[:n])
            l_ifgs[t].view(n, 3, size).mul_(dc_n.unsqueeze(1))
            l_os[t].mul_(dh_n)
            dc_n.mul_(fs[t])
            new_dh = product(d_gates[t], n)
            if ragged:
                dh[:n] = new_dh
            else:
                dh = new_dh
        d_w_hr = None
        d_w_hh = None if h_prev is None else weight_gradient(local, h_prev, z_h, sizes)
        if d_hidden is not None and ctx.needs_input_grad[4]:
            d_w_hr = d_hidden.t() @ (o * tanh_c)
        return local, dh, dc, d_w_hh, d_w_hr, None, None, None, None


def lstm(*tensors: Any, batch_sizes: Sequence[int], reverse: bool = False) -> tuple[Tensor, ...]:
    """Like `reference.lstm`. `gx` is used as scratch: hand over a tensor that nothing else reads."""
    if not ordinary(*tensors):
        return reference.lstm(*tensors, batch_sizes=batch_sizes, reverse=reverse)
    return _LSTM.apply(*with_nones(tensors, 7), batch_sizes, reverse)  # type: ignore[no-any-return]


PATHS = (loop_path("LSTM", lstm),)
