"""Whether a saved forecaster, which may come from anyone, fits together: sizes before memory is taken, shapes after."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from bayesrnn.checks import is_number
from bayesrnn.forecasting.clock import named_clock
from bayesrnn.forecasting.columns import Columns
from bayesrnn.forecasting.grids import Z
from bayesrnn.forecasting.trees import Trees
from bayesrnn.forecasting.windows import Windows

if TYPE_CHECKING:
    from bayesrnn.forecasting.forecaster import Forecaster

_BYTES = {"float64": 8, "float32": 4, "int64": 8, "int32": 4, "bool": 1}
CONTEXT, SAMPLES = 20_000, 10_000
_FIRST = 1 << 57  # of a clock, in microseconds: four thousand years


def check_sizes(about: Any, most: int) -> None:
    """ValueError where arrays or networks are larger than the file of weights, which has ``most`` bytes."""
    if not isinstance(about, dict):
        raise ValueError("it is not an object")
    total = 0
    for size, dtype in about["arrays"].values():
        total += math.prod(_whole("a size", n) for n in size) * _BYTES[dtype]
    for member in about["members"]:
        settings = member["settings"]
        hidden, layers = _whole("hidden", settings["hidden"], 1), _whole("layers", settings["layers"], 1)
        inputs, summary, ahead = (_whole("sizes", n) for n in member["sizes"])
        recurrent = 0 if settings["cell"] == "none" else hidden * layers + inputs + ahead
        total += 4 * hidden * (summary + recurrent)
    horizon = _whole("horizon", about["settings"]["horizon"], 1)
    if total + 8 * horizon > most:
        raise ValueError("it describes more than the file of weights holds")
    for base in about["bases"]:
        shape = base["shape"]
        if _whole("context", shape["context"], 1) > CONTEXT or shape["horizon"] != horizon:
            raise ValueError("context or horizon of a base is out of range")
        if not all(_whole("a season", s, 1) <= CONTEXT for s in shape["seasons"]):
            raise ValueError("a season is out of range")
        if not is_number(shape["shift"]) or not is_number(shape["lowest"]) or not shape["lowest"] > 0:
            raise ValueError("shift or lowest is out of range")
        usual = shape.get("usual") or []
        if usual and (len(usual) != 2 or not all(len(line) == 5 and all(map(is_number, line)) for line in usual)):
            raise ValueError("what is usual of a window is not two rows of five numbers")
    if not 1 <= _whole("samples", about["settings"]["samples"]) <= SAMPLES:
        raise ValueError("samples is out of range")
    _whole("seed", about["settings"]["seed"])


def _whole(name: str, value: Any, least: int = 0, most: int = 1 << 40) -> int:
    if type(value) is not int or not least <= value < most:
        raise ValueError(f"{name} is not a whole number from {least}")
    return value


def check_fit(made: Forecaster) -> None:
    """Raise ValueError if the sizes of a forecaster's parts disagree."""
    panel, model, horizon = made.panel, made.model, made.horizon
    assert panel is not None
    assert model is not None
    columns, count, rows = panel.columns, len(panel.ids), len(panel.y)
    _check_columns(columns)
    wanted = {
        "offsets": (panel.offsets, (count + 1,)),
        "first": (panel.first, (count,)),
        "past": (panel.past, (rows, columns.width(columns.past))),
        "future": (panel.future, (rows, columns.width(columns.future))),
        "static": (panel.static, (count, columns.width(columns.static))),
        "weights": (model.weights, (len(model.bases) + len(model.members),)),
        "correlation": (model.correlation, (horizon, horizon)),
    }
    for k, part in enumerate(
        (*(base.calibration for base in model.bases), model.calibration, *(part for _, part in model.cold))
    ):
        wanted |= {f"centre {k}": (part.centre, (horizon,)), f"spread {k}": (part.spread, (horizon,))}
        wanted |= {f"levels {k}": (part.shape, Z.shape)}
    for name, (array, shape) in wanted.items():
        if array.shape != shape:
            raise ValueError(f"{name} has shape {array.shape}, and {shape} is needed")
        if not name.startswith(("past", "future", "static")) and not np.isfinite(array).all():
            raise ValueError(f"{name} has values that are not finite")
    for base in model.bases:
        if isinstance(base, Trees):
            base.check()
    steps = np.diff(panel.offsets)
    if count < 1 or panel.offsets[0] != 0 or panel.offsets[-1] != rows or (steps < 1).any():
        raise ValueError("offsets do not cut the rows into series")
    clock = panel.clock
    known = ("number", "time", "weekday", "month", "offset")
    if (
        clock.unit not in known
        or (clock.unit == "offset") != (named_clock(clock.freq or "D").unit == "offset")
        or _whole("every", clock.every, 1, _FIRST + 1) > _FIRST
    ):
        raise ValueError("the clock is unknown")
    if (
        np.abs(panel.first).max() > _FIRST
        or np.isinf(panel.y).any()
        or len(set(panel.ids)) != count
        or (len(panel.labels) != count)
    ):
        raise ValueError("stamps, values or names of the series are out of range")
    if not all(0 <= share <= 1 for share in (model.share, model.positive, model.counts)):
        raise ValueError("a share is not between 0 and 1")
    if not all(0 <= member.base < len(model.bases) for member in model.members):
        raise ValueError("a network belongs to no base")
    clock.stamps(panel.first)
    # Networks and linear forecasts fit the windows of the longest series.
    one, zero = panel.part(np.array([int(steps.argmax())])), np.zeros(1, int)
    windows = [Windows(one, base.shape, holidays=made.settings["holidays"]) for base in model.bases]
    with np.errstate(all="ignore"):
        model.grid(windows, zero, one.lengths, seed=0)


def _check_columns(columns: Columns) -> None:
    names = [columns.id, columns.time, columns.target, *columns.past, *columns.future, *columns.static]
    if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise ValueError("names of columns are not texts, or there twice")
    for name in names[3:]:
        known = columns.codes.get(name)
        if known is None and not (np.isfinite(columns.means[name]).all() and columns.means[name][1] > 0):
            raise ValueError(f"the scale of column {name!r} is out of range")
        if known is not None and not (isinstance(known, list) and all(isinstance(code, str) for code in known)):
            raise ValueError(f"the categories of column {name!r} are not texts")
