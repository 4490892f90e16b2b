"""The forecaster behind scikit-learn's interface."""

import sys

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import TimeSeriesSplit, cross_val_score
from sklearn.utils import estimator_checks

from bayesrnn.sklearn import BayesianForecaster

DAYS = pd.date_range("2024-01-01", periods=130, name="day")
QUICK = {"horizon": 5, "minutes": 0.0, "members": 0}


def data():
    source = np.random.default_rng(0)
    X = pd.DataFrame({"price": source.normal(size=130), "ds": np.tile(["a", "b"], 65)}, index=DAYS)
    y = pd.Series(20 - 4 * X["price"] + 3 * (X["ds"] == "a") + 0.1 * source.normal(size=130), index=DAYS)
    return X, y


@pytest.fixture(scope="module")
def fitted():
    X, y = data()
    return BayesianForecaster(**QUICK).fit(X[:125], y[:125])


def test_columns_that_are_known_ahead(fitted):
    X, y = data()
    mean, std = fitted.predict(X[125:], return_std=True)
    assert np.abs(mean - y[125:]).max() < 1
    assert ((std > 0) & (std < 1)).all()
    low, high = fitted.predict_interval(X[125:], level=0.95)
    assert ((low <= mean) & (mean <= high)).all()
    assert fitted.score(X[125:], y[125:]) > 0.9
    np.testing.assert_array_equal(fitted.predict(X[125:128]), mean[:3])
    np.testing.assert_array_equal(fitted.predict(X.iloc[[126, 129]]), mean[[1, 4]])  # by date
    table = fitted.forecaster_.predict(
        future=pd.DataFrame({"ds": DAYS[125:], "x0": X["price"].to_numpy()[125:], "x1": X["ds"].to_numpy()[125:]})
    )
    np.testing.assert_array_equal(table["mean"], mean)


def test_without_columns_and_without_dates():
    y = np.sin(np.arange(100) * 2 * np.pi / 10)
    y[[3, 50]] = np.nan  # missing
    made = BayesianForecaster(**QUICK, season=10).fit(None, y)
    np.testing.assert_allclose(made.predict(steps=3), np.sin(np.arange(100, 103) * 2 * np.pi / 10), atol=0.1)
    assert len(made.predict()) == 5
    assert made.score(None, np.sin(np.arange(100, 105) * 2 * np.pi / 10)) > 0.9
    numbered = np.arange(100.0)[:, None] % 4
    one = BayesianForecaster(**QUICK).fit(numbered, y)
    assert one.predict(numbered[:5]).shape == (5,)


def test_cross_validation():
    X, y = data()
    made = BayesianForecaster(**QUICK)
    found = cross_val_score(made, X, y, cv=TimeSeriesSplit(3, test_size=5), error_score="raise")
    assert (found > 0.8).all()
    index = pd.DataFrame(index=DAYS)  # no columns
    scores = cross_val_score(
        made,
        index,
        y,
        cv=TimeSeriesSplit(2, test_size=4, gap=1),
        scoring="neg_mean_absolute_error",
        error_score="raise",
    )
    assert np.isfinite(scores).all()


def test_what_is_refused(fitted):
    X, y = data()
    for call, words in (
        (lambda: fitted.predict(), "needs X"),
        (lambda: fitted.predict(X[120:125]), "its rows lie in order from 2024-05-05"),
        (lambda: fitted.predict(X[118:]), "the horizon is 5 rows, got 12"),
        (lambda: fitted.predict(X[125:][["price"]]), "feature"),
        (lambda: fitted.predict_interval(X[125:], level=95), "level must be a probability"),
        (lambda: BayesianForecaster(**QUICK).fit(X[::-1], y[::-1]), "not in time order"),
        (lambda: BayesianForecaster(**QUICK).fit(X[:9], y), "inconsistent numbers of samples"),
        (lambda: BayesianForecaster(horizon=0).fit(X, y), "horizon"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    with pytest.raises(NotFittedError):
        BayesianForecaster().predict()


def test_pandas_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(
        ModuleNotFoundError, match=r"BayesianForecaster needs pandas: pip install 'bayesrnn\[forecast\]'"
    ):
        BayesianForecaster().fit(None, np.arange(50.0))


@pytest.mark.parametrize(
    "check",
    [
        "check_no_attributes_set_in_init", "check_parameters_default_constructible", "check_get_params_invariance",
        "check_set_params", "check_estimator_cloneable", "check_estimator_repr", "check_mixin_order",
        "check_estimator_tags_renamed",
    ],
)  # fmt: skip
def test_scikit_learn_s_own_checks(check):
    getattr(estimator_checks, check)("BayesianForecaster", BayesianForecaster())


def test_a_clone_has_the_parameters_and_makes_the_same(fitted):
    X, y = data()
    again = clone(fitted).fit(X[:125], y[:125])
    np.testing.assert_array_equal(again.predict(X[125:]), fitted.predict(X[125:]))
    assert clone(fitted).set_params(horizon=3).get_params()["horizon"] == 3
