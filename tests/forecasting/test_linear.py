"""The linear forecast of panels that hold constant series."""

import numpy as np
import pandas as pd
import pytest

from bayesrnn.forecasting import Forecaster


@pytest.fixture(scope="module")
def forecasts():
    """Of two noisy series, alone and beside a constant one."""
    rng, hours = np.random.default_rng(0), pd.date_range("2026-01-01", periods=24 * 14, freq="h")
    wave = 10 * np.sin(np.arange(len(hours)) * 2 * np.pi / 24)
    noisy = [
        pd.DataFrame({"unique_id": k, "ds": hours, "y": 50 + wave + rng.standard_normal(len(hours))}) for k in "ab"
    ]
    still = pd.DataFrame({"unique_id": "still", "ds": hours, "y": 7.0})
    frames = {"alone": noisy, "beside": [*noisy, still]}
    return {
        name: Forecaster(12, "h", members=0).fit(pd.concat(parts)).predict(level=[90]) for name, parts in frames.items()
    }


def test_a_constant_series_leaves_the_others_as_they_are(forecasts):
    alone, beside = (forecasts[k].query("unique_id in ['a', 'b']") for k in ("alone", "beside"))
    np.testing.assert_allclose(beside["mean"].to_numpy(), alone["mean"].to_numpy(), atol=0.5)
    for found in (alone, beside):  # the data are a known wave and noise of 1: little is left to learn
        assert 0.7 < found["aleatoric_std"].mean() < 1.6
        assert found["epistemic_std"].mean() < 0.4


def test_a_constant_series_is_forecast_as_constant(forecasts):
    still = forecasts["beside"].query("unique_id == 'still'")
    np.testing.assert_allclose(still["mean"].to_numpy(), 7.0, atol=0.05)
    assert (still["hi-90"] - still["lo-90"]).max() < 0.2
