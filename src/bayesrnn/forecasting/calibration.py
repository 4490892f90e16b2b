"""How a fitted model is recalibrated on validation windows, and how the errors of its steps hang together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from bayesrnn.forecasting import grids
from bayesrnn.forecasting.model import WARM, Model
from bayesrnn.forecasting.panel import Panel
from bayesrnn.forecasting.selection import apart
from bayesrnn.forecasting.windows import Batch, Windows, origins

Array = np.ndarray
_COLD = 256  # windows


def calibrate(
    model: Model, grid: Array, held: Batch, wanted: bool, usual: Array | None, say: Callable[[str], None]
) -> None:
    """Recalibrate where scores on the other half of the windows improve; and the dependence across steps.

    ``usual``: quantiles from earlier periods too. A last fold that was calm by their account makes widths learnt there
    too narrow for other times, and a wild one too wide: they are brought to the size of usual errors.
    """
    count = apart([held], model.shape)
    rng = np.random.default_rng(0)
    z = grids.scores_of(grid, held.actual, rng)
    if wanted and count >= 10:
        order = np.argsort(held.ends / np.maximum(held.ends.max(), 1) if len(set(held.series)) == 1 else held.series,
                           kind="stable")  # fmt: skip
        halves = order[: len(order) // 2], order[len(order) // 2 :]
        gain = 0.0
        for a, b in (halves, halves[::-1]):
            tried = grids.Calibration.fit(z[a], count / 2)
            error = grids.crps(tried.apply(grid[b]), held.actual[b]) - grids.crps(grid[b], held.actual[b])
            gain += float(np.nanmean(error / np.nanmean(grids.crps(grid[b], held.actual[b]))))
        inside = float(np.mean(np.abs(z[~np.isnan(z)]) < 1.645))
        if gain < 0 or abs(inside - 0.9) > 0.03:
            model.calibration = grids.Calibration.fit(z, count)
            say(f"recalibrated: 90% intervals covered {inside:.1%} of validation values")
            grid = model.calibration.apply(grid)
            z = grids.scores_of(grid, held.actual, rng)
    if wanted and usual is not None:
        factor = np.nanmean(np.abs(z)) / np.nanmean(np.abs(grids.scores_of(usual, held.actual)))
        model.calibration = replace(model.calibration, spread=model.calibration.spread * factor)
        say(f"intervals {factor:.2f} times as wide: earlier rows were {'easier' if factor < 1 else 'harder'}")
    model.correlation = correlation_of(z, count)


def cold_start(model: Model, panel: Panel, *, holidays: str | None, seed: int) -> list[tuple[int, grids.Calibration]]:
    """Calibrations of series with at least so many rows, up to `WARM` or the context: pieces of the panel's series are
    forecast as if they were new."""
    rng, horizon, rows, found = np.random.default_rng(seed), model.shape.horizon, 1, []
    while rows < min(WARM, model.shape.context) and (panel.lengths >= rows + horizon).any():
        low, high = np.full(len(panel), rows), panel.lengths - horizon
        series, ends = origins(panel, model.shape, low, high, _COLD, rng)
        piece = panel.cut(series, ends - rows, rows + horizon)
        y = piece.y.reshape(len(series), -1)
        some = ~np.isnan(y[:, :rows]).all(1) & ~np.isnan(y[:, rows:]).all(1)
        if some.any():
            cuts = [Windows(piece, base.shape, holidays=holidays) for base in model.bases]
            every = np.full(len(series), rows)
            for windows in cuts:
                windows.seen = every
            grid, _ = model.grid(cuts, np.flatnonzero(some), every[some], seed=seed)
            seen, counts = np.unique(series[some], return_counts=True)
            apart = np.minimum(counts, panel.lengths[seen] / (rows + horizon)).sum()
            found.append((rows, grids.Calibration.fit(grids.scores_of(grid, y[some, rows:], rng), float(apart))))
        rows *= 2
    return found


def correlation_of(z: Array, count: float) -> Array:
    """Correlation (H, H) of scores (n, H) across steps, of two steps by the windows that know both; drawn towards one
    that decays where windows are few."""
    horizon = z.shape[1]
    filled = np.nan_to_num(np.clip(z, -4, 4) - np.nanmean(np.clip(z, -4, 4)))
    squares = np.square(filled).T @ ~np.isnan(z)  # of each step, where another is known
    size = np.sqrt(squares * squares.T)
    found = filled.T @ filled / np.where(size > 0, size, 1.0)
    np.fill_diagonal(found, 1.0)
    next_to = float(np.clip(np.diagonal(found, 1).mean(), 0, 0.98)) if horizon > 1 else 0.0
    share = count / (count + horizon)
    return share * found + (1 - share) * _decaying(horizon, next_to)


def _decaying(horizon: int, next_to: float) -> Array:
    steps = np.arange(horizon)
    return next_to ** np.abs(steps[:, None] - steps)
