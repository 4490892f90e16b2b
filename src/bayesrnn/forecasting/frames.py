"""Long frames: which of their columns are used, and a panel as one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from bayesrnn.errors import UserError
from bayesrnn.forecasting.clock import snapped
from bayesrnn.forecasting.columns import Columns
from bayesrnn.forecasting.panel import Panel
from bayesrnn.forecasting.tables import stamps_of

Array = np.ndarray


def choose_columns(frame: Any, columns: Columns, settings: Mapping[str, Any]) -> Columns:
    """Which further columns of a long frame are used, and as what: those that the settings name; else all others."""
    import pandas as pd

    future, static = tuple(settings["future"]), tuple(settings["static"])
    used = {columns.id, columns.time, columns.target, *future, *static}
    rest = [n for n in frame if n not in used and not pd.api.types.is_datetime64_any_dtype(frame[n])]
    past = tuple(settings["past"]) if settings["past"] is not None else tuple(rest)
    if settings["past"] is None and past:
        grouped = frame.groupby(columns.id, sort=False, observed=True)[list(past)].nunique(dropna=False).max()
        constant = tuple(n for n in past if grouped[n] <= 1)
        static += tuple(n for n in constant if frame[n].nunique() > 1)
        past = tuple(n for n in past if n not in constant)
    return replace(columns, past=past, future=future, static=static)


def rows_before(frame: Any, panel: Panel, ends: Array, *, freq: Any, resample: str | None) -> Array:
    """Which rows of a long frame lie before these rows (S,) of the panel that was made of it."""
    names, clock = panel.columns, panel.clock
    stamps = stamps_of(frame, names, clock, freq=freq)
    numbers = clock.numbers(stamps if resample is None else snapped(freq, stamps))
    place = {name: k for k, name in enumerate(panel.ids)}
    series = np.array([place[str(name)] for name in frame[names.id]])
    found: Array = numbers < panel.numbers(series, ends[series])
    return found


def standardised(panel: Panel, ends: Array) -> Panel:
    """The panel with its numeric covariates scaled by their values before these rows (S,) alone."""
    each = np.repeat(np.arange(len(panel)), panel.lengths)
    before = np.arange(len(panel.y)) - panel.offsets[each] < ends[each]
    columns, means, scaled = panel.columns, dict(panel.columns.means), {}
    for part, names in (("past", columns.past), ("future", columns.future)):
        values, k = getattr(panel, part).astype(float), 0
        for name in names:
            known = values[before, k][~np.isnan(values[before, k])]
            if name in means and len(known):
                centre, spread = known.mean(), known.std() or 1.0
                mean, scale = means[name]
                means[name] = float(mean + scale * centre), float(scale * spread)
                values[:, k] = np.clip((values[:, k] - centre) / spread, -20, 20)
            k += columns.width([name])
        scaled[part] = values.astype(np.float32)
    return replace(panel, columns=replace(columns, means=means), **scaled)


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
