"""Weights of the forecasts in an ensemble."""

import numpy as np
import pytest

from bayesrnn.forecasting.training import combine

ALL = np.ones(4, bool)


def score_of(errors):
    """Scores of independent errors of these sizes."""
    return lambda weights: float(np.sqrt(np.square(weights * np.asarray(errors)).sum()))


def test_forecasts_that_score_alike_share_the_weight():
    weights = combine(score_of([1.0, 1.01, 1.02, 50.0]), ALL)
    assert weights.sum() == pytest.approx(1)
    assert (weights[:3] > 0.2).all()
    assert weights[3] == 0  # a network that diverged


def test_a_forecast_that_is_better_alone_has_most_of_the_weight():
    weights = combine(lambda w: float(w @ np.array([1.0, 2.0, 2.0, 2.0])), ALL)
    assert weights.tolist() == [1, 0, 0, 0]


def test_what_is_not_allowed_has_no_weight():
    weights = combine(score_of([1.0, 1.0, 1.0, 1.0]), np.array([False, True, True, False]))
    assert weights.tolist() == [0, 0.5, 0.5, 0]
    assert combine(lambda w: 0.0, ALL).sum() == pytest.approx(1)  # a constant series
