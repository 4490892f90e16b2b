"""The compiled recurrences as Python calls: what the three cells share. Tensors in, tensors out; no autograd here."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bayesrnn.kernels.cpu import build
from bayesrnn.kernels.gaussian.pool import Pool
from bayesrnn.kernels.steps import offsets

CELLS = {"lstm": (0, 4), "gru": (1, 3), "tanh": (2, 1), "relu": (3, 1)}
"""Number of the cell in C, and how many gates it has."""
_WORK = 1 << 16  # multiplications of one step that are worth a thread of their own; chosen, not measured
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
    tensors = [gx, *(t for t in others if t is not None)]
    ordinary = all(t.device.type == "cpu" and t.dtype == torch.float32 for t in tensors)
    return ordinary and gx.shape[0] > 0 and gx.shape[1] > 0 and build.library() is not None


class Layer:
    """One direction of one layer: its sizes and masks, as the kernels want them."""

    def __init__(
        self, cell: str, h: Tensor, mask: Tensor | None, cell_mask: Tensor | None, sizes: Sequence[int], reverse: bool
    ) -> None:
        number, self.gates = CELLS[cell]
        self.batch, self.hidden = h.shape
        self.sizes, self._offsets = array("q", sizes), array("q", offsets(sizes))
        self._kept = [_ready(mask), _ready(cell_mask)]
        masks = 0 if mask is None else 1 if mask.ndim == 2 else mask.shape[1]
        self._layer = _Layer(
            number, self.hidden, self.batch, len(sizes), reverse, self.gates, masks,
            self.sizes.buffer_info()[0], *(_address(t) for t in self._kept),
        )  # fmt: skip
        self._copies = max(masks, 1)
        work = self.batch * self.gates * self.hidden * self.hidden
        self.threads = max(1, min(build.threads(), work // _WORK))

    def _packed(self, like: Tensor) -> Tensor:
        lanes = 16  # the most that a vector has
        return _scratch.take((self.gates * self.hidden * (-(-self.hidden // lanes) * lanes),), like)

    def _run(self, name: str, arguments: ctypes.Structure) -> None:
        library = build.library()
        assert library is not None
        function: Any = library[name]
        at = ctypes.c_void_p(self._offsets.buffer_info()[0])
        function(ctypes.byref(self._layer), ctypes.byref(arguments), at, ctypes.c_int(self.threads))

    def forward(
        self, gx: Tensor, w: Tensor, h: Tensor, c: Tensor | None, out: Tensor, kept: Tensor | None, bias: Tensor | None
    ) -> None:
        """Runs all steps: `gx` becomes the gates' activations, `h` and `c` the last states, `out` is written."""
        w, bias = w.contiguous(), _ready(bias)
        packed = self._packed(gx)
        masked = _scratch.take((2 * self._copies * self.batch * self.hidden,), gx)
        fields = [_address(t) for t in (gx, w, bias, out, kept, h, c, packed, masked)]
        self._run("bayesrnn_recurrence", _Forward(*fields))

    def backward(
        self,
        gates: Tensor,
        out: Tensor,
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
        w, h0, c0, d_out = w.contiguous(), h0.contiguous(), _ready(c0), _ready(d_out)
        packed = self._packed(gates)
        tensors = (gates, out, kept, h0, c0, w, d_out, dh, dc, d_gx, d_product, packed)
        self._run("bayesrnn_recurrence_backward", _Backward(*[_address(t) for t in tensors]))


def _ready(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def own_copy(state: Tensor | None, like: Tensor) -> Tensor:
    """A contiguous copy of `state` to work on; zeros where there is none."""
    if state is None:
        return torch.zeros(like.shape, dtype=like.dtype)
    return state.detach().clone(memory_format=torch.contiguous_format)
