"""Distributions of past values: of the values themselves, where they repeat, or of their changes over a season."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bayesrnn.forecasting import grids
from bayesrnn.forecasting.panel import Panel
from bayesrnn.forecasting.windows import Batch, Shape, Windows

Array = np.ndarray
_ROWS = 300  # that are looked back on
_CHANGES = 2000  # rows whose changes are looked at
_ENDS, _STEPS = 256, 16  # rows and steps ahead up to which all are told apart
_REPEATED = 0.2  # share of the most common value


@dataclass(frozen=True)
class Empirical:
    """Quantiles of past values of one series. Level p of n values is the (n + 1) p-th smallest.

    ``lag`` 0: the values of the context, the same at every step. Otherwise the last value at the same place of a season
    of this many steps (1: the last value), plus past changes over as many seasons as the step is ahead.
    """

    shape: Shape
    calibration: grids.Calibration
    lag: int = 0

    def levels(self, windows: Windows, batch: Batch) -> tuple[Array, Array]:
        """Quantiles (B, H, Q) in the unit of the series, and the epistemic share of the variance (B, H)."""
        horizon = self.shape.horizon
        if self.lag:
            found = self.last(batch)[..., None] + self._changes(windows, batch)
        else:
            found = np.repeat(self._values(windows, batch)[:, None], horizon, 1)
        return found, np.repeat(1 / (batch.known.sum(1)[:, None] + 1.0), horizon, 1)

    def last(self, batch: Batch) -> Array:
        """(B, H): the last values at the same places of a season."""
        steps = self.shape.context - self.lag + np.arange(self.shape.horizon) % self.lag
        return batch.levels(self.shape, batch.context[:, steps])

    def _values(self, windows: Windows, batch: Batch) -> Array:
        """(B, Q): quantiles of the context."""
        panel, rows = windows.panel, batch.ends[:, None] + np.arange(-self.shape.context, 0)
        inside = np.clip(rows, 0, panel.lengths[batch.series][:, None] - 1)
        past = panel.y[panel.offsets[batch.series][:, None] + inside]
        return _quantiles(np.where(batch.known, past, np.inf))

    def _changes(self, windows: Windows, batch: Batch) -> Array:
        """(B, H, Q): quantiles of changes over whole seasons, of rows before each window's end. Of long series, up to
        one of 256 rows before; of many steps, between those of some."""
        panel, over = windows.panel, np.arange(self.shape.horizon) // self.lag
        ends = np.maximum(batch.ends // (batch.ends // _ENDS + 1) * (batch.ends // _ENDS + 1), 1)
        pairs, place = np.unique(np.stack([batch.series, ends]), axis=1, return_inverse=True)
        seasons = np.unique(np.geomspace(1, over[-1] + 1, _STEPS).round().astype(int))
        found = np.zeros((pairs.shape[1], len(seasons), len(grids.LEVELS)))
        for i, (series, end) in enumerate(pairs.T):
            begin = panel.offsets[series]
            past = panel.y[begin + max(end - _CHANGES, 0) : begin + end]
            for k, count in enumerate(seasons):
                lag = min(self.lag * count, 2 * len(past) // 3)  # short of rows, changes over fewer seasons
                change = past[lag:] - past[: len(past) - lag]
                if not np.isnan(change).all():
                    found[i, k] = _quantiles(np.where(np.isnan(change), np.inf, change)[None])
        at = np.clip(np.searchsorted(seasons, over + 1) - 1, 0, max(len(seasons) - 2, 0))
        after = np.minimum(at + 1, len(seasons) - 1)
        share = ((over + 1 - seasons[at]) / np.maximum(seasons[after] - seasons[at], 1))[:, None]
        between: Array = (1 - share) * found[:, at] + share * found[:, after]
        return between[place.reshape(-1)]


def _quantiles(values: Array) -> Array:
    """(B, Q) of values (B, n); infinite ones are unknown."""
    values = np.sort(values, 1)
    count = np.isfinite(values).sum(1)[:, None]
    ranks = grids.LEVELS * (count + 1)
    place = np.where(grids.LEVELS < 0.5, np.floor(ranks), np.ceil(ranks)).astype(int) - 1
    return np.take_along_axis(values, np.clip(place, 0, np.maximum(count - 1, 0)), 1)


def empirical(panel: Panel, shape: Shape) -> list[Empirical]:
    """One of the values where a single value makes up much of the data, and one of changes for a single series."""
    known = panel.y[~np.isnan(panel.y)]
    _, counts = np.unique(known, return_counts=True)
    blank, found = grids.Calibration.identity(shape.horizon), []
    if counts.max() >= _REPEATED * len(known):
        rows = min(_ROWS, int(np.quantile(panel.lengths, 0.75)))
        plain = replace(shape, context=max(rows, shape.context), log="none", shift=0.0)
        found.append(Empirical(plain, blank))
    if len(panel) == 1:
        found.append(Empirical(shape, blank, _best_lag(panel.y, shape)))
    return found


def _best_lag(y: Array, shape: Shape) -> int:
    """The lag with the least error over the horizon: 1, the last value, or a season."""
    steps, errors = np.arange(shape.horizon), {}
    for lag in (1, *(season for season in shape.seasons if season < shape.context)):
        over = [k for k in lag * (steps // lag + 1) if k < len(y) // 2]
        apart = [np.abs(y[k:] - y[:-k]) for k in over]
        some = [float(np.nanmean(one)) for one in apart if not np.isnan(one).all()]
        errors[lag] = float(np.mean(some)) if some else np.inf
    return min(errors, key=lambda lag: errors[lag])
