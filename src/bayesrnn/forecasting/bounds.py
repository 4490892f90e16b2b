"""The lower end and whole numbers: which series are never negative, and which are counts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bayesrnn.forecasting.panel import Panel

Array = np.ndarray
SMALL = 30.0  # counts with a mean below are forecast as counts
_LARGE = 1e6  # sums of larger values would lose small ones
_ENOUGH = 16  # values that say what a series is, where most of the others are not alike


@dataclass(frozen=True)
class Bounds:
    """Lower ends (B,) and whether values are whole numbers (B,), of B forecasts."""

    lower: Array
    whole: Array

    def __call__(self, values: Array) -> Array:
        """Values (B, ...) within them."""
        axes = (slice(None),) + (None,) * (values.ndim - 1)
        return np.maximum(np.where(self.whole[axes], np.rint(values), values), self.lower[axes])  # type: ignore[no-any-return]

    def part(self, rows: Array | slice) -> Bounds:
        return Bounds(self.lower[rows], self.whole[rows])


class Past:
    """What the values before a row tell: sums over the rows of a panel."""

    def __init__(self, panel: Panel) -> None:
        known = ~np.isnan(panel.y)
        y = np.where(known, panel.y, 0.0)
        parts = [known, y < 0, y != np.floor(y), np.minimum(y, _LARGE)]
        self._begin, self._end = panel.offsets[:-1], panel.offsets[1:]
        self._sums = np.concatenate([np.zeros((4, 1)), np.cumsum(np.stack(parts).astype(float), 1)], 1)

    def __call__(self, series: Array, ends: Array) -> tuple[Array, Array, Array]:
        """(B,) each, of rows before ``ends``: how many values there are, whether none is negative, and whether all are
        small counts."""
        begin = self._begin[series]
        rows = np.minimum(begin + ends, self._end[series])
        count, negative, broken, total = self._sums[:, rows] - self._sums[:, begin]
        positive = negative == 0
        return count, positive, positive & (broken == 0) & (total < SMALL * np.maximum(count, 1))


def kinds(panel: Panel) -> tuple[Array, Array]:
    """(S,) each: which series are never negative, and which are small counts."""
    return Past(panel)(np.arange(len(panel)), panel.lengths)[1:]


def bounds(past: Callable[[], Past], series: Array, ends: Array, positive: float, counts: float) -> Bounds:
    """Those of forecasts after rows ``ends``, where shares ``positive`` and ``counts`` of the series of fit are never
    negative and small counts. Where series differ, each is taken for what its values so far are; one with few values
    only if most others are alike."""
    if {positive, counts} <= {0, 1}:
        size = len(series)
        return Bounds(np.full(size, 0.0 if positive else -math.inf), np.full(size, counts == 1))
    many, never, small = past()(series, ends)
    alike = [(share > 0) & own & ((many >= _ENOUGH) | (share >= 0.5)) | (share == 1)
             for share, own in ((positive, never), (counts, small))]  # fmt: skip
    return Bounds(np.where(alike[0], 0.0, -math.inf), alike[1])
