"""What forecasts are used for: costs, thresholds, anomalies, and walking forward."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from bayesrnn.checks import check_whole, is_number
from bayesrnn.errors import UserError
from bayesrnn.forecasting import grids
from bayesrnn.forecasting.bounds import Bounds
from bayesrnn.forecasting.checks import check_seed, check_threshold
from bayesrnn.forecasting.growth import joined
from bayesrnn.forecasting.panel import Panel
from bayesrnn.forecasting.paths import copula
from bayesrnn.forecasting.widths import Widths, scores
from bayesrnn.forecasting.windows import Windows

if TYPE_CHECKING:
    from bayesrnn.forecasting.forecaster import Forecaster

Array = np.ndarray
_AT_ONCE = 512  # windows of a backtest
_PATHS = 64  # series whose paths are drawn at once
_BLOCKS = 50  # horizons of new rows from which widths learn
_JUDGES = 8  # forecasts by which each of them is judged


def check_costs(over: float, under: float) -> None:
    for name, value in (("over", over), ("under", under)):
        if not is_number(value) or not 0 < value < np.inf:
            raise UserError(f"{name} is {value!r}; a cost per unit is a number above 0.")


def check_share(false_alarms: float) -> None:
    if not is_number(false_alarms) or not 0 < false_alarms < 0.5:
        raise UserError(f"false_alarms is {false_alarms!r}; it is a share between 0 and 0.5, such as 0.01.")


def orders(grid: Array, over: float, under: float, bounded: Callable[[Array], Array]) -> dict[str, Array]:
    """The order of least expected cost over E(order - y)+ + under E(y - order)+, and costs, for a grid (B, H, Q)."""
    q = under / (over + under)
    best = bounded(grids.quantile(grid, q))
    return {"order": best, "cost": _cost(grid, best, over, under), "cost_of_mean": _cost(
        grid, grids.mean(grid), over, under)}  # fmt: skip


def _cost(grid: Array, order: Array, over: float, under: float) -> Array:
    order = order[..., None]
    return grids.expected(grid, lambda y: np.maximum(y - order, 0) * under + np.maximum(order - y, 0) * over)


def crossing(
    forecaster: Forecaster, threshold: float | Mapping[Any, float], above: bool, n: int, seed: int, data: Any,
    future: Any,
) -> Any:  # fmt: skip
    import pandas as pd

    panel, n = forecaster._data(data), check_whole("n", n, least=1, what="paths")
    limit, rng = check_threshold(threshold, panel.ids), np.random.default_rng(check_seed(seed))
    found = [np.empty((0, 2))]

    def crossed(grid: Array, share: Array, bounds: Bounds) -> dict[str, Array]:
        """Paths of some series at a time: those of all take too much memory."""
        for part in (slice(i, i + _PATHS) for i in range(0, len(grid), _PATHS)):
            y = bounds.part(part)(copula(grid[part], forecaster.fitted.correlation, n, rng))
            end = limit[sum(map(len, found)) :][: len(y), None, None]
            over = y > end if above else y < end
            some = np.asarray(over.any(2))
            first = over.argmax(2) + 1.0
            middle = [np.median(steps[ok]) if ok.any() else np.nan for steps, ok in zip(first, some, strict=True)]
            found.append(np.stack([some.mean(1), middle], 1))
        return {}

    forecaster._table(crossed, data, future)
    probability, first_step = np.concatenate(found).T
    return pd.DataFrame({forecaster.columns.id: panel.labels, "probability": probability, "first_step": first_step})


def anomalies(forecaster: Forecaster, data: Any, false_alarms: float) -> Any:
    import pandas as pd

    check_share(false_alarms)
    if forecaster.columns.target in ("p_value", "score", "alarm"):
        raise UserError(f"The target is called {forecaster.columns.target!r}, like a column of alarms; rename it.")
    new = forecaster._data(data, after=forecaster._panel)
    some = np.flatnonzero(np.logical_or.reduceat(~np.isnan(new.y), new.offsets[:-1]))
    if not len(some):
        raise UserError(f"Series {new.ids[0]!r} has no value in its new rows; give rows with values.")
    new, old = new.part(some), forecaster._panel
    both = joined(old, new)
    place = {name: i for i, name in enumerate(both.ids)}
    clock, horizon, frames = both.clock, forecaster.horizon, []
    earlier = (old.first - both.first[[place[name] for name in old.ids]]) // clock.every
    known = dict(zip(old.ids, (earlier + old.lengths).tolist(), strict=True))  # rows that are not new
    windows = forecaster._windows(both, seen=np.array([known.get(name, 0) for name in both.ids]))
    for i, name in enumerate(new.ids):
        series = place[name]
        begin = (int(new.first[i]) - int(both.first[series])) // clock.every
        end = min(begin + int(new.lengths[i]), int(both.lengths[series]))  # rows without values may come last
        if begin < known.get(name, 0):  # rows of fit, repeated
            begin = known[name]
            if begin >= end:
                raise UserError(f"Series {name!r} has no rows after those of fit; give newer ones.")
        start = max(begin, windows[0].shape.least)
        if start >= end:
            raise UserError(
                f"Series {name!r} has {new.lengths[i]} rows and none before them; at least "
                f"{windows[0].shape.least + 1} are needed to score the last."
            )
        ends = np.arange(start, end, horizon)
        grid, _ = forecaster._grid(windows, np.full(len(ends), series), ends)
        rows = (ends[:, None] + np.arange(horizon)).reshape(-1)
        inside = rows < end
        y = both.y[both.offsets[series] + rows[inside]]
        whole = np.repeat(forecaster.fitted.bounds(windows[0], np.full(len(ends), series), ends).whole, horizon)[inside]
        p = grids.p_values(grid.reshape(-1, grid.shape[-1])[inside], y, whole=whole)
        stamps = clock.stamps(both.first[series] + rows[inside] * clock.every)
        key, time = forecaster.columns.id, forecaster.columns.time
        label = new.labels.take(np.full(len(y), i))
        frame = pd.DataFrame({key: label, time: stamps, forecaster.columns.target: y, "p_value": p})
        frames.append(frame[~np.isnan(y)])
    table = pd.concat(frames, ignore_index=True)
    table["score"] = -np.log10(np.maximum(table["p_value"], 1e-300))
    table["alarm"] = table["p_value"] < false_alarms
    return table


def adapt(forecaster: Forecaster, panel: Panel, series: Array, old: Array) -> None:
    """Take in the values that follow rows ``old`` (n,) of these series, each judged by forecasts from several of the
    rows before it."""
    horizon, widths = forecaster.horizon, forecaster._widths
    seen = panel.lengths.copy()
    seen[series] = old
    begin = np.maximum(old, panel.lengths[series] - _BLOCKS * horizon)
    apart = max(1, horizon // _JUDGES)
    windows = forecaster._windows(panel, seen=seen)
    least = windows[0].shape.least
    made = [
        np.arange(-(-max(b - horizon + 1, min(b, least)) // apart) * apart, panel.lengths[i], apart)
        for i, b in zip(series, begin, strict=True)
    ]
    count = [len(ends) for ends in made]
    start, series, ends = np.repeat(begin, count), np.repeat(series, count), np.concatenate(made)
    known = windows[0].known(series, ends)
    start, series, ends = start[known], series[known], ends[known]
    if not len(ends):
        return
    grid, _ = forecaster._grid(windows, series, ends, bounded=False)
    whole = forecaster.fitted.bounds(windows[0], series, ends).whole[:, None]
    found = scores(grid, _actual(windows[0], series, ends), whole=whole) * widths.outer
    for row in range(int((panel.lengths[series] - start).max())):
        steps = start + row - ends
        some = np.flatnonzero((steps >= 0) & (steps < horizon))
        widths.after(found[some, steps[some]], steps[some])


def _actual(windows: Windows, series: Array, ends: Array) -> Array:
    """What came (n, H) after these rows, NaN where nothing has."""
    parts = [windows.batch(series[i : i + 4096], ends[i : i + 4096]).actual for i in range(0, len(ends), 4096)]
    return np.concatenate(parts)


def walk_forward(
    forecaster: Forecaster, panel: Panel, first: Array, count: int, apart: int, *, adaptive: bool,
    summary: Callable[[Array, Array, Bounds], dict[str, Array]],
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Any:  # fmt: skip
    """The table of `Forecaster.backtest`. ``progress`` is told how many of how many cutoffs are done."""
    import pandas as pd

    horizon, total = forecaster.horizon, len(panel)
    windows, names = forecaster._windows(panel, seen=first), forecaster.columns
    together, frames = max(1, _AT_ONCE // total), []
    widths, row = Widths(horizon), 0
    made: dict[int, Array] = {}
    every = np.arange(total)
    before = 0  # forecasts before the first cutoff whose last steps lie behind it
    while (
        adaptive and (1 - before) * apart < horizon and (first + (before - 1) * apart >= windows[0].shape.least).all()
    ):
        before -= 1
    for start in range(before, count, together):
        block = np.arange(start, min(start + together, count))
        series, ends = np.tile(every, len(block)), (first + block[:, None] * apart).reshape(-1)
        actual, known = _actual(windows[0], series, ends), windows[0].known(series, ends)
        actual[~known] = np.nan  # in a gap longer than the context there is nothing to forecast from
        shape = (len(ends), horizon, len(grids.LEVELS))
        grid, share = np.zeros(shape), np.zeros(shape[:2])
        if known.any():
            grid[known], share[known] = forecaster._grid(windows, series[known], ends[known], bounded=False)
        bounds = forecaster.fitted.bounds(windows[0], series, ends)
        judged = scores(grid, actual, whole=bounds.whole[:, None])
        for j, k in enumerate(block.tolist()):
            rows = slice(j * total, (j + 1) * total)
            while adaptive and row < k * apart:
                made = {end: found for end, found in made.items() if row - end < horizon}
                steps = np.repeat(np.array([row - end for end in made], dtype=int), total)
                widths.after(np.concatenate([[], *(found[:, row - end] for end, found in made.items())]), steps)
                row += 1
            made[k * apart] = judged[rows]
            if k < 0:
                continue
            own = bounds.part(rows)
            found = own(widths.apply(grid[rows]))
            at = (first + k * apart)[:, None] + np.arange(horizon)
            cutoff = np.repeat(panel.numbers(every, first + k * apart - 1), horizon)
            about = {names.id: panel.labels.take(np.repeat(every, horizon)), "cutoff": panel.clock.stamps(cutoff)}
            about |= {"step": np.tile(np.arange(1, horizon + 1), total)}
            about[names.time] = panel.clock.stamps(panel.numbers(every[:, None], at).reshape(-1))
            about |= {"y": actual[rows], **summary(found, share[rows], own), "crps": grids.crps(found, actual[rows])}
            frame = pd.DataFrame({key: v.reshape(-1) if isinstance(v, np.ndarray) else v for key, v in about.items()})
            frames.append(frame[np.repeat(known[rows], horizon)])
        progress(max(int(block[-1]) + 1, 0), count)
    return pd.concat(frames, ignore_index=True)
