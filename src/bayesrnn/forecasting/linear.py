"""Linear forecasts of all series at once: seasonal naive with drift and ridge regression, in closed form."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bayesrnn.forecasting.grids import clear
from bayesrnn.forecasting.windows import Batch, Shape

Array = np.ndarray
PENALTIES = (
    1e-6,
    1e-5,
    1e-4,
    1e-3,
    1e-2,
    0.1,
    1.0,
    np.inf,
)  # times the number of windows; infinite: the anchor and its drift
_CLIP = 12.0  # scaled values beyond are outliers, and learnt from as this
LAGS = 12  # of past columns


def anchors(batch: Batch, shape: Shape) -> dict[str, Array]:
    """Forecasts (B, H) that need no learning: the window's centre, the last value, and the value a season before."""
    size, horizon = shape.context, shape.horizon
    found = {"centre": np.zeros((len(batch.ends), horizon)), "last": np.repeat(batch.context[:, -1:], horizon, 1)}
    for season in shape.seasons:
        if season < size:
            steps = size - season + np.arange(horizon) % season
            found[f"season {season}"] = batch.context[:, steps]
    return found


def features(batch: Batch) -> Array:
    """(B, D): context, calendar at the first step ahead, covariates, and 1; kept with the batch."""
    if batch.features is not None:
        return batch.features
    rows = len(batch.ends)
    parts = [np.clip(batch.context, -_CLIP, _CLIP), batch.calendar[:, 0], batch.static]
    parts.append(batch.past[:, -LAGS:].reshape(rows, -1))
    parts.append(batch.future.reshape(rows, -1))
    parts.append(np.ones((rows, 1)))
    batch.features = np.concatenate(parts, 1)
    return batch.features


def moving(batch: Batch) -> Array:
    """(B,): whether a window's context changes, or is too short to tell. A constant one teaches nothing, and its errors
    would count the most."""
    return (np.ptp(batch.context, axis=1) > 1e-6) | batch.cold


@dataclass(frozen=True)
class Linear:
    """``anchor`` plus a linear map of the features.

    ``root`` (D, D): x' root root' x is the posterior variance of the map at x, relative to noise of variance
    spread^2 (Bayesian linear regression with the ridge as its prior).
    """

    anchor: str
    penalty: float
    weights: Array
    root: Array

    def __call__(self, batch: Batch, shape: Shape) -> Array:
        """Scaled forecasts (B, H)."""
        found = anchors(batch, shape)[self.anchor] + features(batch) @ self.weights
        return np.where(moving(batch)[:, None], found, batch.context[:, -1:])

    def doubt(self, batch: Batch) -> Array:
        """Epistemic share of the variance, (B,)."""
        variance = np.square(features(batch) @ self.root).sum(1)
        return variance / (np.square(batch.spread) + variance)


class Regression:
    """Ridge regressions of one set of windows on every anchor, for any penalty, from one eigendecomposition.

    Errors count in units of each window's seasonal difference, as in the mean absolute scaled error. Windows are
    weighted by the inverse of their error in a first fit, so that the sum of errors is minimised and not that of their
    squares (iteratively reweighted least squares).
    """

    products: Array

    def __init__(self, batch: Batch, shape: Shape) -> None:
        self.bases = anchors(batch, shape)
        x, target = features(batch), np.clip(batch.target, -_CLIP, _CLIP)
        y = np.stack([target - np.clip(b, -_CLIP, _CLIP) for b in self.bases.values()], 1)  # (B, A, H)
        self.rows, self.ones, self.shape = len(x), x.shape[1] - 1, y.shape[1:]
        holes = np.isnan(y).reshape(self.rows, -1)
        y = np.nan_to_num(y).reshape(self.rows, -1)
        unit = np.maximum(batch.spread, np.quantile(batch.spread, 0.02))
        used = moving(batch)
        used = used if used.any() else ~used
        self._decompose(x, y, used * unit**-2.0)
        first = slice(y.shape[1] - self.shape[1], None)  # the last anchor: which one matters little
        error = np.where(holes, 0, np.abs(y - x @ self._solve(self.products, 1e-3 * self.rows)))[:, first].sum(1)
        error /= np.maximum((~holes[:, first]).sum(1), 1)
        least = max(np.quantile(error[used], 0.05), 1e-9)
        self._decompose(x, y, used / (unit * np.maximum(error, least)))
        self.noise = float(np.median((self.row_weights * unit**2)[used]))  # a weight is about noise / spread^2
        if holes.any():  # missing targets take what is forecast for them, which leaves the fit to the known ones
            for _ in range(8):
                y = np.where(holes, x @ self._solve(self.products, 1e-3 * self.rows), y)
                self.products = x.T @ (self.row_weights[:, None] * y)
        self.mean = (self.row_weights[:, None] * y).mean(0)
        self.deviation = np.sqrt((self.row_weights[:, None] * np.square(y - self.mean)).mean(0))

    def _decompose(self, x: Array, y: Array, weights: Array) -> None:
        self.row_weights = weights / weights.mean()
        weighted = x * self.row_weights[:, None]
        self.values, self.vectors = np.linalg.eigh(weighted.T @ x)
        self.values = np.maximum(self.values, 0)
        self.products = weighted.T @ y

    def _solve(self, products: Array, penalty: float) -> Array:
        return self.vectors @ ((self.vectors.T @ products) / (self.values + penalty + 1e-9)[:, None])

    def linear(self, anchor: str, penalty: float) -> Linear:
        columns = list(self.bases).index(anchor) * self.shape[1] + np.arange(self.shape[1])
        size = len(self.values)
        if np.isinf(penalty):
            weights = np.zeros((size, self.shape[1]))
            apart = self.rows / self.shape[1]  # about how many windows do not overlap
            drift = clear(self.mean[columns], self.deviation[columns] / np.sqrt(apart))
            weights[self.ones] = 0.0 if anchor == "centre" else drift * apart / (apart + 10)
            return Linear(anchor, penalty, weights, np.zeros((size, 1)))
        weights = self._solve(self.products[:, columns], penalty * self.rows)
        root = self.vectors * np.sqrt(self.noise / (self.values + penalty * self.rows + 1e-9))
        return Linear(anchor, penalty, weights, root)
