"""Series that are new to the model and short: intervals are as wide as little is known."""

import numpy as np
import pandas as pd
import pytest

from bayesrnn.forecasting import Forecaster
from bayesrnn.forecasting.windows import Windows

KINDS = ("shift", "season", "walk", "trend")


def values(rng, kind, rows):
    t = np.arange(rows)
    y = {
        "shift": 10 + np.cumsum((rng.random(rows) < 0.02) * rng.normal(0, 2, rows)) + rng.normal(0, 0.7, rows),
        "season": 10 + rng.uniform(1, 4) * np.sin(np.pi * (t + rng.integers(12)) / 6) + rng.normal(0, 0.7, rows),
        "walk": 20 + np.cumsum(rng.normal(0, 0.3, rows)),
        "trend": 15 + rng.normal(0, 0.03) * t + rng.normal(0, 0.8, rows),
    }
    return y[kind] * 10 ** rng.uniform(-3, 6)


def panel(rng, count, rows):
    stamps = pd.date_range("2010-01-01", periods=rows, freq="MS")
    parts = [{"unique_id": i, "ds": stamps, "y": values(rng, KINDS[i % 4], rows)} for i in range(count)]
    return pd.concat([pd.DataFrame(part) for part in parts], ignore_index=True)


@pytest.fixture(scope="module")
def fitted():
    return Forecaster(12, "MS", members=0).fit(panel(np.random.default_rng(5), 60, 150))


@pytest.mark.parametrize("rows", [1, 2, 5, 10, 24, 48])
def test_intervals_of_short_new_series_cover(fitted, rows):
    """160 series of four kinds, from 1e-3 to 1e6 in size: the standard error of a coverage is about 0.015."""
    new = panel(np.random.default_rng(rows), 160, rows + 12)
    late = new.groupby("unique_id").cumcount() >= rows
    found = fitted.predict(new[~late], level=[90])
    y = new.loc[late, "y"].to_numpy()
    assert 0.84 < ((y >= found["lo-90"]) & (y <= found["hi-90"])).mean() < 0.97
    assert np.isfinite(found.select_dtypes("number")).all(axis=None)


def test_intervals_are_wider_where_less_is_known(fitted):
    new, width = panel(np.random.default_rng(1), 80, 60), []
    size = new.groupby("unique_id")["y"].std().to_numpy()[:, None]
    for rows in (1, 5, 24, 60):
        found = fitted.predict(new[new.groupby("unique_id").cumcount() < rows], level=[90])
        width.append(np.median((found["hi-90"] - found["lo-90"]).to_numpy().reshape(80, 12) / size))
    assert width[0] > width[1] > width[2] > width[3]


def test_a_forecast_scales_with_its_series(fitted):
    new = panel(np.random.default_rng(2), 8, 5)
    small, large = (fitted.predict(new.assign(y=new["y"] * factor))["hi-80"] for factor in (1, 1000))
    np.testing.assert_allclose(large, 1000 * small, rtol=0.5)


def test_the_same_series_alone_and_beside_others(fitted):
    old = fitted.history()
    short = panel(np.random.default_rng(3), 4, 3).assign(unique_id=lambda f: f["unique_id"] + 1000)
    alone = fitted.predict(short)
    beside = fitted.predict(pd.concat([old, short])).query("unique_id >= 1000").reset_index(drop=True)
    pd.testing.assert_frame_equal(alone, beside)


def test_no_row_after_a_cutoff_is_looked_at(fitted):
    """Errors one horizon ago, which widths learn from, are not known yet in a short series."""
    new = panel(np.random.default_rng(4), 8, 30)
    other = new.assign(y=new["y"] * np.where(new.groupby("unique_id").cumcount() < 6, 1, 9))
    grids = []
    for frame in (new, other):
        data = fitted._data(frame)
        cuts = fitted._windows(data, seen=np.full(8, 6))
        grids.append(fitted._grid(cuts, np.arange(8), np.full(8, 6))[0])
    np.testing.assert_allclose(*grids)


def test_logarithms_of_smaller_series_than_any_before():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"ds": np.arange(200), "y": np.exp(rng.normal(5, 0.3, 200))})
    model = Forecaster(4, transform="log", members=0).fit(frame)
    small = frame.assign(y=frame["y"] * 1e-6)
    windows = Windows(model._data(small), model.model.shape)
    assert np.ptp(windows.batch(np.zeros(1, int), np.array([200])).context) > 1
    assert model.predict(small)["median"].between(5e-5, 5e-4).all()
