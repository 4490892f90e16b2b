"""The model of a forecaster: bases, networks, their weights, calibration, and dependence across steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from bayesrnn.forecasting import grids
from bayesrnn.forecasting.bounds import Bounds, bounds
from bayesrnn.forecasting.empirical import Empirical
from bayesrnn.forecasting.selection import Base
from bayesrnn.forecasting.still import with_stops
from bayesrnn.forecasting.structure import Structure
from bayesrnn.forecasting.training import Member
from bayesrnn.forecasting.trees import Trees
from bayesrnn.forecasting.windows import Batch, Shape, Windows

Array = np.ndarray
Part = Base | Structure | Empirical | Trees
WARM = 64  # rows with which a series needs no calibration of its own


@dataclass
class Model:
    """Everything a forecast needs but the series: bases first, then networks, in the order of ``weights``."""

    bases: Sequence[Part]
    members: list[Member]
    weights: Array
    calibration: grids.Calibration
    correlation: Array
    share: float
    positive: float  # share of the series of fit that are never negative
    counts: float  # and of those that are small counts, with forecasts that are whole numbers
    cold: list[tuple[int, grids.Calibration]] = field(default_factory=list)

    @property
    def shape(self) -> Shape:
        return self.bases[0].shape

    def grid(self, cuts: list[Windows], series: Array, ends: Array, *, seed: int) -> tuple[Array, Array]:
        """Calibrated quantiles (B, H, Q) in the unit of the series, and the epistemic share of the variance (B, H)."""
        used = np.flatnonzero(self.weights).tolist()
        parts = parts_of(self.bases, self.members, cuts, series, ends, seed, used)
        batch = cuts[0].batch(series, ends)
        floor = self.floor(cuts[0], batch)
        grid: Array = self.calibration.apply(sum(self.weights[k] * np.maximum(parts[k][0], floor) for k in used))  # type: ignore[arg-type]
        share = sum(self.weights[k] * parts[k][1] for k in used)
        for (rows, calibration), (stop, _) in pairwise([*self.cold, (WARM, self.calibration)]):
            these = (ends >= rows) & (ends < min(stop, self.shape.context))
            grid[these] = calibration.apply(grid[these])
        return with_stops(np.maximum(grid, floor), cuts[0].panel, batch), share  # type: ignore[return-value]

    @property
    def lower(self) -> float:
        """The lower end of all series."""
        return 0.0 if self.positive == 1 else -math.inf

    def bounds(self, windows: Windows, series: Array, ends: Array) -> Bounds:
        return bounds(lambda: windows.before, series, ends, self.positive, self.counts)

    def floor(self, windows: Windows, batch: Batch) -> Array:
        """What forecasts (B, H, Q) of quantities that are never negative do not fall below: near the lowest value of
        the context, since a sum of errors of both signs does not know that such quantities have a lower end."""
        lower = self.bounds(windows, batch.series, batch.ends).lower
        levels = np.where(batch.known, batch.levels(self.shape, batch.context), math.inf)
        share = np.where(batch.cold, 0, self.share)
        return np.where(lower == 0, np.maximum(share * levels.min(1), 0), lower)[:, None, None]  # type: ignore[no-any-return]


def parts_of(
    bases: Sequence[Part],
    members: list[Member],
    cuts: list[Windows],
    series: Array,
    ends: Array,
    seed: int,
    used: list[int],
) -> dict[int, tuple[Array, Array]]:
    """Quantiles and epistemic shares of bases and networks, by their numbers."""
    found, batches = {}, dict[int, Batch]()
    for k in used:
        member = members[k - len(bases)] if k >= len(bases) else None
        i = k if member is None else member.base
        base, windows = bases[i], cuts[i]
        batch = batches[i] = batches.get(i) or windows.batch(series, ends)
        if member is None:
            found[k] = base.levels(windows, batch)
            continue
        assert isinstance(base, Base)  # networks are trained beside these
        levels, share = member.levels(base, windows, batch, seed=seed, draws=member.draws)
        found[k] = levels, 1 - (1 - share) * (1 - base.doubt(batch))
    return found
