"""Predictive distributions as quantiles at fixed levels: how they are scored, combined and recalibrated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

Array = np.ndarray
_TAIL = np.array([0.001, 0.0025, 0.005, 0.01, 0.025])
LEVELS = np.concatenate([_TAIL, np.arange(0.05, 0.951, 0.05).round(3), 1 - _TAIL[::-1]])
MEDIAN = len(LEVELS) // 2
KNOTS = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.975, 0.99)
"""Levels that are learnt; those between and beyond are interpolated."""


def normal_quantile(p: Array) -> Array:
    return torch.special.ndtri(torch.as_tensor(np.asarray(p, dtype=float))).numpy()


def normal_cdf(z: Array) -> Array:
    return torch.special.ndtr(torch.as_tensor(np.asarray(z, dtype=float))).numpy()


Z = normal_quantile(LEVELS)


def at(grid: Array, z: Array) -> Array:
    """Quantiles at normal scores z (..., m) of a grid (..., Q): linear between levels on the normal scale, and beyond
    the outermost as steep as next to them."""
    place = np.clip(np.searchsorted(Z, z) - 1, 0, len(Z) - 2)
    share = (z - Z[place]) / (Z[place + 1] - Z[place])
    low = np.take_along_axis(grid, place, -1)
    high = np.take_along_axis(grid, place + 1, -1)
    return low + share * (high - low)


def interpolated(knots: Array) -> Array:
    """A grid (..., Q) of quantiles (..., K) at `KNOTS`, linear between levels on the normal scale."""
    scores = normal_quantile(np.array(KNOTS))
    place = np.clip(np.searchsorted(scores, Z) - 1, 0, len(scores) - 2)
    share = (Z - scores[place]) / (scores[place + 1] - scores[place])
    found: Array = knots[..., place] + share * (knots[..., place + 1] - knots[..., place])
    return found


def quantile(grid: Array, q: float) -> Array:
    """The q-quantile (...)."""
    z = np.broadcast_to(normal_quantile(np.array([q])), (*grid.shape[:-1], 1))
    return at(grid, z)[..., 0]


def p_values(grid: Array, y: Array, *, whole: bool | Array) -> Array:
    """Two-sided: twice the smaller of P(Y <= y) and P(Y >= y), so that p < a happens with a probability of at most a.

    Where several levels have the same quantile (counts, a lower end), both include all of it.
    """
    half = np.where(whole, 0.5, 0.0)
    above, below = _outer(grid, y - half), _outer(-grid[..., ::-1], -y - half)
    return np.minimum(2 * normal_cdf(-np.maximum(above, below)), 1)


def _outer(grid: Array, y: Array) -> Array:
    """As `_scores`; above a quantile that the highest levels share, by the mean slope of the grid."""
    beyond, slope = y - grid[..., -1], (grid[..., -1] - grid[..., 0]) / (Z[-1] - Z[0])
    z = np.minimum(Z[-1] + beyond / np.maximum(slope, 1e-300), 12)
    return np.where((beyond > 0) & (grid[..., -1] == grid[..., -2]), z, _scores(grid, y))


def scores_of(grid: Array, y: Array, rng: np.random.Generator | None = None) -> Array:
    """Normal scores z (...) with quantile(z) = y: standard normal where the forecast is calibrated; NaN where y is.

    Where several levels have the same quantile (counts, a lower end), the middle of them, or one of them at random.
    """
    low, high = _scores(grid, y), -_scores(-grid[..., ::-1], -y)
    if rng is None:
        return (low + high) / 2
    drawn = normal_cdf(low) + rng.random(y.shape) * (normal_cdf(high) - normal_cdf(low))
    return np.where(high - low > 1e-9, normal_quantile(np.clip(drawn, 1e-9, 1 - 1e-9)), low)


def _scores(grid: Array, y: Array) -> Array:
    place = np.clip((grid < y[..., None]).sum(-1) - 1, 0, len(Z) - 2)[..., None]
    low = np.take_along_axis(grid, place, -1)[..., 0]
    high = np.take_along_axis(grid, place + 1, -1)[..., 0]
    width = high - low
    place = place[..., 0]
    share = np.where(width > 0, (y - low) / np.where(width > 0, width, 1), 0.5)
    return np.where(np.isnan(y), np.nan, np.clip(Z[place] + share * (Z[place + 1] - Z[place]), -12, 12))


_WEIGHTS = np.gradient(LEVELS)
_WEIGHTS[0] += LEVELS[0] / 2
_WEIGHTS[-1] += LEVELS[0] / 2


def crps(grid: Array, y: Array) -> Array:
    """Continuous ranked probability score: twice the pinball loss, integrated over levels."""
    error = y[..., None] - grid
    return 2 * (np.maximum(LEVELS * error, (LEVELS - 1) * error) * _WEIGHTS).sum(-1)


def mean(grid: Array) -> Array:
    return np.clip((grid * _WEIGHTS).sum(-1) / _WEIGHTS.sum(), grid.min(-1), grid.max(-1))  # rounding


def deviation(grid: Array) -> Array:
    centre = mean(grid)
    return np.sqrt(((grid - centre[..., None]) ** 2 * _WEIGHTS).sum(-1) / _WEIGHTS.sum())


_FINE = np.linspace(-5, 5, 201)
_DENSITY = np.exp(-0.5 * np.square(_FINE)) / np.exp(-0.5 * np.square(_FINE)).sum()


def expected(grid: Array, cost: Callable[[Array], Array]) -> Array:
    """The expectation (...) of a cost of values (..., n), far into both tails."""
    return (cost(at(grid, np.broadcast_to(_FINE, (*grid.shape[:-1], len(_FINE))))) * _DENSITY).sum(-1)


def summary(
    grid: Array, share: Array, level: Sequence[float], quantiles: Sequence[float], bounded: Callable[[Array], Array]
) -> dict[str, Array]:
    """Columns of a forecast: grids (B, H, Q), epistemic shares (B, H), intervals in percent and probabilities;
    ``bounded`` makes values of what lies between levels."""
    found = {"mean": mean(grid), "median": grid[..., MEDIAN]}
    for percent in level:
        found[f"lo-{percent:g}"] = bounded(quantile(grid, 0.5 - percent / 200))
        found[f"hi-{percent:g}"] = bounded(quantile(grid, 0.5 + percent / 200))
    found |= {f"q-{q:g}": bounded(quantile(grid, q)) for q in quantiles}
    total = deviation(grid)
    return found | {"aleatoric_std": total * np.sqrt(1 - share), "epistemic_std": total * np.sqrt(share)}


def clear(found: Array, doubt: Array) -> Array:
    """What remains of means (H,) that were found with these standard errors (H,): (1 - 2 / t^2) of them, where t^2 is
    the mean square of their ratios; nothing below 2. A drift or a bias that may be chance is not carried on."""
    square = float(np.mean(np.square(found / np.maximum(doubt, 1e-300))))
    return found * max(0.0, 1 - 2 / max(square, 1e-9))


@dataclass(frozen=True)
class Calibration:
    """A monotone map of normal scores, learnt from forecasts beside what came.

    A quantile at score z becomes the one at ``centre[h] + spread[h] * shape(z)``. Ranks are conformal: level q of n
    scores is the (n + 1) q-th smallest.
    """

    centre: Array
    spread: Array
    shape: Array

    @classmethod
    def identity(cls, horizon: int) -> Calibration:
        return cls(np.zeros(horizon), np.ones(horizon), Z.copy())

    @classmethod
    def fit(cls, z: Array, apart: float, *, centred: bool = True) -> Calibration:
        """From scores (n, H), NaN where unknown, of which ``apart`` windows do not overlap."""
        horizon = z.shape[1]
        count = np.maximum((~np.isnan(z)).sum(0), 0)
        if count.sum() < 8:
            return cls.identity(horizon)
        trust = max(apart, 1.0)
        width = max(1, horizon // 8)
        with np.errstate(invalid="ignore"):
            pooled = float(np.nanmedian(z))
            middle = np.array([np.nanmedian(c) if n else pooled for c, n in zip(z.T, count, strict=True)])
            centre = _smooth(middle, width) if centred else np.zeros(horizon)
            size = np.abs(z - centre)
            whole = float(np.nanmean(size))
            each = np.array([np.nanmean(c) if n else whole for c, n in zip(size.T, count, strict=True)])
        spread = _smooth(each, width)
        spread = np.maximum((trust * spread + 2 * whole) / (trust + 2), 1e-9)
        rest = ((z - centre) / spread)[~np.isnan(z)]
        n = len(rest)
        ranks = np.clip(LEVELS * (n + 1) - 1, 0, n - 1)
        found = np.interp(ranks, np.arange(n), np.sort(rest))
        heavy = Z * np.sqrt(np.pi / 2) * (1 + 0.03 * Z**2)  # a little heavier than normal, of mean absolute value 1
        sides = [
            (trust * one.mean() + 1) / (trust + 1) if len(one) else 1.0 for one in (-rest[rest < 0], rest[rest > 0])
        ]
        heavy *= np.where(Z < 0, *sides)  # errors of logarithms are often skewed
        # Far levels need many windows that do not overlap; short of them, a stated shape takes over.
        share = np.clip(trust * np.minimum(LEVELS, 1 - LEVELS) * 4, 0, 1) if trust < 1e6 else np.ones_like(LEVELS)
        shape = share * found + (1 - share) * heavy
        inflation = np.sqrt(1 + 2 / trust)
        centre = clear(centre, 1.57 * spread / np.sqrt(trust))  # of a median; spreads are mean absolute values
        return cls(centre, spread * inflation, np.maximum.accumulate(shape))

    def map(self, z: Array) -> Array:
        """New scores (..., H, m) of scores (m,)."""
        return self.centre[:, None] + self.spread[:, None] * np.interp(z, Z, self.shape)[None]

    def apply(self, grid: Array, width: Array | float = 1.0) -> Array:
        """The recalibrated grid (B, H, Q), ``width`` (H,) times as wide about its median."""
        z = np.broadcast_to(self.map(Z), grid.shape)
        found = np.sort(at(grid, z), -1)
        middle = found[..., MEDIAN : MEDIAN + 1]
        return middle + np.reshape(width, (-1, 1)) * (found - middle)


def _smooth(values: Array, width: int) -> Array:
    if width < 2:
        return values
    kernel = np.ones(width)
    return np.convolve(values, kernel, "same") / np.convolve(np.ones_like(values), kernel, "same")
