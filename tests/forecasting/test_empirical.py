"""Distributions of past values and of past changes."""

import numpy as np
import pandas as pd
import pytest

from bayesrnn.forecasting import Forecaster, empirical, grids
from bayesrnn.forecasting.empirical import Empirical
from bayesrnn.forecasting.windows import Windows


def frame(y, freq="MS"):
    return pd.DataFrame({"ds": pd.date_range("2010-01-01", periods=len(y), freq=freq), "y": y})


@pytest.fixture(scope="module")
def monthly():
    rng, t = np.random.default_rng(0), np.arange(120)
    return 50 + 10 * np.sin(2 * np.pi * t / 12) + rng.normal(0, 1, t.size)


def base_of(y, horizon):
    forecaster = Forecaster(horizon, "MS")
    panel = forecaster.panel_of(frame(y))
    (found,) = empirical.empirical(panel, forecaster.shapes(panel)[-1])
    return found, Windows(panel, found.shape)


def test_changes_are_added_to_the_last_season(monthly):
    base, windows = base_of(monthly, 14)
    assert base.lag == 12
    grid, share = base.levels(windows, windows.batch(np.zeros(1, int), np.array([100])))
    past = monthly[:100]
    for step, lag in ((0, 12), (11, 12), (12, 24)):
        change = np.sort(past[lag:] - past[:-lag])
        low = past[100 + step - lag] + change[int(np.floor(0.05 * (len(change) + 1))) - 1]
        np.testing.assert_allclose(grid[0, step, np.searchsorted(grids.LEVELS, 0.05)], low)
    assert (np.diff(grid) >= 0).all()
    assert ((share > 0) & (share < 1)).all()


def test_a_walk_continues_from_its_last_value():
    walk = 100 + np.cumsum(np.random.default_rng(0).normal(size=120))
    base, windows = base_of(walk, 6)
    assert base.lag == 1
    np.testing.assert_allclose(base.last(windows.batch(np.zeros(1, int), np.array([90]))), walk[89])


def test_gaps_and_few_rows_leave_quantiles_finite(monthly):
    gappy = monthly.copy()
    gappy[20:60] = np.nan
    base, windows = base_of(gappy, 12)
    assert np.isfinite(base.levels(windows, windows.batch(np.zeros(3, int), np.array([4, 16, 70])))[0]).all()


def test_short_series_weigh_past_changes_by_their_scores(monthly, tmp_path):
    fitted = Forecaster(6, "MS").fit(frame(monthly))
    model = fitted.fitted
    assert isinstance(model.bases[1], Empirical)
    assert model.weights.sum() == pytest.approx(1)
    assert model.weights[0] > model.weights[1] > 0.02
    opened = Forecaster.load(fitted.save(tmp_path / "saved"))
    assert opened.fitted.bases[1].lag == model.bases[1].lag
    pd.testing.assert_frame_equal(fitted.predict(), opened.predict())
