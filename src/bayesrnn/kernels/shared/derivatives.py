"""Hand-written backward passes: exact once, and an error instead of a missing term the second time."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch._C import _functions, _functorch
from torch.autograd import forward_ad

_MESSAGE = (
    "this layer's fast kernels can be differentiated once: for second derivatives run the forward pass "
    "inside bayesrnn.kernels.force('reference')"
)


class _Link(torch.autograd.Function):
    """Makes a tensor depend on others in the graph, though not in value; nothing runs its backward."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, *others: Tensor) -> Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError(_MESSAGE)


class _NoContext:
    """In place of a function's context where nothing is differentiated."""

    def __init__(self, inputs: int) -> None:
        self.needs_input_grad = (False,) * inputs

    def save_for_backward(self, *tensors: Any) -> None:
        """Save nothing."""

    def set_materialize_grads(self, value: bool) -> None:
        """There are no gradients."""


class OnceFunction(torch.autograd.Function):
    """A function with a hand-written backward and no forward-mode derivative, which says so.

    Inputs that the gradients depend on are saved as they were given: `once_differentiable` finds the graph by them.
    Where no derivative is wanted, `forward` runs without autograd, and saves nothing.
    """

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        if _functorch.peek_interpreter_stack() is not None:
            return super().apply(*args, **kwargs)
        if torch.is_grad_enabled() or forward_ad._current_level >= 0:
            plain: Any = super(torch.autograd.Function, cls)
            return plain.apply(*args, **kwargs)  # without torch's part for transforms
        return cls.forward(_NoContext(len(args)), *args, **kwargs)

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

    Batched gradients, as in `torch.autograd.functional.jacobian(vectorize=True)`, are taken one after the other.
    """

    @functools.wraps(backward)
    def call(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        if any(_is_batched(g) for g in gradients):
            return _one_by_one(call, ctx, gradients)
        with torch.no_grad():
            results = backward(ctx, *gradients)
        if not torch.is_grad_enabled():  # it is on exactly with create_graph=True
            return results
        refuse: Any = _functions.DelayedError(_MESSAGE.encode(), len(results))
        # linked to the inputs: torch.autograd.grad visits only what lies between a result and them
        saved = (*ctx.saved_tensors, *ctx.__dict__.get("params", ()))
        inputs = [t for t in saved if t is not None and t.requires_grad]
        return tuple(refuse(*[None if r is None else _linked(r.detach(), inputs) for r in results]))

    return call


def _linked(result: Tensor, inputs: Sequence[Tensor]) -> Tensor:
    linked: Tensor = _Link.apply(result, *inputs) if inputs else result.requires_grad_()
    return linked


def _is_batched(gradient: Tensor | None) -> bool:
    return gradient is not None and (
        _functorch.is_batchedtensor(gradient) or _functorch.is_legacy_batchedtensor(gradient)
    )


def _one_by_one(
    backward: Callable[..., tuple[Any, ...]], ctx: Any, gradients: Sequence[Tensor | None]
) -> tuple[Any, ...]:
    """The backward of every entry of gradients that vmap has batched."""
    level = max((_functorch.maybe_get_level(g) for g in gradients if g is not None), default=-1)
    modern = level > 0
    entries: list[Any] = list(gradients)
    batched = [False] * len(entries)
    if not modern:  # torch.autograd's own vmap, which is older than torch.func's
        level = torch._C._vmapmode_increment_nesting() - 1
        torch._C._vmapmode_decrement_nesting()
    torch_: Any = torch
    for k, gradient in enumerate(gradients):
        if gradient is not None and modern:
            value, axis = _functorch._unwrap_batched(gradient, level)
            entries[k], batched[k] = value if axis is None else value.movedim(axis, 0), axis is not None
        elif _is_batched(gradient):
            entries[k], batched[k] = torch_._remove_batch_dim(gradient, level, 1, 0), True
    with _one_level_below() if modern else nullcontext():
        count = len(entries[batched.index(True)])
        each = [backward(ctx, *(g[k] if b else g for g, b in zip(entries, batched, strict=True))) for k in range(count)]
        results = [None if parts[0] is None else torch.stack(parts) for parts in zip(*each, strict=True)]
    wrap = _functorch._add_batch_dim if modern else torch_._add_batch_dim
    return tuple(None if r is None else wrap(r, 0, level) for r in results)


@contextmanager
def _one_level_below() -> Iterator[None]:
    popped = _functorch.pop_dynamic_layer_stack()
    try:
        yield
    finally:
        _functorch.push_dynamic_layer_stack(popped)
