"""What `torch.compile` is to leave alone."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


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
