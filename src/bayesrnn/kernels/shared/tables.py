"""Tables on a device that are made once: a CUDA graph cannot make them while it is recorded."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

R = TypeVar("R")
_MOST = 64


def _capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def kept(make: Callable[..., R]) -> Callable[..., R]:
    """Remember the latest results of `make`, by its positional arguments.

    A result that a capture has read is kept for good, since the graph reads its memory at every replay. One that is
    made inside a capture is not remembered: its memory belongs to that graph and is empty until it is replayed.
    """
    known: dict[Any, R] = {}
    read_by_graphs: dict[Any, R] = {}

    @functools.wraps(make)
    def call(*key: Any) -> R:
        if key in read_by_graphs:
            return read_by_graphs[key]
        capturing, old = _capturing(), key in known
        found = known.pop(key) if old else make(*key)
        if not capturing:
            known[key] = found
            if len(known) > _MOST:
                known.pop(next(iter(known)))
        elif old:
            read_by_graphs[key] = found
        return found

    def cache_clear() -> None:
        known.clear()
        read_by_graphs.clear()

    call.cache_clear = cache_clear  # type: ignore[attr-defined]
    return call
