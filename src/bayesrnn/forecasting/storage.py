"""A fitted forecaster in a folder: numbers as safetensors, settings as JSON. Nothing is pickled or executed."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

import bayesrnn as br
from bayesrnn.errors import UserError
from bayesrnn.forecasting.clock import Clock
from bayesrnn.forecasting.empirical import Empirical
from bayesrnn.forecasting.grids import Calibration
from bayesrnn.forecasting.growth import labels_from_json, labels_to_json
from bayesrnn.forecasting.integrity import check_fit, check_sizes
from bayesrnn.forecasting.linear import Linear
from bayesrnn.forecasting.model import Model
from bayesrnn.forecasting.panel import Columns, Panel
from bayesrnn.forecasting.selection import Base
from bayesrnn.forecasting.structure import Structure
from bayesrnn.forecasting.training import Member, Settings
from bayesrnn.forecasting.windows import Shape
from bayesrnn.reading import MB, read_json
from bayesrnn.saving import WEIGHTS

if TYPE_CHECKING:
    from bayesrnn.forecasting.forecaster import Forecaster

_ABOUT = "forecaster.json"
_PANEL = ("offsets", "first", "y", "past", "future", "static")


class _Arrays(nn.Module):
    """Named arrays and networks as one module, for `br.save`."""

    def __init__(self, arrays: dict[str, Tensor], networks: list[nn.Module]) -> None:
        super().__init__()
        for name, value in arrays.items():
            self.register_buffer(name, value)
        self.networks = nn.ModuleList(networks)


def write(forecaster: Forecaster, folder: Path) -> Path:
    model, panel = forecaster._fitted, forecaster._panel
    arrays = {f"panel_{key}": getattr(panel, key) for key in _PANEL}
    for k, base in enumerate(model.bases):
        if isinstance(base, Structure):
            arrays[f"base{k}_theta"] = base.theta
        elif isinstance(base, Base):
            arrays |= {f"base{k}_weights": base.linear.weights, f"base{k}_root": base.linear.root}
    for name, part in (*((f"base{k}", b.calibration) for k, b in enumerate(model.bases)), ("model", model.calibration),
                       *((f"cold{rows}", part) for rows, part in model.cold)):  # fmt: skip
        arrays |= {f"{name}_{key}": value for key, value in vars(part).items()}
    arrays |= {"weights": model.weights, "correlation": model.correlation, "width": forecaster._width}
    for k, member in enumerate(model.members):
        arrays |= {f"start_{k}": member.head.start.numpy(), f"size_{k}": member.head.size}
    module = _Arrays(
        {k: torch.as_tensor(np.ascontiguousarray(v)) for k, v in arrays.items()}, [m.model for m in model.members]
    )
    about = {
        "settings": forecaster.settings,
        "ids": panel.ids,
        "labels": labels_to_json(panel.labels),
        "clock": asdict(panel.clock),
        "columns": asdict(panel.columns),
        "bases": [_about(base) for base in model.bases],
        "lower": str(model.lower),
        "share": model.share,
        "whole": model.whole,
        "cold": [rows for rows, _ in model.cold],
        "members": [{"likelihood": m.likelihood, "sizes": m.sizes, "settings": asdict(m.settings), "base": m.base}
                    for m in model.members],
        "trained": forecaster._trained,
        "arrays": {k: [list(v.shape), str(v.dtype).removeprefix("torch.")] for k, v in module.named_buffers()
                   if "." not in k},
    }  # fmt: skip
    try:
        text = json.dumps(about).encode()
    except TypeError:
        raise UserError("A setting of the forecaster is not plain text or numbers, and cannot be saved.") from None
    return br.save(module, folder, arguments={}, files={_ABOUT: text})


def _about(base: Base | Structure | Empirical) -> dict[str, Any]:
    if isinstance(base, Empirical):
        return {"shape": asdict(base.shape)}
    if isinstance(base, Structure):
        return {"shape": asdict(base.shape), "memory": base.memory}
    linear = {"anchor": base.linear.anchor, "penalty": str(base.linear.penalty)}
    return {"shape": asdict(base.shape), **linear, "spread": base.spread, "own": str(base.penalty)}


def read(kind: type[Forecaster], folder: Path) -> Forecaster:
    about = read_json(folder / _ABOUT, most=512 * MB)
    try:
        check_sizes(about, (folder / WEIGHTS).stat().st_size)
        made = _built(kind, about, folder)
        check_fit(made)
        return made
    except UserError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError, OSError) as error:
        raise UserError(f"{folder / _ABOUT} is damaged or of another version ({str(error)[:200]}).") from None


def _built(kind: type[Forecaster], about: dict[str, Any], folder: Path) -> Forecaster:
    forecaster = kind(**about["settings"])
    shapes = [Shape(**{**b["shape"], "seasons": tuple(b["shape"]["seasons"])}) for b in about["bases"]]
    empty = {k: torch.zeros(size, dtype=getattr(torch, dtype)) for k, (size, dtype) in about["arrays"].items()}
    members = [
        Member(m["likelihood"], tuple(m["sizes"]), shapes[0], Settings(**m["settings"]), int(m["base"]))
        for m in about["members"]
    ]
    module = _Arrays(empty, [m.model for m in members])
    br.load(folder, module)
    found = {name: value.numpy() for name, value in module.named_buffers() if "." not in name}
    for k, member in enumerate(members):
        member.head.start, member.head.size = torch.as_tensor(found[f"start_{k}"]), found[f"size_{k}"]
        member.model.eval()

    def calibration(name: str) -> Calibration:
        return Calibration(*(found[f"{name}_{key}"] for key in ("centre", "spread", "shape")))

    bases: list[Base | Structure | Empirical] = []
    for k, (shape, part) in enumerate(zip(shapes, about["bases"], strict=True)):
        if "memory" in part:
            bases.append(Structure(shape, found[f"base{k}_theta"], float(part["memory"]), calibration(f"base{k}")))
            continue
        if "anchor" not in part:
            bases.append(Empirical(shape, calibration(f"base{k}")))
            continue
        linear = Linear(part["anchor"], float(part["penalty"]), found[f"base{k}_weights"], found[f"base{k}_root"])
        bases.append(Base(shape, linear, part["spread"], calibration(f"base{k}"), float(part["own"])))
    raw = about["columns"]
    columns = Columns(**{
        **raw, **{k: tuple(raw[k]) for k in ("past", "future", "static")},
        "means": {k: (float(a), float(b)) for k, (a, b) in raw["means"].items()},
    })  # fmt: skip
    arrays = {key: found[f"panel_{key}"] for key in _PANEL}
    forecaster.panel = Panel(
        [str(i) for i in about["ids"]], clock=Clock(**about["clock"]), columns=columns,
        labels=labels_from_json(about["labels"]), **arrays,
    )  # fmt: skip
    forecaster.columns = columns
    forecaster.model = Model(
        bases,
        members,
        found["weights"],
        calibration("model"),
        found["correlation"],
        float(about["lower"]),
        float(about["share"]),
        bool(about["whole"]),
        [(int(rows), calibration(f"cold{int(rows)}")) for rows in about["cold"]],
    )
    forecaster._width = found["width"]
    forecaster._trained = {str(k): int(v) for k, v in about["trained"].items()}
    return forecaster
