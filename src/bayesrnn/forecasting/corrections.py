"""Per-series corrections: Bayesian linear regression of the base forecast's errors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bayesrnn.forecasting.linear import LAGS, Linear
from bayesrnn.forecasting.windows import Batch, Shape, Windows

Array = np.ndarray
PENALTIES = (0.3, 1.0, 3.0, 10.0)  # times the number of windows
MOST = 5_000  # series of a panel for which this is tried
_CLIP = 12.0  # in mean seasonal differences
_WINDOWS = 40_000  # of all series together
_NUMBERS = 4_000_000  # of features at once


def features(batch: Batch, shape: Shape) -> Array:
    """(B, H, D), in mean seasonal differences of the window: earlier seasons against the last one at the same place,
    the last steps and the last season against those before, and 1. Without a season, the last steps and means against
    the last value."""
    z, size, horizon = batch.context / batch.spread[:, None], shape.context, shape.horizon
    seasons = [s for s in shape.seasons if s < size]
    aligned, plain = [], []
    if seasons:
        season = seasons[0]
        ahead = np.arange(1, horizon + 1)
        last = size - 1 - (-(-ahead // season) * season - ahead)
        for k in range(1, min(14, int(last.min()) // season + 1)):
            aligned.append(z[:, last - k * season] - z[:, last])
        plain += [z[:, -1 - i] - z[:, -1 - i - s] for s in seasons for i in range(6) if i + s < size]
        means = [z[:, size - (k + 1) * season : size - k * season].mean(1) for k in range(min(7, size // season))]
        plain += [m - means[0] for m in means[1:]]
    else:
        plain += [z[:, -1 - i] - z[:, -1] for i in range(1, min(13, size))]
        plain += [z[:, -w:].mean(1) - z[:, -1] for w in (4, 8, 13, 26, 52) if w <= size]
    plain.append(np.ones(len(z)))
    shared = np.broadcast_to(np.stack(plain, 1)[:, None], (len(z), horizon, len(plain)))
    return np.clip(np.concatenate([*(a[..., None] for a in aligned), shared], 2), -_CLIP, _CLIP)


@dataclass(frozen=True)
class Own:
    """Coefficients (S, H, D) of series, and the size (S,) of the errors that are left, in mean seasonal differences."""

    coefficients: Array
    left: Array

    def __call__(self, batch: Batch, shape: Shape, place: Array) -> Array:
        """What is added to scaled forecasts (B, H); ``place`` (B,) says which rows of the coefficients are whose."""
        return batch.spread[:, None] * np.einsum("bhd,bhd->bh", features(batch, shape), self.coefficients[place])


def fitted(linear: Linear, windows: Windows, series: Array, seen: Array, penalties: tuple[float, ...]) -> list[Own]:
    """For each penalty, the posterior means of these series from windows that end before rows ``seen`` (n,).

    The prior is a Gaussian about zero: short series are drawn to it more. Windows are evenly spaced, equally many for
    each series.
    """
    shape = windows.shape
    count = np.maximum(seen - shape.horizon - shape.least + 1, 0)
    each = int(np.clip(_WINDOWS // len(windows.panel), 16, min(2000, max(int(count.max()), 16))))
    size = features(windows.batch(series[:1], np.full(1, shape.least)), shape).shape[2]
    at_once = max(1, _NUMBERS // (each * shape.horizon * size))
    found: list[list[tuple[Array, Array]]] = [[] for _ in penalties]
    for start in range(0, len(series), at_once):
        part = slice(start, start + at_once)
        ends = shape.least + (np.arange(each) * np.maximum(count[part, None], 1)) // each
        some = len(ends)
        batch = windows.batch(np.repeat(series[part], each), ends.reshape(-1), LAGS)
        error = np.clip((batch.target - linear(batch, shape)) / batch.spread[:, None], -_CLIP, _CLIP)
        known = ~np.isnan(error) & np.repeat(count[part] > 0, each)[:, None]
        x = np.where(known[..., None], features(batch, shape), 0.0).reshape(some, each, shape.horizon, size)
        y = np.where(known, error, 0.0).reshape(some, each, shape.horizon).transpose(0, 2, 1)[..., None]
        x = x.transpose(0, 2, 1, 3)
        weight = 1 / np.maximum(known.reshape(some, each, -1).sum(1), 1)[..., None, None]  # (n, H, 1, 1)
        squares, products = x.transpose(0, 1, 3, 2) @ x * weight, x.transpose(0, 1, 3, 2) @ y * weight
        whole = np.square(y).sum(2, keepdims=True) * weight
        for k, penalty in enumerate(penalties):
            ridge = penalty * (1 + shape.horizon / np.maximum(count[part], 1))[:, None, None, None] * np.eye(size)
            b = np.linalg.solve(squares + ridge, products)
            left = whole + (b * (squares @ b - 2 * products)).sum(2, keepdims=True)
            found[k].append((b[..., 0].astype(np.float32), np.sqrt(np.maximum(left[..., 0, 0], 0).mean(1))))
    trust = count / (count + shape.horizon)
    made = []
    for pairs in found:
        coefficients, left = (np.concatenate(a) for a in zip(*pairs, strict=True))
        usual = float(left[count > 0].mean()) if (count > 0).any() else 1.0
        size = np.maximum(trust * left + (1 - trust) * usual, 0.05 * usual + 1e-9)
        made.append(Own(coefficients, np.where(count > 0, size, 1.0)))  # the same in every panel
    return made
