"""In words: which path a layer or a whole model takes, and why."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from bayesrnn.kernels import dispatch as kernels
from bayesrnn.kernels.shared.beside import is_recording


class ExplainedLayer:
    """Base of a recurrent layer that knows what its choice of a kernel depends on now."""

    def kernel_facts(self) -> tuple[dict[str, Any], str | None]:
        """The `Case` fields of its noise; and why torch's own kernel could run it whole, or None if that could not."""
        raise NotImplementedError


class OnePath:
    """Base of a recurrent layer that always runs in the same way, said in words."""

    own_path: str


class ExplainedWeights:
    """Base of a module that draws the weights of another."""

    weights_kernel: str | None = None
    """The kernel that draws the weights; None: torch operations of the posterior itself."""
    posterior: Any


class RunsRecurrent:
    """Base of a model that runs torch's own recurrent layers on this library's paths where they are faster."""


def explain(
    what: nn.Module | str,
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    batch: int | None = None,
    **facts: Any,
) -> str:
    """Say which path is taken and why, one paragraph per layer.

    Args:
        what: a model (its recurrent layers and posteriors are looked up, in the mode it is in), or the name of a
            kernel: "LSTM", "GRU", "RNN", "input", "decoder", "gaussian" or "update".
        device: None: the model's own; for a name the CPU.
        dtype: None: the model's own; for a name float32.
        batch: sequences side by side; None: not known.
        **facts: the other fields of `kernels.Case`, such as `hidden=650` or `recurrent_mask="tied"`. `graph` and
            `autocast` default to the current state.

    Example::

        print(br.kernels.explain(model, device="cuda", batch=20))
    """
    _check(what, dtype, {"batch": batch, **facts})
    if isinstance(what, str):
        named = torch.device(device or "cpu").type
        case = kernels.Case(what, named, dtype or torch.float32, batch=batch, **{**_now(named), **facts})
        return _plain(what, case, "there is no noise in the recurrence") if case.plain else _paragraph(what, case)
    first = next(what.parameters(), None)
    where = torch.device(device) if device is not None else torch.device("cpu") if first is None else first.device
    kind = dtype or (torch.float32 if first is None else first.dtype)
    lines = list(_of_module(what, kernels.Case("", where.type, kind, batch=batch), facts))
    return "\n".join(lines) or "no recurrent layer and no drawn weights: nothing here has more than one path"


def _check(what: object, dtype: object, facts: dict[str, Any]) -> None:
    """Refuse what no case has, instead of explaining another case."""
    if not isinstance(what, (str, nn.Module)):
        raise TypeError(f"explain takes a module or the name of a kernel, got {type(what).__name__}")
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype must be a torch.dtype such as torch.float32, got {dtype!r}")
    known = kernels.Case._fields[3:]  # after the kernel, its device and dtype
    for name, value in facts.items():
        if name not in known:
            raise TypeError(f"there is no {name!r} to explain; there are device, dtype, {', '.join(known)}")
        whole = isinstance(value, int) and not isinstance(value, bool) and value > 0
        if name in ("batch", "hidden", "steps") and value is not None and not whole:
            raise ValueError(f"{name} must be a whole number above 0, got {value!r}")
        if name in ("ragged", "projection", "cell_mask", "plain", "graph") and not isinstance(value, bool):
            raise TypeError(f"{name} must be True or False, got {value!r}")
        if name == "autocast" and value is not None and not isinstance(value, torch.dtype):
            raise TypeError(f"autocast must be a torch.dtype such as torch.bfloat16, or None, got {value!r}")
    if dtype is not None and not dtype.is_floating_point:
        raise ValueError(f"dtype must be one of floating point, got {dtype}")
    if facts.get("recurrent_mask") not in (None, "tied", "untied"):
        raise ValueError(f"recurrent_mask must be None, 'tied' or 'untied', got {facts['recurrent_mask']!r}")


def _now(device: str) -> dict[str, Any]:
    """The facts that are those of the moment: recording into a graph, and the precision of autocast."""
    known = device != "meta" and torch.amp.is_autocast_available(device)
    lowered = known and torch.is_autocast_enabled(device)
    return {"graph": is_recording(), "autocast": torch.get_autocast_dtype(device) if lowered else None}


def _plain(title: str, case: kernels.Case, why: str) -> str:
    """A layer that torch's kernel can run. It does, unless one of our paths measured faster."""
    chosen, against = kernels.choose(case)
    rivals = ("persistent", "cells") if case.device == "cuda" else ()
    if chosen.name in rivals:
        return _paragraph(title, case)
    return "\n".join([_whole(title, case.device, why), *_refusals(against, rivals)])


def _whole(title: str, device: str, why: str) -> str:
    return f"{title}: {'cuDNN' if device == 'cuda' else 'torch'}'s kernel for whole layers: {why}."


def _refusals(against: Sequence[tuple[kernels.Path, str]], names: Collection[str] | None = None) -> list[str]:
    return [f"  not {row.name!r}: {reason}." for row, reason in against if names is None or row.name in names]


def _paragraph(title: str, case: kernels.Case) -> str:
    (chosen, against), why = kernels.choose(case), ""
    if request := kernels.asked():
        why = f" ({request[1]} asks for {'it' if request[0] == chosen.name else repr(request[0])})"
    return "\n".join([f"{title}: path {chosen.name!r}{why}: {chosen.what}.", *_refusals(against)])


def _of_module(model: nn.Module, where: kernels.Case, facts: dict[str, Any]) -> Iterator[str]:
    drawn: list[str] = []  # where torch's own layers run as ours do: in a posterior's module, in our models
    for name, part in model.named_modules():
        title = f"{name or 'the module'} ({type(part).__name__})"
        if isinstance(part, OnePath):
            yield f"{title}: {part.own_path}."
        elif isinstance(part, nn.RNNBase):
            ours = isinstance(part, ExplainedLayer) or any(name.startswith(prefix) for prefix in drawn)
            yield _of_layer(part, title, where, facts, ours)
        elif isinstance(part, ExplainedWeights):
            drawn.append(f"{name}.module" if name else "module")
            if part.weights_kernel is not None:
                yield _paragraph(f"{title}, drawn weights", kernels.Case(part.weights_kernel, *where[1:3]))
            else:
                yield f"{title}, drawn weights: torch operations of {type(part.posterior).__name__} itself."
        elif isinstance(part, RunsRecurrent):
            drawn.append(name)


def _of_layer(layer: nn.RNNBase, title: str, where: kernels.Case, facts: dict[str, Any], ours: bool) -> str:
    """`ours`: a layer of this library, or one of torch's own that runs on drawn weights."""
    plain: tuple[dict[str, Any], str | None] = {}, "there is no noise in the recurrence"
    own, why = layer.kernel_facts() if isinstance(layer, ExplainedLayer) else plain
    found = {"hidden": layer.hidden_size, "projection": bool(layer.proj_size), **_now(where.device), **own, **facts}
    case = where._replace(kernel="RNN" if layer.mode.startswith("RNN") else layer.mode, **found)
    if why is None or (kernels.forced() and ours):
        return _paragraph(title, case)
    return _plain(title, case._replace(plain=True), why) if ours else _whole(title, case.device, "torch's own layer")
