"""Windows of a panel: indexed, sampled across series, scaled one by one; none is kept in memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from bayesrnn.forecasting.bounds import Past
from bayesrnn.forecasting.panel import Panel

Array = np.ndarray
_AT_ONCE = 1024  # windows
_LONG = 48  # steps of a season that is long
_NEAR = 6.0  # standard deviations of a series, within which a window may be of it
_MOVED = 0.5  # standard deviations between the halves of a series with a trend
_LEAST = 1e-9  # scale of a constant window, relative to its values
_FEW, _PRIOR = 32, 2.0  # rows with which a window is not cold; rows that what is usual counts as in a cold one


@dataclass(frozen=True)
class Shape:
    """What a window is.

    Args:
        context: steps T that are looked back on. horizon: steps H ahead.
        seasons: in steps, the strongest first; empty: none.
        scaling: "mean_abs", "standard" or "robust"; "series": by ``fixed`` (centre, scale) of the only series, so that
            level and columns mean the same at all times. Windows far from it or mostly still are scaled by themselves.
        log: which series are modelled as log(shift + y): "none", "all", or "skewed", those less skewed as logarithms;
            only while they have not been negative.
        lowest: what shift + y counts as where it is not positive: new rows may hold such values, training did not.
            A window where most do is not modelled as logarithms.
        usual: for plain values and for logarithms, what is usual of a window at its level x (the mean of absolute
            values): the change to the season before, exp(a + b log x), and the scale, exp(c + d log x), as a, b, c, d;
            and the usual log x.
        year: whether the calendar tells the place in the year: not of panels that have not seen a whole one.
    """

    context: int
    horizon: int
    seasons: tuple[int, ...] = ()
    scaling: str = "standard"
    log: str = "none"
    shift: float = 0.0
    lowest: float = 1e-300
    usual: tuple[tuple[float, ...], ...] = ()
    fixed: tuple[float, float] = (0.0, 1.0)
    year: bool = True

    @property
    def season(self) -> int:
        return self.seasons[0] if self.seasons else 1

    @property
    def least(self) -> int:
        """Rows before the first window that is learnt from."""
        return min(self.context, max(2 * self.season if self.season <= 60 else self.season, self.horizon // 2, 4))


@dataclass
class Batch:
    """B windows. Context and targets are scaled: (transformed value - ``centre``) / ``scale``.

    ``context`` (B, T) has every gap filled from before it, ``known`` (B, T) says where it was not; ``target`` (B, H) is
    NaN where unknown. ``spread`` (B,) is the mean absolute difference to the season before, in the same scale. ``log``
    (B,) says which windows are logarithms. ``cold`` (B,): few rows are known; scale and spread lean on what is usual.
    """

    series: Array
    ends: Array
    centre: Array
    scale: Array
    spread: Array
    context: Array
    known: Array
    target: Array
    actual: Array
    past: Array
    future: Array
    calendar: Array
    static: Array
    log: Array
    cold: Array
    features: Array | None = None

    def levels(self, shape: Shape, scaled: Array) -> Array:
        """Scaled values (B, ...) in the unit of the series."""
        axes = (slice(None),) + (None,) * (scaled.ndim - 1)
        found = self.centre[axes] + self.scale[axes] * scaled
        if self.log.any():
            found[self.log] = np.exp(np.clip(found[self.log], -700, 700)) - shape.shift
        return found


def origins(
    panel: Panel, shape: Shape, low: Array, high: Array, most: int, rng: np.random.Generator
) -> tuple[Array, Array]:
    """At most so many windows (series, end) with low <= end <= high, evenly over all of them; ends count from a
    series' first row."""
    counts = np.maximum(high - low + 1, 0)
    total = int(counts.sum())
    edges = counts.cumsum()
    chosen = np.arange(total) if total <= most else np.sort(rng.choice(total, most, replace=False)) if (
        total < 50_000_000) else np.sort(rng.integers(0, total, most))  # fmt: skip
    series = np.searchsorted(edges, chosen, side="right")
    return series, low[series] + chosen - (edges[series] - counts[series])


class Windows:
    """Cuts windows out of a panel.

    ``ahead`` (S, H, F) are future-known columns after the end of each series, where they are given. ``seen`` (S,): rows
    of each series that forecasts may have learnt from.
    """

    def __init__(self, panel: Panel, shape: Shape, *, holidays: str | None = None, ahead: Array | None = None) -> None:
        self.panel, self.shape, self.ahead, self.seen = panel, shape, ahead, panel.lengths
        clock, last = panel.clock, panel.first + (panel.lengths - 1 + shape.horizon) * panel.clock.every
        self._start = int(panel.first.min())
        if clock.unit == "time":  # one table for all phases of the grid
            self._start -= self._start % clock.every
        count = (int(last.max()) - self._start) // clock.every + 1
        self.logs = _logs(panel, shape)
        self._signed = bool((panel.y < 0).any())
        self._past = np.nan_to_num(panel.past)
        self._table = clock.calendar(self._start + np.arange(count) * clock.every, holidays, year=shape.year)

    @cached_property
    def before(self) -> Past:
        return Past(self.panel)

    def known(self, series: Array, ends: Array) -> Array:
        """(B,): whether the context of each window has a value."""
        parts = (slice(i, i + _AT_ONCE) for i in range(0, len(ends), _AT_ONCE))
        return np.concatenate([self.batch(series[part], ends[part]).known.any(1) for part in parts])

    def batch(self, series: Array, ends: Array, lags: int | None = None) -> Batch:
        """Windows that end before row ``ends`` of their series, with the last ``lags`` rows of past columns, or all."""
        panel, shape = self.panel, self.shape
        size, horizon = shape.context, shape.horizon
        rows = ends[:, None] + np.arange(-size, horizon)
        at = panel.offsets[series][:, None] + rows
        inside = (rows >= 0) & (rows < panel.lengths[series][:, None])
        at = np.where(inside, at, 0)
        y = np.where(inside, panel.y[at], np.nan)
        log, values = self.logs[series], y.copy()
        if log.any():
            log = log & _mostly_positive(y[:, :size] + shape.shift)
            log = log & self.before(series, ends)[1] if self._signed else log
        if log.any():
            shifted = y[log] + shape.shift
            values[log] = np.log(np.where(shifted > 0, shifted, np.where(np.isnan(shifted), np.nan, shape.lowest)))
        context, target = values[:, :size], values[:, size:]
        known = ~np.isnan(context)
        centre, scale = _scales(context, known, shape, self.logs[series] & ~log)
        change, cold = None, (known.sum(1) < min(shape.least, _FEW)) & bool(shape.usual)
        if cold.any():
            scale, change = _usual(context, known, cold, log, scale, shape)
        filled = _filled((context - centre[:, None]) / scale[:, None], known, shape.seasons)
        spread = spread_of(filled, known, shape.season)
        if change is not None:
            pairs = np.maximum(known.sum(1) - 1, 0)
            spread = np.where(cold, (pairs * spread + _PRIOR * change / scale) / (pairs + _PRIOR), spread)
        late = slice(max(size - (lags or size), 0), size)
        past = self._past[at[:, late]]
        if not inside[:, late].all():
            past[~inside[:, late]] = 0
        place = (panel.numbers(series[:, None], rows[:, size:]) - self._start) // panel.clock.every
        calendar = self._table[np.clip(place, 0, max(len(self._table) - 1, 0))]
        future = np.where(inside[:, size:, None], panel.future[at[:, size:]], np.nan)
        if self.ahead is not None and future.shape[2]:
            beyond = rows[:, size:] - panel.lengths[series][:, None]
            given = self.ahead[series[:, None], np.clip(beyond, 0, horizon - 1)]
            future = np.where((beyond >= 0)[..., None], given, future)
        return Batch(
            series=series, ends=ends, centre=centre, scale=scale, spread=spread, context=filled, known=known,
            target=(target - centre[:, None]) / scale[:, None], actual=y[:, size:], past=past,
            future=np.nan_to_num(future), calendar=calendar, static=np.nan_to_num(panel.static[series]), log=log,
            cold=cold,
        )  # fmt: skip


def _logs(panel: Panel, shape: Shape) -> Array:
    """Which series are modelled as logarithms."""
    if shape.log != "skewed":
        return np.full(len(panel), shape.log == "all")
    found = np.zeros(len(panel), bool)
    for i, (a, b) in enumerate(zip(panel.offsets[:-1], panel.offsets[1:], strict=True)):
        y = panel.y[a : a + max(2 * (b - a) // 3, 1)]  # not the rows that validation looks at
        y = y[~np.isnan(y)]
        found[i] = len(y) > 10 and abs(_skew(np.log(np.maximum(y + shape.shift, 1e-300)))) < abs(_skew(y)) - 0.5
    return found


def _skew(y: Array) -> float:
    apart = y - y.mean()
    size = np.sqrt((apart**2).mean())
    return float((apart**3).mean() / size**3) if size > 0 else 0.0


def _mostly_positive(values: Array) -> Array:
    """(B,): whether at least half of what is known is above 0."""
    known = ~np.isnan(values)
    return 2 * (values > 0).sum(1) >= known.sum(1)  # type: ignore[no-any-return]


def _still(context: Array, known: Array) -> Array:
    """(B,): whether the latest value has been the same for more than half of the known rows."""
    size = context.shape[1]
    last = np.take_along_axis(context, size - 1 - known[:, ::-1].argmax(1)[:, None], 1)
    differs = known & (context != last)
    changed = np.where(differs.any(1), size - 1 - differs[:, ::-1].argmax(1), -1)
    return (known & (np.arange(size) > changed[:, None])).sum(1) > known.sum(1) / 2  # type: ignore[no-any-return]


def _scales(context: Array, known: Array, shape: Shape, plain: Array) -> tuple[Array, Array]:
    """Centres and scales (B,). ``plain`` (B,): windows that are no logarithms, though their series is."""
    count = known.sum(1)
    some = np.maximum(count, 1)
    zeroed = np.where(known, context, 0.0)
    mean = zeroed.sum(1) / some
    size = np.abs(zeroed).sum(1) / some
    if shape.scaling == "mean_abs":
        centre, scale = np.zeros_like(mean), size
    elif shape.scaling == "robust":
        shown = np.where(count[:, None] > 0, context, 0.0)
        low, centre, high = np.nanquantile(shown, [0.25, 0.5, 0.75], axis=1)
        scale = (high - low) / 1.35
        other = np.sqrt((np.where(known, context - mean[:, None], 0.0) ** 2).sum(1) / some)
        scale = np.where(scale > 0.1 * other, scale, other)
    else:
        centre = mean
        scale = np.sqrt((np.where(known, context - mean[:, None], 0.0) ** 2).sum(1) / some)
    if shape.scaling == "series":
        near = ~plain & (np.abs(mean - shape.fixed[0]) < _NEAR * shape.fixed[1]) & ~_still(context, known)
        centre, scale = np.where(near, shape.fixed[0], centre), np.where(near, shape.fixed[1], scale)
    least = np.maximum(_LEAST * np.maximum(size, np.abs(mean)), 1e-12)
    flat = scale <= least
    return centre, np.where(flat, np.where(size > 0, size, 1.0), scale)


def _level(values: Array, known: Array) -> Array:
    """(B,): mean absolute value of what is known."""
    found: Array = np.where(known, np.abs(values), 0).sum(1) / np.maximum(known.sum(1), 1)
    return found


def with_usual(panel: Panel, shape: Shape) -> Shape:
    """The shape, with what is usual of the windows of a panel."""
    low, rng = np.full(len(panel), shape.least), np.random.default_rng(0)
    batch = Windows(panel, shape).batch(*origins(panel, shape, low, panel.lengths, 1000, rng))
    values = batch.centre[:, None] + batch.scale[:, None] * batch.context
    level = _level(values, batch.known)
    some = (np.ptp(batch.context, axis=1) > 1e-6) & (level > 0)
    found = []
    for log in (False, True):
        rows = some & (batch.log == log)
        x = np.log(level[rows]) if rows.any() else np.zeros(1)
        middle, lines = float(np.median(x)), []
        for size in (batch.spread * batch.scale, batch.scale):
            y = np.log(size[rows]) if rows.any() else np.zeros(1)
            varies = len(np.unique(batch.series[rows])) > 4 and x.std() > 0.3
            slope = 0.0 if log else float(np.clip(np.cov(x, y)[0, 1] / x.var(ddof=1), 0, 1)) if varies else 1.0
            lines += [float(np.median(y - slope * x)), slope]
        found.append((*lines, middle))
    return replace(shape, usual=tuple(found))


def of_series(panel: Panel, shape: Shape) -> list[Shape]:
    """The shape scaled by the first half of a single series; none where its level has moved since, as in a trend."""
    half = len(panel.y) // 2
    windows = Windows(panel, replace(shape, scaling="standard", context=half))
    batch = windows.batch(np.zeros(2, int), np.array([half, len(panel.y)]))
    (centre, later), scale = batch.centre, float(batch.scale[0])
    if not abs(later - centre) < _MOVED * scale:
        return []
    return [replace(shape, scaling="series", fixed=(float(centre), scale))]


def _usual(context: Array, known: Array, cold: Array, log: Array, scale: Array, shape: Shape) -> tuple[Array, Array]:
    """Scales (B,), for cold windows drawn towards what is usual; and usual changes to the season before."""
    a, b, c, d, middle = np.array(shape.usual)[log.astype(int)].T
    count = known.sum(1)
    level = _level(context, known)
    x = np.where(level > 0, np.log(np.maximum(level, 1e-300)), middle)
    if shape.scaling == "mean_abs":
        return np.where(level > 0, scale, np.exp(c + d * x)), np.exp(a + b * x)
    apart = np.where(known, context - (np.where(known, context, 0).sum(1) / np.maximum(count, 1))[:, None], 0.0)
    shrunk = np.sqrt(((apart**2).sum(1) + _PRIOR * np.exp(2 * (c + d * x))) / np.maximum(count - 1 + _PRIOR, 1))
    return np.where(cold, shrunk, scale), np.exp(a + b * x)


def _filled(scaled: Array, known: Array, seasons: tuple[int, ...]) -> Array:
    """Gaps filled by the last season's value where there is one, else by the last value; before the first, by it."""
    if known.all():
        return scaled
    found, there = np.where(known, scaled, 0.0), known.copy()
    size = scaled.shape[1]
    for season in seasons:
        for start in range(season, size, season):  # whole seasons, so that filled values are carried on
            stop = min(start + season, size)
            gap = ~there[:, start:stop] & there[:, start - season : stop - season]
            found[:, start:stop] = np.where(gap, found[:, start - season : stop - season], found[:, start:stop])
            there[:, start:stop] |= gap
    last = np.maximum.accumulate(np.where(there, np.arange(size), -1), axis=1)
    first = np.where(there.any(1), there.argmax(1), 0)
    return np.take_along_axis(found, np.where(last < 0, first[:, None], last), 1)


def spread_of(filled: Array, known: Array, season: int) -> Array:
    """The level changes over a long season: take the smaller of its difference and that of single steps."""
    step = _change(filled, known, 1)
    size = _change(filled, known, season) if 1 < season < filled.shape[1] else step
    if season > _LONG:
        size = np.where(step > 0, np.minimum(size, step), size)
    size = np.where(size > 1e-6, size, step)
    return np.where(size > 1e-6, size, 1e-3)


def _change(filled: Array, known: Array, lag: int) -> Array:
    """Mean absolute difference at a lag, of values that are known; 0 where there are none."""
    both = known[:, lag:] & known[:, :-lag]
    return np.where(both, np.abs(filled[:, lag:] - filled[:, :-lag]), 0.0).sum(1) / np.maximum(both.sum(1), 1)
