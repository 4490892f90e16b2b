"""The input products with gradients by hand: masked inputs are made again in the backward instead of being kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bayesrnn.kernels.cpu import recurrent
from bayesrnn.kernels.dispatch import loop_path
from bayesrnn.kernels.input import reference
from bayesrnn.kernels.shared import alignment
from bayesrnn.kernels.shared.beside import aside
from bayesrnn.kernels.shared.derivatives import OnceFunction, once_differentiable
from bayesrnn.kernels.shared.matmul import product_transposed, weight_gradient
from bayesrnn.kernels.shared.precision import lowered
from bayesrnn.kernels.shared.rows import times_rows
from bayesrnn.kernels.shared.tensors import ordinary, transformed


class _Project(OnceFunction):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        x, weight, bias, mask, batch_sizes = given
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


def project(x: Tensor, weight: Tensor, bias: Tensor | None, mask: Tensor | None, batch_sizes: Sequence[int]) -> Tensor:
    """Like `reference.project`, differentiable once."""
    if transformed():  # vmap knows torch's operations, and there is a kernel for it
        if mask is None and not torch.is_grad_enabled() and recurrent.serves(x, weight, bias):
            return recurrent.mapped_product(x, weight, bias)
        return reference.project(x, weight, bias, mask, batch_sizes)
    lower = lowered(x.device.type)
    if ordinary(x, weight, bias, mask) and alignment.serves(x, weight.shape[0]):
        dtype = torch.get_autocast_dtype(x.device.type) if lower else x.dtype
        (weight, bias), work = aside(weight, bias)
        return alignment.Project.apply(x, weight, bias, mask, batch_sizes, dtype, work)  # type: ignore[no-any-return]
    if lower or not ordinary(x, weight, bias, mask):
        return reference.project(x, weight, bias, mask, batch_sizes)
    return _Project.apply(x, weight, bias, mask, batch_sizes)  # type: ignore[no-any-return]


_WHAT = "torch operations with a hand-written backward; on a GPU large ones work on copies, made in one launch each"
PATHS = (loop_path("input", project, what=_WHAT, mapped=True),)
