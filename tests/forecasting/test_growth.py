"""Panels that grow."""

import numpy as np
import pandas as pd
import pytest

from bayesrnn.errors import UserError
from bayesrnn.forecasting import Forecaster


def hourly(rows=200, **columns):
    stamps = pd.date_range("2024-01-01", periods=rows, freq="h")
    return pd.DataFrame({"unique_id": "a", "ds": stamps, "y": 10 + np.sin(np.arange(rows) / 4), **columns})


@pytest.mark.parametrize("stamp", ["2300-01-01", "9999-01-01", "1900-01-01"])
def test_a_stamp_far_from_the_others_is_refused(stamp):
    model, wrong = Forecaster(3, members=0).fit(hourly()), hourly(1).assign(ds=pd.Timestamp(stamp))
    for call in (model.update, model.anomalies):
        with pytest.raises(UserError, match=rf"Series 'a': the new rows from {stamp}.* steps of one hour from"):
            call(wrong)
    late = pd.concat([hourly(), wrong], ignore_index=True)
    if stamp > "2024":
        with pytest.raises(UserError, match=rf"no row lies between 2024.* in row 199 and {stamp}.* in row 200"):
            model.fit(late)


def test_rows_without_values_are_rows():
    frame = hourly(230, x=np.arange(230.0))
    model = Forecaster(3, members=0).fit(frame[:200])
    model.update(frame[195:].assign(y=frame["y"].where(frame.index < 220), x=frame["x"].where(frame.index != 197)))
    assert model.predict()["ds"].iloc[0] == frame["ds"].iloc[-1] + pd.Timedelta("1h")
    found = model.history()
    np.testing.assert_allclose(found["x"], frame["x"], atol=1e-4)
    assert found["y"].isna().to_numpy().nonzero()[0].tolist() == list(range(220, 230))
    model.update(frame[210:225])  # values that came late
    assert found["y"].notna().sum() + 5 == model.history()["y"].notna().sum()
    model.update(frame[:225].assign(y=np.nan))
    assert model.history()["y"].notna().sum() == 225


def test_rows_of_the_only_series_need_no_name():
    frame = hourly(230)
    model = Forecaster(3, members=0).fit(frame[:200])
    pd.testing.assert_frame_equal(model.predict(frame[:190][["ds", "y"]]), model.predict(frame[:190]))
    assert model.update(frame[200:][["ds", "y"]]).ids == ["a"]
    assert model.rows == {"a": 230}
