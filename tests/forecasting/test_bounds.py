"""Lower ends and whole numbers, by series."""

import numpy as np
import pandas as pd
import pytest

from bayesrnn.errors import UserError
from bayesrnn.forecasting import Forecaster, bounds
from bayesrnn.forecasting.shapes import shapes_of


def mixed(rows=150):
    rng, t = np.random.default_rng(0), np.arange(rows)
    values = {
        "counts": rng.poisson(1.5, rows).astype(float),
        "prices": np.exp(rng.normal(0, 1, rows)),
        "signed": rng.normal(0, 3, rows),
    }
    return pd.concat([pd.DataFrame({"unique_id": k, "ds": t, "y": y}) for k, y in values.items()])


@pytest.fixture(scope="module")
def fitted():
    return Forecaster(horizon=6, freq=1, members=0).fit(mixed())


def whole(values):
    return (values == np.round(values)).all()


def test_each_series_has_its_own(fitted, tmp_path):
    """One series with negative values must not let the others fall below zero or between whole numbers."""
    fitted.save(tmp_path / "f")
    for f in (fitted, Forecaster.load(tmp_path / "f")):
        low = f.predict(level=[99], quantiles=[0.001]).set_index("unique_id")
        assert (low.loc[["counts", "prices"], ["lo-99", "q-0.001"]] >= 0).all(axis=None)
        assert (low.loc["signed", "lo-99"] < -3).all()
        assert whole(low.loc["counts", "lo-99"])
        assert not whole(low.loc["prices", "median"])
        for method in ("copula", "autoregressive"):
            drawn = f.sample_paths(50, method=method).set_index("unique_id")["y"]
            assert (drawn[["counts", "prices"]] >= 0).all()
            assert (drawn["signed"] < 0).any()
            assert whole(drawn["counts"])
        orders = f.newsvendor(over=30, under=1).set_index("unique_id")["order"]
        assert (orders["prices"] >= 0).all()
        assert (orders["signed"] < 0).all()
        assert whole(orders["counts"])


def test_walking_forward_too(fitted):
    walk = fitted.backtest(windows=2, level=[99]).set_index("unique_id")
    assert (walk.loc[["counts", "prices"], "lo-99"] >= 0).all()
    assert (walk.loc["signed", "lo-99"] < 0).all()


def test_new_series_are_what_their_values_are(fitted):
    rows, frame = np.arange(40), mixed()
    rain = np.tile([0.5, 0.0, 2.5, 0.1], 10)
    new = pd.concat([
        pd.DataFrame({"unique_id": "rain", "ds": rows, "y": rain}),
        pd.DataFrame({"unique_id": "other", "ds": rows, "y": rain - 1}),
        frame[frame["unique_id"] == "signed"].iloc[:3],
    ])  # fmt: skip
    low = fitted.predict(new, level=[99]).set_index("unique_id")["lo-99"]
    assert (low["rain"] >= 0).all()
    assert (low["other"] < 0).all()


def test_of_rows_before_only():
    panel = Forecaster(horizon=6, freq=1).panel_of(mixed())
    panel.y[:3] = [2, 3, -1]
    many, never, small = bounds.Past(panel)(np.zeros(3, int), np.array([0, 2, 3]))
    np.testing.assert_array_equal(many, [0, 2, 3])
    np.testing.assert_array_equal(never, [True, True, False])
    np.testing.assert_array_equal(small, [True, True, False])


def test_positive_series_are_tried_as_logarithms_beside_others():
    f = Forecaster(horizon=6, freq=1)
    named = {"seasons": (), "context": None, "scaling": "auto"}
    frame = mixed()
    logs = {s.log for s in shapes_of(f.panel_of(frame[frame["unique_id"] != "counts"]), 6, transform="auto", **named)}
    assert logs == {"none", "all", "skewed"}
    with pytest.raises(UserError, match=r"Series 'signed': row \d+ is -[\d.]+, and transform=\"log\" is for values"):
        shapes_of(f.panel_of(frame), 6, transform="log", **named)
