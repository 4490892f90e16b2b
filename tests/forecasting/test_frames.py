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


def test_what_was_taken_from_the_data_is_said_in_a_line(tmp_path, capsys):
    rng, days = np.random.default_rng(0), pd.date_range("2024-01-01", periods=120)
    frame = pd.DataFrame({"No": np.arange(120), "day": days, "sales": 10 + rng.normal(size=120)})
    frame = frame.assign(
        heat=rng.normal(size=120), unit="kg", opened=days[::-1], shop=[f"s{k}" for k in [*range(70), *range(50)]]
    )
    frame.loc[110:, "sales"] = np.nan
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.assign(opened=frame["opened"].dt.strftime("%d.%m.%Y")).to_csv(tmp_path / "b.csv", index=False)
    words = (
        "1 series, values in 'sales'; stamps in 'day', 2024-01-01 to 2024-04-29 by day; past: heat, shop; "
        "not used: No (row numbers), unit (constant), opened (dates); the 64 most frequent of 70 categories of shop; "
        "10 of 120 values missing; series that end with missing values: 1 (sales)"
    )
    for data in (tmp_path / "a.csv", tmp_path / "b.csv", frame):
        model = Forecaster(3, members=0, target_col="sales", time_col="day", verbose=data is frame).fit(data)
        assert model.about == words
    assert words in capsys.readouterr().err
    named = Forecaster(3, members=0, target_col="sales", time_col="day", past="No").fit(frame)
    assert named.columns.past == ("No",)
    assert "heat (not named)" in named.about


def test_row_numbers_are_no_series_of_a_wide_frame():
    days = pd.date_range("2024-01-01", periods=60, name="ds")
    frame = pd.DataFrame({"No": range(60), "a": np.sin(np.arange(60.0)), "b": range(60)}, index=days)
    model = Forecaster(3, members=0).fit(frame)
    assert model.ids == ["a", "b"]
    assert "2 series, each column a series; " in model.about
    assert "not used: No (row numbers)" in model.about
