"""The one product inside a recurrence, h_{t-1} times the recurrent weights, with its masks, as used by the loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bayesrnn.kernels.shared import alignment as aligned
from bayesrnn.kernels.shared import matmul
from bayesrnn.kernels.shared.rows import times_rows

Product = Callable[[Tensor, int], Tensor]


def forward_product(weight: Tensor, mask: Tensor | None, *, rows: int, repeats: int) -> Product:
    """`(h (n, P), n) -> (n, G*H)`: the masked h times weight (G*H, P) transposed."""
    if mask is None or mask.ndim == 2:
        product = matmul.repeated_product(weight, rows=rows, repeats=repeats)
        if mask is None:
            return lambda h, n: product(h)
        return lambda h, n: product(h * mask[:n])
    gates = mask.shape[1]
    products = [matmul.repeated_product(w, rows=rows, repeats=repeats) for w in weight.chunk(gates)]
    by_gate = mask.transpose(0, 1).contiguous()

    def joined(h: Tensor, n: int) -> Tensor:
        masked = (h * by_gate[:, :n]).unbind(0)
        return torch.cat([p(m) for p, m in zip(products, masked, strict=True)], dim=1)

    return joined


def backward_product(weight: Tensor, mask: Tensor | None, *, rows: int, repeats: int) -> Product:
    """`(d (n, G*H), n) -> (n, P)`: the gradient of h from that of the product."""
    if mask is None or mask.ndim == 2:
        product = matmul.repeated_product(weight.t(), rows=rows, repeats=repeats)
        if mask is None:
            return lambda d, n: product(d)
        return lambda d, n: product(d).mul_(mask[:n])
    gates = mask.shape[1]
    products = [matmul.repeated_product(w.t(), rows=rows, repeats=repeats) for w in weight.chunk(gates)]
    masks = mask.unbind(1)

    def summed(d: Tensor, n: int) -> Tensor:
        parts = d.view(n, gates, d.shape[1] // gates).transpose(0, 1).contiguous().unbind(0)
        out = products[0](parts[0]).mul_(masks[0][:n])
        for k in range(1, gates):
            out.addcmul_(products[k](parts[k]), masks[k][:n])
        return out

    return summed


def weight_gradient(d: Tensor, h_prev: Tensor, mask: Tensor | None, batch_sizes: Sequence[int]) -> Tensor:
    """Gradient (G*H, P) of the recurrent weights: one GEMM over all time-major rows (one per gate if untied)."""
    if aligned.serves(h_prev, d.shape[1]):
        return aligned.recurrent_gradient(d, h_prev, mask, batch_sizes)
    if mask is None:
        return matmul.weight_gradient(d, h_prev)
    if mask.ndim == 2:
        return matmul.weight_gradient(d, times_rows(h_prev, mask, batch_sizes))
    parts = zip(d.chunk(mask.shape[1], 1), mask.unbind(1), strict=True)
    return torch.cat([matmul.weight_gradient(part, times_rows(h_prev, z, batch_sizes)) for part, z in parts])
