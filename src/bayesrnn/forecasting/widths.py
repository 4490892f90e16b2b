"""Widths that adapt to what came: adaptive conformal inference (arXiv 2106.00170) on scores of all steps ahead."""

from __future__ import annotations

import numpy as np

from bayesrnn.forecasting.grids import LEVELS, MEDIAN, Z, normal_cdf

Array = np.ndarray
_MISS = 0.1  # of the intervals that are counted
_LOW, _HIGH = (int(np.searchsorted(LEVELS, p)) for p in (0.05, 0.95))
_EDGES = np.geomspace(1 / 16, 16, 129)  # of the histogram of scores
_PRIOR, _ROWS = 0.7, 8.0  # horizons that scores of a calibrated forecast count as, and rows at least
_MEMORY = 0.95  # of a score, one horizon later
_RATE, _MOST = 2.4, 0.6  # step of the miss rate per horizon, and at most per row
_EARLY = 1.5, 2.5  # horizons after which it moves half as far as later, to wider and to narrower intervals
_STEADY = 2.0  # horizons after which it falls with their square root
_RATES = 0.02, 0.35  # miss rates that are aimed at
_ROOM = 0.4  # share of this range that is left after many rows
_OWN = 0.03  # step of the logarithm of a single step ahead's width
_NARROWEST, _WIDEST = 0.25, 4.0
_USUAL = np.diff(2 * normal_cdf(Z[_HIGH] * np.concatenate([[0], _EDGES[1:-1], [np.inf]])) - 1)
_OUTER = np.minimum(np.abs(Z) / Z[_HIGH], 1)  # how far a level is from the median, up to the 90% interval


def scores(grid: Array, y: Array, *, whole: bool | Array) -> Array:
    """The least factor (...) with which the 90% interval of a grid (..., Q) contains y (...); NaN where y is.
    ``whole``: quantiles are rounded."""
    middle = grid[..., MEDIAN]
    off = np.maximum(np.abs(y - middle) - np.where(whole, 0.5, 0.0), 0)
    side = np.where(y > middle, grid[..., _HIGH] - middle, middle - grid[..., _LOW])
    return np.where(off > 0, off / np.maximum(side, 1e-300), np.where(np.isnan(y), np.nan, 0.0))


class Widths:
    """Factors for the widths of forecasts of H steps, after each row.

    The scale of a forecast is multiplied by the 90% quantile of recent scores, drawn towards those of a calibrated
    forecast while rows are few. The 90% interval and what lies beyond take a quantile at another level: higher after
    intervals that were too narrow, lower after those that were too wide. So about a tenth of the values falls outside
    in the long run, and the centre does not pay for it. That level moves little in the first horizons, whose scores may
    be alike by chance, and within a range that becomes smaller with the number of rows, since recent scores then say
    enough. Each step ahead has a slowly changing factor of its own.

    ``state`` holds, in this order: the miss rate that is aimed at, the number of rows, the factor of the scale, the
    logarithms of the factors of steps (H,), the factors of the 90% interval at the last H rows (H,; NaN: no forecast),
    and the histogram of scores.
    """

    def __init__(self, horizon: int, state: Array | None = None) -> None:
        self.horizon = horizon
        if state is None:
            blank = np.full(horizon - 1, np.nan)
            state = np.concatenate([[_MISS, 0, 1], np.zeros(horizon), blank, [1], np.zeros_like(_USUAL)])
        self.state = state.copy()

    @property
    def _parts(self) -> tuple[Array, Array, Array]:
        return tuple(np.split(self.state[3:], [self.horizon, 2 * self.horizon]))  # type: ignore[return-value]

    @property
    def outer(self) -> Array:
        """(H,): factors of the 90% intervals of a forecast from here."""
        own, issued, _ = self._parts
        return issued[-1] * np.exp(own)

    def apply(self, grid: Array) -> Array:
        """The grid (B, H, Q) with these widths about its median."""
        own, issued, _ = self._parts
        factor = np.exp(own)[:, None] * (self.state[2] + (issued[-1] - self.state[2]) * _OUTER)
        middle = grid[..., MEDIAN : MEDIAN + 1]
        found = middle + factor * (grid - middle)
        found[..., MEDIAN:] = np.maximum.accumulate(found[..., MEDIAN:], -1)
        found[..., MEDIAN::-1] = np.minimum.accumulate(found[..., MEDIAN::-1], -1)
        return found

    def after(self, found: Array, steps: Array) -> None:
        """Take in one row: the scores (n,) of forecasts that were made for it ``steps`` (n,) = 0 to H - 1 rows ago."""
        horizon, state, (own, issued, counts) = self.horizon, self.state, self._parts
        known, last, used = ~np.isnan(found), issued[-1], issued[horizon - 1 - steps]
        issued[:-1] = issued[1:]
        if not known.any():
            return
        steps, used, found = steps[known], used[known], found[known] / np.exp(own[steps[known]])
        excess = np.where(np.isnan(used), 0.0, (found > used) - _MISS).mean()
        seen = state[1] / horizon
        settled, begun = 1 / np.sqrt(max(seen / _STEADY, 1)), seen / (seen + np.array(_EARLY))
        state[0] = np.clip(state[0] - min(_RATE / horizon, _MOST) * settled * begun[int(excess < 0)] * excess, -1, 1)
        state[1] += 1
        each = np.maximum(np.bincount(steps, None, horizon), 1)
        own[:] = np.clip(own + _OWN * np.bincount(steps, (found > last) - _MISS, horizon) / each, -0.5, 0.5)
        counts *= _MEMORY ** (1 / horizon)
        np.add.at(counts, np.clip(np.searchsorted(_EDGES, found) - 1, 0, len(counts) - 1), 1 / len(found))
        total = np.append(0, np.cumsum(counts + max(_PRIOR * horizon, _ROWS) * _USUAL))
        aimed = np.clip(state[0], *(_MISS + (np.array(_RATES) - _MISS) * max(settled, _ROOM) * begun))
        levels = 1 - np.array([_MISS, aimed])
        state[2], issued[-1] = np.clip(np.interp(levels, total / total[-1], _EDGES), _NARROWEST, _WIDEST)
