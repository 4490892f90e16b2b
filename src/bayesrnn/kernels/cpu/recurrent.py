"""The compiled recurrences as Python calls: what the three cells share. Tensors in, tensors out; no autograd here."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bayesrnn.kernels.cpu import build
from bayesrnn.kernels.cpu.memory import Pool, address
from bayesrnn.kernels.shared.rows import offsets
from bayesrnn.kernels.shared.tensors import Mapped, beneath, for_each, ordinary, traced, transformed

CELLS = {"lstm": (0, 4), "gru": (1, 3), "tanh": (2, 1), "relu": (3, 1)}
"""Number of the cell in C, and how many gates it has."""
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
    tensors = [t for t in (gx, *others) if t is not None]
    if transformed():
        tensors = [beneath(t) for t in tensors]
    fit = all(t.is_cpu and t.dtype == torch.float32 for t in tensors)
    return fit and gx.numel() > 0 and not traced() and ordinary(*tensors) and build.why_not() is None


class Layer:
    """One direction of one layer: its sizes and masks, as the kernels want them."""

    def __init__(
        self, cell: str, h: Tensor, mask: Tensor | None, cell_mask: Tensor | None, sizes: Sequence[int], reverse: bool
    ) -> None:
        number, self.gates = CELLS[cell]
        self.batch, self.hidden = h.shape
        if sorted(sizes, reverse=True) != list(sizes) or sizes[-1] < 1 or sizes[0] != self.batch:
            raise ValueError("batch_sizes must fall, from the batch of h")
        shape, by_gate = (self.batch, self.hidden), (self.batch, self.gates, self.hidden)
        if mask is not None and mask.shape != shape and mask.shape != by_gate:
            raise ValueError(f"z_h must be of shape {shape} or {by_gate}, got {tuple(mask.shape)}")
        if cell_mask is not None and cell_mask.shape != shape:
            raise ValueError(f"z_c must be of shape {shape}, got {tuple(cell_mask.shape)}")
        self.sizes, self._offsets = array("q", sizes), array("q", offsets(sizes))
        self._kept = [_ready(mask), _ready(cell_mask)]
        masks = 0 if mask is None else 1 if mask.ndim == 2 else mask.shape[1]
        self._layer = _Layer(
            number, self.hidden, self.batch, len(sizes), reverse, self.gates, masks,
            self.sizes.buffer_info()[0], *map(address, self._kept),
        )  # fmt: skip
        self._copies = max(masks, 1)
        work = self.batch * self.gates * self.hidden * self.hidden
        self.threads = max(1, min(build.threads(), work // _WORK))

    # the kernels trust what they are told: what does not fit must not reach them
    def _expect(self, gx: Tensor, w: Tensor, h: Tensor, c: Tensor | None, bias: Tensor | None) -> None:
        width, state = self.gates * self.hidden, (self.batch, self.hidden)
        expected = {
            "gx": (gx, (self._offsets[-1], width)),
            "w_hh": (w, (width, self.hidden)),
            "the state h": (h, state),
            "the state c": (c, state),
            "b_hn": (bias, (self.hidden,)),
        }
        for name, (tensor, shape) in expected.items():
            if tensor is not None and tensor.shape != shape:
                raise ValueError(f"{name} must be of shape {shape}, got {tuple(tensor.shape)}")

    @property
    def _packed(self) -> int:
        """Numbers of the recurrent weights in the order in which the kernels read them."""
        return self.gates * self.hidden * (-(-self.hidden // _LANES) * _LANES)

    def _run(self, name: str, arguments: ctypes.Structure) -> None:
        function: Any = getattr(build.loaded(), name)
        at = ctypes.c_void_p(self._offsets.buffer_info()[0])
        function(ctypes.byref(self._layer), ctypes.byref(arguments), at, ctypes.c_int(self.threads))

    def _forward(self, *tensors: Tensor | None, draws: int = 1) -> _Forward:
        """The addresses of gx, w, bias, out, kept, h, c, packed and masked, each with room for all draws."""
        rows, width, state = self._offsets[-1], self.gates * self.hidden, self.batch * self.hidden
        sizes = (rows * width, width * self.hidden, self.hidden, rows * self.hidden, rows * self.hidden, state, state)
        counts = [draws * n for n in sizes]
        return _Forward(*map(address, tensors, (*counts, None, None)))

    def forward(
        self, gx: Tensor, w: Tensor, h: Tensor, c: Tensor | None, out: Tensor, kept: Tensor | None, bias: Tensor | None
    ) -> None:
        """Runs all steps: `gx` becomes the gates' activations, `h` and `c` the last states, `out` is written."""
        self._expect(gx, w, h, c, bias)
        w, bias = w.contiguous(), _ready(bias)
        packed, masked = _scratch.take_all([(self._packed,), (2 * self._copies * self.batch * self.hidden,)], gx)
        self._run("bayesrnn_recurrence", self._forward(gx, w, bias, out, kept, h, c, packed, masked))

    def forward_many(
        self, gx: Tensor, w: Tensor, h: Tensor, c: Tensor | None, out: Tensor, bias: Tensor | None
    ) -> None:
        """As `forward` for several draws of the weights at once: every tensor has one more axis in front."""
        draws = gx.shape[0]
        self._expect(gx[0], w[0], h[0], None if c is None else c[0], None if bias is None else bias[0])
        threads = min(build.threads(), draws)
        shapes = [(threads * self._packed,), (threads * 2 * self.batch * self.hidden,)]
        packed, masked = _scratch.take_all(shapes, gx)
        fields = self._forward(gx, w, bias, out, None, h, c, packed, masked, draws=draws)
        at = ctypes.c_void_p(self._offsets.buffer_info()[0])
        function: Any = build.loaded().bayesrnn_recurrence_many
        function(ctypes.byref(self._layer), ctypes.byref(fields), at, ctypes.c_int64(draws), ctypes.c_int(threads))

    def backward(
        self,
        gates: Tensor,
        out: Tensor | None,
        kept: Tensor | None,
        h0: Tensor,
        c0: Tensor | None,
        w: Tensor,
        d_out: Tensor | None,
        dh: Tensor,
        dc: Tensor | None,
        d_gx: Tensor,
        d_product: Tensor,
    ) -> None:
        """All steps back: `dh` and `dc` become the first states' gradients, `d_gx` and `d_product` are written."""
        self._expect(gates if self.gates > 1 else d_gx, w, h0, c0, None)
        if d_out is not None and d_out.shape != (self._offsets[-1], self.hidden):
            raise ValueError("the output's gradient must have its shape")
        w, h0, c0, d_out = w.contiguous(), h0.contiguous(), _ready(c0), _ready(d_out)
        packed = _scratch.take((self._packed,), gates)
        rows, width, state = self._offsets[-1], self.gates * self.hidden, self.batch * self.hidden
        by_unit, by_gate = rows * self.hidden, rows * width
        sizes = (by_gate, by_unit, by_unit, state, state, width * self.hidden, by_unit, state, state, by_gate, by_gate)
        tensors = (gates, out, kept, h0, c0, w, d_out, dh, dc, d_gx, d_product)
        self._run("bayesrnn_recurrence_backward", _Backward(*map(address, tensors, sizes), address(packed)))


def _ready(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()


def own_copy(state: Tensor | None, like: Tensor) -> Tensor:
    """A contiguous copy of `state` to work on; zeros where there is none."""
    if state is None:
        return torch.zeros(like.shape, dtype=like.dtype, device=like.device)
    return state.detach().clone(memory_format=torch.contiguous_format)


def _recurrences(
    draws: int, tensors: Sequence[Any], *, cell: str, sizes: Sequence[int], reverse: bool
) -> tuple[Tensor, ...]:
    gx, h, c, w, bias = (for_each(t, draws) for t in tensors)
    layer = Layer(cell, h[0], None, None, sizes, reverse)
    out, h = gx.new_empty(*gx.shape[:2], h.shape[2]), h.clone()
    c = None if c is None else c.clone()
    layer.forward_many(gx, w, h, c, out, bias)
    return (out, h) if c is None else (out, h, c)


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
    expected = (len(x) * rows * inputs, draws * outputs * inputs, draws * outputs, draws * rows * outputs, None)
    tensors_ = (x, w, bias, out, packed)
    at = [ctypes.c_void_p(address(t, n) or None) for t, n in zip(tensors_, expected, strict=True)]
    build.loaded().bayesrnn_products_many(at[0], x_draw, *at[1:], *sizes, ctypes.c_int(threads))
    return (out,)


def elsewhere(
    cell: str, tensors: Sequence[Any], others: Sequence[Any], given: Sequence[Any], loop: Callable[..., Any],
    reference: Callable[..., Any], *, batch_sizes: Sequence[int], reverse: bool, **options: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    """One direction of one layer that C cannot run as it is: in `loop`, or `reference` inside vmap and the like.

    Inside vmap, C runs draws of the weights side by side, for predictions: without masks and gradients.

    Args:
        tensors: gx, h, c, w_hh and the bias inside the cell, or None for what the cell lacks.
        others: masks and whatever else the compiled kernels may not know.
        given: the arguments of `loop` and `reference`.
    """
    options = {"batch_sizes": batch_sizes, "reverse": reverse, **options}
    if not transformed():
        return loop(*given, **options)  # type: ignore[no-any-return]
    if torch.is_grad_enabled() or any(t is not None for t in others) or not serves(*tensors):
        return reference(*given, **options)  # type: ignore[no-any-return]
    return Mapped.apply(partial(_recurrences, cell=cell, sizes=batch_sizes, reverse=reverse), *tensors)  # type: ignore[no-any-return]


def mapped_product(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    """x (N, F) times w (M, F) transposed plus bias (M,) under `torch.vmap`; for predictions, without gradients."""
    return Mapped.apply(_products, x, w, bias)[0]  # type: ignore[no-any-return]
