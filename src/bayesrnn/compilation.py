"""Code that `torch.compile` must not trace."""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

_compiler: Any = torch._C._dynamo.eval_frame.get_eval_frame_callback
"""What follows the code that runs now: None where nobody compiles."""
_REASON = "noise and kernels of bayesrnn run outside the graph; torch.export(strict=True) takes a model in eval mode"
P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound=nn.Module)


def copied(module: M) -> M:
    """A deep copy, not compiled."""
    forget_history(module)
    made = copy.deepcopy(module)
    if type(made) is not type(module):
        raise TypeError(
            f"a copy of this {type(module).__name__} is a {type(made).__name__}: a wrapper that forwards attributes "
            "must not forward __deepcopy__"
        )
    return not_compiled(made)


def forget_history(module: nn.Module) -> None:
    """Let a module be copied whose hooks compute weights, as torch's pruning and `weight_norm` do.

    torch copies no tensor with a history. The hooks compute these weights again before each call, and a gradient that
    is still to be taken does not need them here.
    """
    for part in module.modules():
        for name, value in part.__dict__.items():
            if isinstance(value, list) and any(map(_with_history, value)):
                part.__dict__[name] = [_detached(one) for one in value]
            else:
                part.__dict__[name] = _detached(value)


def _with_history(value: Any) -> bool:
    return isinstance(value, Tensor) and value.grad_fn is not None


def _detached(value: Any) -> Any:
    return value.detach() if _with_history(value) else value


def not_compiled(made: M) -> M:
    """Remove compiled calls from a copy. In a copied torch RNN layer they would still use the original's weights."""
    for part in made.modules():
        part.__dict__.pop("_compiled_call_impl", None)
    return made


def uncompiled(function: Callable[P, R]) -> Callable[P, R]:
    """Run `function` uncompiled inside a compiled model, with one graph break.

    For code with kernels of its own, which the compiler would take apart. `torch.compiler.disable` does the same, but
    loads the compiler (seconds) where nobody compiles.
    """
    disabled: list[Callable[..., Any]] = []

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if "torch._dynamo" not in sys.modules or (not torch.compiler.is_dynamo_compiling() and _compiler() is None):
            return function(*args, **kwargs)
        if not disabled:
            disabled.append(sys.modules["torch._dynamo"].disable(function, reason=_REASON))
        result: R = disabled[0](*args, **kwargs)
        return result

    call._torchdynamo_disable, call._torchdynamo_disable_msg = True, _REASON  # type: ignore[attr-defined]
    return call
