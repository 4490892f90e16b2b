"""In words: which path a layer or a whole model takes, and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from bayesrnn import kernels


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
            kernel: "LSTM", "GRU", "RNN", "input" or "gaussian".
        device, dtype: None: the model's own; for a name the CPU and float32.
        batch: sequences side by side; None: not known.
        **facts: the other fields of `kernels.Case`, such as `hidden=650` or `recurrent_mask="tied"`.

    Example::

        print(br.kernels.explain(model, device="cuda", batch=20))
    """
    if isinstance(what, str):
        case = kernels.Case(what, str(torch.device(device or "cpu").type), dtype or torch.float32, batch=batch, **facts)
        return _paragraph(what, case)
    first = next(what.parameters(), None)
    where = torch.device(device) if device is not None else torch.device("cpu") if first is None else first.device
    kind = dtype or (torch.float32 if first is None else first.dtype)
    lines = list(_of_module(what, where.type, kind, batch, facts))
    return "\n".join(lines) or "no recurrent layer and no drawn weights: nothing here has more than one path"


def _paragraph(title: str, case: kernels.Case) -> str:
    chosen, against = kernels.choose(case)
    request = kernels.asked()
    if request is None:
        why = ""
    elif request[0] == chosen.name:
        why = f" ({request[1]} asks for it)"
    else:
        why = f" ({request[1]} asks for {request[0]!r})"
    lines = [f"{title}: path {chosen.name!r}{why}: {chosen.what}."]
    lines += [f"  not {row.name!r}: {reason}." for row, reason in against]
    return "\n".join(lines)


def _of_module(
    model: nn.Module, device: str, dtype: torch.dtype, batch: int | None, facts: dict[str, Any]
) -> Iterator[str]:
    for name, part in model.named_modules():
        title = f"{name or 'the module'} ({type(part).__name__})"
        if isinstance(part, nn.RNNBase):
            yield _of_layer(part, title, device, dtype, batch, facts)
        elif hasattr(part, "posterior_kl") and hasattr(part, "posterior"):
            yield _paragraph(f"{title}, drawn weights", kernels.Case("gaussian", device, dtype))


def _of_layer(
    layer: nn.RNNBase, title: str, device: str, dtype: torch.dtype, batch: int | None, facts: dict[str, Any]
) -> str:
    rates: Any = getattr(layer, "rates", None)
    library = "cuDNN" if device == "cuda" else "torch"
    whole = f"{title}: {library}'s kernel for whole layers"
    if rates is None and not kernels.forced():
        return f"{whole}: torch's own layer."
    if not kernels.forced() and not (layer.training and rates.any):
        return f"{whole}: {'all rates are zero' if not rates.any else 'in eval mode it runs without noise'}."
    if not kernels.forced() and rates.folds_into_weights:
        return f"{whole}: the batch shares its noise, which is folded into the weights."
    found: dict[str, Any] = {"hidden": layer.hidden_size, "projection": bool(layer.proj_size)}
    if rates is not None and layer.training:
        masked = rates.recurrent_dropout > 0
        found["recurrent_mask"] = ("tied" if rates.tied else "untied") if masked else None
        found["cell_mask"] = rates.cell_dropout > 0
    cell = "RNN" if layer.mode.startswith("RNN") else layer.mode
    return _paragraph(title, kernels.Case(cell, device, dtype, batch=batch, **{**found, **facts}))
