"""Dates in whatever form files have them, and the column that holds them."""

import numpy as np
import pandas as pd
import pytest

from bayesrnn.errors import UserError
from bayesrnn.forecasting import Forecaster, dates
from bayesrnn.forecasting.columns import Columns
from bayesrnn.forecasting.tables import stamps_of


def parse(cells, zone=""):
    return dates.parse(cells, "when", zone)


FORMS = {
    "2020-01-01": (["2020-01-01", "2020-01-02", "2020-01-03", "2020-01-05"], ("day", 1)),
    "ISO without zeros": (["2020-1-8", "2020-1-9", "2020-1-10", "2020-1-11"], ("day", 1)),
    "YYYY/MM/DD": (["2020/01/30", "2020/01/31", "2020/02/01"], ("day", 1)),
    "times": (["2020-01-01 00:00", "2020-01-01 01:00", "2020-01-01 02:00"], ("second", 3600)),
    "T and zone": (["2020-01-01T00:00:00Z", "2020-01-01T00:15:00Z", "2020-01-01T00:30:00Z"], ("second", 900)),
    "months": (["1999-11", "1999-12", "2000-01", "2000-02"], ("month", 1)),
    "months M": (["1999M11", "1999M12", "2000M01"], ("month", 1)),
    "month first": (["11/1999", "12/1999", "01/2000"], ("month", 1)),
    "quarters": (["1959Q1", "1959Q2", "1959Q3", "1959Q4", "1960Q1"], ("month", 3)),
    "quarters, other": (["Q3 1959", "Q4 1959", "Q1 1960"], ("month", 3)),
    "years": (["1700", "1701", "1702"], ("month", 12)),
    "years with a point": (["1700.0", "1701.0", "1702.0"], ("month", 12)),
    "compact days": (["19580329", "19580405", "19580412"], ("day", 7)),
    "compact months": (["195811", "195812", "195901"], ("month", 1)),
    "names": (["Jan-1-1995", "Feb-1-1995", "Mar-1-1995"], ("month", 1)),
    "names, year": (["Nov 2001", "Dec 2001", "Jan 2002"], ("month", 1)),
    "names, day": (["30 January 2001", "31 January 2001", "1 February 2001"], ("day", 1)),
    "weeks": (["2020-W52", "2020-W53", "2021-W01"], ("day", 7)),
    "day first": (["30.01.2020", "31.01.2020", "01.02.2020"], ("day", 1)),
    "US": (["1/30/2020", "1/31/2020", "2/1/2020"], ("day", 1)),
    "month ends": (["2020-01-31", "2020-02-29", "2020-03-31", "2020-04-30"], ("month", 1)),
    "quarter ends": (["2020-03-31", "2020-06-30", "2020-09-30", "2020-12-31"], ("month", 3)),
    "year ends": (["2018-12-31", "2019-12-31", "2020-12-31", "2021-12-31"], ("month", 12)),
    "epoch": (["1577836800", "1577840400", "1577844000"], ("second", 3600)),
    "epoch in ms": (["1577836800000", "1577836860000", "1577836920000"], ("second", 60)),
}


STEPS = {("month", 1): (28, 31), ("month", 3): (90, 92), ("month", 12): (365, 366)}


@pytest.mark.parametrize("name", FORMS)
def test_forms_of_dates(name):
    labels, (unit, every) = FORMS[name]
    gap = pd.Series(parse(labels)).diff().dropna().min() / pd.Timedelta(days=1)
    usual = every / (86_400 if unit == "second" else 1)
    low, high = STEPS.get((unit, every), (usual, usual))
    assert low - 1e-9 <= gap <= high + 1e-9


def test_the_day_or_the_month_first():
    """Where both can be read, even steps decide; where they do not, nothing is guessed."""
    for form in ("01/{:02}/{}", "{:02}/01/{}"):
        found = parse([form.format(m % 12 + 1, 2020 + m // 12) for m in range(15)])
        assert (found.day == 1).all()
        assert found.is_monotonic_increasing
    with pytest.raises(UserError, match=r"can be read as DD-MM-YYYY or MM-DD-YYYY .*YYYY-MM-DD"):
        parse(["01/02/2020", "03/05/2020", "04/09/2020"])


@pytest.mark.parametrize("cell", ["2020-01-01;10", "2020-01-01\t10", "2020-01-01|10", "01.01.202010", "2020/01/01;10"])
def test_times_stand_after_a_space_or_t(cell):
    assert dates.forms_of([cell]) == []
    assert dates.forms_of(["2020-01-01T10", "2020-01-01 10", "2020-01-01  10:00"]) == ["%Y-%m-%d"]
    assert dates.forms_of(["31.01.2020 10:00", "31.01.2020T10:00"]) == ["%d-%m-%Y"]


def test_times_with_one_offset_stay_as_they_are_and_with_several_need_a_zone():
    hours = parse([f"2020-03-01T{h:02}:00:00+02:00" for h in range(24)])
    assert hours[0] == pd.Timestamp("2020-03-01")
    # The night in which the clock jumps from 2 to 3: evenly spaced in UTC only.
    cells = [f"2020-03-29T{h:02}:00:00+0{1 if h < 2 else 2}:00" for h in range(24) if h != 2]
    with pytest.raises(UserError, match=r"several offsets from UTC, \+0100 and, from row 2, \+0200; set timezone to"):
        parse(cells)
    night = parse(cells, "Europe/Berlin")
    assert night[0] == pd.Timestamp("2020-03-28 23:00", tz="UTC")
    assert set(night.diff()[1:]) == {pd.Timedelta(hours=1)}
    with pytest.raises(UserError, match=r"row 1 has no offset from UTC.*; write all dates"):
        parse(["2020-01-01T00:00Z", "2020-01-01T01:00", "2020-01-01T02:00Z"])


MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
UNDERSTOOD = {
    "short years": ([f"1/{d}/20" for d in range(1, 32)], "2020-01-31"),
    "short years, day first": ([f"{d}/1/20" for d in range(1, 32)], "2020-01-31"),
    "months of short years": ([f"{m}/1/{y}" for y in (19, 20) for m in range(1, 13)], "2020-12-01"),
    "a clock of twelve hours": (
        [f"01/01/2020 {h}:00 {half}" for half in ("AM", "PM") for h in (12, *range(1, 12))] + ["01/02/2020 12:00 AM"],
        "2020-01-02",
    ),
    "hours without separators": ([f"202001{d:02}{h:02}" for d in (1, 2) for h in range(24)], "2020-01-02 23:00"),
    "seconds since 1970": ([str(1577836800 + 3600 * h) for h in range(30)], "2020-01-02 05:00"),
    "named months": ([f"{m}-{y:02}" for y in (5, 6) for m in MONTHS], "2006-12-01"),
    "years before 1969": ([f"{m}-{y}" for y in (49, 50) for m in MONTHS], "1950-12-01"),
}  # fmt: skip


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("name", UNDERSTOOD)
def test_dates_as_spreadsheets_write_them(name, order):
    """Also newest first."""
    labels, last = UNDERSTOOD[name]
    found = parse(labels[::order])[::order]
    assert found.is_monotonic_increasing
    assert found[-1] == pd.Timestamp(last)


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ([f"20240101{h:02}" for h in range(10)], "can be read as YYYYMMDDHH or seconds since 1970 ('2024010100')"),
        ([f"{m}/1/20" for m in range(1, 13)], "can be read as DD-MM-YY or MM-DD-YY or YY-MM-DD ('1/1/20')"),
        ([f"May-{d:02}" for d in range(5, 25)], "'when' can be read as Jan-DD or Jan-YY ('May-05')"),
        (["2020-01-01", "2020-01-02", "soon"] + ["2020-01-04"] * 20, "'soon' is no date of the form YYYY-MM-DD"),
        (["2020-01-01", "", "2020-01-03"], "There is no date in row 1 of column 'when'; correct the cell"),
    ],
)
def test_dates_that_are_not_understood_are_refused(cells, words):
    with pytest.raises(UserError) as error:
        parse(cells)
    assert words in str(error.value)


def test_the_column_of_dates():
    text = pd.DataFrame({"level": ["1", "2", "3"], "when": ["1.1.2020", "2.1.2020", "3.1.2020"]})
    assert dates.date_column(text) == "when"
    years = pd.DataFrame({"no": ["1700", "1701", "1702"], "level": ["1", "2", "2"]})
    assert dates.date_column(years) == "no"
    assert dates.date_column(pd.DataFrame({"a": ["1", "2", "2"], "b": ["5.5", "6", "7"]})) == ""
    with pytest.raises(UserError, match=r"'when' was taken for the dates, and they are not understood .*YYYY-MM-DD"):
        dates.date_column(pd.DataFrame({"when": ["the 1st", "the 2nd", "the 3rd"], "v": ["1", "2", "3"]}))


def stamps(cells, column="ds", zone="", freq=None):
    frame = pd.DataFrame({"unique_id": "a", column: cells})
    return stamps_of(frame, Columns(time=column, zone=zone), freq=freq)


def numbered(form, freq="D", rows=60):
    return pd.date_range("2020-01-01", periods=rows, freq=freq).strftime(form)


DIGITS = {
    "months of one year": ("%Y%m", "MS", 12), "months": ("%Y%m", "MS", 60), "days of one month": ("%Y%m%d", "D", 20),
    "days of the year": ("%Y%j", "D", 400), "hours": ("%Y%m%d%H", "h", 60), "hours of a day": ("%Y%m%d%H", "h", 9),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["int64", "float64", object, str])
@pytest.mark.parametrize("name", DIGITS)
def test_whole_numbers_and_their_text_are_the_same_dates(name, kind):
    form, freq, rows = DIGITS[name]
    text = numbered(form, freq, rows)
    found = stamps(text if kind is str else text.astype("int64").astype(kind))
    assert (found == pd.date_range("2020-01-01", periods=rows, freq=freq)).all()


@pytest.mark.parametrize("kind", ["int64", str])
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_epochs(unit, kind):
    index = pd.date_range("2020-01-01", periods=60, freq="h")
    cells = index.as_unit(unit).asi8.astype(kind)
    assert (stamps(cells) == index).all()
    assert (stamps(cells, zone="Europe/Berlin") == index.tz_localize("UTC")).all()


@pytest.mark.parametrize(
    ("cells", "column"),
    [
        (numbered("%y%m%d", rows=80), "ds"), (numbered("%y%m%d", rows=20), "ds"), (numbered("%m%d%Y"), "ds"),
        (numbered("%d%m%Y").astype("int64"), "ds"), (numbered("%y%m%d", "MS").astype("int64"), "ds"),
        (numbered("%m%d%Y").astype("int64"), "ds"), (["0900", "1000", "1130"], "ds"), ([93000, 100000, 101500], "Time"),
        (["1234567", "1234569", "1234588"], "ds"),
    ],
)  # fmt: skip
def test_numbers_that_look_like_dates_are_refused(cells, column):
    with pytest.raises(UserError, match=rf"Column '{column}' holds .* look like dates in no known form .*; write"):
        stamps(cells, column)
    assert (stamps(cells, column, freq=1) == np.asarray(cells).astype("int64")).all()


def test_days_that_excel_counts_are_refused(tmp_path):
    for cells in (43831 + np.arange(60), 43831 + 30 * np.arange(60)):
        with pytest.raises(UserError, match=r"Column 'Date' holds whole numbers such as 43831, like the days"):
            stamps(cells, "Date")
        pd.DataFrame({"date": cells, "y": 1.0}).to_csv(tmp_path / "a.csv", index=False)
        with pytest.raises(UserError, match="'date' was taken for the dates, and they are not understood"):
            Forecaster(3, members=0).fit(tmp_path / "a.csv")


@pytest.mark.parametrize(
    ("cells", "column"),
    [
        (range(60), "time"), (range(0, 600, 10), "timestamp"), ([0, 1, 5, 6], "date"), (range(1960, 2020), "ds"),
        (range(500_000, 500_060), "time"), ([199990, 200003, 200007], "ds"), (range(-5, 5), "date"),
        ([str(k) for k in range(60)], "ds"),
    ],
)  # fmt: skip
def test_counters_stay_whole_numbers(cells, column):
    assert stamps(cells, column).tolist() == [int(cell) for cell in cells]


def test_whole_numbers_have_no_time_zone_and_an_end():
    with pytest.raises(UserError, match=r"timezone is 'UTC', and the whole numbers in column 'ds' have no time zone"):
        stamps(range(9), zone="UTC")
    for cells in (np.arange(3, dtype="uint64") + 2**63, [str(5 * 10**18 + k) for k in range(3)], [10**20, 10**20 + 1]):
        with pytest.raises(UserError, match=r"The whole number \d+ in row 0 of column 'ds' is too large for a stamp"):
            stamps(cells)


def test_numbers_among_dates_are_refused():
    with pytest.raises(UserError, match=r"7 is no date|'ds' holds no dates that are understood"):
        stamps(["2020-01-01", 7, "2020-01-03"])


def test_messages_name_the_column_of_the_file(tmp_path):
    days = pd.DataFrame({"day": pd.date_range("2020-01-01", periods=30).astype(str), "sales": 1.0 * np.arange(30)})
    days.loc[29, "day"] = "soon"
    days.to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(UserError, match=r"'soon' is no date of the form YYYY-MM-DD.* in row 29 of column 'day'"):
        Forecaster(3, members=0, target_col="sales").fit(tmp_path / "a.csv")
    days.replace("soon", "").to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(UserError, match="Series 'sales': row 29 has no stamp in column 'day'"):
        Forecaster(3, members=0, target_col="sales").fit(tmp_path / "a.csv")
