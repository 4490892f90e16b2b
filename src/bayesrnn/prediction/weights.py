"""Draws of whole weights at once: a module mapped over a stack of weights."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from bayesrnn import draws, kernels
from bayesrnn.draws import Draw, Unfoldable
from bayesrnn.nn import Dropout, Embedding, SequenceDropout
from bayesrnn.nn import recurrence as layered
from bayesrnn.posteriors.base import Bayesian
from bayesrnn.posteriors.sharpening import PosteriorSharpening

_SMALL = 1 << 20  # weights up to which draws are batched on a CPU


def batched_weight_draws(q: Bayesian, x: Any, rest: Rest, part: Sequence[Draw], name: str = "") -> Tensor:
    """All draws of `part` at once: the module mapped over a stack of weights."""

    def run(weights: dict[str, Tensor]) -> Tensor:
        with q.placed(weights):
            return first_of(q.module(x, *rest.args, **rest.kwargs))

    with _mapped(q, x):
        return torch.vmap(run)(_stacked_weights(q, part, name))


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
        self._q, self._weights = q, _stacked_weights(q, part, name)

    @staticmethod
    def serve(model: nn.Module) -> bool:
        """Whether draws of this model can be run at once, and faster than one by one."""
        q, _ = posterior_of(model)
        return q is not None and not has_unit_noise(model) and gains_from_batches(q)

    def __call__(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        def run(weights: dict[str, Tensor], own: Any = None) -> Any:
            with self._q.placed(weights):
                return self._q.module(x) if own is None else self._q.module(x, own)

        with _mapped(self._q, x):
            arguments = (self._weights,) if state is None else (self._weights, state)
            output, after = torch.vmap(run)(*arguments)
            return output, after


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


def has_unit_noise(model: nn.Module) -> bool:
    from bayesrnn.draws.torch_noise import torch_noise_layers

    ours = any(hasattr(m, "dropped_weights") and next(iter(_rates(m)), 0) for m in model.modules())
    masks = any(isinstance(m, (Dropout, SequenceDropout)) and m.p > 0 for m in model.modules())
    return ours or masks or bool(torch_noise_layers(model))


def _rates(module: nn.Module) -> list[float]:
    rates = getattr(module, "rates", None)
    if rates is not None:
        return [float(rates.any)]
    return [float(getattr(module, "word_dropout", 0.0))]


def _stacked_weights(q: Bayesian, part: Sequence[Draw], name: str) -> dict[str, Tensor]:
    """The weights of all draws, (draws, *shape) each."""
    device = q.means[q._names[0]].device
    noises = [draws.Bound(draw, name).weights("weights", q.posterior.noise, device) for draw in part]  # as q has them
    many = getattr(q.posterior, "weights_many", None)
    if many is not None:
        stacked: dict[str, Tensor] = many(q.means, noises)
        return stacked
    sampled = [q.posterior.weights(q.means, noise) for noise in noises]
    return {name: torch.stack([weights[name] for weights in sampled]) for name in sampled[0]}


@contextmanager
def _mapped(q: Bayesian, x: Any) -> Iterator[None]:
    """All that `q.module` does here is known to vmap."""
    with draws.bind(q, None), kernels.force(_path_for_vmap(q, x)), _known_to_vmap(q), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")  # of operations that vmap loops over
        yield


def _path_for_vmap(q: Bayesian, x: Any) -> str:
    """Of the paths that know vmap: one of the two fast ones, if it has all of the layers, or the plain one."""
    first = next(q.parameters())
    layers: list[Any] = [m for m in q.modules() if isinstance(m, nn.RNNBase)]
    cases = [
        kernels.Case(
            layered.cell_of(m),
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


@contextmanager
def _known_to_vmap(model: nn.Module) -> Iterator[None]:
    """torch's recurrent layers run layer by layer, and embeddings pick their rows, in operations that vmap knows.

    It knows `F.embedding` too, but copies all of a stack of weights for it.
    """
    with ExitStack() as stack:
        for module in model.modules():
            forward: Any = None
            if isinstance(module, nn.RNNBase) and not hasattr(module, "rates"):
                forward = partial(_layer_by_layer, module)
            elif type(module) in (nn.Embedding, Embedding) and module.max_norm is None:
                forward = partial(_picked, module)
            if forward is not None and "forward" not in module.__dict__:
                module.__dict__["forward"] = forward
                stack.callback(module.__dict__.pop, "forward", None)
        yield


def _layer_by_layer(module: nn.RNNBase, input: Any, hx: Any = None) -> tuple[Any, Any]:
    return layered.run(module, layered.Rates(), input, hx, None)


def _picked(module: nn.Embedding, input: Tensor) -> Tensor:
    return module.weight.index_select(0, input.flatten()).view(*input.shape, module.embedding_dim)


class Rest(NamedTuple):
    """The model's arguments after the first."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = MappingProxyType({})

    def repeated(self, count: int) -> Rest:
        """For a batch of `count` draws."""
        repeated = {name: _repeat_states(value, count) for name, value in self.kwargs.items()}
        return Rest(_repeat_states(self.args, count), repeated)


def _repeat_states(args: Any, count: int) -> Any:
    if count == 1:
        return args
    if isinstance(args, Tensor):
        if args.dim() < 2:
            raise Unfoldable("an argument has no batch axis")
        return torch.cat([args] * count, dim=1)
    if isinstance(args, (tuple, list)):
        return tuple(_repeat_states(a, count) for a in args)
    return args


def first_of(output: Any) -> Tensor:
    if isinstance(output, (tuple, list)):
        output = output[0]
    if isinstance(output, PackedSequence):
        output = output.data
    if not isinstance(output, Tensor):
        raise TypeError(f"the model must return a tensor or a tuple that starts with one, got {type(output).__name__}")
    return output
