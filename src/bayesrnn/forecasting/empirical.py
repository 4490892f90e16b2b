"""The distribution of past values: for intermittent demand and other values that repeat."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bayesrnn.forecasting import grids
from bayesrnn.forecasting.panel import Panel
from bayesrnn.forecasting.windows import Batch, Shape, Windows

Array = np.ndarray
_ROWS = 300  # that are looked back on
_REPEATED = 0.2  # share of the most common value


@dataclass(frozen=True)
class Empirical:
    """The same quantiles at every step: those of the context. Level p of n values is the (n + 1) p-th smallest."""

    shape: Shape
    calibration: grids.Calibration

    def levels(self, windows: Windows, batch: Batch) -> tuple[Array, Array]:
        """Quantiles (B, H, Q) in the unit of the series, and the epistemic share of the variance (B, H)."""
        count = batch.known.sum(1)[:, None]
        panel, rows = windows.panel, batch.ends[:, None] + np.arange(-self.shape.context, 0)
        inside = np.clip(rows, 0, panel.lengths[batch.series][:, None] - 1)
        past = panel.y[panel.offsets[batch.series][:, None] + inside]
        values = np.sort(np.where(batch.known, past, np.inf), 1)
        ranks = grids.LEVELS * (count + 1)
        place = np.where(grids.LEVELS < 0.5, np.floor(ranks), np.ceil(ranks)).astype(int) - 1
        found = np.take_along_axis(values, np.clip(place, 0, np.maximum(count - 1, 0)), 1)
        horizon = self.shape.horizon
        return np.repeat(found[:, None], horizon, 1), np.repeat(1 / (count + 1.0), horizon, 1)


def empirical(panel: Panel, shape: Shape) -> list[Empirical]:
    """One where a single value makes up much of the data, else none."""
    known = panel.y[~np.isnan(panel.y)]
    _, counts = np.unique(known, return_counts=True)
    if counts.max() < _REPEATED * len(known):
        return []
    rows = min(_ROWS, int(np.quantile(panel.lengths, 0.75)))
    plain = replace(shape, context=max(rows, shape.context), log="none", shift=0.0)
    return [Empirical(plain, grids.Calibration.identity(shape.horizon))]
