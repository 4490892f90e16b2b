"""Sample paths: coherent futures of each series, by a copula or step by step."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from bayesrnn.forecasting import grids
from bayesrnn.forecasting.panel import Panel

if TYPE_CHECKING:
    from bayesrnn.forecasting.forecaster import Forecaster

Array = np.ndarray
_COPIES = 2048  # of series that are sampled at once
_LEAST = 64  # of each series, so that their ranks say something


def copula(grid: Array, correlation: Array, n: int, rng: np.random.Generator) -> Array:
    """Futures (B, n, H) with the quantiles of a grid (B, H, Q) at each step and normal scores of this correlation."""
    values, vectors = np.linalg.eigh(correlation)
    root = vectors * np.sqrt(np.maximum(values, 0))
    root /= np.sqrt(np.square(root).sum(1, keepdims=True))  # unit variances, where eigenvalues were negative
    z = rng.standard_normal((len(grid), n, len(root))) @ root.T  # (B, n, H)
    return grids.at(grid, z.transpose(0, 2, 1)).transpose(0, 2, 1)


def autoregressive(
    forecaster: Forecaster, panel: Panel, ahead: Array | None, n: int, rng: np.random.Generator
) -> Array:
    """Futures (S, n, H): each value is drawn from the forecast one step ahead of the values before it, drawn or known.

    Errors of forecasts one step ahead would compound. Draws therefore give the ranks only: among the copies of a
    series, the value of a rank is that quantile of the forecast for this step. ``ahead`` (S, H, F) are the columns that
    are known ahead. Past columns keep their last values.
    """
    horizon, found, copied = forecaster.horizon, [], max(n, _LEAST)
    own = forecaster._windows(panel, ahead)
    bounds = forecaster.fitted.bounds(own[0], np.arange(len(panel)), panel.lengths)
    for part in np.array_split(np.arange(len(panel)), -(-len(panel) * copied // _COPIES)):
        if not len(part):
            continue
        series = np.repeat(part, copied)
        copies = _extended(panel.part(series), horizon, None if ahead is None else ahead[series])
        ends = panel.lengths[series]
        windows = forecaster._windows(copies, seen=ends)
        grid = whole = np.repeat(forecaster._grid(own, part, panel.lengths[part])[0], copied, 0)
        for step in range(horizon):
            if step:
                grid, _ = forecaster._grid(windows, np.arange(len(series)), ends + step)
            drawn = grids.at(grid[:, 0], rng.standard_normal((len(series), 1)))
            rank = drawn.reshape(-1, copied).argsort(1).argsort(1).reshape(-1, 1)
            z = grids.normal_quantile(np.clip((rank + rng.random(rank.shape)) / copied, 1e-6, 1 - 1e-6))
            copies.y[copies.offsets[:-1] + ends + step] = bounds.part(series)(grids.at(whole[:, step], z))[:, 0]
        rows = (copies.offsets[:-1] + ends)[:, None] + np.arange(horizon)
        found.append(copies.y[rows].reshape(len(part), copied, horizon)[:, :n])
    return np.concatenate(found)


def _extended(panel: Panel, steps: int, ahead: Array | None) -> Panel:
    """The series with so many more rows, without values."""
    offsets = panel.offsets + steps * np.arange(len(panel) + 1)
    lengths = np.repeat(panel.lengths, np.diff(offsets))
    within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets))
    source = np.repeat(panel.offsets[:-1], np.diff(offsets)) + np.minimum(within, lengths - 1)
    late = within >= lengths
    future = panel.future[source]
    if ahead is not None:
        future[late] = ahead.reshape(-1, ahead.shape[2])
    return replace(
        panel, offsets=offsets, y=np.where(late, np.nan, panel.y[source]), past=panel.past[source], future=future
    )
