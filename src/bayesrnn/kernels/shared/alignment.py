"""Large products on a GPU, from copies whose rows begin on 16 bytes, where cuBLAS has its fast kernels.

650 columns do not: cuBLAS then loads number by number and takes about twice as long. The copies have the missing
columns filled up, and autocast's precision; one masked copy per gate is made in one operation, and one batched product
serves all gates.
Columns that are missing in x are ones, those in W zeros: then the extra columns of dW = d^T [x, 1] are the gradient of
the bias, which needs no sum of its own. Nothing here is recorded by autograd, except through `Project`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from bayesrnn.kernels.shared.beside import owed
from bayesrnn.kernels.shared.derivatives import once_differentiable
from bayesrnn.kernels.shared.rows import is_rectangular, per_row

_ENOUGH = 1 << 26  # multiplications of a product below which a copy is not worth it
_ROWS = 128  # rows of x, likewise: the copy of W is read once and used by all of them


def serves(x: Tensor, height: int) -> bool:
    """Whether to use this file for x (N, F) times the transpose of a matrix (height, F)."""
    return x.is_cuda and x.dtype == torch.float32 and x.shape[0] >= _ROWS and x.numel() * height >= _ENOUGH


def _missing(size: int, dtype: torch.dtype) -> int:
    """How many numbers a row of this size lacks to whole 16 bytes."""
    return -size % (16 // min(dtype.itemsize, 4))


def _space(like: Tensor, *shape: int, columns: int, tail: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A buffer for (*shape, columns) in rows of whole 16 bytes, padding filled; and its view without padding."""
    made = like.new_empty(*shape, columns + _missing(columns, dtype), dtype=dtype)
    if made.shape[-1] > columns:
        made[..., columns:].fill_(tail)
    return made, made[..., :columns]


def masked_inputs(
    x: Tensor, mask: Tensor | None, batch_sizes: Sequence[int], dtype: torch.dtype | None = None
) -> Tensor:
    """(G, N, F'): x (N, F) times the mask of each gate, ones in the columns beyond F; G is 1 for a shared mask or none.

    Args:
        mask: None, (B, F), or (B, G, F); time-major rows as in `steps`.
        dtype: of the result; None: that of x.
    """
    gates = mask.shape[1] if mask is not None and mask.ndim == 3 else 1
    rows, columns = x.shape
    dtype = dtype or x.dtype
    if mask is None and not _missing(columns, dtype):
        return x.to(dtype).contiguous().unsqueeze(0)
    launch = _launch(x)
    if launch is not None and (mask is None or is_rectangular(batch_sizes)):
        found: Tensor = launch(x, (gates, rows, columns + _missing(columns, dtype)), dtype, mask=mask, tail=1.0)
        return found
    made, inside = _space(x, gates, rows, columns=columns, tail=1.0, dtype=dtype)
    if mask is None:
        inside[0].copy_(x)
        return made
    by_gate = mask.reshape(mask.shape[0], gates, columns).transpose(0, 1)  # (G, B, F)
    if is_rectangular(batch_sizes):
        steps = (len(batch_sizes), batch_sizes[0])
        torch.mul(x.reshape(*steps, columns), by_gate.unsqueeze(1), out=inside.unflatten(1, steps))
    else:
        torch.mul(x, per_row(by_gate.transpose(0, 1), batch_sizes).transpose(0, 1), out=inside)
    return made


def filled_weights(weight: Tensor, gates: int, dtype: torch.dtype, bias: Tensor | None = None) -> Tensor:
    """(G, H', F'): the gates' matrices (G*H, F), padded with zeros; a view if neither padding nor a cast is needed.

    Args:
        bias: (G*H,) for the first column beyond F, where there is one: the weights of ones.
    """
    columns = weight.shape[1]
    parts = weight.reshape(gates, -1, columns)
    height = parts.shape[1]
    below, beside = _missing(height, dtype), _missing(columns, dtype)
    if not below and not beside:
        return parts.to(dtype)
    bias = bias if beside else None
    launch = _launch(weight)
    if launch is not None:
        found: Tensor = launch(weight, (gates, height + below, columns + beside), dtype, by_gate=True, beside=bias)
        return found
    if not below:
        made, inside = _space(weight, gates, height, columns=columns, tail=0.0, dtype=dtype)
    else:
        made = weight.new_zeros(gates, height + below, columns + beside, dtype=dtype)
        inside = made[:, :height, :columns]
    inside.copy_(parts)
    if bias is not None:
        made[:, :height, columns] = bias.view(gates, height)
    return made


def _launch(x: Tensor) -> Callable[..., Tensor] | None:
    """Makes such a copy in one launch."""
    return _triton() if x.is_cuda else None


@functools.cache
def _triton() -> Callable[..., Tensor] | None:
    try:
        found: Callable[..., Tensor] = import_module("bayesrnn.kernels.gpu.filling").filled
    except ImportError:  # Triton is not installed
        return None
    return found


def by_gate(d: Tensor, gates: int) -> Tensor:
    """(G, N, H'): a gradient (N, G*H) by gate, padded with zeros; a view if a single gate needs no padding."""
    width = d.shape[1] // gates
    if gates == 1 and not _missing(width, d.dtype):
        return d.contiguous().unsqueeze(0)
    made, inside = _space(d, gates, d.shape[0], columns=width, tail=0.0, dtype=d.dtype)
    inside.copy_(d.reshape(-1, gates, width).transpose(0, 1))
    return made


def product(a: Tensor, b: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """(G, N, K) times (G, K, M), in the factors' precision or another."""
    if dtype is None or dtype == a.dtype:
        return torch.bmm(a, b) if a.shape[0] > 1 else torch.mm(a[0], b[0]).unsqueeze(0)
    if not a.is_cuda:
        return torch.bmm(a, b).to(dtype)
    if a.shape[0] > 1:
        return torch.bmm(a, b, out_dtype=dtype)
    return torch.mm(a[0], b[0], out_dtype=dtype).unsqueeze(0)


def outputs(x: Tensor, weight: Tensor, bias: Tensor | None, height: int) -> Tensor:
    """(N, G*H): x (G, N, F') times the gates' matrices (G, H', F') transposed, plus bias (G*H,)."""
    gates, rows = x.shape[:2]
    if gates == 1 and weight.shape[1] == height:
        transposed = weight[0].t()
        return torch.mm(x[0], transposed) if bias is None else torch.addmm(bias.to(x.dtype), x[0], transposed)
    found = product(x, weight.transpose(1, 2))[..., :height].transpose(0, 1)  # (N, G, H)
    out = x.new_empty(rows, gates * height)  # no view is given away: recurrences work in it
    if bias is None:
        out.view(rows, gates, height).copy_(found)
    else:
        torch.add(found, bias.view(gates, height), out=out.view(rows, gates, height))
    return out


def input_gradient(d: Tensor, weight: Tensor, mask: Tensor | None, batch_sizes: Sequence[int], columns: int) -> Tensor:
    """(N, F) from d (G, N, H') and the gates' matrices: the sum over gates of mask times d W."""
    found = product(d, weight)[..., :columns]  # (G, N, F)
    if mask is None:
        return found[0]
    gates, rows = found.shape[:2]
    masks = mask.reshape(mask.shape[0], gates, columns).transpose(0, 1)  # (G, B, F)
    if is_rectangular(batch_sizes):
        found, masks = found.unflatten(1, (len(batch_sizes), batch_sizes[0])), masks.unsqueeze(1)
    else:
        masks = per_row(masks.transpose(0, 1), batch_sizes).transpose(0, 1)
    out = found[0] * masks[0] if gates == 1 else found.mul_(masks).sum(0)
    return out.reshape(rows, columns)


def weight_gradient(d: Tensor, x: Tensor, height: int, dtype: torch.dtype | None = None) -> Tensor:
    """(G, H, F') from d (G, N, H') and x (G, N, F'): the weights' gradient; columns of ones give the bias's."""
    return product(d.transpose(1, 2), x, dtype)[:, :height]


def recurrent_gradient(d: Tensor, h_prev: Tensor, mask: Tensor | None, batch_sizes: Sequence[int]) -> Tensor:
    """Gradient (G*H, P) of weights from that of their products, d (N, G*H), and masked inputs h_prev (N, P).

    The product has the precision of d, and is added up in that of h_prev.
    """
    inputs, columns = masked_inputs(h_prev, mask, batch_sizes, d.dtype), h_prev.shape[1]
    gates = inputs.shape[0]
    found = weight_gradient(by_gate(d, gates), inputs, d.shape[1] // gates, h_prev.dtype)
    return found[..., :columns].reshape(-1, columns).contiguous()


class Project(torch.autograd.Function):
    """`input.reference.project` on padded copies, which are saved for the hand-written backward.

    The last arguments are the precision of the products and of the result, autocast's or that of x, and what takes
    the gradients of the weights, if anything does.
    """

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        x, weight, bias, mask, batch_sizes, dtype, ctx.work = given
        inputs = masked_inputs(x, mask, batch_sizes, dtype)
        gates = inputs.shape[0]
        # in 16 bits, where there are columns of ones, the bias is their weights
        joined = bias if dtype.itemsize == 2 and inputs.shape[2] > x.shape[1] else None
        weights = filled_weights(weight, gates, dtype, joined)
        ctx.save_for_backward(inputs, weights, mask)
        ctx.params = weight, bias
        ctx.batch_sizes, ctx.height, ctx.columns = batch_sizes, weight.shape[0] // gates, x.shape[1]
        ctx.kind = x.dtype
        return outputs(inputs, weights, bias if joined is None else None, ctx.height)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d: Tensor) -> tuple[Any, ...]:
        inputs, weights, mask = ctx.saved_tensors
        (weight, bias), parts = ctx.params, by_gate(d, inputs.shape[0])
        d_x = d_weight = d_bias = None
        if ctx.needs_input_grad[0]:
            d_x = input_gradient(parts, weights, mask, ctx.batch_sizes, ctx.columns).to(ctx.kind)
        wanted = ctx.needs_input_grad[1:3]

        def compute() -> tuple[Tensor | None, Tensor | None]:
            return _parameter_gradients(d, parts, inputs, ctx.height, weight, bias, wanted)

        if ctx.work is None or not any(wanted):
            d_weight, d_bias = compute()
        else:
            ctx.work.put(lambda: [g for g, p in zip(compute(), (weight, bias), strict=True) if p is not None],
                         d, parts, inputs)  # fmt: skip
            d_weight, d_bias = owed(weight), owed(bias)
        return d_x, d_weight, d_bias, None, None, None, None


def _parameter_gradients(
    d: Tensor,
    parts: Tensor,
    inputs: Tensor,
    height: int,
    weight: Tensor,
    bias: Tensor | None,
    wanted: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None]:
    """Those of the weights and of the bias; `parts` are d by gate."""
    d_weight = d_bias = None
    columns = weight.shape[1]
    if wanted[0]:
        found = weight_gradient(parts, inputs, height)
        d_weight = _in_a_piece(found[..., :columns], weight.dtype).view(-1, columns)
        if inputs.shape[2] > columns and wanted[1]:
            assert bias is not None
            d_bias = _in_a_piece(found[..., columns], bias.dtype).view(-1)
    if d_bias is None and wanted[1]:
        assert bias is not None
        d_bias = d.sum(0, dtype=bias.dtype)
    return d_weight, d_bias


def _in_a_piece(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Contiguous and of this type, in one copy at most."""
    return x.contiguous() if x.dtype == dtype else x.to(dtype, memory_format=torch.contiguous_format)
