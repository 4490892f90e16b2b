"""A panel as a frame: what went in comes out."""

from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

from bayesrnn.errors import UserError
from bayesrnn.forecasting import Forecaster


def test_the_history_of_a_forecaster_is_its_data():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"unique_id": np.repeat(["a", "b"], 60), "ds": np.tile(pd.date_range("2024", periods=60), 2)})
    frame["y"] = 10 + rng.normal(size=120)
    frame.loc[5, "y"] = np.nan
    frame["heat"] = rng.normal(20, 5, 120)
    frame["shop"] = np.where(rng.random(120) < 0.5, "open", "shut")
    frame["price"] = np.repeat([3.0, 4.0], 60)
    made = Forecaster(3, members=0, past=["heat", "shop"], static=["price"]).fit(frame)
    assert made.ids == ["a", "b"]
    found = made.history()
    pd.testing.assert_frame_equal(found[frame.columns], frame, check_dtype=False, rtol=1e-5)
    one = made.history("b")
    assert set(one["unique_id"]) == {"b"}
    pd.testing.assert_frame_equal(made.predict(one), made.predict().query("unique_id == 'b'").reset_index(drop=True))
    with pytest.raises(UserError, match="There is no series 'c'; there are a, b"):
        made.history("c")


def test_covariates_that_are_missing_or_stored_as_objects():
    """Numbers stay numbers in a column of objects; what is missing is no category, and unknown."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"unique_id": np.repeat(["a", "b", "c"], 60), "ds": np.tile(pd.date_range("2024", periods=60), 3)}
    )
    frame = frame.assign(y=10 + rng.normal(size=180), size=np.repeat([1.0, 2.0, np.nan], 60), none=None)
    frame["price"] = [Decimal(f"{v:.2f}") if v > 0.2 else None for v in rng.random(180)]
    frame["kind"] = rng.choice(np.array(["x", "y", None]), 180)
    made = Forecaster(3, members=0, future=None).fit(frame)
    assert made.columns.codes == {"kind": sorted({"x", "y"}, key=made.columns.codes["kind"].index)}
    assert (made.columns.static, set(made.columns.past)) == (("size",), {"price", "kind"})
    assert np.isfinite(made.predict().select_dtypes("number")).all(axis=None)
    found = made.history()
    np.testing.assert_allclose(found["price"], frame["price"].astype(float), rtol=1e-5)
    assert found["kind"].isna().equals(frame["kind"].isna())
