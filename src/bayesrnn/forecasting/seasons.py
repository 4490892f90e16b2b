"""Seasons of a panel: as given, as its clock suggests, or as its autocorrelation shows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bayesrnn.forecasting.panel import Panel

_SERIES = 200  # that are looked at
_CLEAR = 0.3  # autocorrelation of a season


def seasons_of(panel: Panel, given: int | Sequence[int] | None) -> tuple[int, ...]:
    """In steps, the shortest first."""
    if given is not None:
        return tuple(sorted({s for s in (given if isinstance(given, Sequence) else [given]) if s > 1}))
    return panel.clock.seasons or _autocorrelated(panel)


def _autocorrelated(panel: Panel) -> tuple[int, ...]:
    """The highest peak of the mean autocorrelation of differences from a trend, if it is clear."""
    most = int(np.quantile(panel.lengths, 0.75)) // 3
    if most < 4:
        return ()
    lags = np.arange(min(most, 400) + 1)
    total, count = np.zeros(len(lags)), 0
    for i in np.linspace(0, len(panel) - 1, min(len(panel), _SERIES)).astype(int):
        y = panel.y[panel.offsets[i] : panel.offsets[i + 1]]
        known = ~np.isnan(y)
        if len(y) < 3 * len(lags) // 2 or known.sum() < 10:
            continue
        steps = np.arange(len(y), dtype=float)
        slope, level = np.polyfit(steps[known], y[known], 1)
        rest = np.where(known, y - slope * steps - level, 0.0)
        size = 1 << (2 * len(rest) - 1).bit_length()
        power = np.abs(np.fft.rfft(rest, size)) ** 2
        found = np.fft.irfft(power)[: len(lags)]
        if found[0] > 0:
            total, count = total + found / found[0], count + 1
    if not count:
        return ()
    mean = total / count
    inner = np.arange(2, len(mean) - 1)
    peaks = inner[(mean[inner] > mean[inner - 1]) & (mean[inner] >= mean[inner + 1]) & (mean[inner] > _CLEAR)]
    # A peak counts as far as it rises above the valley before it.
    rises = {int(p): float(mean[p] - mean[1:p].min()) for p in peaks}
    clear = [p for p, rise in rises.items() if rise > 0.15]
    if not clear:
        return ()
    best = max(clear, key=lambda p: mean[p])
    shortest = [p for p in clear if best % p == 0 and mean[p] > 0.7 * mean[best]]
    return tuple(sorted({min(shortest), best}))
