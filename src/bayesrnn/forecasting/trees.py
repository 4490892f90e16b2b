"""Boosted trees for all quantiles at once. They split where networks are smooth, so the two make different errors."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from bayesrnn.forecasting import grids
from bayesrnn.forecasting.linear import moving
from bayesrnn.forecasting.windows import Batch, Shape, Windows, origins

Array = np.ndarray
GROUPS = 4  # boosters, each fitted without one group of rows
DEPTH = 6
_TREES, _RATE = 120, 0.08  # of each booster
_ROWS, _STEPS = 64_000, 8  # pairs of a window and a step; at most so many steps of one window
_SAMPLE, _SHARE = 8_000, 0.5  # pairs and share of the features that one tree sees
_BINS, _BINNED = 64, 20_000  # bins of a feature, and pairs from which they are taken
_RIDGE = 30.0  # pairs that the prior of a leaf counts as
_AT_ONCE = 512  # windows
_LAGS, _MEANS, _PAST = (1, 2, 3, 5, 12, 23), (6, 24, 168), (3, 12, 24)
_LEAST = 25  # rows of past columns that features look at
_SEASONS = 8  # whose values at one place are averaged


@dataclass(frozen=True)
class Trees:
    """Gradient boosting of symmetric trees on the pinball loss (arXiv 1706.09516, without its ordering).

    A tree asks the same question ``columns[t, d] > edges[columns[t, d], cuts[t, d]]`` at each of its depths d, so a
    leaf is a binary number. Each leaf adds a step towards every quantile of its errors. Targets are differences to the
    value one season before, in units of the window's spread, so that trees forecast levels they have not seen.

    The forecast is the mean of ``GROUPS`` boosters, each fitted without one group of consecutive windows. Their spread
    gives the epistemic part (the delete-a-group jackknife).

    Shapes: edges (F, bins - 1), start (GROUPS, K), columns and cuts (GROUPS, trees, DEPTH), values
    (GROUPS, trees, 2^DEPTH, K) for the K levels of `grids.KNOTS`.
    """

    shape: Shape
    edges: Array
    start: Array
    columns: Array
    cuts: Array
    values: Array
    calibration: grids.Calibration

    def levels(self, windows: Windows, batch: Batch) -> tuple[Array, Array]:
        """Quantiles (B, H, Q) in the unit of the series, and the epistemic share of the variance (B, H)."""
        horizon, found, shares = self.shape.horizon, [], []
        for i in range(0, len(batch.ends), _AT_ONCE):
            some = slice(i, i + _AT_ONCE)
            x = features(batch, self.shape, some).reshape(-1, len(self.edges))
            each = np.sort(self._boosted(binned(x, self.edges)).reshape(GROUPS, -1, horizon, len(grids.KNOTS)), -1)
            grid = grids.interpolated(each.mean(0))
            middle = each[..., len(grids.KNOTS) // 2]
            doubt = (GROUPS - 1) * middle.var(0)
            shares.append(doubt / np.maximum(doubt + np.square(grids.deviation(grid)), 1e-30))
            found.append(grid)
        scaled = anchor(batch, self.shape)[..., None] + batch.spread[:, None, None] * np.concatenate(found)
        return batch.levels(self.shape, scaled), np.concatenate(shares)

    def check(self) -> None:
        """Raise ValueError where the arrays, which may come from anyone, do not fit together."""
        count, levels = self.columns.shape[1], len(grids.KNOTS)
        fitting = (
            self.edges.shape[1:] == (_BINS - 1,)
            and self.start.shape == (GROUPS, levels)
            and self.columns.shape == self.cuts.shape == (GROUPS, count, DEPTH)
            and self.values.shape == (GROUPS, count, 1 << DEPTH, levels)
        )
        if not fitting or not all(np.isfinite(part).all() for part in (self.edges, self.start, self.values)):
            raise ValueError("the trees do not fit together")
        if not ((self.columns >= 0) & (self.columns < len(self.edges))).all():
            raise ValueError("the trees look at columns that do not exist")

    def _boosted(self, x: Array) -> Array:
        """(GROUPS, n, K), of bins (F, n)."""
        found = np.repeat(self.start[:, None], x.shape[1], 1)
        for total, columns, cuts, values in zip(found, self.columns, self.cuts, self.values, strict=True):
            for where, bins, steps in zip(columns, cuts, values, strict=True):
                total += steps.take(_leaves(x, where, bins), 0)
        return found


def anchor(batch: Batch, shape: Shape) -> Array:
    """(B, H): the value at the same place of the last season; the last value where there is no season."""
    season = shape.season if shape.season < shape.context else 1
    return batch.context[:, shape.context - season + np.arange(shape.horizon) % season]


def features(batch: Batch, shape: Shape, some: slice = slice(None)) -> Array:
    """(B, H, F), float32. Values are differences to the last one in units of the spread, so none tells the level, which
    would name a time: recent values, means, values at the same place of earlier seasons; calendar and covariates."""
    size, horizon, steps = shape.context, shape.horizon, np.arange(shape.horizon)
    context, past = batch.context[some] / batch.spread[some, None], batch.past[some]
    last = context[:, -1]
    plain = [context[:, -1 - lag] - last for lag in _LAGS if lag < size]
    plain += [context[:, -w:].mean(1) - last for w in _MEANS if w <= size]
    plain += [np.log(context[:, -24:].std(1) + 1e-3), *batch.static[some].T]
    plain += [*past[:, -1].T, *past[:, -24:].mean(1).T]
    plain += [column for lag in _PAST if lag < size for column in (past[:, -1] - past[:, -1 - lag]).T]
    each = [np.broadcast_to(steps, (len(last), horizon))]
    for season in (s for s in shape.seasons if s < size):
        count = min(size // season, _SEASONS)
        rows = size - season * np.arange(1, count + 1)[:, None] + steps % season
        values = context[:, rows] - last[:, None, None]
        each += [*np.moveaxis(values[:, :2], 1, 0), *([values.mean(1)] if count > 2 else [])]
    whole = np.broadcast_to(np.stack(plain, 1)[:, None], (len(last), horizon, len(plain)))
    return np.concatenate([whole, np.stack(each, 2), batch.calendar[some], batch.future[some]], 2, dtype=np.float32)


def fitted(windows: Windows, cut: Array, *, seed: int, until: float) -> Trees | None:
    """Trees from windows whose targets lie before row ``cut`` (S,). When time is short, fewer trees; None where there
    is nothing to learn from."""
    shape, rng = windows.shape, np.random.default_rng(seed)
    taken = min(_STEPS, shape.horizon)
    low = np.full(len(cut), shape.least)
    series, ends = origins(windows.panel, shape, low, cut - shape.horizon, _ROWS // taken, rng)
    x, y, group = _pairs(windows, series, ends, taken, rng)
    if len(y) < _SAMPLE // 8 or len(np.unique(group)) < GROUPS:
        return None
    edges = np.quantile(x[rng.permutation(len(x))[:_BINNED]], np.linspace(0, 1, _BINS + 1)[1:-1], axis=0).T
    bins = binned(x, edges)
    made, began = list[tuple[Array, ...]](), time.monotonic()
    for k in range(GROUPS):
        rest, ends_at = group != k, began + (until - began) * (k + 1) / GROUPS
        made.append(_boost(bins[:, rest], y[rest], rng, ends_at))
    count = min(len(columns) for _, columns, _, _ in made)
    start, (columns, cuts, values) = np.stack([one[0] for one in made]), (
        np.stack([one[k][:count] for one in made]) for k in (1, 2, 3)
    )  # fmt: skip
    return Trees(shape, edges, start, columns, cuts, values, grids.Calibration.identity(shape.horizon))


def _pairs(windows: Windows, series: Array, ends: Array, taken: int,
           rng: np.random.Generator) -> tuple[Array, Array, Array]:  # fmt: skip
    """Features (n, F), scaled targets (n,) and groups (n,) of windows at random steps."""
    found, shape = [], windows.shape
    order = np.lexsort((series, ends / np.maximum(windows.panel.lengths[series], 1)))
    place = np.empty(len(ends), int)
    place[order] = np.arange(len(ends)) * GROUPS // max(len(ends), 1)
    for i in range(0, len(ends), _AT_ONCE):
        batch = windows.batch(series[i : i + _AT_ONCE], ends[i : i + _AT_ONCE], _LEAST)
        steps = np.argsort(rng.random(batch.target.shape), 1)[:, :taken]
        y = (batch.target - anchor(batch, shape)) / batch.spread[:, None]
        y = np.take_along_axis(y, steps, 1)
        x = np.take_along_axis(features(batch, shape), steps[..., None], 1)
        known = ~np.isnan(y) & moving(batch)[:, None]
        group = np.broadcast_to(place[i : i + _AT_ONCE, None], y.shape)
        found.append((x[known], y[known], group[known]))
    x, y, group = (np.concatenate(parts) for parts in zip(*found, strict=True)) if found else (np.empty(0),) * 3
    return x, y, group


def binned(x: Array, edges: Array) -> Array:
    """Bins (F, n), uint8, of features (n, F)."""
    found = np.empty(x.shape[::-1], np.uint8)
    for row, values, bounds in zip(found, x.T, edges, strict=True):
        row[:] = np.searchsorted(bounds, values)
    return found


def _leaves(bins: Array, columns: Array, cuts: Array) -> Array:
    """(n,), uint8: which leaf each column of bins (F, n) falls into."""
    found = np.zeros(bins.shape[1], np.uint8)
    for column, cut in zip(columns.tolist(), cuts.tolist(), strict=True):
        found += found
        found += bins[column] > cut
    return found


def _boost(bins: Array, y: Array, rng: np.random.Generator, until: float) -> tuple[Array, ...]:
    """Start (K,), and columns, cuts and values of each tree."""
    levels = np.array(grids.KNOTS)
    start: Array = np.quantile(y, levels)
    now: Array = np.tile(start, (len(y), 1))
    columns, cuts, values = list[Array](), list[Array](), list[Array]()
    while len(values) < _TREES and (not values or time.monotonic() < until):
        some = rng.choice(len(y), min(_SAMPLE, len(y)), replace=False)
        allowed = rng.choice(len(bins), max(1, round(_SHARE * len(bins))), replace=False)
        error = y[some, None] - now[some]
        where, bounds, leaf = _grown(bins[allowed][:, some].T, np.where(error > 0, levels, levels - 1))
        where = allowed[where]
        step = _RATE * _leaf_values(error, leaf, levels)
        now += step[_leaves(bins, where, bounds)]
        columns.append(where.astype(np.int32))
        cuts.append(bounds.astype(np.int32))
        values.append(step.astype(np.float32))
    return start, np.stack(columns), np.stack(cuts), np.stack(values)


def _grown(bins: Array, slopes: Array) -> tuple[Array, Array, Array]:
    """Columns (DEPTH,), cuts (DEPTH,) and leaves (n,) of a tree that separates where quantiles should rise from where
    they should fall, and where they should spread from where they should close; ``slopes`` (n, K) of the loss."""
    side = np.sign(np.array(grids.KNOTS) - 0.5)
    goals, leaf = (slopes.sum(1), slopes @ side), np.zeros(len(bins), np.intp)
    count, columns, cuts = bins.shape[1], [], []
    for depth in range(DEPTH):
        leaves = 1 << depth
        cell = ((leaf[:, None] + np.arange(count) * leaves) * _BINS + bins).reshape(-1)
        size, shape = count * leaves * _BINS, (count, leaves, _BINS)
        rows = np.bincount(cell, minlength=size).reshape(shape).cumsum(2)
        gain = np.zeros(shape)
        for goal in goals:
            below = np.bincount(cell, np.repeat(goal, count), size).reshape(shape).cumsum(2)
            above = below[..., -1:] - below
            gain += np.square(below) / (rows + _RIDGE) + np.square(above) / (rows[..., -1:] - rows + _RIDGE)
        column, cut = divmod(int(gain.sum(1)[:, :-1].argmax()), _BINS - 1)
        leaf = 2 * leaf + (bins[:, column] > cut)
        columns.append(column)
        cuts.append(cut)
    return np.array(columns), np.array(cuts), leaf


def _leaf_values(error: Array, leaf: Array, levels: Array) -> Array:
    """(2^DEPTH, K): in each leaf the K quantiles of the errors (n, K) from the forecast at that level, drawn towards 0
    where rows are few."""
    count = np.bincount(leaf, minlength=1 << DEPTH)
    first, last = np.cumsum(count) - count, np.maximum(count - 1, 0)
    found = np.zeros((len(count), len(levels)))
    for k, level in enumerate(levels):
        order = np.argsort(error[:, k])
        order = order[np.argsort(leaf[order], kind="stable")]
        rank = np.clip(level * (count + 1) - 1, 0, last)
        low = rank.astype(int)
        values = error[order, k]
        ends = [values[np.minimum(first + place, len(values) - 1)] for place in (low, np.minimum(low + 1, last))]
        found[:, k] = ends[0] + (rank - low) * (ends[1] - ends[0])
    return found * (count / (count + _RIDGE))[:, None]
