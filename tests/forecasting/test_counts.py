"""Intermittent demand and counts: whole numbers, never negative, and intervals no wider than they must be."""

import numpy as np
import pandas as pd
import pytest

from bayesrnn.forecasting import Forecaster, grids, scores


def demand(rng, kind, rows):
    """Between 60 and 90 percent zeros."""
    size = 1 + rng.poisson(rng.uniform(0.5, 5), rows) if kind == "counts" else np.exp(rng.normal(1, 0.6, rows)).round(2)
    return np.where(rng.random(rows) < rng.uniform(0.1, 0.4), size, 0.0)


def panel(kind, count, rows, seed=0):
    rng, stamps = np.random.default_rng(seed), pd.date_range("2021-01-01", periods=rows)
    parts = [pd.DataFrame({"unique_id": i, "ds": stamps, "y": demand(rng, kind, rows)}) for i in range(count)]
    return pd.concat(parts, ignore_index=True)


@pytest.mark.parametrize(("kind", "count", "rows"), [("counts", 30, 200), ("amounts", 30, 200), ("counts", 1, 400)])
def test_intervals_of_intermittent_demand(kind, count, rows):
    """Beside the quantiles of each series' past values, which are right for these series."""
    frame = panel(kind, count, rows)
    early = frame.groupby("unique_id").cumcount() < rows - 56
    table = Forecaster(14, "D", members=0).fit(frame[early]).backtest(frame, windows=4, level=[90], refit=False)
    found, past = scores(table).iloc[0], frame[early].groupby("unique_id")["y"]
    width = (past.quantile(0.95) - past.quantile(0.05)).mean()
    assert found["coverage-90"] > 0.85
    assert found["width-90"] < 1.25 * width
    levels = np.arange(1, 20) / 20
    error = table["y"].to_numpy()[:, None] - past.quantile(levels).unstack().loc[table["unique_id"]].to_numpy()
    assert found["crps"] < 1.02 * 2 * np.maximum(levels * error, (levels - 1) * error).mean()


@pytest.mark.parametrize("members", [0, 1])
def test_forecasts_of_counts_are_whole_numbers(members, tmp_path):
    frame = panel("counts", 3, 120)
    likelihood = "negative_binomial" if members else "auto"
    made = Forecaster(7, "D", members=members, minutes=0.05, hidden=8, samples=2, likelihood=likelihood).fit(frame)
    made.save(tmp_path / "f")
    for model in (made, Forecaster.load(tmp_path / "f")):
        tables = (
            model.predict(level=[50, 83, 99.9], quantiles=[0.33]),
            model.backtest(frame, windows=3, refit=False),
            model.sample_paths(20),
            model.sample_paths(2, method="autoregressive"),
            model.newsvendor(1, 3),
        )
        for table in tables:
            names = [c for c in table if c.startswith(("lo-", "hi-", "q-", "median", "order", "y"))]
            assert names
            assert (table[names] % 1 == 0).all(axis=None)
            assert (table[names] >= 0).all(axis=None)


def test_amounts_and_large_counts_are_not_rounded():
    rng = np.random.default_rng(0)
    for y in (rng.normal(20, 2, 120), rng.poisson(5000, 120)):
        frame = pd.DataFrame({"ds": pd.date_range("2020-01-01", periods=120), "y": y})
        assert (Forecaster(7, "D", members=0).fit(frame).predict()["hi-80"] % 1 != 0).any()


def test_scores_of_ties_are_normal_when_drawn():
    rng = np.random.default_rng(0)
    y = np.where(rng.random(20_000) < 0.7, 0.0, rng.exponential(size=20_000))
    p = np.clip((grids.LEVELS - 0.7) / 0.3, 0, 1)
    grid = np.broadcast_to(-np.log(1 - p), (20_000, len(p)))
    z = grids.scores_of(grid, y, rng)
    assert abs(np.mean(np.abs(z) < 1.645) - 0.9) < 0.02
    assert abs(np.mean(z < 0) - 0.5) < 0.02
    assert np.ptp(grids.scores_of(grid, y)[y == 0]) == 0
