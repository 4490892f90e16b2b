"""In Triton's interpreter: every address that a kernel reads or writes lies between the ends of one of its arguments.

A read beyond the end mostly goes unnoticed on a GPU, where a neighbour's memory follows. What lands in another
argument, or in a gap of a strided view, is not found here either.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from triton.runtime import interpreter


def _tensors(argument: Any) -> Iterator[torch.Tensor]:
    if isinstance(argument, tuple):
        for each in argument:
            yield from _tensors(each)
    elif isinstance(argument, torch.Tensor) and argument.numel():
        yield argument


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


class Checked:
    """Triton's interpreter of memory operations, which looks at each address first."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.kernel, self.extents = "", np.zeros((0, 2), np.uint64)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def allow(self, kernel: str, arguments: Iterator[torch.Tensor]) -> None:
        merged: list[list[int]] = []
        for low, high in sorted(map(_extent, arguments)):
            if merged and low <= merged[-1][1]:
                merged[-1][1] = max(high, merged[-1][1])
            else:
                merged.append([low, high])
        self.kernel, self.extents = kernel, np.array(merged, np.uint64).reshape(-1, 2)

    def _check(self, what: str, addresses: Any, mask: Any, size: int) -> None:
        found = np.asarray(addresses).astype(np.uint64)[np.broadcast_to(np.asarray(mask, bool), addresses.shape)]
        if found.size:
            which = np.searchsorted(self.extents[:, 0], found, side="right").astype(int) - 1
            inside = (which >= 0) & (found + np.uint64(size) <= self.extents[np.maximum(which, 0), 1])
            assert inside.all(), f"{self.kernel} {what} {np.sum(~inside)} numbers outside of its arguments"

    def load(self, addresses: Any, mask: Any, other: Any, dtype: Any) -> Any:
        self._check("reads", addresses, mask, np.dtype(dtype).itemsize)
        return self._real.load(addresses, mask, other, dtype)

    def store(self, addresses: Any, values: Any, mask: Any) -> Any:
        self._check("writes", addresses, mask, np.asarray(values).dtype.itemsize)
        return self._real.store(addresses, values, mask)

    def atomic_rmw(self, operation: Any, addresses: Any, values: Any, mask: Any, order: Any) -> Any:
        self._check("updates", addresses, mask, np.asarray(values).dtype.itemsize)
        return self._real.atomic_rmw(operation, addresses, values, mask, order)

    def atomic_cas(self, addresses: Any, expected: Any, values: Any, order: Any) -> Any:
        self._check("updates", addresses, True, np.asarray(values).dtype.itemsize)
        return self._real.atomic_cas(addresses, expected, values, order)


def install() -> None:
    checked = interpreter._interpreter = Checked(interpreter._interpreter)
    first = interpreter.GridExecutor._init_args_hst

    def init(self: Any, arguments: Any, named: dict[str, Any]) -> Any:
        found, named_found = first(self, arguments, named)
        checked.allow(self.fn.__name__, _tensors((*found, *named_found.values())))
        return found, named_found

    interpreter.GridExecutor._init_args_hst = init
