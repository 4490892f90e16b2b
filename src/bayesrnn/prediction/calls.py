"""Calling a model for a prediction: its arguments and output, its mode and state, one thread at a time."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from operator import is_
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bayesrnn.checks import entries, first_tensor
from bayesrnn.draws import Draw, Stacked, Unfoldable, using

_PATIENCE = 60.0  # seconds that a fork waits for predictions of other threads


class _Turns:
    """Which threads predict with which models.

    Draws and drawn weights are in the model itself, so threads take turns, and a fork waits until other threads have
    finished: the new process would find the model in the middle of a prediction that never ends.
    """

    def __init__(self, unfinished: Iterable[nn.Module] = ()) -> None:
        self.locks: weakref.WeakKeyDictionary[nn.Module, threading.RLock] = weakref.WeakKeyDictionary()
        self.changed = threading.Condition()
        self.running: dict[int, list[nn.Module]] = {}
        self.forks = 0
        self.unfinished = weakref.WeakSet(unfinished)

    def others(self) -> list[nn.Module]:
        """The models that other threads predict with."""
        return [m for thread, models in self.running.items() if thread != threading.get_ident() for m in models]

    def before_fork(self) -> None:
        with self.changed:
            self.forks += 1
            self.changed.wait_for(lambda: not self.others(), _PATIENCE)

    def after_fork(self) -> None:
        with self.changed:
            self.forks -= 1
            self.changed.notify_all()

    @contextmanager
    def take(self, model: nn.Module) -> Iterator[None]:
        if model in self.unfinished:
            raise RuntimeError(
                "this process was forked while another thread was predicting with the model, whose weights are those "
                "of an unfinished draw: fork first, or load the model in this process"
            )
        own = threading.get_ident()
        with self.changed:
            self.changed.wait_for(lambda: self.forks == 0 or own in self.running)
            mine = self.running.setdefault(own, [])
            mine.append(model)
        try:
            with self.locks.setdefault(model, threading.RLock()):
                yield
        finally:
            with self.changed:
                mine.pop()
                if not mine:
                    del self.running[own]
                    self.changed.notify_all()


_turns = _Turns()


def _in_child() -> None:
    global _turns
    _turns = _Turns(_turns.others())


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(
        before=lambda: _turns.before_fork(), after_in_parent=lambda: _turns.after_fork(), after_in_child=_in_child
    )


def alone(model: nn.Module) -> AbstractContextManager[None]:
    """A block in which no other thread predicts with the model, and none forks."""
    return _turns.take(model)


@contextmanager
def in_eval(parts: Iterable[nn.Module]) -> Iterator[None]:
    """Eval mode of these modules inside the block; afterwards each is in the mode it was in."""
    training = [m for m in parts if m.training]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True


class Rest(NamedTuple):
    """The model's arguments after the first."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = MappingProxyType({})

    def repeated(self, count: int) -> Rest:
        """For a batch of `count` draws."""
        repeated = {name: _repeat_states(value, count) for name, value in self.kwargs.items()}
        return Rest(_repeat_states(self.args, count), repeated)


def _repeat_states(args: Any, count: int) -> Any:
    if isinstance(args, Tensor):
        if args.dim() < 2:
            raise Unfoldable("an argument has no batch axis")
        return torch.cat([args] * count, dim=1)
    if isinstance(args, (tuple, list)):
        return tuple(_repeat_states(a, count) for a in args)
    return args


def first_of(output: Any) -> Tensor:
    """The output that a prediction is about: a tensor, or the first of a tuple."""
    found = first_tensor(output)
    if isinstance(found, Tensor):
        return found
    inside = ", ".join(entry.strip("[].") for entry in entries(found))
    raise TypeError(
        f"the model must return a tensor or a tuple that starts with one, got {type(found).__name__}"
        f"{f' of {inside}' if inside else ''}: wrap it in a module whose forward returns the tensor to predict"
    )


_NOT_STATE = frozenset(nn.Module().__dict__) - {"_buffers"} | {"_flat_weights", "_flat_weight_refs"}


class State:
    """Attributes, buffers, containers and objects of modules. After a `with` block they are as they were.

    So every draw starts from the state that the model was given with, and no tensor of a pass stays in the model.
    Tensors that a pass changes in place stay changed. One object serves many blocks.
    """

    def __init__(self, parts: Iterable[nn.Module]) -> None:
        owners = [m for m in parts if not type(m).__module__.startswith("bayesrnn.")]
        self._before = [(m.__dict__, m.__dict__.copy()) for m in owners]
        self._containers: dict[int, tuple[Any, Any]] = {}
        for _, attributes in self._before:
            own = [value for name, value in attributes.items() if name not in _NOT_STATE]
            _keep(own, self._containers)
            _keep([vars(value) for value in own if _holds_state(value)], self._containers)

    def __enter__(self) -> None:
        """Nothing has changed yet."""

    def __exit__(self, *exc: object) -> None:
        for now, before in self._before:
            if len(now) == len(before) and all(map(is_, now.values(), before.values())):
                continue
            for name in [n for n in now if n not in _NOT_STATE and n not in before]:
                del now[name]
            now.update((name, value) for name, value in before.items() if name not in _NOT_STATE)
        for container, content in self._containers.values():
            _refill(container, content)


def _holds_state(value: Any) -> bool:
    """Whether a value is an object of a user's class, such as a cache: not of Python, torch or numpy."""
    home = type(value).__module__.partition(".")[0]
    foreign = home in sys.stdlib_module_names or home in ("torch", "numpy", "bayesrnn") or isinstance(value, nn.Module)
    return isinstance(value, SimpleNamespace) or (not foreign and isinstance(getattr(value, "__dict__", None), dict))


def _keep(values: Any, kept: dict[int, tuple[Any, Any]]) -> None:
    """The contents of all containers among the values, also of those inside others."""
    for value in values:
        if isinstance(value, (dict, list, set, deque)) and id(value) not in kept:
            kept[id(value)] = (value, value.copy())
            _keep(value.values() if isinstance(value, dict) else value, kept)
        elif isinstance(value, tuple):
            _keep(value, kept)


def _refill(container: Any, content: Any) -> None:
    same = len(container) == len(content) and all(map(is_, container, content))
    if same and (not isinstance(container, dict) or all(map(is_, container.values(), content.values()))):
        return
    container.clear()
    if isinstance(container, (dict, set)):
        container.update(content)
    else:
        container.extend(content)


class Passes:
    """A model, its parts and its arguments, for passes that each start from the state the model was given with."""

    def __init__(self, model: nn.Module, parts: Sequence[nn.Module], x: Any, rest: Rest) -> None:
        self.model, self.parts, self.x, self.rest = model, parts, x, rest
        self._state = State(parts)

    def one(self, draw: Draw) -> Tensor:
        """One draw, one pass."""
        return self.run(draw, self.x, self.rest)

    def run(self, source: Draw | Stacked, x: Any, rest: Rest) -> Tensor:
        """One pass over these arguments."""
        with self._state, using(self.model, source):
            return first_of(self.model(x, *rest.args, **rest.kwargs))
