"""CUDA graphs that do not disturb the rest of the process, also when one cannot be recorded."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

from bayesrnn.kernels.dispatch import recording


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """No garbage is collected inside the block: an older CUDA graph freed during a capture would break it off."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def capture(graph: torch.cuda.CUDAGraph, *, stream: Any = None, **options: Any) -> Iterator[None]:
    """Record the block into a CUDA graph, like `torch.cuda.graph`, and leave the process usable when that fails.

    torch leaves a failed capture with its stream still current, and with a random generator that raises "Offset
    increment outside graph capture" at every use until another capture succeeds.

    Args:
        graph: kept out of reference cycles by the caller, so that it is freed when its last owner goes.
        stream: where to record; None: torch's own.
        **options: those of `torch.cuda.graph`.

    Example::

        graph = torch.cuda.CUDAGraph()
        with br.kernels.capture(graph):
            loss = step()
        graph.replay()
    """
    before: Any = torch.cuda.current_stream()
    with without_garbage_collection():
        try:
            with torch.cuda.graph(graph, stream=stream, **options), recording():
                yield
        except BaseException:
            torch.cuda.set_stream(before)
            with suppress(RuntimeError):
                graph.reset()
            _heal()
            raise


def _heal() -> None:
    """Release the random generator of the current device from a capture that failed: any capture that succeeds does."""
    with suppress(RuntimeError):
        torch.cuda.synchronize()
        spare = torch.cuda.CUDAGraph()
        with torch.cuda.graph(spare):
            torch.zeros((), device="cuda")
        spare.reset()
