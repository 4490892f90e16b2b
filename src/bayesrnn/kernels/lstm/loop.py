"""The LSTM recurrence with a hand-written backward: no autograd inside the loop, weight gradients as one GEMM.

README.md beside this file has the derivation.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bayesrnn.kernels.dispatch import loop_path
from bayesrnn.kernels.lstm.reference import LSTM
from bayesrnn.kernels.shared.recurrent import Layer, Recurrence
from bayesrnn.kernels.shared.rows import previous_rows


def _forward(layer: Layer) -> tuple[Any, ...]:
    gx, w_hr, z_c, size, sizes = layer.gx, layer.w_hr, layer.z_c, layer.c.shape[1], layer.sizes
    # tanh(x) = 2 sigmoid(2x) - 1: one sigmoid over all four gates is half the price of three calls
    doubled = layer.w_hh.clone()
    doubled[2 * size : 3 * size].mul_(2)
    gx[:, 2 * size : 3 * size].mul_(2)
    product = layer._replace(w_hh=doubled).product()
    out = gx.new_empty(gx.shape[0], layer.h.shape[1])
    cells, squashed = gx.new_empty(gx.shape[0], size), gx.new_empty(gx.shape[0], size)
    gates, outs, cs, ss = (x.split(sizes) for x in (gx, out, cells, squashed))
    i, f, g, o = (gate.split(sizes) for gate in gx.chunk(4, dim=1))

    def step(t: int, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        gates[t].add_(product(h)).sigmoid_()
        torch.mul(f[t], c, out=cs[t]).sub_(i[t]).addcmul_(i[t], g[t], value=2)
        if z_c is not None:
            cs[t].mul_(z_c[: len(c)])
        torch.add(cs[t], cs[t], out=ss[t]).sigmoid_()
        if w_hr is None:
            torch.addcmul(o[t], o[t], ss[t], value=-2, out=outs[t]).neg_()
        else:
            torch.mm(o[t] * (2 * ss[t] - 1), w_hr.t(), out=outs[t])
        return outs[t], cs[t]

    last = layer.run(step)
    return out, last, None, (gx, cells, squashed)


def _backward(layer: Layer, kept: Any, h_prev: Any, d_out: Any, d_states: Any) -> tuple[Any, ...]:
    gates, cells, squashed = kept
    w_hr, z_c, size, sizes = layer.w_hr, layer.z_c, layer.c.shape[1], layer.sizes
    i, f, g, o = gates.chunk(4, dim=1)  # g = sigmoid(2x), with tanh(x) = 2g - 1; squashed likewise

    # What multiplies dc~ (for i, f, g) or dm (for o), for all steps at once.
    local = torch.addcmul(gates, gates, gates, value=-1)  # s (1 - s)
    l_i, l_f, l_g, l_o = local.chunk(4, dim=1)
    tanh_c = squashed * 2 - 1
    l_i.mul_(2 * g - 1)
    l_f.mul_(previous_rows(cells, layer.c, sizes, reverse=layer.reverse))
    l_g.mul_(4 * i)
    l_o.mul_(tanh_c)
    to_cell = torch.addcmul(o, tanh_c * tanh_c, o, value=-1)
    d_gates, l_ifgs, l_os = local.split(sizes), local[:, : 3 * size].split(sizes), l_o.split(sizes)
    to_cells, fs, product = to_cell.split(sizes), f.split(sizes), layer.product_back()
    d_hidden = gates.new_empty(len(gates), layer.h.shape[1] if w_hr is not None else 0)  # before the projection
    d_hiddens = d_hidden.split(sizes)

    def step(t: int, dh: Tensor, dc: Tensor) -> tuple[Tensor, Tensor]:
        if w_hr is not None:
            d_hiddens[t].copy_(dh)
            dh = dh @ w_hr
        dc.addcmul_(dh, to_cells[t])
        if z_c is not None:
            dc.mul_(z_c[: len(dc)])
        l_ifgs[t].view(-1, 3, size).mul_(dc.unsqueeze(1))
        l_os[t].mul_(dh)
        dc.mul_(fs[t])
        return product(d_gates[t]), dc

    first = layer.run_back(step, d_out, d_states)
    d_w_hr = None if w_hr is None else d_hidden.t() @ (o * tanh_c)
    return local, local, first, d_w_hr


lstm = Recurrence(LSTM, _forward, _backward)
PATHS = (loop_path("LSTM", lstm),)
