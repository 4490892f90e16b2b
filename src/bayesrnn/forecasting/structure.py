"""Forecasts of short series: a Gaussian process with a level, a trend and seasons. It has no windows to learn from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from bayesrnn.forecasting import grids
from bayesrnn.forecasting.linear import moving
from bayesrnn.forecasting.windows import Batch, Shape, Windows

Array = np.ndarray
ROWS = 300  # of the past that a forecast is conditioned on
_SERIES = 20  # that hyperparameters are learnt from
_MEMORIES = (1.0, 0.99, 0.98, 0.96, 0.93, 0.9)  # of the size of innovations
_PRIOR = 10.0  # innovations that the prior of their size counts as
_OUTLIER = 12.0  # squared innovations beyond count as this
_OPTIMISM = 1.1  # of errors after the rows that theta was learnt from, on made-up series
_NOISE, _LEVEL, _LENGTH, _TREND, _FAR, _MEMORY, _WIDTH, _COLUMNS, _SEASONS = range(9)


@dataclass(frozen=True)
class Structure:
    r"""A Gaussian process over the scaled rows of one series, with covariance at rows t and u, d = |t - u|,

    .. math:: 4 + a^2 e^{-d/l} + b^2 (1 + r) e^{-r} + \sum_s c_s^2 e^{-d / (s m) - 2 \sin^2(\pi d / s) / w^2} + g^2 x'x

    and noise: a level that wanders (a random walk for large l), a smooth trend (Matern 3/2, r = sqrt(3) d / f), a
    pattern for each season s that changes over m seasons, and columns x that are known ahead. ``theta`` are the
    logarithms of the noise's sigma, a, l, b, f, m, w, g and each c_s.

    The innovations' size may change: its recent mean square, with this ``memory`` per row, scales the intervals.
    """

    shape: Shape
    theta: Array
    memory: float
    calibration: grids.Calibration

    def levels(self, windows: Windows, batch: Batch) -> tuple[Array, Array]:
        """Quantiles (B, H, Q) in the unit of the series. The epistemic share (B, H) is the part of the variance that is
        doubt about where the series was in the last season."""
        mean, sigma, share = self.moments(windows, batch)
        grid = mean[..., None] + sigma[..., None] * self.calibration.map(grids.Z)
        return batch.levels(self.shape, grid), share

    @torch.no_grad()
    def moments(self, windows: Windows, batch: Batch) -> tuple[Array, Array, Array]:
        """Scaled means and standard deviations, and epistemic shares, each (B, H)."""
        horizon, size = self.shape.horizon, self.shape.context
        season = self.shape.season if self.shape.season < size else 1
        theta = torch.as_tensor(self.theta)
        rows = torch.arange(size + horizon, dtype=torch.float64)
        ahead = torch.arange(size, size + horizon)
        now = size - season + torch.arange(horizon) % season
        whole = covariance(theta, rows, self.shape.seasons)
        columns = _columns(windows, batch)
        found = np.empty((3, len(batch.ends), horizon))
        for items in _alike(batch.known, alone=columns.shape[2] > 0):
            k = whole
            if columns.shape[2]:
                x = columns[items[0]]
                k = whole + theta[_COLUMNS].exp() ** 2 * x @ x.T
            known = torch.as_tensor(np.flatnonzero(batch.known[items[0]]))
            factor = _factor(k[known][:, known], theta)
            y = torch.as_tensor(batch.context[items])[:, known].T
            innovations = torch.linalg.solve_triangular(factor, y, upper=False)
            towards = torch.linalg.solve_triangular(factor, k[known], upper=False)
            left = k.diagonal() - towards.square().sum(0)
            variance = left[ahead] + theta[_NOISE].exp() ** 2
            scale = np.sqrt(sizes(innovations.numpy(), self.memory)[-1])
            scale[~moving(batch)[items]] = 1e-3  # nothing is known of how a constant series will move
            found[0, items] = (towards[:, ahead].T @ innovations).T
            found[1, items] = variance.sqrt().numpy() * scale[:, None]
            found[2, items] = (left[now].clamp_min(0) / variance).clamp(0, 1)
        return found[0], found[1], found[2]

    @torch.no_grad()
    def correlation(self) -> Array:
        """(H, H): of the errors of a series without gaps."""
        size, theta = self.shape.context, torch.as_tensor(self.theta)
        k = covariance(theta, torch.arange(size + self.shape.horizon, dtype=torch.float64), self.shape.seasons)
        towards = torch.linalg.solve_triangular(_factor(k[:size, :size], theta), k[:size, size:], upper=False)
        left = k[size:, size:] - towards.T @ towards + theta[_NOISE].exp() ** 2 * torch.eye(self.shape.horizon)
        size_of = left.diagonal().sqrt()
        return (left / size_of / size_of[:, None]).numpy()


def covariance(theta: Tensor, rows: Tensor, seasons: Sequence[int]) -> Tensor:
    """(n, n), without noise and columns."""
    e = theta.exp()
    apart = (rows[:, None] - rows).abs()
    near = math.sqrt(3) * apart / e[_FAR]
    found = 4 + e[_LEVEL] ** 2 * torch.exp(-apart / e[_LENGTH]) + e[_TREND] ** 2 * (1 + near) * torch.exp(-near)
    for k, season in enumerate(seasons):
        wave = 2 * torch.sin(math.pi * apart / season).square() / e[_WIDTH] ** 2
        found = found + e[_SEASONS + k] ** 2 * torch.exp(-wave - apart / (season * e[_MEMORY]))
    return found


def _factor(k: Tensor, theta: Tensor) -> Tensor:
    """The Cholesky factor of the covariance with noise; more noise is added where rounding leaves it indefinite."""
    eye = torch.eye(len(k), dtype=k.dtype)
    wide = k + (theta[_NOISE].exp() ** 2 + 1e-6) * eye
    for more in (0.0, 1e-9, 1e-7, 1e-5):
        factor, failed = torch.linalg.cholesky_ex(wide + more * wide.diagonal().detach().mean() * eye)
        if not int(failed):
            break
    return factor


def _columns(windows: Windows, batch: Batch) -> Tensor:
    """(B, T + H, F): columns that are known ahead."""
    panel, size = windows.panel, windows.shape.context
    rows = batch.ends[:, None] + np.arange(-size, 0)
    inside = np.clip(rows, 0, panel.lengths[batch.series][:, None] - 1)
    past = np.nan_to_num(panel.future[panel.offsets[batch.series][:, None] + inside])
    return torch.as_tensor(np.concatenate([past, batch.future], 1), dtype=torch.float64)


def _alike(known: Array, *, alone: bool) -> list[Array]:
    """Windows in groups that know the same rows."""
    if alone:
        return list(np.arange(len(known))[:, None])
    _, place = np.unique(known, axis=0, return_inverse=True)
    place = place.reshape(-1)
    return [np.flatnonzero(place == k) for k in range(place.max() + 1)]


def sizes(innovations: Array, memory: float) -> Array:
    """Mean squares (n + 1, ...) of the innovations (n, ...) before each, and after the last; those of `_PRIOR` more are
    taken to be 1."""
    total = count = np.zeros(innovations.shape[1:])
    found = [np.ones_like(total)]
    for square in np.minimum(np.square(innovations), _OUTLIER):
        total, count = memory * total + square, memory * count + 1
        found.append((_PRIOR + total) / (_PRIOR + count))
    return np.stack(found)


def _prior(shape: Shape, rows: int) -> tuple[Tensor, Tensor]:
    """Means and standard deviations of theta. A window has about unit variance."""
    middle = [0.4, 1.0, rows, 0.3, rows / 1.5, 8.0, 0.6, 0.3] + [0.5] * len(shape.seasons)
    wide = [1.0, 1.5, 1.5, 1.5, 0.8, 1.0, 0.4, 1.0] + [1.0] * len(shape.seasons)
    return torch.tensor(middle, dtype=torch.float64).log(), torch.tensor(wide, dtype=torch.float64)


def fitted(windows: Windows, cut: Array, start: Structure | None = None) -> tuple[float, Structure] | None:
    """The most likely hyperparameters a posteriori given rows before ``cut`` (S,), with their negative log density in
    the unit of the series; None where nothing moves."""
    shape = windows.shape
    series = np.flatnonzero(cut >= 4)
    if not len(series):
        return None
    series = series[np.linspace(0, len(series) - 1, min(len(series), _SERIES)).astype(int)]
    batch = windows.batch(series, cut[series])
    some = np.flatnonzero(moving(batch) & (batch.known.sum(1) > 2))
    if not len(some):
        return None
    rows = torch.arange(shape.context, dtype=torch.float64)
    middle, wide = _prior(shape, int(batch.known[some].sum(1).max()))
    parts = [(torch.as_tensor(np.flatnonzero(batch.known[i])), torch.as_tensor(batch.context[i])) for i in some]
    columns = _columns(windows, batch)[some, : shape.context]
    theta = (middle if start is None else torch.as_tensor(start.theta)).clone().requires_grad_(True)
    best: tuple[float, Tensor] = (math.inf, theta.detach().clone())

    def innovations(k: Tensor, i: int) -> tuple[Tensor, Tensor]:
        known, y = parts[i]
        if columns.shape[2]:
            k = k + theta[_COLUMNS].exp() ** 2 * columns[i] @ columns[i].T
        factor = _factor(k[known][:, known], theta)
        return factor, torch.linalg.solve_triangular(factor, y[known, None], upper=False)[:, 0]

    def loss() -> Tensor:
        k = covariance(theta, rows, shape.seasons)
        total = 0.5 * ((theta - middle) / wide).square().sum()
        for i in range(len(parts)):
            factor, found = innovations(k, i)
            total = total + 0.5 * found.square().sum() + factor.diagonal().log().sum()
        return total

    optimizer = torch.optim.LBFGS(
        [theta], max_iter=30 if start is None else 12, line_search_fn="strong_wolfe", history_size=8
    )

    def closure() -> float:
        nonlocal best
        optimizer.zero_grad()
        value = loss()
        value.backward()
        if float(value.detach()) < best[0]:
            best = float(value.detach()), theta.detach().clone()
        return float(value.detach())

    optimizer.step(closure)
    with torch.no_grad():
        value = float(loss())
        if not value <= best[0]:  # the search left the numbers that can be computed
            theta.copy_(best[1])
            value = best[0]
        k = covariance(theta, rows, shape.seasons)
        found = [innovations(k, i)[1].numpy() for i in range(len(parts))]
    for i in some:  # densities of scaled logarithms to those of values
        levels = batch.context[i][batch.known[i]]
        value += len(levels) * math.log(batch.scale[i])
        value += float((batch.centre[i] + batch.scale[i] * levels).sum()) if batch.log[i] else 0.0
    blank = grids.Calibration.identity(shape.horizon)
    return value, Structure(shape, theta.detach().numpy().copy(), _memory(found), blank)


def _memory(innovations: list[Array]) -> float:
    """The memory with the highest likelihood of innovations, by Student's t of 5 degrees; 1 unless clearly better."""

    def loss(memory: float) -> float:
        total = 0.0 if memory == 1 else 1.0
        for found in innovations:
            begin = min(10, len(found) // 3)
            size = sizes(found, memory)[:-1]
            total += float((0.5 * np.log(size) + 3 * np.log1p(np.square(found) / size / 5))[begin:].sum())
        return total

    return min(_MEMORIES, key=loss)


def calibrated(base: Structure, z: Array, apart: float) -> Structure:
    """With the size and the shape of errors z (n, H) in standard deviations, of which ``apart`` windows do not overlap.
    A prior worth four windows assumes that the errors match the model. Few windows leave doubt about their size: the
    intervals are wider by as much as those of Student's t."""
    blank, count = base.calibration, 4 + apart
    size = (4 + apart * float(np.nanmean(np.minimum(np.abs(z), 4))) / math.sqrt(2 / math.pi)) / count
    shape = grids.Calibration.fit(z, apart, centred=False).shape * math.sqrt(2 / math.pi)
    spread = blank.spread * _OPTIMISM * size * math.sqrt(1 + 2 / count)
    return replace(base, calibration=replace(blank, spread=spread, shape=shape))
