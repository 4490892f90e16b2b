"""What `torch.compile` is to leave alone."""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from torch import nn

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound=nn.Module)


def copied(module: M) -> M:
    """A deep copy, not compiled."""
    return not_compiled(copy.deepcopy(module))


def not_compiled(made: M) -> M:
    """The copy itself, its layers without what `layer.compile()` has made of the original's: in a copy of one of
    torch's recurrent layers that would go on running on the original's weights."""
    for part in made.modules():
        part.__dict__.pop("_compiled_call_impl", None)
    return made


def uncompiled(function: Callable[P, R]) -> Callable[P, R]:
    """Run `function`, and all it calls, as it is inside a compiled model: one graph break instead of many.

    For code with kernels of its own, which the compiler would take apart. `torch.compiler.disable` does the same, but
    loads the compiler (seconds) where nobody compiles.
    """
    disabled: list[Callable[..., Any]] = []

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        if not disabled:
            disabled.append(sys.modules["torch._dynamo"].disable(function, reason="it has kernels of its own"))
        result: R = disabled[0](*args, **kwargs)
        return result

    call._torchdynamo_disable = True  # type: ignore[attr-defined]
    return call
