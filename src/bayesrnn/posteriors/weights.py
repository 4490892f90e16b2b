"""Which weights of a module become random, and what a posterior must know about each."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from bayesrnn.kernels.gaussian.plan import Recurrent
from bayesrnn.nn import GRU, LSTM, RNN
from bayesrnn.wrappers import wrapper_name

Patterns = str | Sequence[str] | None
Places = dict[str, list[tuple[nn.Module, str]]]
"""For each random weight the slots (owner, attribute) it fills; a tied weight has several."""


@dataclass(frozen=True)
class Weight:
    """One weight tensor of the wrapped module."""

    name: str
    mean: nn.Parameter
    group_dim: int | None
    """The axis of the input units, for priors that group by it; None for vectors."""
    padding: int | None = None
    """The padding row of an embedding: it has no noise."""
    recurrent: Recurrent | None = None
    """The recurrent layer that owns it; cuDNN wants the weights of a layer in one piece of memory."""
    lowered: bool = False
    """Whether autocast runs its layer in lower precision, and so casts it."""


def _listed(patterns: Patterns) -> list[str] | None:
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
    """Whether autocast lowers this layer; our noisy layers run their recurrence in the state's precision."""
    if isinstance(owner, (RNN, GRU, LSTM)):
        return not owner.rates.any
    return isinstance(owner, (nn.RNNBase, nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d))


def refuse_unconvertible(module: nn.Module, bayesian: tuple[type, ...]) -> None:
    """Raise for modules whose weights cannot be drawn, with the way around it."""
    for name, part in module.named_modules():
        where = f"module {name!r}" if name else "the module"
        if isinstance(part, torch.jit.ScriptModule):
            raise TypeError(f"{where} is TorchScript and cannot be made Bayesian: wrap the Python module it came from")
        if isinstance(part, bayesian):
            raise TypeError(f"{where} is Bayesian already: wrap each weight once, or only the outer module")
        if kind := wrapper_name(part):
            raise TypeError(f"{where} is a {kind}: wrap the module inside it first, then apply {kind} to the result")
        if any(isinstance(p, nn.UninitializedParameter) for p in part.parameters(recurse=False)):
            raise TypeError(f"{where} has lazy parameters: run it once on real input before making it Bayesian")
        if any(isinstance(p, FakeTensor) for p in part.parameters(recurse=False)):
            raise TypeError(f"{where} has fake parameters, which torch cannot copy: make the real module Bayesian")


def _checked(name: str, owner: nn.Module, parameter: nn.Parameter, prefix: str) -> Weight:
    if not parameter.is_floating_point():
        raise TypeError(f"{name} has dtype {parameter.dtype}: only real floating-point weights can be random")
    padding = None
    if isinstance(owner, (nn.Embedding, nn.EmbeddingBag)):
        padding = owner.padding_idx
        if owner.max_norm is not None or owner.sparse:
            raise TypeError(
                f"{name} is of an embedding with max_norm or sparse=True, which cannot be random: "
                "make the embedding without them, or leave it out with exclude"
            )
    return Weight(name, parameter, _group_dim(owner, parameter), padding, _recurrent(owner, prefix), _lowered(owner))


def find_weights(module: nn.Module, include: Patterns, exclude: Patterns) -> tuple[list[Weight], Places]:
    """The parameters that become random, and the slots that each of them fills."""
    included, excluded = _listed(include), _listed(exclude) or []
    names: list[str] = []
    places: dict[int, list[tuple[nn.Module, str]]] = {}
    weights: dict[int, Weight] = {}
    used: set[str] = set()
    kept_out: set[int] = set()
    for prefix, owner in module.named_modules():
        for attribute, parameter in owner._parameters.items():
            if parameter is None:
                continue
            name, key = f"{prefix}.{attribute}" if prefix else attribute, id(parameter)
            names.append(name)
            places.setdefault(key, []).append((owner, attribute))
            hits = [p for p in included or [] if fnmatchcase(name, p)]
            misses = [p for p in excluded if fnmatchcase(name, p)]
            used.update(hits, misses)
            if misses:
                kept_out.add(key)  # in all of its slots, if it is tied
                weights.pop(key, None)
            wanted = bool(hits) if included is not None else parameter.requires_grad
            if wanted and key not in weights and key not in kept_out:
                weights[key] = _checked(name, owner, parameter, prefix)
    for pattern in [*(included or []), *excluded]:
        if pattern not in used:
            near = difflib.get_close_matches(pattern, names, n=1, cutoff=0.3)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"no parameter matches {pattern!r}{hint} (names are e.g. {names[:3]})")
    if not weights:
        raise ValueError("no trainable parameter is left to make Bayesian: check include, exclude and requires_grad")
    return list(weights.values()), {w.name: places[key] for key, w in weights.items()}
