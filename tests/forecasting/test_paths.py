"""Sample paths: their marginals and how their steps hang together."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from bayesrnn.forecasting import Forecaster, grids
from bayesrnn.forecasting.calibration import correlation_of
from bayesrnn.forecasting.paths import copula
from bayesrnn.forecasting.selection import Base


def test_a_copula_has_the_marginals_and_the_correlation():
    grid = np.broadcast_to(5 + 2 * grids.Z, (1, 3, len(grids.Z)))
    correlation = 0.8 ** np.abs(np.subtract.outer(np.arange(3), np.arange(3)))
    found = copula(grid, correlation, 40_000, np.random.default_rng(0))[0]
    np.testing.assert_allclose(found.mean(0), 5, atol=0.05)
    np.testing.assert_allclose(found.std(0), 2, atol=0.03)
    np.testing.assert_allclose(np.corrcoef(found.T), correlation, atol=0.02)


def test_missing_values_do_not_weaken_the_correlation():
    rng = np.random.default_rng(0)
    wanted = 0.9 ** np.abs(np.subtract.outer(np.arange(4), np.arange(4)))
    z = rng.multivariate_normal(np.zeros(4), wanted, 20_000)
    z[rng.random(z.shape) < 0.4] = np.nan
    np.testing.assert_allclose(correlation_of(z, 1e9), wanted, atol=0.02)


def walk(rows, seed=0):
    """y_t = 0.9 y_{t-1} + noise: errors h and k steps ahead are correlated, and grow with h."""
    rng, y = np.random.default_rng(seed), np.zeros(rows)
    for t in range(1, rows):
        y[t] = 0.9 * y[t - 1] + rng.normal()
    return pd.DataFrame({"ds": np.arange(rows), "y": y})


@pytest.fixture(scope="module", params=[160, 900], ids=["structure", "linear"])
def model(request):
    return Forecaster(6, members=0, season=1).fit(walk(request.param))


@pytest.mark.parametrize("method", ["copula", "autoregressive"])
def test_paths_of_an_autoregression(model, method):
    found = model.sample_paths(2000, method=method)
    assert list(found) == ["unique_id", "ds", "path", "y"]
    y = found["y"].to_numpy().reshape(2000, 6)
    table = model.predict(level=[80])
    inside = (y > table["lo-80"].to_numpy()) & (y < table["hi-80"].to_numpy())
    np.testing.assert_allclose(inside.mean(0), 0.8, atol=0.03)
    # Truth: steps 5 and 6 are correlated by 0.9 sqrt(var_5 / var_6) = 0.85.
    assert np.corrcoef(y[:, 4], y[:, 5])[0, 1] == pytest.approx(0.85, abs=0.1)


def test_autoregressive_paths_of_a_logarithm_stay_within_its_forecast():
    """One step ahead of the next, errors would multiply: values up to 25 would lead to 1e12."""
    y = np.exp(0.3 * np.random.default_rng(1).normal(size=200).cumsum())
    model = Forecaster(40, members=0, season=1, transform="log").fit(pd.DataFrame({"ds": np.arange(200), "y": y}))
    found = model.sample_paths(200, method="autoregressive")["y"].to_numpy().reshape(200, 40)
    table = model.predict(level=[80, 99.9999])
    assert (found < table["hi-99.9999"].to_numpy()).all()
    assert (found >= 0).all()
    inside = (found > table["lo-80"].to_numpy()) & (found < table["hi-80"].to_numpy())
    np.testing.assert_allclose(inside.mean(0), 0.8, atol=0.02)
    assert len(model.sample_paths(3, method="autoregressive")) == 120


def test_autoregressive_paths_read_columns_known_ahead():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"ds": np.arange(400), "sale": rng.integers(0, 2, 400), "x": rng.normal(size=400)})
    frame["y"] = 10 * frame["sale"] + rng.normal(size=400)
    model = Forecaster(4, members=0, season=1, future=["sale"], past=["x"]).fit(frame)
    future = pd.DataFrame({"ds": np.arange(400, 404), "sale": [0, 1, 0, 1]})
    found = model.sample_paths(50, future=future, method="autoregressive")
    mean = found.groupby("ds")["y"].mean().to_numpy()
    np.testing.assert_allclose(mean, [0, 10, 0, 10], atol=2)
    pd.testing.assert_frame_equal(found, model.sample_paths(50, future=future, method="autoregressive"))


def test_two_series_keep_their_own_paths():
    frame = pd.concat(
        [walk(200).assign(unique_id="low"), walk(300, 1).assign(unique_id="high", y=lambda f: f["y"] + 100)]
    )
    model = Forecaster(3, members=0, season=1).fit(frame)
    means = model.sample_paths(40, method="autoregressive").groupby("unique_id")["y"].mean()
    assert abs(means["low"]) < 10
    assert abs(means["high"] - 100) < 10
    with pytest.raises(ValueError, match="method must be one of"):
        model.sample_paths(2, method="bootstrap")


def test_both_methods_have_the_distribution_of_predict():
    frame = pd.concat([walk(200, k).assign(unique_id=str(k)) for k in range(2)])
    model = Forecaster(4, members=0, season=1).fit(frame)
    table = model.predict()
    spread = np.hypot(table["aleatoric_std"], table["epistemic_std"])
    mean = model.sample_paths(3000, method="autoregressive").groupby(["unique_id", "ds"])["y"].mean().to_numpy()
    assert (np.abs(mean - table["mean"]) < 0.01 * spread).all()


def test_autoregressive_paths_of_many_copies_have_the_forecast_s_quantiles():
    """How many copies of a series there are changes corrections of a series by its own errors, not the forecast."""
    made = (walk(600, k).assign(unique_id=f"s{k}") for k in range(8))
    frame = pd.concat(f.assign(y=f["y"] + 20 + 5 * np.sin(f["ds"] * np.pi / 12)) for f in made)
    model = Forecaster(6, members=0, season=24).fit(frame)
    model.fitted.bases = [replace(b, penalty=1.0, _kept={}) for b in model.fitted.bases if isinstance(b, Base)]
    model.fitted.weights = np.full(len(model.fitted.bases), 1 / len(model.fitted.bases))
    drawn = model.sample_paths(1024, frame[frame["unique_id"] < "s2"], method="autoregressive")
    table = model.predict(quantiles=[0.1, 0.9]).set_index(["unique_id", "ds"])
    found = drawn.groupby(["unique_id", "ds"])["y"].quantile([0.1, 0.9]).unstack()
    table = table.loc[found.index]
    width = table["q-0.9"] - table["q-0.1"]
    for q in (0.1, 0.9):
        assert ((found[q] - table[f"q-{q}"]).abs() / width).max() < 0.005
