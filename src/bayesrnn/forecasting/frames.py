"""Long frames: which of their columns are used, and a panel as one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from bayesrnn.errors import UserError
from bayesrnn.forecasting.clock import snapped
from bayesrnn.forecasting.columns import Columns
from bayesrnn.forecasting.dates import LOOK, forms_of
from bayesrnn.forecasting.panel import Panel
from bayesrnn.forecasting.tables import long_frame, stamps_of

Array = np.ndarray


def choose_columns(frame: Any, columns: Columns, settings: Mapping[str, Any]) -> Columns:
    """Which further columns of a long frame are used, and as what: those that the settings name; else all others."""
    future, static = tuple(settings["future"]), tuple(settings["static"])
    used = {columns.id, columns.time, columns.target, *future, *static}
    rest = [] if settings["past"] is not None else [n for n in frame if n not in used]
    past = tuple(settings["past"] or (n for n in rest if not _useless(frame, n, columns)))
    if settings["past"] is None and past:
        grouped = frame.groupby(columns.id, sort=False, observed=True)[list(past)].nunique(dropna=False).max()
        constant = tuple(n for n in past if grouped[n] <= 1)
        static += tuple(n for n in constant if frame[n].nunique() > 1)
        past = tuple(n for n in past if n not in constant)
    return replace(columns, past=past, future=future, static=static)


def _useless(frame: Any, name: str, columns: Columns) -> str:
    """Why a further column tells nothing, or nothing but the time; empty: it may tell more."""
    import pandas as pd

    cells = frame[name]
    if pd.api.types.is_datetime64_any_dtype(cells):
        return "dates"
    if pd.api.types.is_integer_dtype(cells):
        steps = [cells.diff().iloc[1:], cells.groupby(frame[columns.id], observed=True).diff().dropna()]
        return "row numbers" if any(len(s) > 2 and s.nunique() == 1 and abs(s.iloc[0]) == 1 for s in steps) else ""
    if pd.api.types.infer_dtype(cells) != "string":
        return ""
    seen = cells.dropna().unique()[:LOOK]
    return "dates" if len(seen) > 2 and pd.Series(seen).str.contains(r"\D").all() and forms_of(list(seen)) else ""


def described(frame: Any, panel: Panel) -> str:
    """One line: which columns of a long frame the panel was made of, and what it lacks."""
    columns, clock = panel.columns, panel.clock
    ends = panel.first + (panel.lengths - 1) * clock.every
    first, last = (str(t).removesuffix(" 00:00:00") for t in clock.stamps(np.array([panel.first.min(), ends.max()])))
    values = "each column a series" if "rows" in frame.attrs else f"values in {columns.target!r}"
    stamps = frame.attrs.get("stamps", columns.time)
    parts = [f"{len(panel)} series, {values}", f"stamps in {stamps!r}, {first} to {last} by {clock.name}"]
    for role in ("past", "static", "future"):
        if names := getattr(columns, role):
            parts.append(f"{role}: {', '.join(names)}")
    used = {columns.id, columns.time, columns.target, *columns.past, *columns.static, *columns.future}
    unused = dict(frame.attrs.get("unused", {}))
    for name in (n for n in frame if n not in used):
        why = _useless(frame, name, columns) or ("constant" if frame[name].nunique() <= 1 else "")
        unused[name] = why or "not named"
    if unused:
        parts.append("not used: " + ", ".join(f"{name} ({why})" for name, why in unused.items()))
    for name, codes in columns.codes.items():
        count = frame[name].dropna().astype(str).nunique()
        if count > len(codes):
            parts.append(f"the {len(codes)} most frequent of {count} categories of {name}")
    if missing := int(np.isnan(panel.y).sum()):
        parts.append(f"{missing:,} of {len(panel.y):,} values missing")
    open_ended = np.flatnonzero(np.isnan(panel.y[panel.offsets[1:] - 1]))
    if len(open_ended):
        shown = ", ".join(panel.ids[i] for i in open_ended[:3]) + ", ..." * (len(open_ended) > 3)
        parts.append(f"series that end with missing values: {len(open_ended)} ({shown})")
    return "; ".join(parts)


def rows_before(frame: Any, panel: Panel, ends: Array, *, freq: Any, resample: str | None) -> Array:
    """Which rows of a long frame lie before these rows (S,) of the panel that was made of it."""
    names, clock = panel.columns, panel.clock
    stamps = stamps_of(frame, names, clock, freq=freq)
    numbers = clock.numbers(stamps if resample is None else snapped(freq, stamps))
    place = {name: k for k, name in enumerate(panel.ids)}
    series = np.array([place[str(name)] for name in frame[names.id]])
    found: Array = numbers < panel.numbers(series, ends[series])
    return found


def used(data: Any, columns: Columns) -> Any:
    """A long frame of anything, or of a panel, with the columns that a model uses."""
    frame = frame_of(data) if isinstance(data, Panel) else long_frame(data, columns)
    return frame[[columns.id, columns.time, columns.target, *columns.further]]


def frame_of(panel: Panel, series: object = None) -> Any:
    """A panel, or one of its series, as a long frame in the units of the data; rare categories are None."""
    import pandas as pd

    if series is not None:
        series = str(series)
        if series not in panel.ids:
            raise UserError(f"There is no series {series!r}; there are {', '.join(panel.ids[:8])}.")
        panel = panel.part(np.array([panel.ids.index(series)]))
    columns, each = panel.columns, np.repeat(np.arange(len(panel)), panel.lengths)
    rows = np.arange(len(panel.y)) - panel.offsets[each]
    found: dict[str, Any] = {columns.id: panel.labels.take(each)}
    found[columns.time] = panel.clock.stamps(panel.numbers(each, rows))
    found[columns.target] = panel.y
    for names, values in (
        (columns.past, panel.past), (columns.future, panel.future), (columns.static, panel.static[each])
    ):  # fmt: skip
        start = 0
        for name in names:
            size = columns.width([name])
            part, start = values[:, start : start + size], start + size
            if name in columns.codes:
                codes = np.array([*columns.codes[name], None], dtype=object)
                found[name] = codes[np.where((part > 0.5).any(1), part.argmax(1), len(codes) - 1)]
            else:
                mean, spread = columns.means[name]
                found[name] = mean + spread * part[:, 0].astype(float)
    return pd.DataFrame(found)
