"""Quantile grids: scores in closed form, and recalibration that restores coverage."""

import numpy as np
import pytest

from bayesrnn.forecasting import grids
from bayesrnn.forecasting.columns import Columns
from bayesrnn.forecasting.linear import Regression, anchors
from bayesrnn.forecasting.panel import panel_of
from bayesrnn.forecasting.windows import Shape, Windows


def test_crps_mean_and_deviation_of_a_normal():
    """CRPS of N(0, 1) at y is y (2 Phi(y) - 1) + 2 phi(y) - 1 / sqrt(pi)."""
    y = np.array([-2.0, 0.0, 0.5, 3.0])
    grid = np.broadcast_to(grids.Z, (4, len(grids.Z)))
    phi = np.exp(-(y**2) / 2) / np.sqrt(2 * np.pi)
    np.testing.assert_allclose(
        grids.crps(grid, y), y * (2 * grids.normal_cdf(y) - 1) + 2 * phi - np.pi**-0.5, rtol=0.02
    )
    np.testing.assert_allclose(grids.mean(grid), 0, atol=1e-9)
    np.testing.assert_allclose(grids.deviation(grid), 1, rtol=0.02)


def test_scores_are_the_inverse_of_quantiles():
    grid = np.sort(np.random.default_rng(0).normal(size=(5, len(grids.Z))), -1)
    z = np.array([[-3.5, -1.0, 0.0, 0.7, 4.0]] * 5)
    y = grids.at(grid, z)
    np.testing.assert_allclose(np.stack([grids.scores_of(grid, y[:, k]) for k in range(5)], 1), z, atol=1e-6)


def test_scores_of_counts_are_in_the_middle_of_their_levels():
    """A fair coin: 0 up to level 1/2, then 1. The middles are the quartiles."""
    grid = (grids.LEVELS > 0.5).astype(float)[None]
    found = [grids.normal_cdf(grids.scores_of(grid, np.array([y])))[0] for y in (0.0, 1.0)]
    assert found[0] < 0.3
    assert found[1] > 0.7
    assert np.isnan(grids.scores_of(grid, np.array([np.nan])))[0]


def test_recalibration_restores_coverage():
    """Forecasts half as wide as they should be, and shifted; calibrated on 400 windows, measured on 4000."""
    rng = np.random.default_rng(0)
    grid = np.broadcast_to(0.5 * grids.Z, (400, 2, len(grids.Z)))
    past, new = rng.normal([0.3, 0.0], [1.0, 2.0], (400, 2)), rng.normal([0.3, 0.0], [1.0, 2.0], (4000, 2))
    fitted = grids.Calibration.fit(grids.scores_of(grid, past), 400)
    found = fitted.apply(np.broadcast_to(0.5 * grids.Z, (4000, 2, len(grids.Z))))
    inside = (new > grids.quantile(found, 0.05)) & (new < grids.quantile(found, 0.95))
    np.testing.assert_allclose(inside.mean(0), 0.9, atol=0.025)


@pytest.fixture(scope="module")
def windows():
    import pandas as pd

    rng = np.random.default_rng(0)
    y = np.zeros(600)
    for t in range(2, 600):
        y[t] = 0.6 * y[t - 1] + 0.3 * y[t - 2] + rng.normal()
    panel = panel_of(pd.DataFrame({"ds": np.arange(600), "y": y + 50}), Columns(), freq=1)
    return Windows(panel, Shape(12, 3, (4,), "standard"))


def test_windows_hold_the_rows_before_and_after_an_end(windows):
    batch = windows.batch(np.zeros(2, int), np.array([100, 5]))
    y = windows.panel.y
    np.testing.assert_allclose(batch.levels(windows.shape, batch.context)[0], y[88:100])
    np.testing.assert_allclose(batch.actual, [y[100:103], y[5:8]])
    assert batch.known.sum(1).tolist() == [12, 5]  # before the first row there is nothing
    np.testing.assert_allclose(anchors(batch, windows.shape)["season 4"], batch.context[:, [8, 9, 10]])


def test_ridge_without_a_penalty_is_weighted_least_squares(windows):
    ends = np.arange(12, 590)
    batch = windows.batch(np.zeros(len(ends), int), ends)
    fitted = Regression(batch, windows.shape)
    found = fitted.linear("last", 1e-12)
    x, root = batch.features, np.sqrt(fitted.row_weights)[:, None]
    target = np.clip(batch.target, -12, 12) - batch.context[:, -1:]
    expected = np.linalg.lstsq(root * x, root * target, rcond=1e-9)[0]
    np.testing.assert_allclose(x @ found.weights, x @ expected, atol=1e-3)


def test_missing_targets_leave_the_fit_to_the_known_ones(windows):
    ends = np.arange(12, 590)
    batch = windows.batch(np.zeros(len(ends), int), ends)
    batch.target[::3, 1] = np.nan
    known = ~np.isnan(batch.target[:, 1])
    fitted = Regression(batch, windows.shape)
    found = fitted.linear("centre", 1e-3)
    x, w = batch.features[known], fitted.row_weights[known]
    gram = (x * w[:, None]).T @ x + 1e-3 * len(ends) * np.eye(x.shape[1])
    expected = np.linalg.solve(gram, (x * w[:, None]).T @ batch.target[known, 1])
    np.testing.assert_allclose(found.weights[:, 1], expected, atol=0.02)


def test_the_mean_of_a_single_value_is_that_value():
    value = np.full((1, 1, len(grids.LEVELS)), 19.642633231837)
    assert grids.mean(value) == value[..., 0]


def test_means_that_may_be_chance_are_dropped():
    doubt = np.full(4, 0.5)
    assert (grids.clear(np.full(4, 0.6), doubt) == 0).all()
    np.testing.assert_allclose(grids.clear(np.full(4, 5.0), doubt), 4.9)
    assert np.isfinite(grids.clear(np.zeros(4), np.zeros(4))).all()


def test_each_side_of_few_errors_has_its_own_size():
    """Errors of logarithms: many small ones above, some large ones below."""
    z = -np.random.default_rng(0).gamma(0.6, 1.0, (200, 1))
    shape = grids.Calibration.fit(z - np.median(z), 6, centred=False).shape
    assert -shape[0] > 1.5 * shape[-1]
