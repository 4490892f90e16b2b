"""Windows in which values stopped changing."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from bayesrnn.forecasting import Forecaster, grids
from bayesrnn.forecasting.still import with_stops

ROWS, HORIZON = 30 * 24, 12


def frame(y):
    return pd.DataFrame({"ds": pd.date_range("2024-01-01", periods=len(y), freq="h"), "y": y})


@pytest.fixture(scope="module", params=["none", "log"])
def fitted(request):
    rng, t = np.random.default_rng(0), np.arange(ROWS)
    y = np.exp(3 + 0.5 * np.sin(2 * np.pi * t / 24) + 0.3 * rng.normal(size=ROWS))
    return Forecaster(horizon=HORIZON, season=24, members=0, transform=request.param).fit(frame(y)), y


@pytest.mark.parametrize("value", [0.0, 5.0, 70.0])
@pytest.mark.parametrize("days", [2, 11, 30])
def test_a_series_that_stopped_is_forecast_to_stay(fitted, value, days):
    """Without the rule, forecasts after ten days of a constant were another constant, within a hundredth."""
    f, y = fitted
    found = f.predict(frame(np.append(y, np.full(24 * days, value))), quantiles=[0.001, 0.999])
    np.testing.assert_allclose(found["median"], value, atol=0.02)
    assert (found["lo-95"] <= value + 0.02).all()
    assert (found["hi-95"] >= value - 0.02).all()
    if days == 2:  # it may move again
        assert (found["q-0.999"] - found["q-0.001"]).iloc[-1] > 5


def test_after_an_update_too(fitted):
    f, y = fitted
    copy = Forecaster(**f.settings).adopt(f.model, f.panel)
    stopped = frame(np.append(y, np.zeros(24 * 30)))
    found = copy.update(stopped.iloc[ROWS:]).predict()
    np.testing.assert_allclose(found["median"], 0, atol=0.02)
    assert (found["hi-95"] >= 0).all()


def test_a_mixture_of_the_latest_value_and_the_forecast():
    y = np.append(np.random.default_rng(0).normal(size=40), np.full(8, -0.5))
    panel = SimpleNamespace(y=np.append(y, y[:41]), offsets=np.array([0, 48, 89]))
    batch = SimpleNamespace(series=np.array([0, 1]), ends=np.array([48, 41]), context=np.stack([y[-20:], y[20:40]]))
    grid = np.broadcast_to(grids.Z, (2, 2, len(grids.Z))).copy()
    found = with_stops(grid, panel, batch)
    np.testing.assert_array_equal(found[1], grid[1])
    for stays, quantiles in zip((8 / 9, 8 / 10), found[0], strict=True):
        below = (1 - stays) * grids.normal_cdf(quantiles) + stays * (quantiles > -0.5)
        up_to = (1 - stays) * grids.normal_cdf(quantiles) + stays * (quantiles >= -0.5)
        assert ((below <= grids.LEVELS + 1e-3) & (up_to >= grids.LEVELS - 1e-3)).all()


def test_series_that_often_stop_are_left_to_the_model():
    y = np.repeat([1.0, 2, 3, 4, 5, 6], 8)
    panel, grid = SimpleNamespace(y=y, offsets=np.array([0, 48])), np.broadcast_to(grids.Z, (1, 2, len(grids.Z)))
    batch = SimpleNamespace(series=np.zeros(1, int), ends=np.array([48]), context=y[None, -20:])
    assert with_stops(grid, panel, batch) is grid
