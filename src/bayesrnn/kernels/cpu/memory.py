"""Memory that the C kernels read and write: buffers that are used again, and the check of every pointer."""

from __future__ import annotations

import math
import threading
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bayesrnn.kernels.shared.tensors import ordinary, traced, transformed

_use_count = getattr(torch._C, "_storage_Use_Count", None)
_PATIENCE = 4096  # free a buffer that was not used for this many requests
_SMALL = 1 << 14  # numbers; new memory of up to this size costs less than a look into the pool


def _holders(buffer: Tensor) -> int:
    return int(_use_count(buffer.untyped_storage()._cdata)) if _use_count is not None else 1 << 30


class _Buffer:
    """A piece of memory and the number of the last request that got it."""

    def __init__(self, memory: Tensor, latest: int) -> None:
        self.memory, self.size, self.latest = memory, memory.numel(), latest


class Pool:
    """Hands out CPU buffers that nobody holds any more; memory that something still refers to is never reused.

    A 40 MB tensor costs about 40 ms of page faults when its memory is new, and 3 ms when it is not. Other devices
    have a caching allocator of their own. Unused buffers take at most as much memory as was ever in use at once, and
    are given back when many requests have passed them by.
    """

    def __init__(self) -> None:
        self._buffers: list[_Buffer] = []
        self._alone = 0
        self._requests = 0
        self._most = 0
        self._lock = threading.Lock()

    def __deepcopy__(self, memo: dict[int, Any]) -> Pool:
        return Pool()

    def __reduce__(self) -> tuple[type[Pool], tuple[()]]:
        return Pool, ()

    @property
    def bytes(self) -> int:
        """What the pool refers to, in use or not."""
        return sum(b.memory.nbytes for b in self._buffers)

    def take(self, shape: Sequence[int], like: Tensor) -> Tensor:
        """An uninitialised tensor of `shape`, with the dtype and device of `like`."""
        return self.take_all([shape], like)[0]

    def take_all(self, shapes: Sequence[Sequence[int]], like: Tensor) -> list[Tensor]:
        """Uninitialised tensors of these shapes, with the dtype and device of `like`."""
        sizes, kind, device = [math.prod(shape) for shape in shapes], like.dtype, like.device
        pooled = max(sizes, default=0) > _SMALL and _use_count is not None and like.is_cpu and ordinary(like)
        if not pooled or torch.is_inference_mode_enabled() or transformed() or traced():
            return [torch.empty(tuple(shape), dtype=kind, device=device) for shape in shapes]
        with self._lock:
            return [
                self._take(size, kind).view(shape) if size > _SMALL else torch.empty(shape, dtype=kind, device=device)
                for size, shape in zip(sizes, shapes, strict=True)
            ]

    def _take(self, size: int, dtype: torch.dtype) -> Tensor:
        self._requests += 1
        for own in self._buffers:
            if own.size == size and own.memory.dtype == dtype and self._free(own):
                own.latest = self._requests
                return own.memory
        memory = torch.empty(size, dtype=dtype, device="cpu")
        self._alone = self._alone or _holders(memory)
        self._shrink(memory.nbytes)
        self._buffers.append(_Buffer(memory, self._requests))
        return memory

    def _free(self, own: _Buffer) -> bool:
        return _holders(own.memory) == self._alone

    def _shrink(self, wanted: int) -> None:
        """Give back old buffers, then the free ones that were used longest ago."""
        self._buffers = [b for b in self._buffers if self._requests - b.latest < _PATIENCE]
        free = [b for b in self._buffers if self._free(b)]
        self._most = max(self._most, self.bytes - sum(b.memory.nbytes for b in free) + wanted)
        spare = self.bytes + wanted - 2 * self._most
        for own in sorted(free, key=lambda b: b.latest):
            if spare <= 0:
                break
            spare -= own.memory.nbytes
            self._buffers.remove(own)

    def clear(self) -> None:
        """Forget all buffers."""
        with self._lock:
            self._buffers.clear()


def address(
    tensor: Tensor | None,
    shape: tuple[int, ...] | None = None,
    name: str = "a tensor",
    dtype: torch.dtype = torch.float32,
) -> int:
    """Where C finds the tensor's numbers; 0 for None. Every pointer that reaches C comes from here.

    The kernels do not check their arguments, so every mismatch must be caught here.

    Args:
        shape: that of the numbers C reads or writes there; None: whatever it is.
        name: of the tensor, for errors.
    """
    if tensor is None:
        return 0
    if type(tensor) is not Tensor and type(tensor) is not nn.Parameter:
        raise ValueError(f"compiled kernels need tensors with memory of their own, got {type(tensor).__name__}")
    if shape is not None and tensor.shape != shape:
        raise ValueError(f"{name} must be of shape {shape}, got {tuple(tensor.shape)}")
    if not tensor.is_cpu or tensor.dtype != dtype:
        raise ValueError(
            f"compiled kernels need numbers of {dtype} in a CPU's memory, got {tensor.dtype} on {tensor.device}"
        )
    try:
        place = tensor.data_ptr()
    except RuntimeError:  # inside a transform
        place = 0
    if (not place and tensor.numel()) or tensor.is_neg():
        raise ValueError("compiled kernels need tensors with memory of their own, got one without")
    if not tensor.is_contiguous():
        raise ValueError(f"compiled kernels need contiguous memory, got strides {tensor.stride()}")
    return place


def addresses(
    tensors: Iterable[Tensor | None], shapes: Iterable[tuple[int, ...]], dtype: torch.dtype = torch.float32
) -> array[int]:
    """The addresses of many tensors, as C wants them."""
    return array("Q", [address(t, shape, dtype=dtype) for t, shape in zip(tensors, shapes, strict=True)])
