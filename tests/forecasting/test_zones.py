"""Local times when clocks go back."""

import numpy as np
import pandas as pd
import pytest

from bayesrnn.errors import UserError
from bayesrnn.forecasting import Forecaster
from bayesrnn.forecasting.zones import localized

BERLIN = "Europe/Berlin"


def night(freq="h", rows=60):
    return pd.date_range("2024-10-25", periods=rows, freq=freq, tz=BERLIN)


@pytest.mark.parametrize("freq", ["h", "30min", "20min"])
def test_each_series_has_an_order_of_its_own(freq):
    aware = night(freq, 240)
    index = aware.append([aware[::-1], aware]).tz_localize(None)
    found = localized(index, np.repeat(["new", "newest first", "b"], 240), BERLIN)
    assert (found == aware.append([aware[::-1], aware])).all()
    across = np.argsort(np.tile(np.arange(240), 3), kind="stable")  # all series of one stamp, then the next
    index = aware.append([aware, aware])[across]
    assert (localized(index.tz_localize(None), np.repeat(["c", "a", "b"], 240)[across], BERLIN) == index).all()


def test_rows_without_an_order_are_refused():
    mixed = night()[np.random.default_rng(0).permutation(60)].tz_localize(None)
    ids = np.full(60, "a")
    with pytest.raises(UserError, match=r"Series 'a': 2024-10-27 02:00:00 is there twice.*\(row \d+\); sort them by"):
        localized(mixed, ids, BERLIN)
    assert len(localized(mixed[~mixed.duplicated()], ids[~mixed.duplicated()], BERLIN)) == 59


@pytest.mark.parametrize(("freq", "first"), [("h", 51), ("30min", 102)])
def test_new_rows_begin_after_the_first_of_two_equal_hours(freq, first):
    """At the second 02:00 if the first is known, else at the first."""
    aware = night(freq, 150)
    frame = pd.DataFrame({"unique_id": "a", "ds": aware.tz_localize(None), "y": 10 + np.sin(np.arange(150.0))})
    for begin in (first - 1, first):
        model = Forecaster(3, members=0, timezone=BERLIN).fit(frame[:begin]).update(frame[begin:])
        pd.testing.assert_series_equal(model.history()["ds"], pd.Series(aware, name="ds"), check_freq=False)
    ahead = frame.assign(x=frame["y"])
    model = Forecaster(3, members=0, timezone=BERLIN, future="x").fit(ahead[:first])
    assert (model.predict(future=ahead[first : first + 3])["ds"].to_numpy() == aware[first : first + 3]).all()
