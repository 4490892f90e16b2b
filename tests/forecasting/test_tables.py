"""Files and frames as people have them, and the clocks of their stamps."""

import numpy as np
import pandas as pd
import pytest

from bayesrnn.errors import UserError
from bayesrnn.forecasting import Forecaster
from bayesrnn.forecasting.columns import Columns
from bayesrnn.forecasting.tables import long_frame, read, stamps_of

BERLIN = "Europe/Berlin"


def hours(first, rows=60):
    """Local time through a change of the clocks, as a tz-aware frame; y is the hour on the wall."""
    stamps = pd.date_range(first, periods=rows, freq="h", tz=BERLIN)
    noise = np.random.default_rng(0).normal(0, 0.1, rows)
    return pd.DataFrame({"unique_id": "a", "ds": stamps, "y": stamps.hour + noise})


@pytest.mark.parametrize("first", ["2024-03-29", "2024-10-25"])
@pytest.mark.parametrize("order", [1, -1])
def test_local_time_through_a_change_of_the_clocks(first, order, tmp_path):
    """Text with offsets, local text and tz-aware stamps give the same instants, in any order."""
    aware = hours(first)
    local = aware.assign(ds=aware["ds"].dt.tz_localize(None))
    both = pd.concat([local, local.assign(unique_id="b")])
    for name, frame in {"offsets": aware, "local": local, "two": both}.items():
        frame[::order].to_csv(tmp_path / f"{name}.csv", index=False)
        text = long_frame(tmp_path / f"{name}.csv", Columns(zone=BERLIN))
        found = pd.Series(stamps_of(text, Columns(zone=BERLIN)), name="ds")
        wanted = frame["ds"] if name == "offsets" else pd.concat([aware["ds"]] * frame["unique_id"].nunique())
        assert (found.to_numpy() == wanted[::order].to_numpy()).all()
        assert str(found.dt.tz) == BERLIN
    with pytest.raises(
        UserError, match=r"several offsets from UTC, \+0\d00 and, from row \d+, .*; set timezone to the"
    ):
        Forecaster(6, members=0).fit(tmp_path / "offsets.csv")


def test_forecasts_follow_the_clock_on_the_wall(tmp_path):
    aware = hours("2024-10-20", 24 * 9)
    aware.to_csv(tmp_path / "a.csv", index=False)
    found = Forecaster(24, members=0, timezone=BERLIN).fit(tmp_path / "a.csv").predict()
    pd.testing.assert_frame_equal(found, Forecaster(24, members=0).fit(aware).predict())
    assert str(found["ds"].dt.tz) == BERLIN
    assert found["ds"].iloc[0] == aware["ds"].iloc[-1] + pd.Timedelta("1h")
    error = (found["median"] - found["ds"].dt.hour).abs()
    assert error.median() < 0.5


def test_local_times_that_do_not_exist_are_refused():
    frame = hours("2024-03-29").assign(ds=pd.date_range("2024-03-29", periods=60, freq="h"))
    with pytest.raises(UserError, match=r"Row 50: 2024-03-31 02:00:00 does not exist in Europe/Berlin.*omit timezone"):
        Forecaster(6, members=0, timezone=BERLIN).fit(frame)
    frame = hours("2024-10-25").assign(ds=lambda f: f["ds"].dt.tz_localize(None))
    with pytest.raises(
        UserError, match=r"rows 50 and 51 are both at 2024-10-27 02:00.*set timezone if clocks went back"
    ):
        Forecaster(6, members=0).fit(frame)


@pytest.mark.parametrize(("separator", "decimal"), [(",", "."), (";", ","), (";", "."), ("\t", "."), ("|", ".")])
def test_separators_and_decimal_commas(tmp_path, separator, decimal):
    frame = hours("2024-01-01").assign(ds=lambda f: f["ds"].dt.tz_localize(None), x=np.linspace(-2, 1, 60))
    path = tmp_path / "a.csv"
    path.write_text("\ufeff" + frame.to_csv(index=False, sep=separator, decimal=decimal), "utf-8")
    found = read(path)
    np.testing.assert_allclose(found["y"], frame["y"])
    np.testing.assert_allclose(found["x"], frame["x"])
    path.write_text(frame.to_csv(index=False, header=False), "utf-8")
    with pytest.raises(
        UserError, match=r"The first line of .*a.csv has values \('a', '2024-01-01.*; put a line with name"
    ):
        read(path)
    path.write_bytes(frame.assign(unique_id="\u00e9").to_csv(index=False).encode("latin-1"))
    with pytest.raises(UserError, match="is not text in UTF-8; save it in that encoding"):
        read(path)


def test_other_frames():
    class Polars:
        def to_pandas(self):
            return frame

    frame = hours("2024-01-01")
    indexed = frame.set_index(["unique_id", "ds"])
    both = frame.set_index(["unique_id", "ds"], drop=False)
    for data in (Polars(), indexed, indexed["y"], both, both.drop(columns="ds")):
        pd.testing.assert_frame_equal(long_frame(data, Columns())[list(frame)], frame)


def test_names_that_are_numbers_are_saved(tmp_path):
    frame = hours("2024-01-01").assign(x=np.arange(60.0)).rename(columns={"x": 7})
    model = Forecaster(6, members=0).fit(frame)
    model.save(tmp_path / "model")
    pd.testing.assert_frame_equal(Forecaster.load(tmp_path / "model").predict(), model.predict())


def test_the_index_that_pandas_writes_is_no_series(tmp_path):
    frame = pd.DataFrame({"date": pd.date_range("2024-01-01", periods=30), "a": 1.0 * np.arange(30)})
    frame.to_csv(tmp_path / "a.csv")
    assert list(read(tmp_path / "a.csv")) == ["date", "a"]
    frame.iloc[::-1].to_csv(tmp_path / "a.csv")
    assert "Unnamed: 0" in read(tmp_path / "a.csv")


def test_year_month_day_and_hour_in_columns_of_their_own(tmp_path):
    frame = hours("2024-01-01").assign(ds=lambda f: f["ds"].dt.tz_localize(None))
    parts = {part: getattr(frame["ds"].dt, part) for part in ("year", "month", "day", "hour")}
    pd.DataFrame({"No": range(60), **parts, "pm": frame["y"]}).to_csv(tmp_path / "a.csv", index=False)
    model = Forecaster(3, members=0, past=[], target_col="pm").fit(tmp_path / "a.csv")
    assert model.predict()["ds"].tolist() == list(pd.date_range("2024-01-03 12:00", periods=3, freq="h"))
    pd.DataFrame({**parts, "date": frame["ds"], "pm": frame["y"]}).to_csv(tmp_path / "b.csv", index=False)
    assert list(read(tmp_path / "b.csv")) == [*parts, "date", "pm"]


def lines(tmp_path, header, *cells):
    """A file of daily values."""
    days = pd.date_range("2024-01-01", periods=len(cells))
    path = tmp_path / "lines.csv"
    path.write_text(
        "\n".join([header, *(f"{day:%Y-%m-%d}{cell}" for day, cell in zip(days, cells, strict=True))]), "utf-8"
    )
    return path


@pytest.mark.parametrize(
    ("header", "cells", "values"),
    [
        ("date,y", [',"10,127.77"', ',"-9,000"', ",5"], [10127.77, -9000, 5]),
        ("date,y", [',"1,000,000"', ',"1,000"'], [1e6, 1e3]),
        ("date,y", [",10 127", ",1\u202f000.5", ",7"], [10127, 1000.5, 7]),
        ("date,y", [',"10,5"', ",7"], [10.5, 7]),
        ("date;y", [";10.127,77", ";1.000.000", ";0,5"], [10127.77, 1e6, 0.5]),
        ("date;y", [";10,127", ";1,5"], [10.127, 1.5]),
        ("date,y", [",$1.50", ",-$2"], [1.5, -2]),
        ("date,y", [",50%", ",", ",7.5 %"], [50, np.nan, 7.5]),
        ("date,y", [",50%", ",0.5"], ["50%", "0.5"]),
        ("date,y", [",a 100", ",b 200"], ["a 100", "b 200"]),
    ],
)  # fmt: skip
def test_numbers_as_people_write_them(tmp_path, header, cells, values):
    assert read(lines(tmp_path, header, *cells))["y"].replace(np.nan, None).tolist() == [
        None if value != value else value for value in values
    ]


def test_commas_with_two_meanings_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"The commas of column 'y' of .*lines.csv \('10,127'\) separate thousands or"):
        read(lines(tmp_path, "date,y", ',"10,127"', ',"9,500"'))


def test_empty_lines_and_columns_of_a_file(tmp_path):
    for header, cells in (
        ("date,y", [",1", ",2\n,", ",3\n\n,\n"]), ("date,y,", [",1,", ",2,\n,,", ",3,\n\n,,"]),
        ("\n\ndate,y", [",1", ",2", ",3\n\n"]), ("date,y", [",1,", ",2,", ",3,"]),
    ):  # fmt: skip
        found = read(lines(tmp_path, header, *cells))
        assert (list(found), found["y"].tolist(), found["y"].dtype) == (["date", "y"], [1, 2, 3], "int64")
    found = read(lines(tmp_path, "date,y", ",1\n\n", ",2"))
    assert (found.index + 2).tolist() == [2, 5]  # lines of the file
    with pytest.raises(UserError, match=r"Two columns of .*lines.csv are called 'y'; rename one"):
        read(lines(tmp_path, "date,y,y", ",1,2", ",3,4"))


TIMES = {"Hour": lambda t: t.hour, "Time": lambda t: t.strftime("%H.%M.%S"), "hour": lambda t: t.strftime("%H:%M")}


@pytest.mark.parametrize("name", TIMES)
@pytest.mark.parametrize("form", ["%d/%m/%Y", "%Y-%m-%d", "%Y%m%d"])
def test_days_and_times_of_day_in_two_columns(tmp_path, name, form):
    stamps = pd.date_range("2024-01-10", periods=24 * 15, freq="h")
    frame = pd.DataFrame({"Date": stamps.strftime(form), name: TIMES[name](stamps), "load": np.sin(np.arange(360.0))})
    frame.to_csv(tmp_path / "a.csv", index=False)
    text = long_frame(tmp_path / "a.csv", Columns(target="load"))
    assert list(text) == ["ds", "load", "unique_id"]
    assert (stamps_of(text, Columns()) == stamps).all()
    frame.assign(**{name: frame[name].where(frame.index % 24 > 0, "24")}).to_csv(tmp_path / "b.csv", index=False)
    with pytest.raises(UserError, match=f"Columns 'Date' and '{name}' look like one stamp; join them in one column"):
        read(tmp_path / "b.csv")
    with pytest.raises(UserError, match=f"Columns 'Date' and '{name}' look like one stamp; join them in one column"):
        Forecaster(3, members=0, time_col="Date", target_col="load").fit(frame.assign(Date=stamps.normalize()))
    twice = pd.concat([frame, frame]).assign(Date=stamps.append(stamps).normalize())  # of two series without names
    with pytest.raises(UserError, match=r"drop one, correct freq, .*or name the column of series with id_col"):
        Forecaster(3, members=0, time_col="Date", target_col="load").fit(twice)
    daily = pd.DataFrame({"Date": stamps[::24], "Hour": np.arange(15) % 3, "load": 1.0})
    daily.to_csv(tmp_path / "c.csv", index=False)
    assert list(read(tmp_path / "c.csv")) == ["Date", "Hour", "load"]
