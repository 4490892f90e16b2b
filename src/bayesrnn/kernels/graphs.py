"""CUDA graphs that do not disturb the rest of the process, also when one cannot be recorded."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor

from bayesrnn.kernels.shared.beside import nothing_aside, recording, second_stream_exists


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


_WARM_UP = 3


def record(
    parts: Sequence[Callable[[], object]],
    written: Callable[[], Iterable[Tensor]],
    *,
    warm_up: Callable[[], object],
    device: torch.device,
) -> list[torch.cuda.CUDAGraph]:
    """Record each part as a CUDA graph, to be replayed in this order; nothing else is changed, whether it works or not.

    Args:
        parts: functions that read and write tensors at fixed addresses.
        written: all tensors that they change; their contents are restored.
        warm_up: called a few times before, so that kernels are compiled and memory is taken outside the graphs.
        device: a CUDA device; its random state and the CPU's are restored.

    Where that fails with work on a second stream (`shared/beside.py`), it is tried once more without.

    Raises:
        RuntimeError: a part does something that cannot be recorded, such as reading a value.
    """
    try:
        return _recorded(parts, written, warm_up, device)
    except RuntimeError:
        if not second_stream_exists(device):
            raise
        with nothing_aside():
            return _recorded(parts, written, warm_up, device)


def _recorded(
    parts: Sequence[Callable[[], object]],
    written: Callable[[], Iterable[Tensor]],
    warm_up: Callable[[], object],
    device: torch.device,
) -> list[torch.cuda.CUDAGraph]:
    kept = [t.detach().clone() for t in written()]
    rng, cpu_rng = torch.cuda.get_rng_state(device), torch.get_rng_state()
    stream: Any = torch.cuda.Stream(device, priority=-1)  # before what is computed beside it
    stream.wait_stream(torch.cuda.current_stream(device))
    graphs = []
    try:
        with torch.cuda.stream(stream), recording(), without_garbage_collection():
            for _ in range(_WARM_UP):
                warm_up()
        torch.cuda.synchronize(device)
        pool = torch.cuda.graph_pool_handle()
        for part in parts:
            graph = torch.cuda.CUDAGraph()
            with capture(graph, pool=pool, stream=stream):
                part()
            graphs.append(graph)
    finally:
        torch.cuda.synchronize(device)
        with torch.no_grad():
            for tensor, before in zip(written(), kept, strict=True):
                tensor.copy_(before)
        torch.cuda.set_rng_state(rng, device)
        torch.set_rng_state(cpu_rng)
    return graphs


class Windows:
    """A function of one window of a stream after the other; the second window may be recorded and then replayed.

    Args:
        work: maps (x, y, state) to (value, output, next state); the same tensor operations for every window.
        written: the tensors that it changes besides.
        record: on CUDA, record it as a CUDA graph, for windows of one shape. What cannot be recorded runs eagerly.
    """

    def __init__(
        self,
        work: Callable[[Tensor, Tensor, Any], tuple[Tensor, Tensor, Any]],
        written: Sequence[Tensor],
        *,
        record: bool,
    ) -> None:
        self._work, self._written, self._wanted = work, written, record
        self._graph: Any = None
        self._last: torch.Size | None = None

    def __call__(self, x: Tensor, y: Tensor, state: Any) -> tuple[Tensor, Tensor, Any]:
        if self._wanted and self.can_record(x) and x.shape == self._last:
            self._wanted = False
            self._record(x, y, state)
        self._last = x.shape
        if self._graph is None or x.shape != self._x.shape:
            return self._work(x, y, state)
        self._x.copy_(x)
        self._y.copy_(y)
        self._graph.replay()
        value, output = self._results
        return value.clone(), output, self._state

    @staticmethod
    def can_record(x: Tensor) -> bool:
        return x.is_cuda

    def _record(self, x: Tensor, y: Tensor, state: Any) -> None:
        tree = torch.utils._pytree
        self._x, self._y = x.clone(), y.clone()
        self._state = tree.tree_map_only(Tensor, torch.clone, state)
        leaves = [] if state is None else tree.tree_leaves(self._state)
        if not all(isinstance(leaf, Tensor) for leaf in leaves):
            return  # numbers in it would not change from window to window

        def work() -> None:
            value, output, after = self._work(self._x, self._y, self._state)
            for own, new in zip(leaves, tree.tree_leaves(after) if leaves else (), strict=True):
                own.copy_(new)
            self._results = value, output.detach()

        with suppress(RuntimeError):
            (self._graph,) = record([work], lambda: (*self._written, *leaves), warm_up=work, device=x.device)


def _heal() -> None:
    """Release the random generator of the current device from a capture that failed: any capture that succeeds does."""
    with suppress(RuntimeError):
        torch.cuda.synchronize()
        spare = torch.cuda.CUDAGraph()
        with torch.cuda.graph(spare):
            torch.zeros((), device="cuda")
        spare.reset()
