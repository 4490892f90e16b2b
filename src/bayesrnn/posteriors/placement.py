"""Put drawn weights in place of a module's parameters during a call.

The module's own `forward` runs, whatever its class: only the tensors in its parameter slots differ, as with
`torch.func.functional_call`.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import disable_saved_tensors_hooks
from torch.utils.checkpoint import CheckpointFunction

from bayesrnn.nn.routing import fast_recurrence
from bayesrnn.posteriors.weights import Places


@contextmanager
def placed(layers: Sequence[nn.RNNBase], places: Places, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Put these weights into a module's parameter slots inside the block; the parameters come back after it.

    Args:
        layers: the recurrent layers of the module.
        places: the slots of each weight.
    """
    kept = {name: parameters(places, name) for name in weights}
    # Keep torch's list of flat weights: it would otherwise move the parameters to new memory at the next ordinary
    # call, and a recorded CUDA graph would keep using the old memory.
    before = [(m, m._flat_weights, m._flat_weight_refs) for m in layers]
    try:
        put(places, weights)
        for layer in layers:
            _refresh(layer)
        with ExitStack() as stack:
            if torch.is_grad_enabled() and not torch.compiler.is_compiling():
                stack.enter_context(_no_checkpoint_inside())
            stack.enter_context(fast_recurrence(layers))
            yield
    finally:
        put(places, kept)
        for layer, flat, refs in before:
            layer._flat_weights, layer._flat_weight_refs = flat, refs


def parameters(places: Places, name: str) -> Tensor:
    """What fills the slots of a weight now: the mean, outside of `placed`."""
    owner, attribute = places[name][0]
    found = owner._parameters.get(attribute)
    if found is None:
        raise RuntimeError(
            f"weight {name!r} of the Bayesian module is gone: pruning, a parametrisation or FullyShardedDataParallel "
            "has replaced it after wrapping; apply that to the module first, or use use_orig_params=True"
        )
    return found


def put(places: Places, weights: Mapping[str, Tensor]) -> None:
    for name, weight in weights.items():
        for owner, attribute in places[name]:
            owner._parameters[attribute] = weight  # type: ignore[assignment]


def _refresh(layer: nn.RNNBase) -> None:
    """Tell a recurrent layer of torch's about the weights in its slots.

    With weak references that fit, torch does not call `flatten_parameters`, which on a GPU would move all of the
    layer's weights to one new piece of memory: also parameters that are not drawn. A CUDA graph of the call would then
    read those where they were before, in memory that has been given back. cuDNN copies weights itself.

    Parametrised layers are left to torch, which asks for their weights at every call.
    """
    if any(name not in layer._parameters for name in layer._flat_weights_names):
        return
    flat: list[Any] = [layer._parameters[name] for name in layer._flat_weights_names]
    layer._flat_weights = flat
    layer._flat_weight_refs = [None if w is None else weakref.ref(w) for w in flat]


_NO_CHECKPOINT = (
    "activation checkpointing inside a Bayesian module would run it again without its drawn weights, and give wrong "
    "gradients: put torch.utils.checkpoint around the whole Bayesian module (likewise other hooks on saved tensors)"
)
_refusing: ContextVar[bool] = ContextVar("bayesrnn_refuses_checkpoints", default=False)
_lock = threading.Lock()
_active = 0


@contextmanager
def _no_checkpoint_inside() -> Iterator[None]:
    """Refuse `torch.utils.checkpoint` inside the block.

    The usual kind is refused by its hooks on saved tensors. With `use_reentrant=True` it has none; there its function
    is guarded while a Bayesian module runs.
    """
    with ExitStack() as stack:
        with suppress(RuntimeError):  # hooks around the whole module are active already: those are welcome
            stack.enter_context(disable_saved_tensors_hooks(_NO_CHECKPOINT))
        stack.callback(_refusing.reset, _refusing.set(True))
        _guard(1)
        stack.callback(_guard, -1)
        yield


_torch_forward = CheckpointFunction.forward


def _guarded_forward(ctx: Any, *args: Any) -> Any:
    if _refusing.get():
        raise RuntimeError(_NO_CHECKPOINT)
    return _torch_forward(ctx, *args)


def _guard(change: int) -> None:
    """Guard torch's checkpoint function while at least one Bayesian module runs, in any thread."""
    global _active
    with _lock:
        _active += change
        CheckpointFunction.forward = staticmethod(_guarded_forward if _active else _torch_forward)  # type: ignore[method-assign]
