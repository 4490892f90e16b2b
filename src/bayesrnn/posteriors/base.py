"""A posterior over the weights of a module: which weights, where they are put, when they are drawn."""

from __future__ import annotations

import copy
import difflib
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.graph import disable_saved_tensors_hooks
from torch.utils.checkpoint import CheckpointFunction

from bayesrnn import draws
from bayesrnn.compilation import copied, not_compiled, uncompiled
from bayesrnn.kernels.gaussian.plan import Recurrent
from bayesrnn.nn.routing import fast_recurrence, in_one_piece


class Posterior(Protocol):
    """q(w) as a reparameterised draw: noise without parameters, and a differentiable map from noise to weights.

    A posterior is usually an `nn.Module` that holds its own parameters (the means stay in the wrapped module) and is
    made from the `Weight`s it is to cover; `Bayesian(module, MyPosterior)` does the rest.
    """

    def noise(self, generator: torch.Generator | None) -> Any:
        """The randomness of one draw, independent of all parameters. None: torch's global generator."""
        ...

    def weights(self, means: Mapping[str, Tensor], noise: Any) -> dict[str, Tensor]:
        """The weights of this draw by name, differentiable in `means` and in the posterior's own parameters."""
        ...

    def kl(self, means: Mapping[str, Tensor], noise: Any) -> Tensor:
        """KL(q || p): exact, or its estimate at this draw; a sum over all weights, unscaled."""
        ...


@dataclass(frozen=True)
class Weight:
    """One weight tensor of the wrapped module."""

    name: str
    mean: nn.Parameter
    group_dim: int | None
    """The axis of the input units, for priors that group by it; None for vectors."""
    padding: int | None = None
    """The row of an embedding that stands for padding: it stays what it is."""
    recurrent: Recurrent | None = None
    """The recurrent layer it is of, whose weights cuDNN wants in one piece of memory."""
    lowered: bool = False
    """Whether autocast runs its layer in lower precision, and so casts it."""


def _patterns(patterns: str | Sequence[str] | None) -> list[str] | None:
    return [patterns] if isinstance(patterns, str) else None if patterns is None else list(patterns)


def _group_dim(owner: nn.Module, parameter: Tensor) -> int | None:
    if parameter.ndim < 2:
        return None
    by_row = (nn.Embedding, nn.EmbeddingBag, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
    return 0 if isinstance(owner, by_row) else 1


def _recurrent(owner: nn.Module, prefix: str) -> Recurrent | None:
    if not isinstance(owner, nn.RNNBase):
        return None
    names = tuple(f"{prefix}.{n}" if prefix else n for n in owner._flat_weights_names)
    per_layer = len(names) // (owner.num_layers * (2 if owner.bidirectional else 1))
    return Recurrent(
        names, per_layer, owner.input_size, owner.mode, owner.hidden_size, owner.proj_size, owner.num_layers,
        owner.batch_first, bool(owner.bidirectional),
    )  # fmt: skip


def _lowered(owner: nn.Module) -> bool:
    """torch's products and recurrent layers; our noisy layers run their recurrence in the state's precision."""
    rates: Any = getattr(owner, "rates", None)
    plain = isinstance(owner, nn.RNNBase) and (rates is None or not rates.any)
    return plain or isinstance(owner, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d))


def _refuse_unconvertible(module: nn.Module) -> None:
    for name, part in module.named_modules():
        where = f"module {name!r}" if name else "the module"
        kind = type(part).__name__
        if isinstance(part, torch.jit.ScriptModule):
            raise TypeError(f"{where} is TorchScript and cannot be made Bayesian: wrap the Python module it came from")
        if isinstance(part, Bayesian) or hasattr(part, "posterior_kl"):
            raise TypeError(f"{where} is Bayesian already: wrap each weight once, or only the outer module")
        if kind in ("DataParallel", "DistributedDataParallel", "OptimizedModule", "FullyShardedDataParallel"):
            raise TypeError(f"{where} is a {kind}: wrap the module inside it first, then apply {kind} to the result")
        if any(isinstance(p, nn.UninitializedParameter) for p in part.parameters(recurse=False)):
            raise TypeError(f"{where} has lazy parameters: run it once on real input before making it Bayesian")


def find_weights(
    module: nn.Module, include: str | Sequence[str] | None, exclude: str | Sequence[str] | None
) -> tuple[list[Weight], dict[str, list[tuple[nn.Module, str]]]]:
    """The parameters that become random, and for each the places (owner, attribute) it sits in: tied ones have two."""
    included, excluded = _patterns(include), _patterns(exclude)
    all_names: list[str] = []
    places: dict[int, list[tuple[nn.Module, str]]] = {}
    weights: dict[int, Weight] = {}
    used: set[str] = set()
    kept_out: set[int] = set()
    for prefix, owner in module.named_modules():
        for attribute, parameter in owner._parameters.items():
            if parameter is None:
                continue
            name = f"{prefix}.{attribute}" if prefix else attribute
            all_names.append(name)
            places.setdefault(id(parameter), []).append((owner, attribute))
            hits = [p for p in included or [] if fnmatchcase(name, p)]
            misses = [p for p in excluded or [] if fnmatchcase(name, p)]
            used.update(hits, misses)
            if misses:
                kept_out.add(id(parameter))  # in all its places, where it is tied
                weights.pop(id(parameter), None)
            if id(parameter) in weights or id(parameter) in kept_out or (included is not None and not hits):
                continue
            if not parameter.requires_grad and included is None:
                continue
            if not parameter.is_floating_point():
                raise TypeError(f"{name} has dtype {parameter.dtype}: only real floating-point weights can be random")
            padding = getattr(owner, "padding_idx", None)
            if getattr(owner, "max_norm", None) is not None or getattr(owner, "sparse", False):
                raise TypeError(
                    f"{name} is of an embedding with max_norm or sparse=True, which cannot be random: "
                    "make the embedding without them, or leave it out with exclude"
                )
            weights[id(parameter)] = Weight(
                name, parameter, _group_dim(owner, parameter), padding, _recurrent(owner, prefix), _lowered(owner)
            )
    for pattern in [*(included or []), *(excluded or [])]:
        if pattern not in used:
            near = difflib.get_close_matches(pattern, all_names, n=1, cutoff=0.3)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"no parameter matches {pattern!r}{hint} (names are e.g. {all_names[:3]})")
    if not weights:
        raise ValueError("no trainable parameter is left to make Bayesian: check include, exclude and requires_grad")
    return list(weights.values()), {w.name: places[key] for key, w in weights.items()}


_NO_CHECKPOINT = (
    "activation checkpointing inside a Bayesian module would run it again without its drawn weights, and give wrong "
    "gradients: put torch.utils.checkpoint around the whole Bayesian module (likewise other hooks on saved tensors)"
)


_refusing: ContextVar[bool] = ContextVar("bayesrnn_refuses_checkpoints", default=False)


@contextmanager
def _no_checkpoint_inside() -> Iterator[None]:
    """Refuse `torch.utils.checkpoint`: by its hooks on saved tensors, and where it has none (use_reentrant=True) by
    its own function, which asks."""
    with ExitStack() as stack:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            with suppress(RuntimeError):  # hooks are at work already: around the whole module they are welcome
                stack.enter_context(disable_saved_tensors_hooks(_NO_CHECKPOINT))
            stack.callback(_refusing.reset, _refusing.set(True))
        yield


def _let_it_ask(function: Any) -> None:
    """torch's checkpoint function with a question before it: no hook of torch's own tells that it is at work."""
    own = function.forward

    def forward(ctx: Any, *args: Any) -> Any:
        if _refusing.get():
            raise RuntimeError(_NO_CHECKPOINT)
        return own(ctx, *args)

    function.forward = staticmethod(forward)


_let_it_ask(CheckpointFunction)


class Bayesian(nn.Module):
    """A module with random weights: called like the module, returns what the module returns.

    The means stay in the module, under their own names (`q.module.state_dict()` is a plain checkpoint of them); what
    else the posterior needs is in `q.posterior`. The module given is copied, and left as it was.

    Args:
        module: any `nn.Module`. RNN layers inside, ours or torch's, run their fused kernel on the drawn weights.
        posterior: makes a `Posterior` from the list of `Weight`s.
        include, exclude: name patterns (`"rnn.*"`, `"*.bias"`), one or several. Without `include` all trainable
            parameters become random; the others are left alone.
    """

    weights_kernel: str | None = None
    """The kernel that draws the weights, for `kernels.explain`; None: torch operations of the posterior itself."""

    def __init__(
        self,
        module: nn.Module,
        posterior: Callable[[list[Weight]], Any],
        *,
        include: str | Sequence[str] | None = None,
        exclude: str | Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(module, nn.Module):
            raise TypeError(f"expected a torch.nn.Module, got {type(module).__name__}")
        _refuse_unconvertible(module)
        self.module = copied(module)
        weights, places = find_weights(self.module, include, exclude)
        self._names = [w.name for w in weights]
        self._places = places
        self.posterior = posterior(weights)
        self._current: Any = None  # the noise of the latest draw, for a KL that is estimated at it

    def __deepcopy__(self, memo: dict[int, Any]) -> Bayesian:
        new = self.__class__.__new__(self.__class__)
        memo[id(self)] = new
        for key, value in self.__dict__.items():
            new.__dict__[key] = None if key == "_current" else copy.deepcopy(value, memo)
        return not_compiled(new)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_current": None}

    @property
    def means(self) -> dict[str, Tensor]:
        """The posterior means by parameter name: the module's own parameters."""
        return {n: self._places[n][0][0]._parameters[self._places[n][0][1]] for n in self._names}  # type: ignore[misc]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self._current = None
        if draws.source(self) is None:
            return self.module(*args, **kwargs)
        with self.placed(self._drawn()):
            return self.module(*args, **kwargs)

    @uncompiled
    def _drawn(self) -> Mapping[str, Tensor]:
        source = draws.source(self)
        assert source is not None
        noise = source.weights("weights", self.posterior.noise, self.means[self._names[0]].device)
        weights = self._draw(noise)
        self._current = noise
        return weights

    def _draw(self, noise: Any) -> Mapping[str, Tensor]:
        drawn: Mapping[str, Tensor] = self.posterior.weights(self.means, noise)
        return drawn

    @contextmanager
    def placed(self, weights: Mapping[str, Tensor]) -> Iterator[None]:
        """Put these weights in the module's parameters' places for the length of the block."""
        kept = self.means
        recurrent: list[Any] = [m for m in self.module.modules() if isinstance(m, nn.RNNBase)]
        # torch sees other weights there, and would lay the parameters out anew in memory at the next ordinary call:
        # a recorded CUDA graph would go on with the old place
        before = [(m, m._flat_weights, m._flat_weight_refs) for m in recurrent]
        try:
            self._put(weights)
            for module in recurrent:
                module._flat_weights = [module._parameters[n] for n in module._flat_weights_names]
                if in_one_piece(module._flat_weights):  # as cuDNN wants them: then torch need not copy them
                    module._flat_weight_refs = [weakref.ref(w) for w in module._flat_weights]
            with _no_checkpoint_inside(), fast_recurrence(recurrent):
                yield
        finally:
            self._put(kept)
            for module, flat, refs in before:
                module._flat_weights, module._flat_weight_refs = flat, refs

    def _put(self, weights: Mapping[str, Tensor]) -> None:
        for name, weight in weights.items():
            for owner, attribute in self._places[name]:
                owner._parameters[attribute] = weight  # type: ignore[assignment]

    def posterior_kl(self) -> Tensor:
        """KL(q || p), unscaled; estimates are taken at the current draw (a new one where none is current)."""
        noise = self._current
        if noise is None:
            source = draws.source(self) or draws.FRESH
            noise = source.weights("weights", self.posterior.noise, self.means[self._names[0]].device)
        value: Tensor = self.posterior.kl(self.means, noise)
        return value

    def mean_module(self) -> nn.Module:
        """A plain deep copy of the module with the posterior means in place."""
        made = copied(self.module)
        for part in made.modules():
            if isinstance(part, nn.RNNBase):
                part.flatten_parameters()  # a copy of cuDNN's one piece of memory is many
        return made
