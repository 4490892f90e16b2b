"""A fitted forecaster in a folder: numbers as safetensors, settings as JSON. Nothing is pickled or executed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

import bayesrnn as br
from bayesrnn.errors import UserError
from bayesrnn.forecasting.clock import Clock
from bayesrnn.forecasting.columns import Columns
from bayesrnn.forecasting.empirical import Empirical
from bayesrnn.forecasting.grids import Calibration
from bayesrnn.forecasting.growth import labels_from_json, labels_to_json
from bayesrnn.forecasting.integrity import check_fit, check_sizes
from bayesrnn.forecasting.linear import Linear
from bayesrnn.forecasting.model import Model, Part
from bayesrnn.forecasting.panel import Panel
from bayesrnn.forecasting.selection import Base
from bayesrnn.forecasting.structure import Structure
from bayesrnn.forecasting.training import Member, Settings
from bayesrnn.forecasting.trees import Trees
from bayesrnn.forecasting.widths import Widths
from bayesrnn.forecasting.windows import Shape
from bayesrnn.reading import MB, read_json
from bayesrnn.saving import WEIGHTS

if TYPE_CHECKING:
    from bayesrnn.forecasting.forecaster import Forecaster

Array = np.ndarray
_ABOUT = "forecaster.json"
_TREES = ("edges", "start", "columns", "cuts", "values")
_PANEL = ("offsets", "first", "y", "past", "future", "static")


class Parts(nn.Module):
    """Named arrays and networks as one module, for `br.save` and checkpoints."""

    def __init__(self, arrays: Mapping[str, Tensor], networks: list[nn.Module]) -> None:
        super().__init__()
        for name, value in arrays.items():
            self.register_buffer(name, value)
        self.networks = nn.ModuleList(networks)

    @property
    def arrays(self) -> dict[str, Array]:
        return {name: value.cpu().numpy() for name, value in self.named_buffers() if "." not in name}


def write(forecaster: Forecaster, folder: Path) -> Path:
    model = forecaster.fitted
    arrays = {**panel_arrays(forecaster._panel), **model_arrays(model), "widths": forecaster._widths.state}
    module = Parts(as_tensors(arrays), [m.model for m in model.members])
    try:
        text = json.dumps(described(forecaster, arrays)).encode()
    except TypeError:
        raise UserError("A setting of the forecaster is not plain text or numbers, and cannot be saved.") from None
    return br.save(module, folder, arguments={}, files={_ABOUT: text})


def as_tensors(arrays: Mapping[str, Array]) -> dict[str, Tensor]:
    return {k: torch.as_tensor(np.ascontiguousarray(v)) for k, v in arrays.items()}


def panel_arrays(panel: Panel) -> dict[str, Array]:
    return {f"panel_{key}": getattr(panel, key) for key in _PANEL}


def model_arrays(model: Model) -> dict[str, Array]:
    """All numbers of a model but those of its networks."""
    arrays: dict[str, Array] = {}
    for k, base in enumerate(model.bases):
        if isinstance(base, Structure):
            arrays[f"base{k}_theta"] = base.theta
        elif isinstance(base, Trees):
            arrays |= {f"base{k}_{key}": getattr(base, key) for key in _TREES}
        elif isinstance(base, Base):
            arrays |= {f"base{k}_weights": base.linear.weights, f"base{k}_root": base.linear.root}
    for name, part in (*((f"base{k}", b.calibration) for k, b in enumerate(model.bases)), ("model", model.calibration),
                       *((f"cold{rows}", part) for rows, part in model.cold)):  # fmt: skip
        arrays |= {f"{name}_{key}": value for key, value in vars(part).items()}
    arrays |= {"weights": model.weights, "correlation": model.correlation}
    for k, member in enumerate(model.members):
        arrays |= {f"start_{k}": member.head.start.cpu().numpy(), f"size_{k}": member.head.size}
    return arrays


def described(forecaster: Forecaster, arrays: Mapping[str, Array]) -> dict[str, Any]:
    """What a forecaster is besides these arrays and the weights of its networks, for JSON."""
    model, panel = forecaster.fitted, forecaster._panel
    return {
        "settings": forecaster.settings,
        "ids": panel.ids,
        "labels": labels_to_json(panel.labels),
        "clock": asdict(panel.clock),
        "columns": asdict(panel.columns),
        "bases": [_about(base) for base in model.bases],
        "share": model.share,
        "positive": model.positive,
        "counts": model.counts,
        "cold": [rows for rows, _ in model.cold],
        "members": [{"likelihood": m.likelihood, "sizes": m.sizes, "settings": asdict(m.settings), "base": m.base}
                    for m in model.members],
        "trained": forecaster._trained,
        "arrays": {k: [list(v.shape), str(v.dtype)] for k, v in arrays.items()},
    }  # fmt: skip


def _about(base: Part) -> dict[str, Any]:
    if isinstance(base, Trees):
        return {"shape": asdict(base.shape), "trees": base.columns.shape[1]}
    if isinstance(base, Empirical):
        return {"shape": asdict(base.shape), "lag": base.lag}
    if isinstance(base, Structure):
        return {"shape": asdict(base.shape), "memory": base.memory}
    linear = {"anchor": base.linear.anchor, "penalty": str(base.linear.penalty)}
    return {"shape": asdict(base.shape), **linear, "spread": base.spread, "own": str(base.penalty)}


def read(kind: type[Forecaster], folder: Path) -> Forecaster:
    about = read_json(folder / _ABOUT, most=512 * MB)
    with damaged(folder / _ABOUT):
        check_sizes(about, (folder / WEIGHTS).stat().st_size)
        module = empty_parts(about)
        br.load(folder, module)
        made = assembled(kind, about, module, module.arrays)
        check_fit(made)
        return made


@contextmanager
def damaged(where: Any) -> Iterator[None]:
    """What a description that was changed may raise, as an error that names the file."""
    try:
        yield
    except UserError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError, OSError) as error:
        raise UserError(f"{where} is damaged or of another version ({str(error)[:200]}).") from None


def empty_parts(about: Mapping[str, Any]) -> Parts:
    """What was described, without its values."""
    arrays = {k: torch.zeros(size, dtype=getattr(torch, dtype)) for k, (size, dtype) in about["arrays"].items()}
    return Parts(arrays, [m.model for m in _members(about)])


def _members(about: Mapping[str, Any]) -> list[Member]:
    shape = _shape(about["bases"][0])
    return [
        Member(m["likelihood"], tuple(m["sizes"]), shape, Settings(**m["settings"]), int(m["base"]))
        for m in about["members"]
    ]


def _shape(base: Mapping[str, Any]) -> Shape:
    return Shape(**{**base["shape"], "seasons": tuple(base["shape"]["seasons"])})


def assembled(
    kind: type[Forecaster], about: Mapping[str, Any], module: Parts, found: Mapping[str, Array]
) -> Forecaster:  # fmt: skip
    """The forecaster of a description, networks, and arrays: of the module and of the panel."""
    forecaster, members = kind(**about["settings"]), _members(about)
    for k, (member, network) in enumerate(zip(members, module.networks, strict=True)):
        member.model = network
        member.head.start, member.head.size = torch.as_tensor(found[f"start_{k}"]), found[f"size_{k}"]

    def calibration(name: str) -> Calibration:
        return Calibration(*(found[f"{name}_{key}"] for key in ("centre", "spread", "shape")))

    bases: list[Part] = []
    for k, part in enumerate(about["bases"]):
        shape = _shape(part)
        if "memory" in part:
            bases.append(Structure(shape, found[f"base{k}_theta"], float(part["memory"]), calibration(f"base{k}")))
            continue
        if "trees" in part:
            arrays = {key: found[f"base{k}_{key}"] for key in _TREES}
            bases.append(Trees(shape, **arrays, calibration=calibration(f"base{k}")))
            continue
        if "anchor" not in part:
            bases.append(Empirical(shape, calibration(f"base{k}"), int(part.get("lag", 0))))
            continue
        linear = Linear(part["anchor"], float(part["penalty"]), found[f"base{k}_weights"], found[f"base{k}_root"])
        bases.append(Base(shape, linear, part["spread"], calibration(f"base{k}"), float(part["own"])))
    forecaster.panel = panel_from(about, found)
    forecaster.columns = forecaster.panel.columns
    forecaster.model = Model(
        bases, members, found["weights"], calibration("model"), found["correlation"], float(about["share"]),
        float(about["positive"]), float(about["counts"]),
        [(int(rows), calibration(f"cold{int(rows)}")) for rows in about["cold"]],
    )  # fmt: skip
    forecaster._widths = Widths(forecaster.horizon, found.get("widths"))
    forecaster._trained = {str(k): int(v) for k, v in about["trained"].items()}
    return forecaster


def panel_from(about: Mapping[str, Any], found: Mapping[str, Array]) -> Panel:
    raw = about["columns"]
    columns = Columns(**{
        **raw, **{k: tuple(raw[k]) for k in ("past", "future", "static")},
        "means": {k: (float(a), float(b)) for k, (a, b) in raw["means"].items()},
    })  # fmt: skip
    arrays = {key: found[f"panel_{key}"] for key in _PANEL}
    return Panel(
        [str(i) for i in about["ids"]], clock=Clock(**about["clock"]), columns=columns,
        labels=labels_from_json(about["labels"]), **arrays,
    )  # fmt: skip
