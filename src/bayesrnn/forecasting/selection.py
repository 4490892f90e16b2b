"""The base forecast: transformation, scaling, anchor and penalty, chosen by walking forward through the data."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np

from bayesrnn.errors import UserError
from bayesrnn.forecasting import corrections, grids, structure
from bayesrnn.forecasting.checks import refuse_gaps
from bayesrnn.forecasting.linear import LAGS, PENALTIES, Linear, Regression, moving
from bayesrnn.forecasting.panel import Panel
from bayesrnn.forecasting.structure import Structure
from bayesrnn.forecasting.windows import Batch, Shape, Windows, origins, spread_of

Array = np.ndarray
_TRAIN, _TEST = 16_000, 3_000  # windows of one fold
_FEW = 300  # windows: with fewer, a structure is fitted instead of regressions and networks
_ENOUGH = 20_000  # windows with which fewer folds are enough
_BASES, _ABOUT = 2, 1.3  # bases that are kept, of different kinds; how much worse the second may be


@dataclass(frozen=True)
class Fold:
    """Targets of training windows end before row ``cut`` (S,) of each series; validation windows start from there, up
    to row ``stop`` (S,)."""

    cut: Array
    stop: Array


def folds(panel: Panel, shape: Shape) -> list[Fold]:
    """Five blocks of the second half, or every other of them where windows are many; of many series, the last two
    horizons."""
    lengths, horizon = panel.lengths, shape.horizon
    windows = int(np.maximum(lengths - horizon - shape.least, 0).sum())
    if len(panel) > 1 and windows > _ENOUGH:
        size = np.clip(lengths // 5, 0, 2 * horizon)
        return [Fold(lengths - size, lengths - horizon)]
    found = []
    for k in range(0, 5, 1 if windows <= _ENOUGH else 2):
        cut = lengths * (5 + k) // 10
        stop = np.minimum(lengths * (6 + k) // 10, lengths - horizon)
        if (np.minimum(cut - horizon - shape.least, stop - cut + 1) > 0).any():
            found.append(Fold(np.minimum(np.maximum(cut, horizon + shape.least), lengths), stop))
    return found


@dataclass(frozen=True)
class Base:
    """A linear forecast with the distribution of its errors.

    ``spread`` says in which unit errors are alike: "season" (the window's mean seasonal difference), "recent" (that and
    the size of the errors one horizon ago) or "own" (that and the size of the series' errors). ``penalty`` is that of
    the corrections of single series; infinite: none.
    """

    shape: Shape
    linear: Linear
    spread: str
    calibration: grids.Calibration
    penalty: float = np.inf
    _kept: dict[int, tuple[Windows, corrections.Own]] = field(default_factory=dict, compare=False)

    def _own(self, windows: Windows, series: Array) -> tuple[corrections.Own, Array]:
        """Corrections, and which of them are those of these series."""
        if len(windows.panel) > corrections.MOST:
            unique, place = np.unique(series, return_inverse=True)
            return corrections.fitted(self.linear, windows, unique, windows.seen[unique], (self.penalty,))[0], place
        if id(windows) not in self._kept:
            every = np.arange(len(windows.panel))
            made = corrections.fitted(self.linear, windows, every, windows.seen, (self.penalty,))[0]
            self._kept.clear()
            self._kept[id(windows)] = windows, made  # the windows are kept so that no others take their id
        return self._kept[id(windows)][1], series

    def point(self, windows: Windows, batch: Batch) -> Array:
        """Scaled forecasts (B, H)."""
        found = self.linear(batch, self.shape)
        if np.isinf(self.penalty):
            return found
        made, place = self._own(windows, batch.series)
        return found + made(batch, self.shape, place)

    def unit(self, windows: Windows, batch: Batch) -> Array:
        """(B,): what errors are divided by, in the scale of the batch."""
        if self.spread == "season":
            return batch.spread
        if self.spread == "own":
            made, place = self._own(windows, batch.series)
            return batch.spread * made.left[place]
        return recent(self, windows, batch)

    def grid(self, point: Array, unit: Array) -> Array:
        """Quantiles (B, H, Q) in the scale of the batch."""
        return point[..., None] + unit[:, None, None] * self.calibration.map(grids.Z)

    def doubt(self, batch: Batch) -> Array:
        """Epistemic share of the variance, (B, H)."""
        return np.repeat(self.linear.doubt(batch)[:, None], self.shape.horizon, 1)

    def levels(self, windows: Windows, batch: Batch) -> tuple[Array, Array]:
        """Quantiles (B, H, Q) in the unit of the series, and the epistemic share of the variance (B, H)."""
        grid = self.grid(self.point(windows, batch), self.unit(windows, batch))
        return batch.levels(self.shape, grid), self.doubt(batch)


def recent(base: Base, windows: Windows, batch: Batch) -> Array:
    """Geometric mean of the seasonal difference and of the errors that a forecast one horizon ago made."""
    shape = windows.shape
    old = windows.batch(batch.series, np.maximum(batch.ends - shape.horizon, 1), LAGS)
    error = np.abs(old.target - base.point(windows, old)) * (old.scale / batch.scale)[:, None]
    error[old.ends[:, None] + np.arange(shape.horizon) >= batch.ends[:, None]] = np.nan  # not known yet
    count = (~np.isnan(error)).sum(1)
    size = np.where(count > 0, np.nansum(error, 1) / np.maximum(count, 1), batch.spread)
    size = np.clip(size, 0.1 * batch.spread, 10 * batch.spread)
    return np.sqrt(size * batch.spread)


def unit_of(batch: Batch, shape: Shape) -> Array:
    """(B,): a size of each series in its own unit, by which scores of different series can be averaged."""
    size = batch.scale * batch.spread
    if not batch.log.any():
        return size
    spread = spread_of(batch.levels(shape, batch.context), batch.known, shape.season)
    return np.where(batch.log, np.maximum(spread, 1e-12), size)


def choose(
    panel: Panel, shapes: list[Shape], *, holidays: str | None, rng: np.random.Generator, seconds: float,
    say: Callable[[str], None], progress: Callable[[str, float], None],
) -> tuple[list[Base], list[Base], Fold]:  # fmt: skip
    """The best base and, if it is about as good, the second; fitted on all rows, and on rows before the last fold; and
    that fold. When time is short, fewer shapes and folds are tried."""
    found: list[tuple[float, Base]] = []
    started = began = time.monotonic()
    for k, shape in enumerate(shapes):
        last, began = began, time.monotonic()
        if found and 2 * began - last - started > seconds:
            say(f"no time for {len(shapes) - k} of {len(shapes)} linear models")
            break
        progress(f"linear model {k + 1} of {len(shapes)}", k / len(shapes))
        windows = Windows(panel, shape, holidays=holidays)
        one = _walk(windows, folds(panel, shape), rng, began + seconds / len(shapes))
        if one is not None:
            logs = {"none": "no logarithm", "all": "logarithm", "skewed": "logarithms of skewed series"}[shape.log]
            named = f"{logs}, scaled by {shape.scaling}, from {one[1].linear.anchor}{'' if shape.year else ', no year'}"
            say(f"linear model {k + 1} of {len(shapes)} ({named}): scaled validation CRPS {one[0]:.4f}")
            found.append(one)
    if not found:
        refuse_gaps(panel)
    found.sort(key=lambda pair: pair[0])
    best = found[0][1].shape

    def alike(shape: Shape) -> tuple[bool, bool]:
        return (shape.log == "none") == (best.log == "none"), shape.year == best.year

    others = sorted(found[1:], key=lambda pair: (alike(pair[1].shape), pair[0]))
    before = [base for value, base in (found[0], *others[: _BASES - 1]) if value < _ABOUT * found[0][0]]
    after = []
    for base in before:
        fitted = _regression(Windows(panel, base.shape, holidays=holidays), panel.lengths, rng)
        assert fitted is not None
        after.append(replace(base, linear=fitted.linear(base.linear.anchor, base.linear.penalty), _kept={}))
    return after, before, folds(panel, shapes[0])[-1]


def few(panel: Panel, shape: Shape) -> bool:
    """Whether there are too few windows before the last fold to learn from."""
    cuts = folds(panel, shape)
    return not cuts or int(np.maximum(cuts[-1].cut - shape.horizon - shape.least + 1, 0).sum()) < _FEW


def structured(
    panel: Panel, shapes: list[Shape], *, holidays: str | None, calibrate: bool, rng: np.random.Generator,
    say: Callable[[str], None],
) -> tuple[Structure, list[tuple[Structure, Batch]]]:  # fmt: skip
    """The structure of few rows: logarithms by their likelihood, widths by walking forward. And what it was at each
    fold, with the windows of that fold."""
    size, tried = min(int(panel.lengths.max()), structure.ROWS), []
    plain = [shape for shape in shapes if shape.log != "skewed" and shape.scaling != "series"]
    for log, shape in {shape.log: shape for shape in plain[::-1]}.items():
        windows = Windows(panel, replace(shape, context=size), holidays=holidays)
        found = structure.fitted(windows, panel.lengths)
        if found is not None:
            say(f"structure, log {log}: log density {-found[0]:.1f}")
            tried.append((*found, windows))
    if not tried:
        raise UserError("The series change by less than a millionth of their size; subtract a constant first.")
    _, base, windows = min(tried, key=lambda one: one[0])
    earlier: list[tuple[Structure, Batch]] = []
    for fold in folds(panel, base.shape) if calibrate else ():
        fitted, held = structure.fitted(windows, fold.cut, base), validation(windows, fold, _TEST, rng)
        if fitted is not None and held is not None:
            earlier.append((fitted[1], held))
    if not earlier:
        return base, []
    errors = []
    for before, held in earlier:
        mean, sigma, _ = before.moments(windows, held)
        errors.append((held.target - mean) / sigma)
    count = apart([held for _, held in earlier], base.shape)
    base = structure.calibrated(base, np.concatenate(errors), count)
    say(f"intervals {base.calibration.spread[0]:.2f} times as wide, by the errors of {count:.0f} windows")
    return base, [(replace(before, calibration=base.calibration), held) for before, held in earlier]


def _regression(windows: Windows, cut: Array, rng: np.random.Generator) -> Regression | None:
    shape = windows.shape
    low = np.full(len(cut), shape.least)
    series, ends = origins(windows.panel, shape, low, cut - shape.horizon, _TRAIN, rng)
    panel = windows.panel
    targets = panel.y[(panel.offsets[series] + ends)[:, None] + np.arange(shape.horizon)]
    some = ~np.isnan(targets).all(1)
    return Regression(windows.batch(series[some], ends[some], LAGS), shape) if some.any() else None


def validation(windows: Windows, fold: Fold, most: int, rng: np.random.Generator) -> Batch | None:
    """Windows of a fold with something to compare with."""
    cut = np.maximum(fold.cut, windows.shape.least)
    series, ends = origins(windows.panel, windows.shape, cut, fold.stop, most, rng)
    if not len(ends):
        return None
    batch = windows.batch(series, ends)
    some = ~np.isnan(batch.target).all(1) & batch.known.any(1)
    if (some & moving(batch)).any():
        some &= moving(batch)
    return batch if some.all() else windows.batch(series[some], ends[some]) if some.any() else None


def _walk(windows: Windows, cuts: list[Fold], rng: np.random.Generator, until: float,
          penalties: tuple[float, ...] = PENALTIES) -> tuple[float, Base] | None:  # fmt: skip
    """The best anchor, penalty and spread of one shape, with the distribution of its errors over all folds, or over
    the last ones for which there is time."""
    shape = windows.shape
    parts: list[tuple[Regression, Batch]] = []
    seen: list[Array] = []
    for fold in cuts[::-1]:
        if parts and time.monotonic() > until:
            break
        fitted, batch = _regression(windows, fold.cut, rng), validation(windows, fold, _TEST, rng)
        if fitted is not None and batch is not None:
            parts.append((fitted, batch))
            seen.append(fold.cut)
    if not parts:
        return None
    parts, seen = parts[::-1], seen[::-1]
    names = [n for n in parts[0][0].bases if all(n in fitted.bases for fitted, _ in parts)]
    errors: dict[tuple[str, float], float] = {}
    independent, sizes = apart([batch for _, batch in parts], shape), [unit_of(batch, shape) for _, batch in parts]
    for anchor, penalty in product(names, penalties):
        total = count = 0.0
        for (fitted, batch), unit in zip(parts, sizes, strict=True):
            off = np.abs(batch.levels(shape, fitted.linear(anchor, penalty)(batch, shape)) - batch.actual)
            size = off / unit[:, None]
            total, count = total + float(np.nansum(np.minimum(size, 50))), count + float((~np.isnan(size)).sum())
        learnt = 0 if np.isinf(penalty) else 1 / independent  # what is learnt from few windows must be clearly better
        errors[anchor, penalty] = total / max(count, 1) * (1 + learnt)
    anchor, penalty = min(errors, key=lambda key: errors[key])
    linears = [fitted.linear(anchor, penalty) for fitted, _ in parts]
    batches = [batch for _, batch in parts]
    single, each = _single(windows, linears, batches, seen, errors[anchor, penalty])
    best: tuple[float, Base] | None = None
    blank = grids.Calibration.identity(shape.horizon)
    made, points = [Base(shape, linear, "season", blank, single) for linear in linears], []
    for base, one in zip(made, each, strict=False):
        base._kept[id(windows)] = windows, one
    for base, rows, batch in zip(made, seen, batches, strict=True):
        windows.seen = rows
        points.append(base.point(windows, batch))
    for spread in ("season", "recent") if np.isinf(single) else ("season", "recent", "own"):
        units = [replace(base, spread=spread).unit(windows, b) for base, b in zip(made, batches, strict=True)]
        z = [(b.target - p) / u[:, None] for b, p, u in zip(batches, points, units, strict=True)]
        calibration = grids.Calibration.fit(np.concatenate(z), apart(batches, shape))
        base = replace(made[-1], spread=spread, calibration=calibration, _kept={})
        value = np.mean([
            score(b.levels(shape, base.grid(p, u)), b, shape) for b, p, u in zip(batches, points, units, strict=True)
        ])  # fmt: skip
        if best is None or value < best[0]:
            best = float(value), base
    return best


def _single(windows: Windows, linears: list[Linear], batches: list[Batch], seen: list[Array],
            without: float) -> tuple[float, list[corrections.Own]]:  # fmt: skip
    """The penalty of corrections for single series with the least error, and these for each fold; infinite where none
    helps."""
    if not 1 < len(windows.panel) <= corrections.MOST:
        return np.inf, []
    shape, errors, made = windows.shape, np.zeros((len(corrections.PENALTIES), 2)), []
    for linear, batch, rows in zip(linears, batches, seen, strict=True):
        point, unit = linear(batch, shape), unit_of(batch, shape)[:, None]
        made.append(corrections.fitted(linear, windows, np.arange(len(rows)), rows, corrections.PENALTIES))
        for k, one in enumerate(made[-1]):
            off = np.abs(batch.levels(shape, point + one(batch, shape, batch.series)) - batch.actual) / unit
            errors[k] += float(np.nansum(np.minimum(off, 50))), float((~np.isnan(off)).sum())
    found = errors[:, 0] / np.maximum(errors[:, 1], 1)
    k = int(found.argmin())
    return (corrections.PENALTIES[k], [one[k] for one in made]) if found.min() < 0.995 * without else (np.inf, [])


def apart(batches: list[Batch], shape: Shape) -> float:
    """How many windows do not overlap."""
    total = 0.0
    for batch in batches:
        order = np.lexsort((batch.ends, batch.series))
        series, ends = batch.series[order], batch.ends[order]
        gap = np.where(np.diff(series) == 0, np.minimum(np.diff(ends), shape.horizon) / shape.horizon, 1.0)
        total += 1 + float(gap.sum())
    return total


def score(levels: Array, batch: Batch, shape: Shape) -> float:
    """Mean CRPS of quantiles in the unit of the series, over a seasonal difference. For several positive series, the
    geometric mean of that and of the CRPS over the values, so that errors in percent count too."""
    crps = grids.crps(levels, batch.actual)
    value = float(np.nanmean(np.minimum(crps / unit_of(batch, shape)[:, None], 50)))
    if batch.series.min() == batch.series.max() or np.nanmin(batch.actual) <= 0:
        return value
    size = np.abs(batch.actual) + np.abs(levels[..., grids.MEDIAN])
    return float(np.sqrt(value * np.nanmean(np.minimum(2 * crps / size, 2))))
