"""Values that stopped changing: a stuck sensor, an outage, a closed shop. The past says little about these."""

from __future__ import annotations

import numpy as np

from bayesrnn.forecasting import grids
from bayesrnn.forecasting.panel import Panel
from bayesrnn.forecasting.windows import Batch

Array = np.ndarray
_RUN = 6  # equal values, from which a series may have stopped
_LONGER = 2  # times the longest run before


def with_stops(grid: Array, panel: Panel, batch: Batch) -> Array:
    """Quantiles (B, H, Q), where the latest value has repeated for longer than ever before: after n equal values, it
    stays for h more steps with a probability of n / (n + h); else the forecast holds."""
    found, steps = grid, np.arange(1, grid.shape[1] + 1)
    latest = batch.context[:, -_RUN:]
    for k in np.flatnonzero((np.ptp(latest, axis=1) == 0) & (latest.shape[1] == _RUN)):
        begin = panel.offsets[batch.series[k]]
        y = panel.y[begin : begin + batch.ends[k]]
        y = y[~np.isnan(y)]
        runs = np.diff(np.concatenate([[-1], np.flatnonzero(np.diff(y)), [len(y) - 1]]))
        if runs[-1] < _RUN or runs[-1] <= _LONGER * runs[:-1].max(initial=0):
            continue
        found = grid.copy() if found is grid else found
        found[k] = _mixed(grid[k], float(y[-1]), (runs[-1] / (runs[-1] + steps))[:, None])
    return found


def _mixed(grid: Array, value: float, share: Array) -> Array:
    """Quantiles (H, Q) of a mixture: ``value`` with a probability of ``share`` (H, 1), else those of the grid."""
    below, above = grids.LEVELS / (1 - share), (grids.LEVELS - share) / (1 - share)  # levels without the value
    most, least = (grids.at(grid, grids.normal_quantile(np.clip(p, 1e-9, 1 - 1e-9))) for p in (below, above))
    return np.clip(value, np.where(above > 0, least, -np.inf), np.where(below < 1, most, np.inf))
