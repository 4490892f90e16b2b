"""Hand-written backward passes: exact once, and an error instead of a missing term the second time."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C import _functions

_MESSAGE = (
    "this layer's fast kernels can be differentiated once: for second derivatives run the forward pass "
    "inside bayesrnn.kernels.force('reference')"
)


class OnceFunction(torch.autograd.Function):
    """A function with a hand-written backward and no forward-mode derivative, which says so."""

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise NotImplementedError(
            "this layer's fast kernels have no forward-mode derivative: run the forward pass inside "
            "bayesrnn.kernels.force('reference')"
        )


def once_differentiable(backward: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """A backward whose results raise where they are differentiated again.

    torch's decorator of this name does so only where an incoming gradient has a history. That of a plain sum has none,
    but the results depend on the saved tensors all the same, and would pass for constants.
    """

    @functools.wraps(backward)
    def call(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        with torch.no_grad():
            results = backward(ctx, *gradients)
        if not torch.is_grad_enabled():  # it is on exactly with create_graph=True
            return results
        refuse: Any = _functions.DelayedError(_MESSAGE.encode(), len(results))
        return tuple(refuse(*[None if r is None else r.detach().requires_grad_() for r in results]))

    return call
