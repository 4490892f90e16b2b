"""The Gaussian process of short series."""

import numpy as np
import pandas as pd
import pytest
import torch

from bayesrnn.forecasting import Forecaster, structure
from bayesrnn.forecasting.structure import Structure


def monthly(seed, rows=140):
    """A level that wanders, a season in percent, and noise."""
    rng, t = np.random.default_rng(seed), np.arange(rows)
    level = 5 + 0.004 * t + np.cumsum(rng.normal(0, 0.01, rows))
    y = np.exp(level + 0.15 * np.sin(2 * np.pi * t / 12) + rng.normal(0, 0.03, rows))
    return pd.DataFrame({"ds": pd.date_range("2010-01-01", periods=rows, freq="MS"), "y": y})


@pytest.fixture(scope="module")
def fitted():
    model = Forecaster(12, "MS").fit(monthly(0, 98))
    base = model.model.bases[0]
    assert isinstance(base, Structure)
    return model, base


def test_moments_are_those_of_the_joint_normal_distribution(fitted):
    model, base = fitted
    windows = model._windows(model.panel)[0]
    batch = windows.batch(np.zeros(1, int), np.array([60]))
    batch.known[0, -30:-20] = False  # a gap
    mean, sigma, share = base.moments(windows, batch)
    known = np.flatnonzero(batch.known[0])
    rows = torch.arange(base.shape.context + 12, dtype=torch.float64)
    k = structure.covariance(torch.as_tensor(base.theta), rows, base.shape.seasons).numpy()
    k += np.exp(2 * base.theta[0]) * np.eye(len(k))
    k[known, known] += 1e-6
    ahead = np.arange(base.shape.context, len(k))
    weights = np.linalg.solve(k[np.ix_(known, known)], k[np.ix_(known, ahead)])
    y = batch.context[0, known]
    np.testing.assert_allclose(mean[0], weights.T @ y, rtol=1e-6, atol=1e-8)
    variance = (k[np.ix_(ahead, ahead)] - weights.T @ k[np.ix_(known, ahead)]).diagonal()
    innovations = np.linalg.solve(np.linalg.cholesky(k[np.ix_(known, known)]), y)
    size = structure.sizes(innovations, base.memory)[-1]
    np.testing.assert_allclose(sigma[0], np.sqrt(variance * size), rtol=1e-6)
    assert ((share > 0) & (share < 1)).all()


def test_sizes_forget():
    calm, wild = np.full(50, 0.1), np.full(50, 3.0)
    assert structure.sizes(np.concatenate([wild, calm]), 0.9)[-1] < 0.6
    assert structure.sizes(np.concatenate([wild, calm]), 1.0)[-1] > 3
    assert structure.sizes(np.zeros(0), 1.0).tolist() == [1.0]


def test_a_changing_variance_is_noticed():
    rng = np.random.default_rng(0)
    y = 50 + rng.normal(0, np.repeat([8.0, 1.0], 60))
    frame = pd.DataFrame({"ds": pd.date_range("2010-01-01", periods=120, freq="MS"), "y": y})
    found = Forecaster(3, "MS").fit(frame).predict(level=[90])
    width = (found["hi-90"] - found["lo-90"]).mean()
    assert 2 < width < 12  # 3.3 for the last half alone, 19 for all rows


def test_columns_known_ahead_move_the_forecast():
    rng, frame = np.random.default_rng(0), monthly(1, 100)
    frame["sale"] = rng.integers(0, 2, 100)
    frame["y"] += 60 * frame["sale"]
    model = Forecaster(4, "MS", future=["sale"]).fit(frame)
    stamps = pd.date_range("2018-05-01", periods=4, freq="MS")
    none, all_ = (model.predict(future=pd.DataFrame({"ds": stamps, "sale": v}))["median"] for v in (0, 1))
    assert (all_ - none).between(25, 100).all()


def test_intervals_of_140_months_cover_and_beat_the_season_before():
    """Over 12 made-up series: the coverage of a single one is the luck of a few independent years."""
    inside, ratio = [], []
    for seed in range(12):
        frame = monthly(seed)
        model = Forecaster(12, "MS").fit(frame[:98])
        table = model.backtest(frame, windows=31, step=1, level=[90], refit=False)
        y, values = table["y"].to_numpy(), frame["y"].to_numpy()
        inside.append(((y >= table["lo-90"]) & (y <= table["hi-90"])).mean())
        levels = np.arange(1, 20) / 20
        scores = []
        for end in range(98, 129):
            past = values[:end]
            naive = past[-12:, None] + np.quantile(past[12:] - past[:-12], levels)
            error = values[end : end + 12, None] - naive
            scores.append(2 * np.maximum(levels * error, (levels - 1) * error).mean())
        ratio.append(table["crps"].mean() / np.mean(scores))
    assert 0.85 <= np.mean(inside) <= 0.95
    assert np.mean(ratio) < 0.9
    assert np.mean(np.array(ratio) < 1) >= 0.75
