"""Every option of the forecaster, from fitting to decisions, before and after saving."""

import numpy as np
import pandas as pd
import pytest

from bayesrnn.forecasting import Forecaster


def counts(rows=230, first="2024-03-25"):
    """Two hourly series of counts over the start of daylight saving, with a text column per series and one per row."""
    rng, t, parts = np.random.default_rng(0), np.arange(rows), []
    stamps = pd.date_range(first, periods=rows, freq="h", tz="Europe/Berlin")
    for k in range(2):
        promo = rng.choice(["no", "yes", "sale"], rows)
        y = rng.poisson(6 + 4 * np.sin(2 * np.pi * t / 24) + 3 * k + 2 * (promo == "sale")) + 1.0
        parts.append(pd.DataFrame({"unique_id": f"s{k}", "ds": stamps, "y": y, "region": f"r{k}", "promo": promo}))
    return pd.concat(parts, ignore_index=True)


@pytest.mark.parametrize(
    "options",
    [
        {"posterior": "bbb", "cell": "lstm", "likelihood": "gaussian", "scaling": "robust", "transform": "none"},
        {"posterior": "none", "layers": 2, "likelihood": "mixture", "scaling": "mean_abs", "transform": "none"},
        {"likelihood": "negative_binomial", "scaling": "standard", "transform": "none"},
        {"likelihood": "quantiles", "transform": "log", "holidays": "DE", "members": 2},
    ],
    ids=lambda options: options["likelihood"],
)
def test_options(options, tmp_path):
    if "holidays" in options:
        pytest.importorskip("holidays")
    settings = {"members": 1, "hidden": 8, "samples": 2, "minutes": 0.005, "past": [], "season": 24}
    frame = counts()
    row = frame.groupby("unique_id").cumcount()
    past, new = frame[row < 200], frame[(row >= 200) & (row < 208)]
    ahead, later = (frame[(row >= n) & (row < n + 4)].drop(columns="y") for n in (200, 208))
    model = Forecaster(4, future=["promo"], static=["region"], **settings | options).fit(past)
    assert model.model.weights[-len(model.model.members) :].sum() == pytest.approx(1)  # the network is used
    found = model.predict(future=ahead)
    assert np.isfinite(found.select_dtypes("number")).all().all()
    assert (found["lo-95"] <= found["lo-80"]).all()
    assert (found["ds"].to_numpy() == ahead["ds"].to_numpy()).all()
    model.save(tmp_path / "model")
    same = Forecaster.load(tmp_path / "model")
    for call in (
        lambda f: f.predict(future=ahead),
        lambda f: f.newsvendor(1, 3, future=ahead),
        lambda f: f.crossing(12, n=20, future=ahead),
        lambda f: f.anomalies(new),
        lambda f: f.update(new).predict(future=later),
        lambda f: f.sample_paths(2, future=later),
    ):
        pd.testing.assert_frame_equal(call(model), call(same))
    assert (same.predict(future=later)["ds"].to_numpy() == later["ds"].to_numpy()).all()
