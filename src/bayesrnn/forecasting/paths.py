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


def copula(grid: Array, correlation: Array, n: int, rng: np.random.Generator) -> Array:
    """Futures (B, n, H) with the quantiles of a grid (B, H, Q) at each step and normal scores of this correlation."""
    values, vectors = np.linalg.eigh(correlation)
    root = vectors * np.sqrt(np.maximum(values, 0))
    z = rng.standard_normal((len(grid), n, len(root))) @ root.T  # (B, n, H)
    return grids.at(grid, z.transpose(0, 2, 1)).transpose(0, 2, 1)


def autoregressive(
    forecaster: Forecaster, panel: Panel, ahead: Array | None, n: int, rng: np.random.Generator
) -> Array:
    """Futures (S, n, H): each value is drawn from the forecast one step ahead of the values before it, drawn or known.

    ``ahead`` (S, H, F) are the columns that are known ahead. Past columns keep their last values.
    """
    horizon, found = forecaster.horizon, []
    for part in np.array_split(np.arange(len(panel)), -(-len(panel) * n // _COPIES)):
        if not len(part):
            continue
        series = np.repeat(part, n)
        copies = _extended(panel.part(series), horizon, None if ahead is None else ahead[series])
        ends = panel.lengths[series]
        windows = forecaster._windows(copies, seen=ends)
        for step in range(horizon):
            grid, _ = forecaster._grid(windows, np.arange(len(series)), ends + step)
            drawn = forecaster._fitted.bounded(grids.at(grid[:, 0], rng.standard_normal((len(series), 1))))
            copies.y[copies.offsets[:-1] + ends + step] = drawn[:, 0]
        rows = (copies.offsets[:-1] + ends)[:, None] + np.arange(horizon)
        found.append(copies.y[rows].reshape(len(part), n, horizon))
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
