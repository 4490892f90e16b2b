"""One series side by side with its past: gaps carried on, windows, seasons, and linear autoregression. For `lab`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def carried(levels: Tensor, lag: int) -> Tensor:
    """Missing values of levels (n, ...) replaced by the last one known then: a season (``lag``) before, else the step
    before. What is missing from the first step on is 0 where nothing is known."""
    if not bool(levels.isnan().any()):
        return levels
    known = levels.clone()
    for t in levels.isnan().view(len(levels), -1).any(1).nonzero().flatten().tolist():
        before = known[t - lag] if t >= lag > 1 else known[t - 1] if t else torch.zeros_like(known[0])
        known[t] = torch.where(known[t].isnan(), before, known[t])
    return known


def moments(columns: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each column, of the values that are not missing."""
    if not bool(columns.isnan().any()):
        return columns.mean(0), columns.std(0, correction=0)
    mean = columns.nanmean(0)
    return mean.nan_to_num(), (columns - mean).square().nanmean(0).sqrt().nan_to_num()


def gather(features: Tensor, origins: Tensor, window: int) -> Tensor:
    """Windows (T, N, F) that end at the origins, of features (n, F)."""
    back = torch.arange(window - 1, -1, -1, device=features.device)
    steps = origins.unsqueeze(0) - back.unsqueeze(1)
    return features.index_select(0, steps.flatten()).view(window, len(origins), features.shape[1])


def season_of(target: Tensor, train: int, suggested: Sequence[int]) -> int:
    """The season in steps: as the dates suggest, else the highest peak of the training part's autocorrelation.

    If the dates suggest several (a week and a year of days), the one whose autocorrelation rises most above the
    lowest at shorter lags, if the training part holds it twice. Without a suggestion a peak counts if it is above 0.3
    and lies within a quarter of the part; 1: there is no season.
    """
    possible = [s for s in suggested if 2 * s <= train]
    if suggested[0] > 1 and len(possible) < 2:
        return suggested[0]
    part = carried(target[:train], 1)
    steps = torch.arange(len(part), dtype=part.dtype)
    steps = steps - steps.mean()
    part = part - part.mean()
    part = part - steps * (part @ steps) / (steps @ steps)  # without its trend
    power = float(part @ part)
    if power == 0:
        return 1
    lags = range(1, max(min(len(part) // 4, 1000), max(possible, default=0) + 1))
    found = [1.0, *(float(part[:-k] @ part[k:]) / power for k in lags)]
    if len(possible) > 1:
        even = [a * len(part) / (len(part) - k) for k, a in enumerate(found)]  # as many products at every lag
        return max(possible, key=lambda s: even[s] - min(even[1 : s + 1]))
    peaks = [k for k in range(2, len(found) - 1) if found[k - 1] < found[k] >= found[k + 1] and found[k] > 0.3]
    return max(peaks, key=lambda k: found[k], default=1)


def ridge_weights(x: Tensor, y: Tensor, ridge: float) -> Tensor:
    """Weights (T F + 1, H) of a linear map from windows (T, N, F) to targets (N, H), the last row its offset."""
    rows = _rows(x)
    penalty = ridge * torch.eye(rows.shape[1], dtype=rows.dtype, device=rows.device)
    return torch.linalg.solve(rows.T @ rows + penalty, rows.T @ y)


def linear(x: Tensor, weights: Tensor) -> Tensor:
    """What :func:`ridge_weights` forecast, (N, H)."""
    return _rows(x) @ weights


def _rows(x: Tensor) -> Tensor:
    flat = x.transpose(0, 1).flatten(1)
    return torch.cat([flat, torch.ones_like(flat[:, :1])], 1)
