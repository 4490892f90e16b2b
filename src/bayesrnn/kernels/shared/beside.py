"""In a CUDA graph, gradients of weights are computed beside the rest of the backward pass.

A layer's backward owes the gradient of its input to the layer before it, and those of its weights to nobody until the
update. A recurrence leaves some processors idle, and the products for the weights fit there. Autograd runs a function's
backward on the stream of its forward, and lets streams wait for one another where a gradient crosses. So weights pass
through `aside` on a second stream, and what else is done to weights before a layer uses them is done in `run`.

This pays for wide layers alone: on an H200 a step of training became 6% faster with 1500 units, and 8% slower with 650,
where the recurrence itself took 45% longer. A program of a wide recurrence fills the memory of its processor; beside a
smaller one, other work can run on the same processor, which is probably what slows it.

Without a recording nothing is put aside. On a CPU there is one stream, and the same code.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from bayesrnn.kernels.shared.derivatives import OnceFunction, once_differentiable
from bayesrnn.kernels.shared.tensors import ordinary, transformed

_recording: ContextVar[bool] = ContextVar("bayesrnn_recording", default=False)
_allowed: ContextVar[bool] = ContextVar("bayesrnn_aside", default=True)
_streams: dict[torch.device, Any] = {}


@contextmanager
def recording() -> Iterator[None]:
    """Declare that the block is recorded into a CUDA graph, or warms up for that."""
    token = _recording.set(True)
    try:
        yield
    finally:
        _recording.reset(token)


def is_recording() -> bool:
    """Whether a `recording` block is active."""
    return _recording.get()


@contextmanager
def nothing_aside() -> Iterator[None]:
    """One stream for all inside the block."""
    token = _allowed.set(False)
    try:
        yield
    finally:
        _allowed.reset(token)


def second_stream_exists(device: torch.device) -> bool:
    """Whether anything was put aside on such a device."""
    return any(known.type == device.type for known in _streams)


class Work:
    """The gradients of some weights, still to be computed."""

    def __init__(self) -> None:
        self._compute: Callable[[], Sequence[Tensor | None]] | None = None

    def put(self, compute: Callable[[], Sequence[Tensor | None]], *reads: Tensor | None) -> None:
        """Leave `compute` for later, with the tensors that it reads; it gives one gradient for each weight."""
        if self._compute is not None:
            raise RuntimeError("the gradients of these weights are owed already")
        for tensor in reads:
            if tensor is not None and tensor.is_cuda:
                tensor.record_stream(_second(tensor.device))
        self._compute = compute

    def do(self) -> Sequence[Tensor | None]:
        compute, self._compute = self._compute, None
        assert compute is not None
        return compute()


def pays(*weights: Tensor) -> bool:
    """Whether these are recorded, and wide enough: the columns are the units of the layer that runs meanwhile."""
    columns = max((w.shape[1] for w in weights if w.ndim == 2), default=0)
    return is_recording() and _allowed.get() and not transformed() and columns > _narrow(weights[0].device)


@functools.cache
def _narrow(device: torch.device) -> int:
    """Units of a layer of which a program has 8, the fewest."""
    return 8 * torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 0


def aside(*weights: Tensor | None) -> tuple[tuple[Any, ...], Work | None]:
    """The weights for a function to use, and what takes their gradients; None: it returns them itself.

    Where there is work, the function's backward calls `Work.put`, and returns `owed` for each of the weights.
    """
    given = [w for w in weights if w is not None]
    wanted = torch.is_grad_enabled() and any(w.requires_grad for w in given)
    if not wanted or not pays(*given) or not ordinary(*given):
        return weights, None
    work = Work()
    with _on_second(given[0].device):
        found = iter(_Aside.apply(work, *given))
    return tuple(None if w is None else next(found) for w in weights), work


def owed(weight: Tensor | None) -> Tensor | None:
    """In place of a weight's gradient: a tensor of its shape without memory of its own, which nobody reads."""
    return None if weight is None else weight.new_empty(()).expand_as(weight)


class _Aside(OnceFunction):
    @staticmethod
    def forward(ctx: Any, work: Work, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.work, ctx.params = work, weights
        return tuple(w.view_as(w) for w in weights)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *_: Tensor | None) -> tuple[Any, ...]:
        return None, *ctx.work.do()


def run(function: Callable[..., Any], *given: Any, like: Sequence[Tensor]) -> Any:
    """`function(*given)`, a tensor or several; its backward is beside the rest too where that pays for `like`."""
    device = like[0].device
    if device.type != "cuda" or not pays(*like):
        return function(*given)
    reads = [t for t in torch.utils._pytree.tree_leaves(given) if isinstance(t, Tensor)]
    main: Any = torch.cuda.current_stream(device)
    side = _second(device)
    side.wait_stream(main)
    with torch.cuda.stream(side):
        found = function(*given)
    main.wait_stream(side)
    for tensor in reads:
        tensor.record_stream(side)
    for tensor in found if isinstance(found, tuple) else (found,):
        tensor.record_stream(main)
    return found


def leaves(parameters: Sequence[Tensor]) -> list[Any]:
    """While these are kept, autograd gathers the parameters' gradients beside the rest, where that pays."""
    if not parameters or not pays(*parameters):
        return []
    with _on_second(parameters[0].device):
        return [torch.autograd.graph.get_gradient_edge(p) for p in parameters]


@contextmanager
def _on_second(device: torch.device) -> Iterator[None]:
    if device.type == "cuda":
        with torch.cuda.stream(_second(device)):
            yield
    else:
        yield


def _second(device: torch.device) -> Any:
    """A stream of low priority: the first does what others wait for."""
    if device not in _streams:
        _streams[device] = torch.cuda.Stream(device)
        torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)  # they differ on purpose
    return _streams[device]
