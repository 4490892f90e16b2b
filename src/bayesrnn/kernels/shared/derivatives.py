"""Hand-written backward passes: exact once, and an error instead of a missing term the second time."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch._C import _functions, _functorch

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


class OnceFunction(torch.autograd.Function):
    """A function with a hand-written backward and no forward-mode derivative, which says so."""

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Run it, and let its backward know its inputs' places in the graph (not their values)."""
        made = super().apply(*args, **kwargs)
        outputs = made if isinstance(made, tuple) else (made,)
        node: Any = next((t.grad_fn for t in outputs if isinstance(t, Tensor) and t.grad_fn is not None), None)
        if node is not None and not torch.compiler.is_compiling() and _functorch.peek_interpreter_stack() is None:
            inputs = [t for t in args if isinstance(t, Tensor) and t.requires_grad]
            # parameters are kept anyway, and linked where a graph is wanted: a link costs more than a small draw
            leaves = all(t.is_leaf for t in inputs)
            node.inputs_in_graph = inputs if leaves else _Link.apply(inputs[0].new_empty(0), *inputs)
        return made

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
        inputs = ctx.__dict__.get("inputs_in_graph")
        if isinstance(inputs, list):
            inputs = _Link.apply(inputs[0].new_empty(0), *inputs)
        return tuple(refuse(*[None if r is None else _linked(r.detach(), inputs) for r in results]))

    return call


def _linked(result: Tensor, inputs: Tensor | None) -> Tensor:
    linked: Tensor = result.requires_grad_() if inputs is None else _Link.apply(result, inputs)
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
