"""Costs, thresholds and anomalies, against what is known in closed form."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from bayesrnn.errors import UserError
from bayesrnn.forecasting import Forecaster, grids
from bayesrnn.forecasting.decisions import orders


def normal_grid(mean=0.0, sigma=1.0, steps=3):
    return np.broadcast_to(mean + sigma * grids.Z, (1, steps, len(grids.Z))).copy()


def test_the_newsvendor_of_a_normal_demand():
    """The order is the critical quantile z, and its cost (over + under) sigma phi(z)."""
    over, under = 1.0, 3.0
    found = orders(normal_grid(100, 10), over, under, bounded=lambda y: y)
    z = grids.normal_quantile(np.array([0.75]))[0]
    np.testing.assert_allclose(found["order"], 100 + 10 * z, rtol=1e-3)
    cost = (over + under) * 10 * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    np.testing.assert_allclose(found["cost"], cost, rtol=0.01)
    assert (found["cost_of_mean"] > found["cost"]).all()


def test_the_newsvendor_of_a_cost_that_is_rare():
    """The stated cost of the 0.995 quantile comes from values in the tail."""
    found = orders(normal_grid(), 1.0, 199.0, bounded=lambda y: y)
    z = grids.normal_quantile(np.array([0.995]))[0]
    np.testing.assert_allclose(found["cost"], 200 * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi), rtol=0.03)


@pytest.mark.parametrize("rate", [0.3, 3.0, 12.0])
@pytest.mark.parametrize("share", [0.002, 0.01, 0.05, 0.11, 0.3])
def test_counts_raise_no_more_alarms_than_stated(rate, share):
    y = np.arange(60.0)
    one = stats.poisson(rate)
    grid = np.broadcast_to(one.ppf(grids.LEVELS), (60, len(grids.LEVELS)))
    p = grids.p_values(grid, y, whole=True)
    assert one.pmf(y)[p < share].sum() <= 1.1 * share
    assert p[-1] < 1e-6  # though the outermost quantiles are equal


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"ds": np.arange(900), "y": rng.normal(10, 1, 900)})
    return Forecaster(10, members=0, season=1).fit(frame[:500]), frame


def test_crossing_of_independent_noise(fitted):
    """P(any of 10 values of N(10, 1) above 12) = 1 - Phi(2)^10 = 0.206."""
    found = fitted[0].crossing(12.0, n=4000)
    assert found["probability"].item() == pytest.approx(0.206, abs=0.08)
    assert fitted[0].crossing(0.0)["probability"].item() == 1.0
    assert fitted[0].crossing(0.0, above=False)["probability"].item() == 0.0
    with pytest.raises(UserError, match="threshold has no value for series 'series'"):
        fitted[0].crossing({"b": 1.0})
    assert fitted[0].crossing(pd.Series({"series": 0.0}))["probability"].item() == 1.0


def test_anomalies_at_a_stated_rate(fitted):
    model, frame = fitted
    new = frame[500:].copy()
    found = model.anomalies(new, false_alarms=0.05)
    assert len(found) == 400
    assert found["alarm"].mean() == pytest.approx(0.05, abs=0.035)
    pd.testing.assert_frame_equal(model.anomalies(frame, false_alarms=0.05), found)  # with the rows of fit before
    overlapping = model.anomalies(frame[480:], false_alarms=0.05)
    pd.testing.assert_frame_equal(overlapping, found)  # with some of them
    with pytest.raises(UserError, match="Series 'series' has no rows after those of fit; give newer ones"):
        model.anomalies(frame[:500])
    new.loc[700, "y"] = 30.0
    found = model.anomalies(new, false_alarms=0.001)
    assert found.loc[found["score"].idxmax(), "ds"] == 700
    assert found["alarm"].sum() <= 3
    with pytest.raises(UserError, match="false_alarms is 2; it is a share"):
        model.anomalies(new, false_alarms=2)


def test_anomalies_leave_out_rows_without_values():
    rng, level = np.random.default_rng(0), {"a": 50, "b": 1050}
    rows = {name: pd.DataFrame({"unique_id": name, "ds": np.arange(224), "y": rng.normal(mean, 1, 224)})
            for name, mean in level.items()}  # fmt: skip
    model = Forecaster(12, members=0, season=1).fit(pd.concat(frame[:200] for frame in rows.values()))
    for name, frame in rows.items():
        new = frame[200:].assign(y=lambda f: f["y"].where(f["ds"] < 218))
        pd.testing.assert_frame_equal(model.anomalies(new), model.anomalies(new[:18]))
        both = pd.concat([new, frame[200:].assign(unique_id="c", y=np.nan)])
        assert model.anomalies(both)["y"].between(level[name] - 9, level[name] + 9).sum() == 18
    with pytest.raises(UserError, match="Series 'a' has no value in its new rows; give rows with values"):
        model.anomalies(rows["a"][200:].assign(y=np.nan))


def test_newsvendor_and_paths_of_a_fitted_model(fitted):
    model, _ = fitted
    table = model.newsvendor(over=1, under=4)
    assert (table["order"] > model.predict()["median"]).all()
    futures = model.sample_paths(200)
    assert len(futures) == 2000
    width = futures.groupby("ds")["y"].std()
    assert width.between(0.7, 1.5).all()
    with pytest.raises(UserError, match="over is 0; a cost per unit is a number above 0"):
        model.newsvendor(over=0, under=1)


def test_one_update_adapts_widths_as_several_do(fitted, tmp_path):
    model, frame = fitted
    model.save(tmp_path / "model")
    once, often = (Forecaster.load(tmp_path / "model") for _ in range(2))
    once.update(frame[500:540])
    for begin in range(500, 540):
        often.update(frame[begin : begin + 1])
    assert (once._widths.outer != 1).any()
    np.testing.assert_allclose(once._widths.state, often._widths.state)
