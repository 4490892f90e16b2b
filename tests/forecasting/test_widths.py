"""Adaptive widths of intervals."""

import numpy as np
import pytest

from bayesrnn.forecasting import grids
from bayesrnn.forecasting.widths import Widths, scores


def walked(errors, widths=None):
    """Widths, and whether values were inside, of forecasts from every row. Errors (rows, H) of the forecasts that were
    made for a row 1 to H rows before are in half the width of the 90% interval. Those made before the first row are
    judged, but do not count."""
    rows, horizon = errors.shape
    widths, used, inside = widths or Widths(horizon), [], []
    steps = np.arange(horizon)
    for row in range(rows):
        used.append(widths.outer)
        made = steps[steps <= row]
        inside.append([errors[row, h] <= used[row - h][h] for h in made])
        widths.after(errors[row], steps)
    return np.array(used), np.concatenate(inside)


def test_scores_are_the_width_that_is_needed():
    grid = np.broadcast_to(10 + grids.Z, (4, len(grids.Z)))
    found = scores(grid, np.array([10.0, 10 + 1.6449, 10 - 3.2897, np.nan]), whole=False)
    np.testing.assert_allclose(found, [0, 1, 2, np.nan], atol=1e-4)
    # Rounded quantiles reach half a unit further.
    assert scores(grid[0], np.array(10.4), whole=True) == 0
    np.testing.assert_allclose(scores(grid[0], np.array(12.0), whole=True), 1.5 / 1.6449, atol=1e-4)
    # Values at a lower end that several levels share are inside.
    assert scores(np.maximum(grids.Z, 0), np.zeros(()), whole=False) == 0


@pytest.mark.parametrize("size", [0.6, 1.0, 1.8])
def test_a_walk_of_three_years_covers(size):
    """Forecasts of 12 steps whose intervals are too wide, right or too narrow by a factor; errors in a row are alike.
    Without adapting, 90% intervals cover 99%, 90% and 64%, and no walk of the first and the last is within 85-95%."""
    rng, shares = np.random.default_rng(0), []
    for _ in range(40):
        common, own = rng.normal(size=(36, 1)), rng.normal(size=(36, 12))
        errors = size * np.abs(0.7 * common + 0.7 * own) / 1.645
        shares.append(walked(errors)[1].mean())
    assert 0.86 < np.mean(shares) < 0.95
    assert np.mean([0.85 <= share <= 0.95 for share in shares]) > 0.5


def test_coverage_holds_when_errors_grow_for_good():
    rng = np.random.default_rng(0)
    errors = np.abs(rng.normal(size=(600, 6))) * np.repeat([1.0, 2.0], 300)[:, None] / 1.645
    used, inside = walked(errors)
    assert abs(inside.mean() - 0.9) < 0.02
    assert 0.85 < used[150:300].mean() < 1.2
    assert 1.6 < used[-100:].mean() < 2.4


def test_the_centre_does_not_pay_for_a_run_of_misses():
    """Errors that are all a little too large for the 90% interval."""
    widths, grid = Widths(1), grids.Z[None, None]
    for _ in range(8):
        widths.after(np.array([1.3]), np.zeros(1, int))
    found = widths.apply(grid)[0, 0] / np.where(grids.Z == 0, 1, grids.Z)
    inner, outer = np.searchsorted(grids.LEVELS, [0.55, 0.95])
    assert 1.0 < found[inner] < found[outer]
    for _ in range(200):
        widths.after(np.array([0.05]), np.zeros(1, int))
    assert (np.diff(widths.apply(grid)) >= 0).all()


def test_steps_have_widths_of_their_own():
    rng = np.random.default_rng(0)
    used, _ = walked(np.abs(rng.normal(size=(400, 2))) * [0.8, 1.2] / 1.645)
    assert used[-50:, 1].mean() > 1.2 * used[-50:, 0].mean()


def test_state_goes_on_where_it_was_and_rows_without_values_do_not_count():
    rng = np.random.default_rng(0)
    errors = np.abs(rng.normal(size=(40, 3)))
    whole = Widths(3)
    walked(errors, whole)
    half = Widths(3)
    for rows in (errors[:20], errors[20:]):
        for row in rows:
            half = Widths(3, half.state)
            half.after(row, np.arange(3))
    fresh = Widths(3)
    for row in errors:
        fresh.after(row, np.arange(3))
    np.testing.assert_array_equal(half.state, fresh.state)
    before = whole.outer
    whole.after(np.full(3, np.nan), np.arange(3))
    np.testing.assert_array_equal(whole.outer, before)


def blocks(size, seed):
    """Coverage (8,) and widths (8,) of 80% intervals of twelve series: each block of 24 steps is forecast from its
    first row, with errors of these sizes (8,)."""
    rng, widths, grid, found = np.random.default_rng(seed), Widths(24), grids.Z[None, None].repeat(24, 1), []
    low, high = np.searchsorted(grids.LEVELS, [0.1, 0.9])
    for s in size:
        errors = s * (0.3 * rng.normal(size=(12, 1)) + 0.95 * rng.normal(size=(12, 24)))
        now = widths.apply(grid)[0]
        found.append((((errors > now[:, low]) & (errors < now[:, high])).mean(), (now[:, high] - now[:, low]).mean()))
        for step in range(24):
            widths.after(np.abs(errors[:, step]) / 1.645, np.full(12, step))
    return np.array(found).T


def test_calibrated_forecasts_stay_so_from_the_first_block_on():
    """One block of 288 alike errors used to move widths by a seventh."""
    coverage, width = np.mean([blocks(np.ones(8), seed) for seed in range(30)], axis=0)
    np.testing.assert_allclose(coverage, 0.8, atol=0.015)
    assert np.std([blocks(np.ones(2), seed)[1, 1] for seed in range(30)]) < 0.08 * width[0]


def test_widths_follow_errors_that_double():
    coverage, _ = np.mean([blocks([1, 1, 1, 2, 2, 2, 2, 2], seed) for seed in range(10)], axis=0)
    assert coverage[3] < 0.55
    assert coverage[5] > 0.65
    assert coverage[7] > 0.7
