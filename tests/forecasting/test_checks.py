"""Bad input: one sentence that names the series and the rows, and a way out; what was fitted before stays."""

from contextlib import nullcontext

import numpy as np
import pandas as pd
import pytest

from bayesrnn.errors import UserError
from bayesrnn.forecasting import Forecaster, scores


def frame(rows=60, name="a"):
    y = np.arange(rows) % 7 + np.random.default_rng(0).normal(0, 0.1, rows)
    return pd.DataFrame({"unique_id": name, "ds": pd.date_range("2024-01-01", periods=rows, freq="D"), "y": y})


def changed(row, **values):
    made = frame().astype({"y": object}) if isinstance(values.get("y"), str) else frame()
    for key, value in values.items():
        made.loc[row, key] = value
    return made


@pytest.mark.parametrize(
    ("data", "settings", "words"),
    [
        (changed(5, ds=pd.Timestamp("2024-01-05")), {}, r"Series 'a': rows 4 and 5 are both at 2024-01-05.*; drop one"),
        (frame(1), {}, r"Series 'a' has 1 value \(at 2024-01-01.*\); fit needs series with more"),
        (frame().assign(y=3.0), {}, r"Series 'a' is constant \(rows 0 to 59 are 3\); .* or use the constant"),
        (pd.concat([frame(), frame(9, "b").assign(y=np.nan)]), {}, r"Series 'b' has no value in any of its 9 rows; "),
        (changed(7, y=-1.0).assign(y=lambda f: f["y"].round()), {"likelihood": "negative_binomial"},
         r"Series 'a' is -1 at 2024-01-08.*, and negative_binomial is for counts .*; correct it, or set likelihood"),
        (frame(10), {"horizon": 24}, r"Series 'a' has 10 rows \(0 to 9\), and a horizon of 24 needs at least 28; use"),
        (frame(), {"freq": "h"}, r"Series 'a' has 60 rows on 1,417 steps of one hour; set freq to the step"),
        (frame(), {"freq": "W"}, r"Series 'a': the stamp 2024-01-02.* in row 1 is off the grid of one week; set freq"),
        (frame(), {"freq": "MS"}, r"the stamp 2024-01-02.* in row 1 is off the grid of one month; set freq"),
        (frame(), {"freq": "fortnight"}, r"freq is 'fortnight', which pandas does not know; use 'h'"),
        (changed(3, y="many"), {}, r"Series 'a': 'many' in column 'y', row 3, is no number; correct it"),
        (changed(4, y=np.inf), {}, r"Series 'a': 'inf' in column 'y', row 4, is infinite; correct it"),
        (changed(4, y=1e30), {}, r"Series 'a': '1e\+30' in column 'y', row 4, is too large; give the series"),
        (frame().drop(columns="y"), {}, r"no column 'y' to forecast; its columns are 'unique_id', 'ds': name it"),
        (frame().drop(columns="ds"), {}, r"no column 'ds' and no DatetimeIndex; its columns are .*: name the column"),
        (frame().astype({"ds": str}).assign(ds="1/2/3/4"), {}, r"; write the dates of column 'ds' as YYYY-MM-DD"),
        (frame().assign(ds="Jan-05"), {}, r"; write the dates of column 'ds' as YYYY-MM-DD"),
        (changed(6, ds=pd.NaT), {}, r"Series 'a': row 6 has no stamp in column 'ds'; fill it or drop the row"),
        (frame(0), {}, r"The frame has no rows; give at least one series"),
        ([1, 2, 3], {}, r"The data must be a DataFrame, a Series or a path, got list"),
        ("no/such.csv", {}, r"There is no file no/such.csv; give the path"),
        (frame(), {"season": 0}, r"season is 0; it is a number of steps"),
        (frame(), {"past": ["p"]}, r"The frame has no column 'p', which past= names; add it"),
        (frame(), {"future": ["p"]}, r"The frame has no column 'p', which future= names; add it"),
        (frame().assign(p=range(60)), {"static": ["p"]}, r"Series 'a': column 'p' is static and changes in row 1; "),
        (changed(4, p=np.inf), {}, r"Series 'a': column 'p' is infinite at 2024-01-05.*; correct it"),
        (changed(4, p=1e300), {}, r"Series 'a': column 'p' is too large at 2024-01-05.*; correct it"),
        (frame().assign(p=1.0), {"past": "p", "future": "p"}, r"Column 'p' is named by past and by future"),
        (frame(), {"past": ["y"]}, r"Column 'y' is named by target_col and by past; name it once"),
        (frame().assign(y=lambda f: f["y"] > 3), {}, r"Column 'y' of series 'a' holds True and False from row 0"),
        (frame().assign(y=lambda f: f["ds"]), {}, r"Column 'y' of series 'a' holds times from row 0 on.*; convert"),
        (frame().assign(ds=[f"day {k}" for k in range(60)]), {}, r"'ds' holds no dates that are understood \('day 0'"),
        (frame().assign(ds=lambda f: f["ds"] + pd.to_timedelta(np.arange(60) ** 2, "min")), {"resample": "mean"},
         r"The stamps are uneven: steps between 1441 minutes and .*; set freq, such as 'h', and resample='mean'"),
        (pd.DataFrame(), {}, r"The frame has no rows; give at least one series"),
        (frame().assign(ds=True), {}, r"The column 'ds' holds bool values, not stamps; use dates"),
        (frame().assign(ds=range(60)).replace({"ds": {5: 4}}), {}, r"rows 4 and 5 are both at 4 .*is one unit"),
        (pd.concat({"x": frame()}, axis=1), {}, r"The frame's columns have several levels; give each one name"),
        (frame().set_index("ds")[["y"]].assign(z=lambda f: f["y"].where(f.index != f.index[7], np.inf))
         .rename(columns={"y": "x"}), {}, r"Series 'z': 'inf' in column 'y', row 7, is infinite"),
        (frame().assign(y=lambda f: (f["y"] > 3).astype(object)), {}, r"'a': '\w+' in column 'y', row 0, is no"),
        (frame().set_index("ds")[[]].assign(b=range(60), note="x"), {}, r"'note' holds no numbers \('x' in row 0\)"),
        (frame().set_index("ds")[[]].assign(b=range(60), c=["?", *range(59)]), {}, r"Series 'c': '\?' .* is no"),
        (frame().rename(columns={"unique_id": "shop", "y": "sales"}), {}, r"'shop' holds no .*target_col and id_"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_sentence(data, settings, words):
    with pytest.raises(UserError, match=words) as caught:
        Forecaster(**{"horizon": 7, "members": 0, **settings}).fit(data)
    assert "\n" not in str(caught.value)


def test_a_frame_that_cannot_be_fitted_leaves_the_model_as_it_was():
    model = Forecaster(7, members=0).fit(frame())
    before = model.predict()
    for call in (model.fit, model.update, model.predict):
        with pytest.raises(UserError):
            call(changed(4, y=np.inf))
    pd.testing.assert_frame_equal(model.predict(), before)


def test_arguments():
    model = Forecaster(7, members=0)
    with pytest.raises(UserError, match="not fitted; call fit"):
        model.predict()
    model.fit(frame())
    pd.testing.assert_frame_equal(model.predict(level=[0.8]), model.predict(level=80))
    pd.testing.assert_frame_equal(model.predict(quantiles=0.5), model.predict(quantiles=(0.5,)))
    assert {"lo-80", "hi-95"} < set(model.predict(level=pd.Series([80, 95])))
    for threshold in (np.nan, "x", {"a": np.nan}, {"a": "x"}):
        with pytest.raises(UserError, match=r"threshold is ('x'|nan).*; give one number, or one per series"):
            model.crossing(threshold)
    for seed in (-1, 2**32, 2**63, 1.5):
        with pytest.raises(UserError, match=rf"seed is {seed}; it is a whole number from 0 and below 2\*\*32"):
            model.sample_paths(2, seed=seed)
    with pytest.raises(UserError, match="quantiles has 2; a quantile is a probability"):
        model.predict(quantiles=[2])
    with pytest.raises(UserError, match=r"Series 'a' has 60 rows, and 9 windows of 7 steps, 7 apart, need 64"):
        model.backtest(windows=9)
    with pytest.raises(UserError, match=r"Series 'a' has no value in the \d+ rows before its forecast"):
        model.predict(frame(9).assign(y=np.nan))


def test_scores_name_what_a_table_lacks():
    data = frame().rename(columns={"ds": "day", "y": "sales"})
    walk = Forecaster(7, members=0, time_col="day", target_col="sales").fit(data).backtest(windows=2)
    found = scores(walk, history=data[::-1], time_col="day", target_col="sales").iloc[0]
    assert found["mase"] == pytest.approx(found["mae"] / data["sales"].diff().abs().mean())
    for wrong in ({"by": "month"}, {"history": data}):
        with pytest.raises(UserError, match=r"The (table|history) has no column '(month|y)'; give a table of"):
            scores(walk, **wrong)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("posterior", "laplace", "must be one of"), ("members", -1, "networks, at least 0"), ("minutes", -1, "from 0"),
        ("minutes", np.nan, "from 0"), ("context", 0, "steps, at least 1"), ("context", -3, "steps, at least 1"),
        ("samples", 0, "draws, at least 1"), ("hidden", 0, "units, at least 1"), ("dropout", 1, "number in"),
        ("season", "day", "steps from 1"), ("season", 2.5, "steps from 1"), ("seed", None, "whole number from 0"),
        ("seed", 2**32, "whole number from 0"),
        ("context", 10**6, "at most 20,000"), ("timezone", "Berlin", "such as 'Europe/Berlin'"),
        ("past", 5, "list of names"), ("id_col", "mean", "column of forecasts"), ("time_col", "q-0.1", "rename yours"),
        ("past", {"p"}, "list of names"),
    ],
)  # fmt: skip
def test_settings_out_of_range(name, value, words):
    with pytest.raises((UserError, ValueError), match=f"^{name} .*{words}.*{value!r}|^{name} is {value!r}.*{words}"):
        Forecaster(7, **{name: value})


def test_columns_known_ahead():
    both = pd.concat([frame(67), frame(67, "b")], ignore_index=True).assign(price=lambda f: f["y"] + 1)
    late = both["ds"] >= "2024-03-01"
    kinds = both.assign(kind=np.where(both["y"] > 3, "high", "low"))
    known = Forecaster(7, members=0, past=[], future=both.columns[3:].union(["kind"])).fit(kinds[~late])
    with pytest.raises(
        UserError, match=r"Series 'a': future has no .*kind.* at 2024-03-01.* \(step 1 of 7\); give all"
    ):
        known.predict(future=kinds[late].assign(kind=None))
    model, ahead = Forecaster(7, members=0, future="price").fit(both[~late]), both[late].drop(columns="y")
    assert len(model.predict(future=ahead)) == 14
    with pytest.raises(UserError, match=r"Series 'a': column 'price' is infinite at 2024-03-01.*; correct it"):
        model.predict(future=ahead.assign(price=np.inf))
    with pytest.raises(UserError, match=r"Series 'b': rows 7 and 14 of future are both at 2024-03-01.*; drop one"):
        model.predict(future=pd.concat([ahead, ahead[7:8].assign(price=3.0)]))
    with pytest.raises(UserError, match=r"Series 'b' has no rows in future, which has those of 'a'; give its 7 steps"):
        model.predict(future=ahead.replace({"b": "c"}))
    with pytest.raises(
        UserError, match=r"Series 'a': column 'price' has 'low' at 2024-03-01.*fitted to numbers; correct"
    ):
        model.predict(future=ahead.assign(price="low"))
    with pytest.raises(
        UserError, match=r"Series 'a': the stamp 2024-03-01 01:00:00 in row 0 of future is off the grid"
    ):
        model.predict(future=ahead.assign(ds=ahead["ds"] + pd.Timedelta("1h")))
    with pytest.raises(UserError, match=r"with a time zone and these have none, or the reverse; use tz_localize"):
        model.predict(future=ahead.assign(ds=ahead["ds"].dt.tz_localize("UTC")))
    with pytest.raises(UserError, match=r"steps of one day, and these stamps are numbers; give stamps of the same"):
        model.predict(future=ahead.assign(ds=range(len(ahead))))


@pytest.mark.parametrize("kind", [float, object, str])
def test_whole_numbers_stored_otherwise_are_a_time_axis(kind):
    found = Forecaster(7, members=0).fit(frame().assign(ds=np.arange(60).astype(kind))).predict()
    assert found["ds"].tolist() == list(range(60, 67))


@pytest.mark.parametrize(("freq", "form"), [("D", "%Y%m%d"), ("MS", "%Y%m"), ("h", "%Y%m%d%H")])
def test_dates_stored_as_whole_numbers(freq, form):
    stamps = pd.date_range("2024-01-01", periods=67, freq=freq)
    data = frame(66).assign(ds=stamps[:66].strftime(form).astype("int64"))
    model = Forecaster(3, members=0).fit(data.head(60))
    assert model.predict()["ds"].tolist() == stamps[60:63].tolist()
    assert model.update(data.tail(6)).predict()["ds"].iloc[0] == stamps[66]
    counts = Forecaster(3, members=0, future="x").fit(data.assign(ds=199990 + np.arange(66), x=1.0))
    ahead = pd.DataFrame({"ds": 200056 + np.arange(3), "x": 1.0})
    assert counts.predict(future=ahead)["ds"].tolist() == [200056, 200057, 200058]


def test_a_step_given_as_numpy_timedelta():
    assert Forecaster(3, np.timedelta64(1, "h")).settings["freq"] == "h"


def test_a_level_of_one_is_neither_a_share_nor_a_percentage():
    with pytest.raises(UserError, match="level has 1; a level is a percentage"):
        Forecaster(7, members=0).fit(frame()).predict(level=1)


def test_unsorted_rows_short_and_constant_series_beside_others_are_fine():
    parts = [frame().sample(frac=1, random_state=0), frame(1, "short"), frame(30, "flat").assign(y=5.0)]
    found = Forecaster(7, members=0).fit(pd.concat(parts)).predict().set_index("unique_id")
    assert len(found) == 21
    np.testing.assert_allclose(found.loc["flat", "median"], 5.0, atol=0.1)
    assert np.isfinite(found.select_dtypes("number")).all(axis=None)


@pytest.mark.parametrize(("long", "short"), [(1, 1), (2, 1), (2, 9)])
def test_short_series_beside_others(long, short):
    """Windows that choose a model lie inside their series, also inside the last one."""
    data = pd.concat([*(frame(200, f"a{k}") for k in range(long)), frame(short, "b")])
    found = Forecaster(7, members=0).fit(data).predict()
    assert found["unique_id"].tolist() == [f"a{k}" for k in range(long) for _ in range(7)] + ["b"] * 7


def test_dates_as_people_write_them_are_understood_or_refused():
    from bayesrnn.forecasting.columns import Columns
    from bayesrnn.forecasting.tables import stamps_of

    for text in (
        ["1/2/20", "1/3/20", "1/4/20", "1/13/20"],
        ["01/02/2020 12:00 AM", "01/02/2020 1:00 AM"],
        ["20200102"],
    ):
        with pytest.raises(UserError, match="column 'ds'") if len(text) == 2 else nullcontext():
            assert stamps_of(pd.DataFrame({"unique_id": "a", "ds": text}), Columns())[0] == pd.Timestamp("2020-01-02")


def test_new_rows_do_not_change_known_values():
    model = Forecaster(7, members=0).fit(frame(50).drop(index=20))
    model.update(frame(55).iloc[15:])  # equal values overlap, and a gap is filled
    before = model.predict()
    assert before["ds"].iloc[0] == pd.Timestamp("2024-02-25")
    other = frame(60).assign(y=lambda f: f["y"] + (f.index == 52))
    with pytest.raises(UserError, match=r"Series 'a' already has .* at 2024-02-22.*, not .*; pass only new rows"):
        model.update(other)
    pd.testing.assert_frame_equal(model.predict(), before)


def test_constant_series_have_no_scaled_score():
    table = pd.DataFrame({"unique_id": ["a", "b"], "y": 3.0, "mean": 1.0, "median": 1.0, "lo-80": 0.0, "hi-80": 4.0})
    past = pd.DataFrame({"unique_id": ["a"] * 3 + ["b"] * 3, "y": [1.0, 3.0, 5.0, 2.0, 2.0, 2.0]})
    found = scores(table, history=past).iloc[0]
    assert (found["mase"], found["msis-80"], found["mae"]) == (1, 2, 2)
    none = scores(table[1:], history=past).iloc[0]
    assert np.isnan(none[["mase", "msis-80"]]).all()
    assert none["mae"] == 2


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [("unique_id", None, "Row 0 has no name of a series"), ("y", 1j, "Column 'y' holds neither numbers nor text"),
     ("extra", [1], "Column 'extra' holds neither")],
)  # fmt: skip
def test_cells_that_are_no_values(column, value, message):
    frame = pd.DataFrame({"ds": pd.date_range("2024-01-01", periods=30), "y": 1.0 * np.arange(30)})
    with pytest.raises(UserError, match=message):
        Forecaster(2, members=0).fit(frame.assign(**{column: [value] * 30}))
    if column == "extra":
        with pytest.raises(UserError, match=message + " numbers nor text in row 7"):
            Forecaster(2, members=0).fit(frame.assign(extra=[1.0] * 7 + [value] * 23))


def _daily(count, level=20.0, freq="D", seed=0, **columns):
    source = np.random.default_rng(seed)
    days = pd.date_range("2022-01-03", periods=count, freq=freq)
    return pd.DataFrame({"unique_id": "a", "ds": days, "y": level + source.normal(size=count), **columns})


def test_scales_of_covariates_are_learnt_before_the_first_cutoff():
    data = _daily(120, x=np.random.default_rng(1).normal(size=120))
    later = data.copy()
    later.loc[later.index[-7:], "x"] = 500.0
    tables = [Forecaster(7, members=0).fit(one).backtest(one, windows=2) for one in (data, later)]
    first = [table[table["cutoff"] == table["cutoff"].min()]["mean"].to_numpy() for table in tables]
    np.testing.assert_allclose(*first, rtol=1e-6)


def test_the_last_value_of_a_step_is_the_last_that_is_known():
    data = _daily(80).assign(y=lambda d: d["y"].where(d.index % 2 == 1))
    kept = Forecaster(3, "2D", members=0, resample="last").fit(data).history()["y"].dropna()
    np.testing.assert_array_equal(kept, data["y"].dropna())
    with pytest.raises(UserError, match="future is given, and the model knows no columns ahead; name them in future="):
        Forecaster(3, members=0).fit(_daily(60)).predict(future=data)


def test_new_values_that_the_model_cannot_have_are_refused():
    positive = Forecaster(3, members=0).fit(_daily(60))
    with pytest.raises(UserError, match=r"Most values of series 'b' are negative, such as -.*; fit it with"):
        positive.predict(_daily(30, level=-50.0).assign(unique_id="b"))
    counts = _daily(60).assign(y=lambda d: d["y"].round())
    fitted = Forecaster(3, members=0, likelihood="negative_binomial").fit(counts)
    with pytest.raises(UserError, match="negative_binomial is for counts"):
        fitted.update(_daily(61).assign(y=1.5).tail(1))


def test_long_steps_are_saved(tmp_path):
    fitted = Forecaster(3, members=0).fit(_daily(40, freq="28D"))
    pd.testing.assert_frame_equal(Forecaster.load(fitted.save(tmp_path)).predict(), fitted.predict())


def test_a_gap_longer_than_the_context_leaves_out_its_windows():
    data = _daily(900)
    data.loc[700:800, "y"] = np.nan
    fitted = Forecaster(7, members=0, context=28).fit(data.head(700))
    table = fitted.backtest(data, windows=18, step=7)
    left = table.groupby("cutoff").size()
    assert 0 < len(left) < 18
    assert np.isfinite(table["mean"]).all()
    assert np.isfinite(fitted.update(data).predict()["mean"]).all()


def test_windows_of_a_backtest_may_be_further_apart_than_the_horizon():
    table = Forecaster(3, members=0).fit(_daily(120)).backtest(windows=3, step=10)
    assert table["cutoff"].drop_duplicates().diff().dropna().eq(pd.Timedelta("10D")).all()
    assert len(table) == 9


def test_values_too_far_apart_name_the_gap():
    late = frame(100)
    late.loc[99, "ds"] += pd.Timedelta(days=300)
    words = r"Series 'a' has 100 values in 400 steps, and none between 2024-04-08.* and 2025-02-03.*mistyped stamp"
    with pytest.raises(UserError, match=words):
        Forecaster(7, members=0).fit(late)
    for some, where in ((slice(5, None), "after 2024-01-05"), (slice(395), "before 2025-01-30")):
        short = frame(400)
        short.loc[short.index[some], "y"] = np.nan
        with pytest.raises(UserError, match=rf"Series 'a' has 5 values in 400 steps, and none {where}.*; leave out"):
            Forecaster(20, members=0).fit(short)
