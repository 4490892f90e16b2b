"""Recurrences: for each cell a plain `reference` and a fast version, and the one place that chooses between them.

`BAYESRNN_KERNEL=reference`, `=loop` or `=cells` overrides the choice.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from bayesrnn.kernels import projection as _projection
from bayesrnn.kernels.gru import loop as _gru_loop
from bayesrnn.kernels.gru import reference as _gru_reference
from bayesrnn.kernels.lstm import cells as _lstm_cells
from bayesrnn.kernels.lstm import loop as _lstm_loop
from bayesrnn.kernels.lstm import reference as _lstm_reference
from bayesrnn.kernels.rnn import loop as _rnn_loop
from bayesrnn.kernels.rnn import reference as _rnn_reference

_PATHS: dict[str, dict[str, Callable[..., Any]]] = {
    "reference": {
        "LSTM": _lstm_reference.lstm,
        "GRU": _gru_reference.gru,
        "RNN": _rnn_reference.rnn,
        "input": _projection.reference,
    },
    "loop": {
        "LSTM": _lstm_loop.lstm,
        "GRU": _gru_loop.gru,
        "RNN": _rnn_loop.rnn,
        "input": _projection.fast,
    },
}
_PATHS["cells"] = {**_PATHS["loop"], "LSTM": _lstm_cells.lstm}
_forced: ContextVar[str | None] = ContextVar("bayesrnn_kernel", default=None)


@contextmanager
def force(path: str) -> Iterator[None]:
    """Run every recurrent layer, noisy or not, on the named path inside the block.

    "reference" can be differentiated twice and runs under `torch.func.vmap`; torch's fused kernels cannot.
    """
    token = _forced.set(_check(path, "path"))
    try:
        yield
    finally:
        _forced.reset(token)


def _check(path: str, what: str) -> str:
    if path not in _PATHS:
        raise ValueError(f"{what} must be one of {', '.join(map(repr, _PATHS))}, got {path!r}")
    return path


def forced() -> bool:
    """Whether a `force` block is active: then no layer may take torch's fused kernel."""
    return _forced.get() is not None


def path(device: str = "cpu") -> str:
    """The path that layers with noise per sequence take now; the others run torch's fused kernel."""
    chosen = _forced.get()
    if chosen is not None:
        return chosen
    best = "cells" if device == "cuda" else "loop"
    return _check(os.environ.get("BAYESRNN_KERNEL") or best, "BAYESRNN_KERNEL")


def kernel(name: str, device: str = "cpu") -> Callable[..., Any]:
    """The recurrence of "LSTM", "GRU" or "RNN" for one direction of one layer, or the "input" projection before it."""
    return _PATHS[path(device)][name]
