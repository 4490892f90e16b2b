"""Which shapes of windows are tried: how far back they look, how they are scaled, and whether logarithms are taken."""

from __future__ import annotations

import math

import numpy as np

from bayesrnn.errors import UserError
from bayesrnn.forecasting.bounds import kinds
from bayesrnn.forecasting.panel import Panel
from bayesrnn.forecasting.windows import Shape, of_series, with_usual

_YEAR, _YEARS = 365, 3 * 365  # days from which the place in the year may tell something, and from which it does


def shapes_of(panel: Panel, horizon: int, *, seasons: tuple[int, ...], context: int | None, scaling: str,
              transform: str) -> list[Shape]:  # fmt: skip
    """What is tried on validation: with and without logarithms, scaled in two ways, with and without the year."""
    never = kinds(panel)[0]
    known = panel.y[~np.isnan(panel.y) & np.repeat(never, panel.lengths)]  # of series that are never negative
    longest = int(np.quantile(panel.lengths, 0.75))
    fitting = tuple(s for s in seasons if 2.2 * s + horizon <= longest) or seasons[:1]
    size = context or context_of(longest, horizon, fitting)
    fitting = tuple(s for s in fitting if s < size)
    scalings = ("standard", "mean_abs") if scaling == "auto" else (scaling,)
    logs = ["none"] if transform == "none" else ["all"] if transform == "log" else ["none", "all"]
    if transform == "auto" and len(panel) > 1:
        logs.append("skewed")
    if transform == "log":
        _check_logs(panel)
    if not len(known) or (transform == "auto" and np.quantile(known, 0.05) <= 0):
        logs = ["none"]
    least = float(known.min(initial=np.inf))
    shift = 0.0 if least > 0 else 1.0
    made = [(log, scalings[0]) for log in logs] + [("none", s) for s in scalings[1:] if "none" in logs]
    lowest = max((least + shift) / 2, 1e-300) if len(known) else 1e-300
    shapes = [
        Shape(size, horizon, fitting, s, log, shift if log != "none" else 0.0, lowest, year=year)
        for log, s in made
        for year in _years(panel)
    ]
    if len(panel) == 1 and scaling == "auto":
        shapes = [s for s in shapes if s.scaling == "standard"]
        shapes = [*(scaled for shape in shapes for scaled in of_series(panel, shape)), *shapes]
    return [with_usual(panel, shape) for shape in shapes]


def _check_logs(panel: Panel) -> None:
    for row in np.flatnonzero(panel.y < 0)[:1]:
        i = int(np.searchsorted(panel.offsets, row, side="right")) - 1
        raise UserError(
            f'Series {panel.ids[i]!r}: row {row - panel.offsets[i]} is {panel.y[row]:g}, and transform="log" is for '
            'values from 0; correct it, or set transform="auto" or "none".'
        )


def context_of(longest: int, horizon: int, seasons: tuple[int, ...]) -> int:
    """Two or three of the longest season, and at least three horizons; twelve where there is no season."""
    first = seasons[0] if seasons else 1
    largest = max(seasons, default=1)
    wanted = 3 * largest if largest <= 60 else 2 * largest if largest < 200 else largest + max(first, horizon)
    wanted = max(wanted, 3 * horizon if seasons else min(12 * horizon, 200), 16)
    wanted = min(wanted, 800, max(8, (longest - horizon) // 2, largest + 1 if 2 * largest < longest else 8))
    grain = first if 1 < first <= wanted // 2 else 4
    return max(4, math.ceil(wanted / grain) * grain)


def _years(panel: Panel) -> tuple[bool, ...]:
    """Whether the place in the year is told. A year that was seen once or twice may mislead: then both are tried."""
    every = np.arange(len(panel))
    ends = [panel.first.min(), panel.numbers(every, panel.lengths - 1).max()]
    first, last = panel.clock.stamps(np.array(ends))
    if panel.clock.unit == "number" or (last - first).days >= _YEARS:
        return (True,)
    return (True, False) if (last - first).days >= _YEAR else (False,)
