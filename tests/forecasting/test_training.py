"""Weights of the forecasts in an ensemble."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from bayesrnn.forecasting import Forecaster
from bayesrnn.forecasting.fitting import member_of, prepare
from bayesrnn.forecasting.training import NETWORK, Settings, combine, with_share

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


def test_the_weight_is_shared_within_the_best_one_s_kind():
    weights = combine(score_of([1.0, 1.0, 1.0, 1.2]), ALL, np.array([0, 1, 1, 1]), rounds=1)
    assert weights.tolist() == [1, 0, 0, 0]


def test_networks_learn_the_latest_rows_too():
    """The pattern of the day turns after the rows that validation holds back begin."""
    t = np.arange(1200)
    y = 20 + np.sin(2 * np.pi * t / 24) * np.where(t < 1080, 3, -3) + np.random.default_rng(0).normal(0, 0.3, t.size)
    model = Forecaster(6, "h", context=12, season=24, transform="none", scaling="standard")
    panel = model.panel_of(pd.DataFrame({"ds": pd.date_range("2026-01-01", periods=t.size, freq="h"), "y": y}))
    made = prepare(
        panel, model.shapes(panel), likelihood="student", calibrate=True, holidays=None, seconds=60, seed=0,
        say=lambda text: None, progress=lambda text, share: None,
    )  # fmt: skip
    torch.manual_seed(0)
    settings = replace(Settings(**{key: model.settings[key] for key in NETWORK}), posterior="none", hidden=16)
    member, base, windows = member_of(made, ["student"], settings, 0), made.before[0], made.cuts[0]
    member.sampler(base, windows, made.fold, np.random.default_rng(0))
    measure, member.steps = member.scored(base, windows, made.held), 400
    before = measure()
    member.refit(base, windows, until=np.inf, seed=0)
    assert measure() < 0.9 * before
    known = measure()
    member.refit(base, windows, until=0.0, seed=0)  # no time is left
    assert measure() == known


def test_a_forecast_with_other_errors_has_a_share_unless_it_costs_much():
    weights = np.array([1.0, 0.0])
    assert with_share(lambda w: 1 + 0.02 * w[1], weights, 1).tolist() == [0.7, 0.3]
    assert with_share(lambda w: 1 + 0.05 * w[1], weights, 1).tolist() == [1.0, 0.0]
    assert with_share(lambda w: 1.0, np.array([0.5, 0.5]), 1).tolist() == [0.5, 0.5]
