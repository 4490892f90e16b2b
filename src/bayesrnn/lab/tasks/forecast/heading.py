"""What ``bayesrnn forecast FILE`` says before it trains: which columns it took for what, and how long it takes."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bayesrnn.forecasting.panel import Panel
from bayesrnn.forecasting.tables import stamps_of
from bayesrnn.forecasting.training import minutes_of
from bayesrnn.lab.reading import counted
from bayesrnn.lab.tasks.forecast.source import ROW, Source, labels

_OFTEN = {"hour": "hourly", "day": "daily", "week": "weekly", "month": "monthly", "quarter": "quarterly"}
_OFTEN |= {"year": "yearly", "weekday": "every weekday"}
_MOST = 8  # names


def heading(source: Source, frame: Any, panel: Panel, minutes: float | None, *, chosen: bool, walk: int) -> str:
    """One line per subject. ``chosen``: whether --target names a column; ``walk``: windows of a backtest."""
    lines = [f"{_dates(source, panel)} {_target(source, panel, chosen=chosen)}"]
    lines[0] += f" Training takes up to {duration(minutes_of(minutes, len(panel.y)))}{_twice(walk)}."
    late = _late(panel, frame)
    return "\n".join([*lines, late] if late else lines)


def duration(minutes: float) -> str:
    return f"{60 * minutes:.3g} s" if minutes <= 2 else f"{minutes:.3g} min"


def _twice(walk: int) -> str:
    return f", and as long again for the backtest on {counted(walk, 'window')}" if walk else ""


def _dates(source: Source, panel: Panel) -> str:
    ends = panel.numbers(np.arange(len(panel)), panel.lengths - 1)
    first, last = labels(panel.clock.stamps(np.array([panel.first.min(), ends.max()])))
    if source.columns.time == ROW:
        return f"Dates: none; rows are numbered from {first} to {last}."
    step, every = panel.clock.name, panel.clock.every
    often = _OFTEN.get(step, f"every {step}")
    if panel.clock.unit == "number":
        often = "whole numbers" if every == 1 else f"whole numbers, every {every}"
    return f"Dates: {source.words.stamps!r}, {often}, {first} to {last}."


def _target(source: Source, panel: Panel, *, chosen: bool) -> str:
    columns, gaps = panel.columns, int(np.isnan(panel.y).sum())
    missing = f" ({counted(gaps, 'value')} missing)" if gaps else ""
    named = columns.target in source.table
    if named and columns.id in source.table:
        said = f"Forecasting {columns.target!r} for each {columns.id!r} ({_listed(panel.ids)}){missing}."
    else:
        said = f"Forecasting {_listed([repr(name) for name in ([columns.target] if named else panel.ids)])}{missing}."
    if not chosen and (columns.past or (len(panel) > 1 and not named)):
        said += f" Choose {'another' if named else 'one'} column with --target."
    used = {columns.id, columns.time, columns.target, *columns.past, *columns.future, *columns.static}
    for title, names in (
        ("Known up to now", columns.past), ("Known ahead", columns.future), ("Constant per series", columns.static),
        ("Not used", [name for name in map(str, source.renamed) if name not in used] if named else []),
    ):  # fmt: skip
        said += f" {title}: {_listed(names)}." if names else ""
    return said


def _late(panel: Panel, frame: Any) -> str:
    """Series whose last rows have no value."""
    import pandas as pd

    columns, clock = panel.columns, panel.clock
    rows = pd.Series(clock.numbers(stamps_of(frame, columns, clock))).groupby(frame[columns.id].astype(str).to_numpy())
    final = rows.max().reindex(panel.ids).to_numpy()
    each = np.split(~np.isnan(panel.y), panel.offsets[1:-1])
    known = [len(part) - 1 - int(part[::-1].argmax()) for part in each]  # the last row without any value
    last = panel.numbers(np.arange(len(panel)), np.array(known))
    missing = (final - last) // clock.every
    late = np.flatnonzero((missing > 0) & [part.any() for part in each])
    if not len(late):
        return ""
    i = late[:1]
    value, start = labels(clock.stamps(np.concatenate([last[i], panel.numbers(i, panel.lengths[i])])))
    ends = f"ends with {counted(int(missing[i[0]]), 'missing value')}: its last value is at {value}"
    others = f" {len(late) - 1:,} more series end so." if len(late) > 1 else ""
    return f"Series {panel.ids[i[0]]!r} {ends}, and its forecast starts at {start}.{others}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST:,} more" if len(names) > _MOST else ""
    return ", ".join(names[:_MOST]) + more
