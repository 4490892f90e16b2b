"""Which source a module takes its noise from: `draw`, `mean`, and the blocks behind them.

A `with` block puts one `Bound` into every module of the model. A module with several takes the innermost block that
the running code is in. A block that a generator or coroutine opened holds for the code of that generator, also while
its caller has a block open; other code sees it only where no other block is open on the module. So two generators
that each hold a draw keep their own.
"""

from __future__ import annotations

import inspect
import math
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from bayesrnn.compilation import uncompiled
from bayesrnn.draws.sources import FRESH, Draw, Source
from bayesrnn.draws.torch_noise import Owner, TorchNoise, name_before_compiling, refuse_script
from bayesrnn.wrappers import check_module, unwrapped

_SLOT = "_bayesrnn_blocks"
_open_blocks = 0
_any_open = False  # read by compiled code, which takes another branch as soon as it changes
_lock = threading.Lock()
_SUSPENDS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_CONTEXTLIB = contextmanager.__code__.co_filename
_CALL = nn.Module.__call__.__code__


def _unlock_after_fork() -> None:
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_unlock_after_fork)


class Left:
    """torch's own noise is left to torch."""


LEFT = Left()


class Block:
    """One `with` block: where it was opened, and whether it is still open."""

    def __init__(self) -> None:
        self.open = True
        self.thread = threading.get_ident()
        self.generator = _running_generator()

    def distance(self) -> float:
        """Calls between the running code and the generator that opened the block; inf where none did.

        NaN where the running code is not inside the block: in another thread, or not in that generator.
        """
        if self.thread != threading.get_ident():
            return math.nan
        if self.generator is None:
            return math.inf
        return next((k for k, frame in enumerate(_frames()) if frame is self.generator), math.nan)


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _running_generator() -> FrameType | None:
    """The frame of the innermost generator or coroutine that is running; those of context managers do not count."""
    for frame in _frames():
        caller = frame.f_back
        by_context_manager = caller is not None and caller.f_code.co_filename == _CONTEXTLIB
        if frame.f_code.co_flags & _SUSPENDS and not by_context_manager:
            return frame
    return None


class Bound:
    """A source seen from one module of the model: the module's name becomes part of every key.

    A copy of the module made inside the block shares the draw until the block ends.
    """

    def __init__(self, name: str, source: Source | None, block: Block | None = None, torchs: Any = LEFT) -> None:
        self.name, self.source, self.block, self.torchs = name, source, block, torchs

    def __deepcopy__(self, memo: dict[int, Any]) -> Bound:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Bound, self.name, None), ()  # a saved module is outside the block

    @uncompiled
    def units(self, key: str, *args: Any, **kwargs: Any) -> Tensor:
        assert self.source is not None
        return self.source.units(f"{self.name}.{key}", *args, **kwargs)

    @uncompiled
    def steps(self, key: str, *args: Any, **kwargs: Any) -> Tensor:
        assert self.source is not None
        return self.source.steps(f"{self.name}.{key}", *args, **kwargs)

    @uncompiled
    def weights(self, key: str, *args: Any) -> Any:
        assert self.source is not None
        return self.source.weights(f"{self.name}.{key}", *args)


def _bounds(module: nn.Module) -> list[Bound]:
    """The bounds of all blocks that are open on the module, the innermost first."""
    return [b for b in module.__dict__.get(_SLOT, ()) if b.block is not None and b.block.open]


def _here(bounds: list[Bound]) -> Bound | None:
    """The bound of the block that the running code is in."""
    if len(bounds) < 2:
        return bounds[0] if bounds else None
    far = [(b.block.distance(), b) for b in bounds if b.block is not None]
    here = [(distance, b) for distance, b in far if distance == distance]
    return min(here, key=lambda one: one[0])[1] if here else bounds[0]  # ties: the innermost


def source(module: nn.Module) -> Source | None:
    """Where `module` takes its noise from now; None: it uses the posterior mean."""
    if not _any_open:
        return FRESH if module.training else None
    return _source_in_a_block(module)


@uncompiled
def _source_in_a_block(module: nn.Module) -> Source | None:
    bound = _here(_bounds(module))
    if bound is not None:
        if bound.source is not None and torch.compiler.is_exporting():
            raise RuntimeError(
                "torch.export cannot record a held draw: export br.to_torch(model), or the model in eval mode"
            )
        return bound if bound.source is not None else None
    return FRESH if module.training else None


@uncompiled
def _owner() -> Owner | None:
    """The module that is running, if torch's own noise in it is ours to make."""
    for frame in _frames():
        if frame.f_code is _CALL:
            bound = _here([b for b in _bounds(frame.f_locals["self"]) if b.torchs is not LEFT])
            if bound is not None:
                return Owner(bound.name, bound.torchs)
    return None


def torch_source(*, train: bool) -> Source | None:
    """The source of torch's own noise in the module that is running; outside of blocks fresh noise in train mode."""
    owner = _owner()
    if owner is None:
        return FRESH if train else None
    return None if owner.source is None else Bound(owner.name, owner.source)


class _Modes(threading.local):
    """The function mode of a thread: on while the thread has an open block; entered only once."""

    count = 0
    mode: TorchNoise | None = None

    def open(self) -> None:
        self.count += 1
        if self.count == 1:
            self.mode = TorchNoise(_owner)
            self.mode.__enter__()

    def close(self) -> None:
        self.count -= 1
        if self.count == 0 and self.mode is not None:
            # blocks of generators may end in any order: modes that others opened since stay
            since = []
            while (top := torch.overrides._pop_mode()) is not self.mode:
                since.append(top)
            for mode in reversed(since):
                torch.overrides._push_mode(mode)
            self.mode = None


_modes = _Modes()


@contextmanager
def bind(model: nn.Module, to: Source | None, *, torchs: Any = LEFT) -> Iterator[None]:
    """Bind every module of `model` to a source (None: the mean) for the length of a `with` block.

    `torchs` is the source of torch's own noise: LEFT leaves it to torch, None switches it off, as the mean does.
    """
    check_module(model)
    controlled = torchs is not LEFT or to is None
    block = Block()
    changed: list[tuple[nn.Module, Bound]] = []
    _count_blocks(1)
    try:
        for name, module in _named_modules(model):
            if controlled:
                refuse_script(name, module)
            bound = Bound(name_before_compiling(name), to, block, None if to is None else torchs)
            changed.append((module, bound))
            module.__dict__[_SLOT] = (bound, *module.__dict__.get(_SLOT, ()))
        if controlled:
            _modes.open()
        try:
            yield
        finally:
            if controlled:
                _modes.close()
    finally:
        block.open = False
        for module, bound in changed:
            left = tuple(b for b in module.__dict__.pop(_SLOT, ()) if b is not bound)
            if left:
                module.__dict__[_SLOT] = left
        _count_blocks(-1)


def _named_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """All modules with their names inside wrappers such as DistributedDataParallel, so that a seed gives the same draw
    with and without them."""
    inner = unwrapped(model)
    names = {} if inner is model else {id(module): name for name, module in inner.named_modules()}
    for name, module in model.named_modules():
        yield names.get(id(module), name), module


def release(module: nn.Module) -> None:
    """Take a copy that was made inside a block out of it."""
    for part in module.modules():
        part.__dict__.pop(_SLOT, None)


def _count_blocks(change: int) -> None:
    global _open_blocks, _any_open
    with _lock:
        _open_blocks += change
        _any_open = _open_blocks > 0


@contextmanager
def draw(model: nn.Module, seed: int | None = None) -> Iterator[Draw]:
    """Hold one draw of the model's weights over every call inside the block, in train and in eval mode.

    torch's own noise (`torch.nn.Dropout`, `F.dropout`, …) has no weights to hold. Inside the block it is on, and comes
    from the draw's seed, new at every call.

    Args:
        model: any module; its random layers and posteriors, however deep, share the draw.
        seed: the same seed gives the same draw again, whatever else was called in between. None: a new one,
            taken from torch's global generator (so `torch.manual_seed` still rules).

    Example::

        with br.draw(model, seed=1):
            a, state = model(first_window)
            b, state = model(second_window, state)   # the same weights
    """
    held = Draw(seed)
    with using(model, held):
        yield held


def using(model: nn.Module, held: Source | None) -> AbstractContextManager[None]:
    """Like `draw`, with a draw made before, so that several can take turns; None: like `mean`."""
    return bind(model, held, torchs=held)


def mean(model: nn.Module) -> AbstractContextManager[None]:
    """Use the posterior mean for every call inside the block, also in train mode."""
    return bind(model, None)


@contextmanager
def differentiable_in_eval(model: nn.Module) -> Iterator[None]:
    """Let gradients be taken in eval mode: cuDNN's recurrent kernels have a backward in train mode only."""
    layers = [m for m in model.modules() if isinstance(m, nn.RNNBase) and not m.training]
    with ExitStack() as stack:
        if source(model) is None:
            stack.enter_context(bind(model, None))  # so that train mode brings no noise
        try:
            for layer in layers:
                layer.training = True
            yield
        finally:
            for layer in layers:
                layer.training = False
