"""Kernels under `torch.vmap`, over draws of the weights, for predictions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def transformed() -> bool:
    """Whether a transform such as vmap is at work: then tensors have no memory of their own."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def beneath(tensor: Tensor) -> Tensor:
    """The tensor with memory that transforms such as vmap have wrapped."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


class Mapped(torch.autograd.Function):
    """`Mapped.apply(run, *tensors)`: a function `run(draws, tensors)` of stacked tensors. Not differentiable.

    Every tensor comes with an axis of draws in front, of length 1 where all draws share it; so do the results. Options
    belong inside `run`: torch takes arguments apart, and every number of a list would be one.
    """

    @staticmethod
    def forward(run: Callable[..., tuple[Tensor, ...]], *tensors: Tensor | None) -> tuple[Tensor, ...]:
        one = [None if t is None else t.unsqueeze(0) for t in tensors]
        return tuple(t.squeeze(0) for t in run(1, one))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Nothing is kept."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, run: Any, *tensors: Any) -> tuple[tuple[Tensor, ...], Any]:
        pairs = zip(tensors, in_dims[1:], strict=True)
        stacked = [None if t is None else t.unsqueeze(0) if d is None else t.movedim(d, 0) for t, d in pairs]
        outputs = run(info.batch_size, stacked)
        return outputs, (0,) * len(outputs)


def for_each(tensor: Any, draws: int) -> Any:
    """The tensor with one entry for each draw, in memory."""
    return None if tensor is None else tensor.expand(draws, *tensor.shape[1:]).contiguous()
