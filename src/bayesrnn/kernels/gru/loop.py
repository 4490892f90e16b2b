"""The GRU recurrence with a hand-written backward: no autograd inside the loop, weight gradients as one GEMM.

README.md beside this file has the derivation.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bayesrnn.kernels.dispatch import loop_path
from bayesrnn.kernels.gru.reference import GRU
from bayesrnn.kernels.shared.recurrent import Layer, Recurrence


def _forward(layer: Layer) -> tuple[Any, ...]:
    gx, size, sizes, b_hn = layer.gx, layer.h.shape[1], layer.sizes, layer.b_hn
    product = layer.product()
    out, inner = gx.new_empty(gx.shape[0], size), gx.new_empty(gx.shape[0], size)
    r_z, n_gate = gx[:, : 2 * size].split(sizes), gx[:, 2 * size :].split(sizes)
    r, z = gx[:, :size].split(sizes), gx[:, size : 2 * size].split(sizes)
    outs, inners = out.split(sizes), inner.split(sizes)

    def step(t: int, h: Tensor) -> tuple[Tensor]:
        recurrent = product(h)
        r_z[t].add_(recurrent[:, : 2 * size]).sigmoid_()
        if b_hn is None:
            inners[t].copy_(recurrent[:, 2 * size :])
        else:
            torch.add(recurrent[:, 2 * size :], b_hn, out=inners[t])
        new = n_gate[t].addcmul_(r[t], inners[t]).tanh_()
        torch.lerp(new, h, z[t], out=outs[t])
        return (outs[t],)

    last = layer.run(step)
    return out, last, None, (gx, inner)


def _backward(layer: Layer, kept: Any, h_prev: Any, d_out: Any, d_states: Any) -> tuple[Any, ...]:
    gates, inner = kept
    size, sizes = layer.h.shape[1], layer.sizes
    r, z, new = gates.chunk(3, dim=1)

    # What multiplies dh for all steps at once: the recurrent parts of r, z, n, then the input part of n.
    local = gates.new_empty(gates.shape[0], 4 * size)
    l_r, l_z, l_hn, l_xn = local.chunk(4, dim=1)
    torch.addcmul(torch.ones_like(new), new, new, value=-1, out=l_xn).mul_(1 - z)
    torch.mul(l_xn, r, out=l_hn)
    torch.mul(l_hn, inner, out=l_r).mul_(1 - r)
    torch.addcmul(z, z, z, value=-1, out=l_z).mul_(h_prev - new)
    locals_, zs, product = local.split(sizes), z.split(sizes), layer.product_back()

    def step(t: int, dh: Tensor) -> tuple[Tensor]:
        locals_[t].view(-1, 4, size).mul_(dh.unsqueeze(1))
        return (product(locals_[t][:, : 3 * size].contiguous()).addcmul_(dh, zs[t]),)

    first = layer.run_back(step, d_out, d_states)
    return torch.cat([local[:, : 2 * size], l_xn], dim=1), local[:, : 3 * size], first, None


gru = Recurrence(GRU, _forward, _backward)
PATHS = (loop_path("GRU", gru),)
