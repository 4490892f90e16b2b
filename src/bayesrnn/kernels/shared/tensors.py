"""What kind of tensors a kernel was given: with memory of their own, or inside a transform or a tracer."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _disable_current_modes

outside_tracers = _disable_current_modes
"""A block in which no tracer follows and tensors are real."""

_ADVICE = "RNN module weights are not part of single contiguous chunk of memory"


def transformed() -> bool:
    """Whether a transform such as vmap is at work: then tensors have no memory of their own."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def mapped() -> bool:
    """Whether vmap is at work, alone or among other transforms."""
    levels = torch._C._functorch.get_interpreter_stack() if transformed() else None
    return levels is not None and any(level.key() == torch._C._functorch.TransformType.Vmap for level in levels)


def forward_mode() -> bool:
    """Whether derivatives are taken in forward mode, which plain torch operations alone have."""
    return forward_ad._current_level >= 0


def traced() -> bool:
    """Whether something follows torch's operations and nothing else: `make_fx`, fake tensors, `torch.jit.trace`."""
    return torch._C._len_torch_dispatch_stack() > 0 or torch._C._get_tracing_state() is not None


def unwatched(x: Any) -> AbstractContextManager[Any]:
    """A block without function modes, which cost time at every operation; not around a subclass of Tensor."""
    watched = torch._C._len_torch_function_stack() > 0 and type(x) in (Tensor, nn.Parameter)
    return torch._C.DisableTorchFunction() if watched else nullcontext()


_dispatch_keys: Any = torch._C._dispatch_keys
_plain_keys: dict[int, bool] = {}  # by a tensor's set of dispatch keys, which says what kind of tensor it is


def ordinary(*tensors: Tensor | None) -> bool:
    """Whether all are plain tensors with memory of their own, on any device: no subclass, no wrapper, no "meta"."""
    for tensor in tensors:
        if tensor is None:
            continue
        if type(tensor) is not Tensor and type(tensor) is not nn.Parameter:
            return False
        keys = _dispatch_keys(tensor).raw_repr()
        plain = _plain_keys.get(keys)
        if plain is None:
            plain = _plain_keys[keys] = _has_memory(tensor)
        if not plain:
            return False
    return True


def _has_memory(tensor: Tensor) -> bool:
    return (
        tensor.layout == torch.strided
        and tensor.device.type != "meta"
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        and not torch._C._functorch.is_legacy_batchedtensor(tensor)
        and not torch._is_functional_tensor(tensor)
        and not tensor._is_zerotensor()
        and not tensor.is_neg()
    )


def beneath(tensor: Tensor) -> Tensor:
    """The tensor with memory that transforms such as vmap have wrapped."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def in_one_piece(weights: Sequence[Tensor | None]) -> bool:
    """Whether CUDA tensors share their memory; those of a transform such as vmap have none."""
    if transformed():
        return False
    if not all(w is not None and w.is_cuda for w in weights):
        return False
    return len({w.untyped_storage().data_ptr() for w in weights if w is not None}) == 1


def silence_advice() -> None:
    """Silence torch's advice to call `flatten_parameters`: drawn weights, or those of one layer, are not one block.

    The filter is set once: `warnings.catch_warnings` at every call would show all other warnings at every call too.
    """
    if all(getattr(known, "pattern", "") != _ADVICE for _, known, *_ in warnings.filters):
        warnings.filterwarnings("ignore", message=_ADVICE)


class Mapped(torch.autograd.Function):
    """`Mapped.apply(run, *tensors)`: a function `run(draws, tensors)` of stacked tensors. Not differentiable.

    Every tensor has an axis of draws in front, of length 1 where all draws share it; so do the results. Options belong
    inside `run`: torch takes arguments apart, and every number of a list would be one.
    """

    @staticmethod
    def forward(run: Callable[..., tuple[Tensor, ...]], *tensors: Tensor | None) -> tuple[Tensor, ...]:
        one = [None if t is None else t.unsqueeze(0) for t in tensors]
        return tuple(t.squeeze(0) for t in run(1, one))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep nothing."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, run: Any, *tensors: Any) -> tuple[tuple[Tensor, ...], Any]:
        pairs = zip(tensors, in_dims[1:], strict=True)
        stacked = [None if t is None else t.unsqueeze(0) if d is None else t.movedim(d, 0) for t, d in pairs]
        outputs = run(info.batch_size, stacked)
        return outputs, (0,) * len(outputs)


def for_each(tensor: Any, draws: int) -> Any:
    """The tensor with one entry for each draw, in memory."""
    return None if tensor is None else tensor.expand(draws, *tensor.shape[1:]).contiguous()
