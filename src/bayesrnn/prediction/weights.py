"""Draws of whole weights at once: a module mapped over a stack of weights."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.overrides import TorchFunctionMode

from bayesrnn import draws, kernels
from bayesrnn.draws import Draw
from bayesrnn.draws.torch_noise import has_torch_noise
from bayesrnn.nn import NoisyLayer
from bayesrnn.nn.masks import cell_of
from bayesrnn.posteriors.base import Bayesian
from bayesrnn.posteriors.sharpening import PosteriorSharpening
from bayesrnn.prediction.calls import Rest, State, first_of

_SMALL = 1 << 20  # weights up to which draws are batched on a CPU


def batched_weight_draws(model: nn.Module, x: Any, rest: Rest, part: Sequence[Draw]) -> Tensor:
    """All draws of `part` at once: the module mapped over a stack of weights."""
    return HeldDraws(model, part).run(lambda module: first_of(module(x, *rest.args, **rest.kwargs)), x)  # type: ignore[no-any-return]


class HeldDraws:
    """Several draws of the weights, made once and held over many calls, that are run at once.

    Example::

        held = HeldDraws(model, [Draw(1), Draw(2)])
        logits, state = held(x)                 # (2, T, B, V), and states with the draws as their first axis
        logits, state = held(more, state)
    """

    def __init__(self, model: nn.Module, part: Sequence[Draw]) -> None:
        q, name = posterior_of(model)
        assert q is not None
        self._q = q
        self._weights = q.draw_many([draws.Bound(name, draw) for draw in part])  # the noise that q itself would ask for

    @staticmethod
    def serve(model: nn.Module) -> bool:
        """Whether draws of this model can be run at once, and faster than one by one."""
        q, _ = posterior_of(model)
        return q is not None and not has_unit_noise(model.modules()) and gains_from_batches(q)

    def __call__(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        if state is None:
            return self.run(lambda module: module(x), x)  # type: ignore[no-any-return]
        return self.run(lambda module, own: module(x, own), x, state)  # type: ignore[no-any-return]

    def run(self, call: Callable[..., Any], x: Any, *mapped: Any) -> Any:
        """`call(module, *mapped)` for each draw, with its weights in the module, and its part of what is mapped."""

        def one(weights: dict[str, Tensor], *own: Any) -> Any:
            with self._q.placed(weights):
                return call(self._q.module, *own)

        with _mapped(self._q, x):
            return torch.vmap(one)(self._weights, *mapped)


def posterior_of(model: nn.Module) -> tuple[Bayesian | None, str]:
    """The posterior over the weights of all of `model`, and its name there."""
    if isinstance(model, PosteriorSharpening):
        return model.q, "q"
    return (model, "") if isinstance(model, Bayesian) else (None, "")


def gains_from_batches(q: Bayesian) -> bool:
    """On a CPU with compiled kernels, models up to a size: see "Predictions" in kernels/cpu/README.md."""
    first = next(q.parameters())
    if first.device.type != "cpu":
        return True
    small = sum(m.numel() for m in q.means.values()) <= _SMALL
    return small and kernels.path("cpu", name="gaussian", dtype=first.dtype) == "compiled"


def has_unit_noise(parts: Iterable[nn.Module]) -> bool:
    """Whether layers have noise besides that of the weights; functions of torch show theirs when they run."""
    return any((isinstance(m, NoisyLayer) and m.noisy) or has_torch_noise(m) for m in parts)


@contextmanager
def _mapped(q: Bayesian, x: Any) -> Iterator[None]:
    """All that `q.module` does here is known to vmap."""
    no_noise = draws.NoNoise()
    with (
        draws.bind(q, no_noise, torchs=no_noise),
        State(q.modules()),
        kernels.force(_path_for_vmap(q, x)),
        _Embeddings() if any(isinstance(m, nn.Embedding) for m in q.modules()) else nullcontext(),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", message="There is a performance drop")  # of operations that vmap loops over
        yield


def _path_for_vmap(q: Bayesian, x: Any) -> str:
    """The path that vmap knows: a fast one if it can run every layer, else the plain one."""
    first = next(q.parameters())
    layers: list[Any] = [m for m in q.modules() if isinstance(m, nn.RNNBase)]
    cases = [
        kernels.Case(
            cell_of(m),
            first.device.type,
            first.dtype,
            batch=_rows(x, m),
            hidden=m.hidden_size,
            projection=m.proj_size > 0,
        )
        for m in layers
    ]
    paths = ("persistent", "compiled")
    return next((path for path in paths if all(kernels.able(path, case) for case in cases)), "reference")


def _rows(x: Any, layer: nn.RNNBase) -> int | None:
    """The sequences in an input; None where it does not say."""
    if isinstance(x, PackedSequence):
        return int(x.batch_sizes[0])
    axis = 0 if layer.batch_first else 1
    return int(x.shape[axis]) if isinstance(x, Tensor) and x.dim() > axis else None


class _Embeddings(TorchFunctionMode):
    """Embeddings pick their rows. vmap knows `F.embedding` too, but copies all of a stack of weights for it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.embedding and kwargs.get("max_norm") is None and len(args) == 2:
            tokens, weight = args
            return weight.index_select(0, tokens.flatten()).view(*tokens.shape, weight.shape[-1])
        return func(*args, **kwargs)
