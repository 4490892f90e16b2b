"""One direction of one recurrent layer: what every cell and every way to compute it share.

A `Cell` names the arguments of its recurrence. A way to compute it has a `forward` and a hand-written `backward`;
`Recurrence` makes of the two a function like the cell's `reference`, with the gradients of the recurrent weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayesrnn.kernels.shared import alignment as aligned
from bayesrnn.kernels.shared import beside, matmul
from bayesrnn.kernels.shared.beside import Work
from bayesrnn.kernels.shared.derivatives import OnceFunction, once_differentiable
from bayesrnn.kernels.shared.rows import is_rectangular, previous_rows, times_rows
from bayesrnn.kernels.shared.tensors import Mapped, ordinary, transformed

Product = Callable[[Tensor], Tensor]
GATES = {"LSTM": 4, "GRU": 3}


class Layer(NamedTuple):
    """The arguments of one recurrence, as the references name them; None for what the cell lacks."""

    kind: str
    """"LSTM" or "GRU"; for the simple recurrence its nonlinearity."""
    sizes: Sequence[int]
    reverse: bool
    gx: Any
    h: Any
    c: Any
    w_hh: Any
    w_hr: Any = None
    b_hn: Any = None
    z_h: Any = None
    z_c: Any = None

    @property
    def states(self) -> tuple[Tensor, ...]:
        return (self.h,) if self.c is None else (self.h, self.c)

    @property
    def gates(self) -> int:
        return GATES.get(self.kind, 1)

    @property
    def untied(self) -> bool:
        """Whether every gate has a mask of its own."""
        return self.z_h is not None and self.z_h.ndim == 3

    def run(self, step: Callable[..., tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """The last states. `step(t, *states)` gives the new states of the sequences that step t has."""
        sizes, states = self.sizes, self.states
        ragged, steps = not is_rectangular(sizes), range(len(sizes))
        if ragged:
            states = tuple(state.clone() for state in states)
        for t in reversed(steps) if self.reverse else steps:
            if ragged:
                own = [state[: sizes[t]] for state in states]
                for state, new in zip(own, step(t, *own), strict=True):
                    state.copy_(new)
            else:
                states = step(t, *states)
        return states if ragged else tuple(state.clone() for state in states)

    def run_back(
        self, step: Callable[..., tuple[Tensor, ...]], d_out: Tensor | None, d_states: Sequence[Tensor | None]
    ) -> tuple[Tensor, ...]:
        """The first states' gradients. `step(t, *gradients)` turns those after step t into those before it."""
        sizes, ragged, steps = self.sizes, not is_rectangular(self.sizes), range(len(self.sizes))
        pairs = zip(self.states, d_states, strict=True)
        found = tuple(torch.zeros_like(state) if d is None else d.clone() for state, d in pairs)
        d_outs = None if d_out is None else d_out.split(sizes)
        for t in steps if self.reverse else reversed(steps):
            own = tuple(d[: sizes[t]] for d in found) if ragged else found
            if d_outs is not None:
                own[0].add_(d_outs[t])
            if ragged:
                for d, new in zip(own, step(t, *own), strict=True):
                    d.copy_(new)
            else:
                found = step(t, *own)
        return found

    def product(self) -> Product:
        """`h (n, P) -> (n, G*H)`: the masked h times the recurrent weights (G*H, P) transposed."""
        mask, repeated = self.z_h, partial(matmul.repeated_product, rows=self.h.shape[0], repeats=len(self.sizes))
        if not self.untied:
            product = repeated(self.w_hh)
            return product if mask is None else lambda h: product(h * mask[: len(h)])
        products = [repeated(w) for w in self.w_hh.chunk(mask.shape[1])]
        by_gate = mask.transpose(0, 1).contiguous()

        def joined(h: Tensor) -> Tensor:
            masked = (h * by_gate[:, : len(h)]).unbind(0)
            return torch.cat([p(m) for p, m in zip(products, masked, strict=True)], dim=1)

        return joined

    def product_back(self) -> Product:
        """`d (n, G*H) -> (n, P)`: the gradient of h from that of the product."""
        mask, repeated = self.z_h, partial(matmul.repeated_product, rows=self.h.shape[0], repeats=len(self.sizes))
        if not self.untied:
            product = repeated(self.w_hh.t())
            return product if mask is None else lambda d: product(d).mul_(mask[: len(d)])
        gates, masks = mask.shape[1], mask.unbind(1)
        products = [repeated(w.t()) for w in self.w_hh.chunk(gates)]

        def summed(d: Tensor) -> Tensor:
            n = len(d)
            parts = d.view(n, gates, d.shape[1] // gates).transpose(0, 1).contiguous().unbind(0)
            out = products[0](parts[0]).mul_(masks[0][:n])
            for k in range(1, gates):
                out.addcmul_(products[k](parts[k]), masks[k][:n])
            return out

        return summed


class Cell(NamedTuple):
    """A recurrence: its name, its arguments in the order of `Layer`, and the plain function."""

    name: str
    arguments: Callable[..., tuple[Any, ...]]
    reference: Callable[..., Any]


class Recurrence:
    """One way to compute a cell, called like its reference. `gx` is used as scratch: do not read it afterwards.

    It may be in autocast's lower precision; then the product for the recurrent weights' gradient is too.

    Args:
        forward: `forward(layer)` gives the outputs, the last states, the outputs in memory that no caller can change
            (or None), and tensors for the backward.
        backward: `backward(layer, kept, h_prev, d_out, d_states)` gives the gradients of gx, of the recurrent product,
            of the first states, and of w_hr. There is no `layer.gx` any more; h_prev are the states before each row,
            or None where the forward gave outputs in memory of their own.
        serves: whether it can run a layer; None: if all tensors are ordinary.
        otherwise: what runs the others; None: the reference.
        draws: `draws(count, tensors, kind=, sizes=, reverse=)` runs several draws of the weights under vmap, without
            masks and gradients; tensors are gx, h, c, w_hh and b_hn.
    """

    def __init__(
        self,
        cell: Cell,
        forward: Callable[[Layer], tuple[Any, ...]],
        backward: Callable[..., tuple[Any, ...]],
        *,
        serves: Callable[[Layer], bool] | None = None,
        otherwise: Callable[..., Any] | None = None,
        draws: Callable[..., Any] | None = None,
    ) -> None:
        self.cell, self.forward, self.backward = cell, forward, backward
        self.serves, self.otherwise, self.draws = serves, otherwise or cell.reference, draws

    def __call__(
        self, *tensors: Any, batch_sizes: Sequence[int], reverse: bool = False, **options: str
    ) -> tuple[Tensor, ...]:
        kind = options.get("nonlinearity", "tanh") if self.cell.name == "RNN" else self.cell.name
        layer = Layer(kind, batch_sizes, reverse, *self.cell.arguments(*tensors))
        given = layer.gx
        if given.dtype != layer.h.dtype:
            layer = layer._replace(gx=given.to(layer.h.dtype))
        fits = ordinary(*tensors) if self.serves is None else self.serves(layer)
        run = self.otherwise
        if transformed():
            others = (layer.w_hr, layer.z_h, layer.z_c)
            if fits and self.draws is not None and not torch.is_grad_enabled() and all(t is None for t in others):
                many = partial(self.draws, kind=kind, sizes=batch_sizes, reverse=reverse)
                return Mapped.apply(many, layer.gx, layer.h, layer.c, layer.w_hh, layer.b_hn)  # type: ignore[no-any-return]
            run = self.cell.reference
        elif fits:
            (w_hh,), work = beside.aside(layer.w_hh)
            layer = layer._replace(w_hh=w_hh)
            return _Function.apply(self, layer, work, given, *layer[4:9])  # type: ignore[no-any-return]
        return run(*tensors, batch_sizes=batch_sizes, reverse=reverse, **options)  # type: ignore[no-any-return]


class _Function(OnceFunction):
    """`apply(way, layer, work, *tensors)`: the tensors are the layer's that may need gradients, from gx to b_hn."""

    @staticmethod
    def forward(ctx: Any, way: Recurrence, layer: Layer, work: Work | None, *given: Any) -> tuple[Tensor, ...]:
        out, states, outputs, kept = way.forward(layer)
        h_prev = None
        if outputs is None and any(ctx.needs_input_grad):  # a copy: the caller may change `out`
            h_prev = previous_rows(out, layer.h, layer.sizes, reverse=layer.reverse)
        ctx.save_for_backward(outputs, h_prev, *layer[4:], *kept)
        ctx.way, ctx.kind, ctx.sizes, ctx.reverse, ctx.work = way, layer.kind, layer.sizes, layer.reverse, work
        ctx.low = given[0].dtype
        ctx.set_materialize_grads(False)
        return out, *states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor | None, *d_states: Tensor | None) -> tuple[Any, ...]:
        outputs, h_prev, *saved = ctx.saved_tensors
        layer, kept = Layer(ctx.kind, ctx.sizes, ctx.reverse, None, *saved[:7]), saved[7:]
        d_gx, d_product, first, d_w_hr = ctx.way.backward(layer, kept, h_prev, d_out, d_states)
        d_w_hh = d_b_hn = None
        low = None
        if d_gx.dtype != ctx.low:
            lowered = d_gx.to(ctx.low)
            low, d_gx = lowered if d_product is d_gx else None, lowered
        if ctx.needs_input_grad[6]:

            def compute(h_prev: Tensor | None = h_prev) -> list[Tensor]:
                if h_prev is None:
                    h_prev = previous_rows(outputs, layer.h, layer.sizes, reverse=layer.reverse)
                return [weight_gradient(d_product, h_prev, layer.z_h, layer.sizes, low)]

            if ctx.work is None:
                (d_w_hh,) = compute()
            else:
                ctx.work.put(compute, outputs, h_prev, layer.h, layer.z_h, d_product, low)
                d_w_hh = beside.owed(layer.w_hh)
        if ctx.needs_input_grad[8]:
            d_b_hn = d_product[:, 2 * layer.h.shape[1] :].sum(0)
        d_h, d_c = (*first, None)[:2]
        return None, None, None, d_gx, d_h, d_c, d_w_hh, d_w_hr, d_b_hn


def weight_gradient(
    d: Tensor, h_prev: Tensor, mask: Tensor | None, batch_sizes: Sequence[int], low: Tensor | None = None
) -> Tensor:
    """Gradient (G*H, P) of the recurrent weights: one GEMM over all time-major rows (one per gate if untied).

    Args:
        low: d in a lower precision, for large products on a GPU.
    """
    if aligned.serves(h_prev, d.shape[1]):
        return aligned.recurrent_gradient(d if low is None else low, h_prev, mask, batch_sizes)
    if mask is None:
        return matmul.weight_gradient(d, h_prev)
    if mask.ndim == 2:
        return matmul.weight_gradient(d, times_rows(h_prev, mask, batch_sizes))
    parts = zip(d.chunk(mask.shape[1], 1), mask.unbind(1), strict=True)
    return torch.cat([matmul.weight_gradient(part, times_rows(h_prev, z, batch_sizes)) for part, z in parts])
