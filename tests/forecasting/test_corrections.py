"""Corrections of single series: ridge regression of the base's errors, for each series alone."""

import numpy as np
import pandas as pd
import pytest

from bayesrnn.forecasting import corrections
from bayesrnn.forecasting.columns import Columns
from bayesrnn.forecasting.linear import Linear
from bayesrnn.forecasting.panel import panel_of
from bayesrnn.forecasting.windows import Shape, Windows

SHAPE = Shape(context=24, horizon=3, seasons=(6,))


def frame(rows=150, series=2):
    """Two series with a season of 6; the second is also pulled back to its level."""
    rng = np.random.default_rng(0)
    parts = []
    for k in range(series):
        y = 10 + 3 * np.sin(np.arange(rows) * np.pi / 3) + np.cumsum(rng.normal(size=rows)) * (0.3 if k else 1.0)
        stamps = pd.date_range("2020-01-01", periods=rows, freq="h")
        parts.append(pd.DataFrame({"unique_id": f"s{k}", "ds": stamps, "y": y}))
    return pd.concat(parts, ignore_index=True)


def windows_of(data):
    columns = Columns("unique_id", "ds", "y")
    return Windows(panel_of(data, columns.learnt(data), freq="h", resample=None), SHAPE)


def seasonal(windows):
    size = corrections.features(windows.batch(np.zeros(1, int), np.full(1, 30)), SHAPE).shape[2]
    from bayesrnn.forecasting.linear import features

    wide = features(windows.batch(np.zeros(1, int), np.full(1, 30))).shape[1]
    return Linear("season 6", np.inf, np.zeros((wide, SHAPE.horizon)), np.zeros((wide, 1))), size


def test_coefficients_are_those_of_ridge_regression():
    windows = windows_of(frame())
    linear, size = seasonal(windows)
    seen = np.array([90, 150])
    found = corrections.fitted(linear, windows, np.arange(2), seen, (0.5,))[0]
    for s in range(2):
        count = seen[s] - SHAPE.horizon - SHAPE.least + 1
        each = int(np.clip(40_000 // 2, 16, (seen - SHAPE.horizon - SHAPE.least + 1).max()))
        ends = SHAPE.least + (np.arange(each) * count) // each
        batch = windows.batch(np.full(each, s), ends)
        x = corrections.features(batch, SHAPE)
        y = np.clip((batch.target - linear(batch, SHAPE)) / batch.spread[:, None], -12, 12)
        for h in range(SHAPE.horizon):
            ridge = 0.5 * (1 + SHAPE.horizon / count) * each * np.eye(size)
            expected = np.linalg.solve(x[:, h].T @ x[:, h] + ridge, x[:, h].T @ y[:, h])
            assert found.coefficients[s, h] == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_rows_after_those_seen_change_nothing():
    data = frame()
    other = data.copy()
    late = other.groupby("unique_id").cumcount() >= 100
    other.loc[late, "y"] *= 7
    one, two = (windows_of(d) for d in (data, other))
    linear, _ = seasonal(one)
    seen = np.full(2, 100)
    a, b = (corrections.fitted(linear, w, np.arange(2), seen, (1.0,))[0] for w in (one, two))
    assert np.array_equal(a.coefficients, b.coefficients)


def test_a_series_that_differs_is_forecast_better():
    windows = windows_of(frame(rows=600))
    linear, _ = seasonal(windows)
    made = corrections.fitted(linear, windows, np.arange(2), np.full(2, 400), (0.3,))[0]
    batch = windows.batch(np.ones(190, int), np.arange(405, 595))
    point = linear(batch, SHAPE)
    with_own = np.abs(batch.target - point - made(batch, SHAPE, batch.series)).mean()
    assert with_own < 0.9 * np.abs(batch.target - point).mean()


def test_missing_targets_and_short_series():
    data = frame()
    data.loc[10:40, "y"] = np.nan
    windows = windows_of(data)
    linear, _ = seasonal(windows)
    made = corrections.fitted(linear, windows, np.arange(2), np.array([150, 8]), (1.0,))[0]
    assert np.isfinite(made.coefficients).all()
    assert np.array_equal(made.coefficients[1], np.zeros_like(made.coefficients[1]))  # no window: no correction
    assert (made.left > 0).all()
