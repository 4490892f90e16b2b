"""The part of a recurrent layer that does not depend on the state: all input products in large GEMMs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesrnn.kernels.shared import alignment as aligned
from bayesrnn.kernels.shared.derivatives import OnceFunction, once_differentiable
from bayesrnn.kernels.shared.matmul import lowered, product_transposed, weight_gradient
from bayesrnn.kernels.shared.rows import per_row, times_rows


def reference(
    x: Tensor, weight: Tensor, bias: Tensor | None, mask: Tensor | None, batch_sizes: Sequence[int]
) -> Tensor:
    """Gate pre-activations (N, G*H) of time-major rows `x` (N, F).

    Args:
        weight: (G*H, F), the gates' matrices one under the other.
        mask: None, (B, F) shared by the gates, or (B, G, F) with one mask per gate (arXiv 1512.05287, Eq. 5).
    """
    if mask is None:
        return F.linear(x, weight, bias)
    if mask.ndim == 2:
        return F.linear(times_rows(x, mask, batch_sizes), weight, bias)
    rows = per_row(mask, batch_sizes)
    parts = [F.linear(x * rows[:, k], w) for k, w in enumerate(weight.chunk(mask.shape[1]))]
    out = torch.cat(parts, dim=-1)
    return out if bias is None else out + bias


class _Project(OnceFunction):
    """`reference` with gradients by hand: masked inputs are made again in the backward instead of being kept."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        mask: Tensor | None,
        batch_sizes: Sequence[int],
    ) -> Tensor:
        ctx.save_for_backward(x, weight, mask)
        ctx.batch_sizes = batch_sizes
        masks = _by_gate(mask)
        if len(masks) == 1:
            return product_transposed(_masked(x, masks[0], batch_sizes), weight, bias)
        out = x.new_empty(x.shape[0], weight.shape[0])
        biases: Any = [None] * len(masks) if bias is None else bias.chunk(len(masks))
        for part, w, b, z in zip(out.chunk(len(masks), 1), weight.chunk(len(masks)), biases, masks, strict=True):
            part.copy_(product_transposed(_masked(x, z, batch_sizes), w, b))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d: Tensor) -> tuple[Any, ...]:
        x, weight, mask = ctx.saved_tensors
        masks, sizes = _by_gate(mask), ctx.batch_sizes
        d_x: Any = None
        d_weights = []
        for part, w, z in zip(d.chunk(len(masks), 1), weight.chunk(len(masks)), masks, strict=True):
            part = part.contiguous()
            if ctx.needs_input_grad[0]:
                back = _masked(product_transposed(part, w.t()), z, sizes, in_place=True)
                d_x = back if d_x is None else d_x.add_(back)
            if ctx.needs_input_grad[1]:
                d_weights.append(weight_gradient(part, _masked(x, z, sizes)))
        d_weight = None if not d_weights else d_weights[0] if len(masks) == 1 else torch.cat(d_weights)
        return d_x, d_weight, d.sum(0) if ctx.needs_input_grad[2] else None, None, None


def _by_gate(mask: Tensor | None) -> tuple[Tensor | None, ...]:
    return (mask,) if mask is None or mask.ndim == 2 else mask.unbind(1)


def _masked(x: Tensor, mask: Tensor | None, batch_sizes: Sequence[int], *, in_place: bool = False) -> Tensor:
    return x if mask is None else times_rows(x, mask, batch_sizes, in_place=in_place)


def fast(x: Tensor, weight: Tensor, bias: Tensor | None, mask: Tensor | None, batch_sizes: Sequence[int]) -> Tensor:
    """As `reference`, differentiable once."""
    if torch._C._functorch.peek_interpreter_stack() is not None:  # vmap knows torch's operations, and a kernel for it
        from bayesrnn.kernels.cpu import recurrent

        if mask is None and not torch.is_grad_enabled() and recurrent.serves(x, weight, bias):
            return recurrent.mapped_product(x, weight, bias)
        return reference(x, weight, bias, mask, batch_sizes)
    if lowered(x.device.type):
        return reference(x, weight, bias, mask, batch_sizes)
    if aligned.serves(x, weight.shape[0]):
        return aligned.Project.apply(x, weight, bias, mask, batch_sizes)  # type: ignore[no-any-return]
    return _Project.apply(x, weight, bias, mask, batch_sizes)  # type: ignore[no-any-return]
