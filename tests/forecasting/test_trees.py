"""Boosted trees on quantiles."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from bayesrnn.errors import UserError
from bayesrnn.forecasting import Forecaster, grids, trees
from bayesrnn.forecasting.shapes import shapes_of
from bayesrnn.forecasting.windows import Windows

LEVELS = np.array(grids.KNOTS)


def panel_and_windows(y, season=24, horizon=6):
    frame = pd.DataFrame({"ds": pd.date_range("2026-01-01", periods=len(y), freq="h"), "y": y})
    panel = Forecaster(horizon, "h").panel_of(frame)
    shape = shapes_of(panel, horizon, seasons=(season,), context=48, scaling="standard", transform="none")[0]
    return panel, Windows(panel, shape)


def days(n=1500, seed=0):
    t = np.arange(n)
    return 20 + 4 * np.sin(2 * np.pi * t / 24) + np.random.default_rng(seed).normal(0, 1, n)


def test_leaves_hold_the_quantiles_of_their_errors():
    rng = np.random.default_rng(0)
    error, leaf = rng.normal(size=(5000, 1)).repeat(len(LEVELS), 1), rng.integers(0, 3, 5000)
    found = trees._leaf_values(error, leaf, LEVELS)
    for k in range(3):
        own = error[leaf == k, 0]
        wanted = np.quantile(own, LEVELS, method="weibull") * len(own) / (len(own) + trees._RIDGE)
        np.testing.assert_allclose(found[k], wanted, atol=1e-12)
    assert not found[3:].any()  # empty leaves


def test_trees_learn_where_the_level_and_where_the_spread_changes():
    rng = np.random.default_rng(1)
    x = rng.uniform(-1, 1, (30_000, 4))
    centre, sigma = np.where(x[:, 0] > 0.2, 3.0, 0.0), np.where(x[:, 2] > -0.5, 2.0, 0.5)
    y = centre + sigma * rng.normal(size=len(x))
    edges = np.quantile(x, np.linspace(0, 1, trees._BINS + 1)[1:-1], axis=0).T
    bins = trees.binned(x, edges)
    start, columns, cuts, values = trees._boost(bins, y, rng, np.inf)
    found = start + sum(v[trees._leaves(bins, c, b)] for c, b, v in zip(columns, cuts, values, strict=True))
    truth = centre[:, None] + sigma[:, None] * grids.normal_quantile(LEVELS)

    def pinball(forecast):
        return np.maximum(LEVELS * (y[:, None] - forecast), (LEVELS - 1) * (y[:, None] - forecast)).mean()

    assert pinball(found) < 1.02 * pinball(truth)
    assert set(np.unique(columns)) <= {0, 1, 2, 3}


def test_forecasts_do_not_depend_on_what_comes_after_the_cut():
    y = days()
    later = np.where(np.arange(len(y)) >= 1000, 99.0, y)
    found = []
    for values in (y, later):
        _, windows = panel_and_windows(values)
        cut = np.array([1000])
        made = trees.fitted(windows, cut, seed=3, until=np.inf)
        found.append(made.levels(windows, windows.batch(np.zeros(1, int), cut))[0])
    np.testing.assert_array_equal(*found)


def test_forecasts_move_and_stretch_with_the_series():
    found = []
    for a, b in ((0.0, 1.0), (-500.0, 0.01)):
        panel, windows = panel_and_windows(a + b * days())
        made = trees.fitted(windows, panel.lengths, seed=0, until=np.inf)
        found.append((made.levels(windows, windows.batch(np.zeros(1, int), panel.lengths))[0] - a) / b)
    np.testing.assert_allclose(*found, rtol=1e-3)


def test_intervals_cover_new_values_and_doubt_is_a_share():
    _, windows = panel_and_windows(days(4000))
    made = trees.fitted(windows, np.array([3000]), seed=0, until=np.inf)
    batch = windows.batch(np.zeros(160, int), np.arange(3000, 3960, 6))
    grid, share = made.levels(windows, batch)
    z = grids.scores_of(grid, batch.actual)
    assert 0.84 < (np.abs(z) < 1.645).mean() < 0.96
    naive = 0.5642 * np.sqrt(2)  # the CRPS of an error N(0, 2), that of the anchor
    assert grids.crps(grid, batch.actual).mean() < 0.92 * naive
    assert ((share > 0) & (share < 0.5)).all()


def test_fewer_rows_leave_more_doubt():
    shares = []
    for rows in (700, 3000):
        _, windows = panel_and_windows(days(3000))
        made = trees.fitted(windows, np.array([rows]), seed=0, until=np.inf)
        shares.append(made.levels(windows, windows.batch(np.zeros(50, int), np.arange(2500, 2800, 6)))[1].mean())
    assert shares[1] < 0.7 * shares[0]


def test_without_time_or_rows():
    panel, windows = panel_and_windows(days())
    assert trees.fitted(windows, panel.lengths, seed=0, until=0.0).columns.shape == (trees.GROUPS, 1, trees.DEPTH)
    assert trees.fitted(windows, np.array([60]), seed=0, until=np.inf) is None


def test_missing_values_are_neither_learnt_from_nor_forecast_from():
    y = days()
    y[np.random.default_rng(2).random(len(y)) < 0.3] = np.nan
    panel, windows = panel_and_windows(y)
    made = trees.fitted(windows, panel.lengths, seed=0, until=np.inf)
    grid, _ = made.levels(windows, windows.batch(np.zeros(1, int), panel.lengths))
    assert np.isfinite(grid).all()
    assert (np.diff(grid, axis=-1) >= 0).all()


@pytest.mark.parametrize("damage", ["columns", "values", "edges"])
def test_a_saved_forecaster_with_trees(tmp_path, damage):
    frame = pd.DataFrame({"ds": pd.date_range("2026-01-01", periods=900, freq="h"), "y": days(900)})
    made = Forecaster(6, "h", members=1, hidden=8, minutes=0.05, seed=1).fit(frame)
    (k,) = (k for k, base in enumerate(made.fitted.bases) if isinstance(base, trees.Trees))
    made.fitted.weights[:] = np.eye(len(made.fitted.weights))[k]
    made.save(tmp_path / "a")
    pd.testing.assert_frame_equal(Forecaster.load(tmp_path / "a").predict(), made.predict())
    base = made.fitted.bases[k]
    wrong = {"columns": base.columns + 99, "values": base.values[:, :, 1:], "edges": base.edges * np.nan}[damage]
    made.fitted.bases[k] = replace(base, **{damage: wrong})
    made.save(tmp_path / "b")
    with pytest.raises(UserError, match="trees"):
        Forecaster.load(tmp_path / "b")


def test_the_year_is_left_out_until_it_was_seen_three_times():
    tried = []
    for days_seen in (300, 600, 1200):
        panel = Forecaster(6, "D").panel_of(pd.DataFrame({
            "ds": pd.date_range("2020-01-01", periods=days_seen), "y": days(days_seen)}))  # fmt: skip
        shapes = shapes_of(panel, 6, seasons=(7,), context=28, scaling="standard", transform="none")
        tried.append({shape.year for shape in shapes})
    assert tried == [{False}, {True, False}, {True}]
