"""The one product inside a recurrence, h_{t-1} times the recurrent weights, with its masks, as used by the loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bayesrnn.kernels.matmul import times_transposed
from bayesrnn.kernels.steps import per_row, times_rows

Product = Callable[[Tensor, int], Tensor]


def forward_product(weight: Tensor, mask: Tensor | None, *, rows: int, repeats: int) -> Product:
    """`(h (n, P), n) -> (n, G*H)`: the masked h times weight (G*H, P) transposed."""
    if mask is None or mask.ndim == 2:
        product = times_transposed(weight, rows=rows, repeats=repeats)
        if mask is None:
            return lambda h, n: product(h)
        return lambda h, n: product(h * mask[:n])
    gates = mask.shape[1]
    products = [times_transposed(w, rows=rows, repeats=repeats) for w in weight.chunk(gates)]
    masks = mask.unbind(1)
    return lambda h, n: torch.cat([p(h * m[:n]) for p, m in zip(products, masks, strict=True)], dim=1)


def backward_product(weight: Tensor, mask: Tensor | None, *, rows: int, repeats: int) -> Product:
    """`(d (n, G*H), n) -> (n, P)`: the gradient of h from that of the product."""
    if mask is None or mask.ndim == 2:
        product = times_transposed(weight.t(), rows=rows, repeats=repeats)
        if mask is None:
            return lambda d, n: product(d)
        return lambda d, n: product(d).mul_(mask[:n])
    gates = mask.shape[1]
    products = [times_transposed(w.t(), rows=rows, repeats=repeats) for w in weight.chunk(gates)]
    masks = mask.unbind(1)

    def summed(d: Tensor, n: int) -> Tensor:
        parts = [
            p(part.contiguous()).mul_(m[:n]) for p, part, m in zip(products, d.chunk(gates, 1), masks, strict=True)
        ]
        return torch.stack(parts).sum(0)

    return summed


def weight_gradient(d: Tensor, h_prev: Tensor, mask: Tensor | None, batch_sizes: Sequence[int]) -> Tensor:
    """Gradient (G*H, P) of the recurrent weights: one GEMM over all time-major rows (one per gate if untied)."""
    if mask is None:
        return d.t() @ h_prev
    if mask.ndim == 2:
        return d.t() @ times_rows(h_prev, mask, batch_sizes)
    gates = mask.shape[1]
    masked = h_prev * per_row(mask, batch_sizes).transpose(0, 1)  # (G, N, P)
    by_gate = d.unflatten(1, (gates, -1)).permute(1, 2, 0)  # (G, H, N)
    return torch.bmm(by_gate, masked).flatten(0, 1)
