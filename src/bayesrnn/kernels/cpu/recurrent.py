"""The recurrences in C: all steps of a layer in one call, forward and backward. README.md beside this file has it."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from functools import lru_cache
from itertools import starmap
from typing import Any

import torch
from torch import Tensor

from bayesrnn.kernels.cpu import build
from bayesrnn.kernels.cpu.memory import Pool, address
from bayesrnn.kernels.shared.recurrent import Cell, Layer, Recurrence
from bayesrnn.kernels.shared.rows import offsets
from bayesrnn.kernels.shared.tensors import Mapped, beneath, for_each, ordinary, traced, transformed

_CELLS = ("LSTM", "GRU", "tanh", "relu")  # in the order of C's enum
_WORK = 1 << 16  # multiplications of one step that are worth a thread of their own; chosen, not measured
_LANES, _MOST = 16, 4  # the most lanes that a vector has, and the vectors of a panel
_scratch = Pool()
_pointer, _int = ctypes.c_void_p, ctypes.c_int64


class _Layer(ctypes.Structure):
    _fields_ = [(name, _int) for name in ("cell", "hidden", "batch", "steps", "reverse", "gates", "masks")] + [
        (name, _pointer) for name in ("sizes", "mask", "cell_mask")
    ]


class _Forward(ctypes.Structure):
    _fields_ = [(name, _pointer) for name in ("gx", "w", "bias", "out", "kept", "h", "c", "packed", "masked")]


class _Backward(ctypes.Structure):
    _fields_ = [
        (name, _pointer)
        for name in ("gates", "out", "kept", "h0", "c0", "w", "d_out", "dh", "dc", "d_gx", "d_product", "packed")
    ]


def serves(gx: Tensor, *others: Tensor | None) -> bool:
    """Whether the compiled kernels can run a layer with these tensors: float32 on a CPU, and kernels there are."""
    tensors: tuple[Tensor | None, ...] = (gx, *others)
    if transformed():
        tensors = tuple(None if t is None else beneath(t) for t in tensors)
    for t in tensors:
        if t is not None and not (t.is_cpu and t.dtype is torch.float32):
            return False
    return gx.numel() > 0 and not traced() and ordinary(*tensors) and build.why_not() is None


class _Call:
    """One direction of one layer as C wants it; with `draws`, every tensor has an axis of that length in front."""

    def __init__(self, layer: Layer, *draws: int) -> None:
        gates, sizes, (batch, hidden) = layer.gates, layer.sizes, layer.h.shape[-2:]
        if sizes[0] != batch:
            raise ValueError("batch_sizes must fall, from the batch of h")
        self._sizes, self._offsets = _steps(tuple(sizes))
        rows, width = self._offsets[-1], gates * hidden
        self.by_gate, self.by_unit, self.state = (*draws, rows, width), (*draws, rows, hidden), (*draws, batch, hidden)
        self.weights, self.bias, self._draws = (*draws, width, hidden), (*draws, hidden), draws
        self._masks = _ready(layer.z_h), _ready(layer.z_c)
        copies = gates if layer.untied else 1
        mask = address(self._masks[0], (batch, gates, hidden) if layer.untied else self.state, "z_h")
        self._layer = _Layer(
            _CELLS.index(layer.kind), hidden, batch, len(sizes), layer.reverse, gates, copies if mask else 0,
            self._sizes.buffer_info()[0], mask, address(self._masks[1], self.state, "z_c"),
        )  # fmt: skip
        self.threads = max(1, min(build.threads(), draws[0] if draws else batch * width * hidden // _WORK))
        each = self.threads if draws else 1
        self.packed = each * width * (-(-hidden // _LANES) * _LANES)  # the weights in the order in which C reads them
        self.masked = each * 2 * copies * batch * hidden

    def run(self, function: Any, arguments: type[ctypes.Structure], tensors: Sequence[Any], *scratch: int) -> None:
        """Call C with (tensor, shape, name) for each argument, and scratch memory of these sizes after them."""
        room = _scratch.take_all([(n,) for n in scratch], tensors[0][0])
        given = arguments(*starmap(address, tensors), *map(address, room))
        at, threads = _pointer(self._offsets.buffer_info()[0]), ctypes.c_int(self.threads)
        function(ctypes.byref(self._layer), ctypes.byref(given), at, *map(_int, self._draws), threads)


@lru_cache(maxsize=256)
def _steps(sizes: tuple[int, ...]) -> tuple[array[int], array[int]]:
    """The rows of every step, and the first row of each."""
    if sorted(sizes, reverse=True) != list(sizes) or sizes[-1] < 1:
        raise ValueError("batch_sizes must fall, from the batch of h")
    return array("q", sizes), array("q", offsets(sizes))


def _ready(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()


def _own_copy(state: Tensor | None, like: Tensor) -> Tensor:
    """A contiguous copy of `state` to work on; zeros where there is none."""
    if state is None:
        return torch.zeros(like.shape, dtype=like.dtype, device=like.device)
    return state.detach().clone(memory_format=torch.contiguous_format)


def _run(layer: Layer, function: Any, *draws: int) -> tuple[Tensor, tuple[Any, ...], Tensor | None]:
    """Outputs, last states and what a backward needs beside the gates, which are written over gx."""
    call, gx = _Call(layer, *draws), layer.gx
    out = gx.new_empty(call.by_unit)
    kept = None if draws or layer.gates == 1 else gx.new_empty(call.by_unit)
    states = tuple(_own_copy(s, s) for s in layer.states)
    h, c = (*states, None)[:2]
    tensors = (
        (gx, call.by_gate, "gx"), (layer.w_hh.contiguous(), call.weights, "w_hh"),
        (_ready(layer.b_hn), call.bias, "b_hn"), (out, call.by_unit), (kept, call.by_unit),
        (h, call.state, "the state h"), (c, call.state, "the state c"),
    )  # fmt: skip
    call.run(function, _Forward, tensors, call.packed, call.masked)
    return out, states, kept


def _forward(layer: Layer) -> tuple[Any, ...]:
    layer = layer._replace(gx=layer.gx.contiguous())
    out, states, kept = _run(layer, build.loaded().bayesrnn_recurrence)
    return out, states, layer.gx if kept is None else None, (layer.gx, kept)


def _backward(layer: Layer, saved: Any, h_prev: Any, d_out: Any, d_states: Any) -> tuple[Any, ...]:
    gates, kept = saved
    call, d_gx = _Call(layer), torch.empty_like(gates)
    d_product = torch.empty_like(gates) if layer.kind == "GRU" else d_gx
    found = tuple(_own_copy(d, s) for d, s in zip(d_states, layer.states, strict=True))
    dh, dc = (*found, None)[:2]
    out = {"LSTM": None, "GRU": h_prev}.get(layer.kind, gates)
    tensors = (
        (gates, call.by_gate), (out, call.by_unit), (kept, call.by_unit), (layer.h.contiguous(), call.state),
        (_ready(layer.c), call.state), (layer.w_hh.contiguous(), call.weights),
        (_ready(d_out), call.by_unit, "the output's gradient"), (dh, call.state, "the gradient of h"),
        (dc, call.state, "the gradient of c"), (d_gx, call.by_gate), (d_product, call.by_gate),
    )  # fmt: skip
    call.run(build.loaded().bayesrnn_recurrence_backward, _Backward, tensors, call.packed)
    return d_gx, d_product, found, None


def _draws(count: int, tensors: Sequence[Any], *, kind: str, sizes: Sequence[int], reverse: bool) -> tuple[Tensor, ...]:
    gx, h, c, w, bias = (for_each(t, count) for t in tensors)
    layer = Layer(kind, sizes, reverse, gx, h, c, w, b_hn=bias)
    out, states, _ = _run(layer, build.loaded().bayesrnn_recurrence_many, count)
    return out, *states


def compiled(cell: Cell, loop: Recurrence) -> Recurrence:
    """A cell's recurrence in C; `loop` handles projections and other dtypes."""
    return Recurrence(
        cell, _forward, _backward, otherwise=loop, draws=_draws,
        serves=lambda layer: layer.w_hr is None and serves(*layer[3:]),
    )  # fmt: skip


def _products(draws: int, tensors: Sequence[Any]) -> tuple[Tensor, ...]:
    x, w, bias = tensors
    x = x.contiguous()
    w, bias = for_each(w, draws), for_each(bias, draws)
    rows, inputs, outputs = x.shape[1], x.shape[2], w.shape[1]
    threads = min(build.threads(), draws)
    out = x.new_empty(draws, rows, outputs)
    packed = _scratch.take((threads * _MOST * _LANES * inputs,), x)
    numbers = [x.stride(0) if x.shape[0] > 1 else 0, rows, inputs, outputs, draws]
    x_draw, *sizes = (ctypes.c_int64(n) for n in numbers)
    expected = (x.shape, (draws, outputs, inputs), (draws, outputs), (draws, rows, outputs), None)
    tensors_ = (x, w, bias, out, packed)
    at = [ctypes.c_void_p(address(t, n) or None) for t, n in zip(tensors_, expected, strict=True)]
    build.loaded().bayesrnn_products_many(at[0], x_draw, *at[1:], *sizes, ctypes.c_int(threads))
    return (out,)


def mapped_product(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    """x (N, F) times w (M, F) transposed plus bias (M,) under `torch.vmap`; for predictions, without gradients."""
    return Mapped.apply(_products, x, w, bias)[0]  # type: ignore[no-any-return]
