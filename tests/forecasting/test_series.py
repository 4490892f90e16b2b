"""Series from CSV files: what is found by looking, what is masked, and what is refused in one sentence."""

import csv
import random
from datetime import datetime, timedelta

import numpy as np
import pytest

from bayesrnn.errors import UserError
from bayesrnn.forecasting import dates, series
from bayesrnn.forecasting.series import mauna_loa, parse_csv, read_csv


def write(folder, text, name="data.csv", encoding="utf-8"):
    path = folder / name
    path.write_bytes(text.encode(encoding) if isinstance(text, str) else text)
    return path


def rows(labels, start=1.0):
    return "\n".join(f"{label},{start + i}" for i, label in enumerate(labels))


def days(count, first="2020-01-01"):
    return [f"{datetime.fromisoformat(first) + timedelta(days=i):%Y-%m-%d}" for i in range(count)]


def test_the_series_of_the_library():
    one = mauna_loa()
    assert (len(one), one.columns, one.label(0), one.label(525), one.label(526)) == (
        526, ["co2"], "1958-03", "2001-12", "2002-01",
    )  # fmt: skip
    assert one.target[[0, 1, -1]].tolist() == [316.1, 317.2, 371.02]
    assert one.notes == ["5 missing values of co2 (longest gap: 3) were filled by straight lines."]


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


@pytest.mark.parametrize("name", FORMS)
def test_forms_of_dates(tmp_path, name):
    labels, (unit, every) = FORMS[name]
    one = read_csv(write(tmp_path, "when,what\n" + rows(labels)))
    assert (one.grid.unit, one.grid.every) == (unit, every)
    assert one.columns == ["what"]
    assert one.target[0] == 1.0
    assert one.target[-1] == len(labels)


def test_the_day_or_the_month_first(tmp_path):
    """Where both can be read, even steps decide; where they do not, nothing is guessed."""
    monthly = [f"01/{m % 12 + 1:02}/{2020 + m // 12}" for m in range(15)]
    assert read_csv(write(tmp_path, "when,what\n" + rows(monthly))).grid.name == "month"
    american = [f"{m % 12 + 1:02}/01/{2020 + m // 12}" for m in range(15)]
    assert read_csv(write(tmp_path, "when,what\n" + rows(american))).grid.name == "month"
    unclear = ["01/02/2020", "03/05/2020", "04/09/2020"]
    with pytest.raises(UserError, match=r"can be read as DD-MM-YYYY or MM-DD-YYYY .*data.date_format"):
        read_csv(write(tmp_path, "when,what\n" + rows(unclear)))


def test_weekdays_have_no_weekends(tmp_path):
    labels = [d for d in days(30, "2024-01-01") if datetime.fromisoformat(d).weekday() < 5]
    one = read_csv(write(tmp_path, "date,price\n" + rows(labels)))
    assert (one.grid.unit, len(one), one.grid.seasons[0], one.notes) == ("weekday", len(labels), 5, [])
    assert one.label(4) == "2024-01-05"  # a Friday
    assert one.label(5) == "2024-01-08"


def test_labels_and_seasons_of_grids():
    start = datetime(2020, 1, 1)
    expected = {
        ("month", 1): ("month", 12, "2020-02"),
        ("month", 3): ("quarter", 4, "2020Q2"),
        ("month", 12): ("year", 1, "2021"),
        ("month", 2): ("2 months", 6, "2020-03"),
        ("day", 1): ("day", 7, "2020-01-02"),
        ("day", 7): ("week", 52, "2020-01-08"),
        ("second", 3600): ("hour", 24, "2020-01-01 01:00:00"),
        ("second", 900): ("15 minutes", 96, "2020-01-01 00:15:00"),
        ("second", 1): ("second", 3600, "2020-01-01 00:00:01"),
        ("second", 0.5): ("0.5 seconds", 7200, "2020-01-01 00:00:00.500000"),
        ("row", 1): ("row", 1, "2"),
    }
    for (unit, every), (name, season, label) in expected.items():
        grid = dates.Grid(unit, every, start)
        assert (grid.name, grid.seasons[0], grid.label(1)) == (name, season, label)
        if unit != "row":
            assert [grid.step(grid.date(step)) for step in (-3, 0, 7)] == [-3, 0, 7]
    assert [dates.Grid("month", every, start).size for every in (1, 2)] == ["one month", "2 months"]
    assert dates.Grid("month", 12, start).label(10_000) == "12020"
    assert dates.Grid("day", 3650, start).label(10_000) == "3650 days 10,001"  # beyond what a calendar has


def test_year_and_quarter_in_two_columns(tmp_path):
    text = "year,quarter,gdp\n" + "\n".join(f"{1959 + i // 4}.0,{i % 4 + 1},{i}" for i in range(8))
    one = read_csv(write(tmp_path, text))
    assert (one.grid.name, one.columns, one.label(0), one.label(7)) == ("quarter", ["gdp"], "1959Q1", "1960Q4")
    text = text.replace("1959.0,3", "1959.0,5")
    with pytest.raises(UserError, match=r"line 4: 1959.0-5 in the columns year, quarter is no date"):
        read_csv(write(tmp_path, text))


def test_parts_of_dates_in_columns_of_their_own():
    hours = [datetime(2010, 12, 31, 20) + timedelta(hours=i) for i in range(30)]
    lines = [f"{i + 1},{t.year},{t.month},{t.day},{t.hour},{'NA' if i == 3 else i}" for i, t in enumerate(hours)]
    text = "No,year,month,day,hour,pm2.5\n" + "\n".join(lines)
    one = parse_csv(text.encode(), name="data.csv")
    assert (one.grid.name, one.columns, one.label(0)) == ("hour", ["pm2.5"], "2010-12-31 20:00:00")
    assert np.isnan(one.target[3])
    with pytest.raises(UserError, match=r"line 3: 2010-13-31-21 in the columns year, month, day, hour is no date"):
        parse_csv(text.replace("2,2010,12", "2,2010,13", 1).encode(), name="data.csv")


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_delimiters(tmp_path, mark):
    text = "\n".join(
        mark.join(row) for row in [("date", "a", "b"), ("2001", "1", "2"), ("2002", "3", "4"), ("2003", "5", "6")]
    )
    one = read_csv(write(tmp_path, text), covariates="all")
    assert one.values.tolist() == [[1, 2], [3, 4], [5, 6]]


def test_a_decimal_comma(tmp_path):
    one = read_csv(write(tmp_path, "Datum;Wert\n12.02.2020;1,5\n13.02.2020;2,25\n14.02.2020;3\n"))
    assert one.target.tolist() == [1.5, 2.25, 3.0]


def test_files_as_programs_write_them(tmp_path):
    """Byte-order marks, UTF-16, Windows line ends, comments, blank lines, quotes, a last empty column."""
    plain = "date,a\n2001,1\n2002,2\n2003,4\n"
    for text, encoding in (
        ("﻿" + plain, "utf-8"),
        (plain, "utf-16"),
        (plain.replace("\n", "\r\n"), "utf-8"),
        ("# made by hand\n\n" + plain + "\n\n", "utf-8"),
        ('"date","a"\n"2001","1"\n"2002","2"\n"2003","4"\n', "utf-8"),
        ("date,a,\n2001,1,\n2002,2,\n2003,4,\n", "utf-8"),
        ("date, a\n2001, 1\n2002, 2\n2003, 4\n", "utf-8"),
    ):
        one = read_csv(write(tmp_path, text, encoding=encoding))
        assert (one.columns, one.target.tolist()) == (["a"], [1.0, 2.0, 4.0])


def test_without_a_header(tmp_path):
    one = read_csv(write(tmp_path, "2001,1.5\n2002,2\n2003,4\n"))
    assert (one.columns, one.label(0), one.target[0]) == (["column 2"], "2001", 1.5)


def test_without_dates(tmp_path):
    one = read_csv(write(tmp_path, "load\n3\n1\n2\n"))
    assert (one.grid.name, one.target.tolist(), one.label(3)) == ("row", [3.0, 1.0, 2.0], "4")
    assert one.notes == ["No column holds dates; the rows are taken as evenly spaced, in the order of the file."]


def test_numbers_that_could_be_years_are_values(tmp_path):
    """The first column of whole numbers may be years; later ones are not taken for dates."""
    one = read_csv(write(tmp_path, "year,volume\n1871,1120\n1872,1160\n1873,1963\n"))
    assert (one.columns, one.label(0)) == (["volume"], "1871")
    other = read_csv(write(tmp_path, "load,volume\n12.5,1120\n13.5,1160\n14.5,1963\n"), target="volume")
    assert (other.grid.unit, other.target[2]) == ("row", 1963)


def test_target_and_covariates(tmp_path):
    path = write(tmp_path, "date,a,name,b,c\n2001,1,x,4,7\n2002,2,y,5,8\n2003,3,z,6,9\n")
    one = read_csv(path)
    assert one.columns == ["a"]
    assert one.notes == [
        "a is forecast from its own past; b, c can be used with data.covariates=all.",
        "name holds text and cannot be used.",
    ]
    assert read_csv(path, covariates="all").columns == ["a", "b", "c"]
    other = read_csv(path, target="b", covariates="c, a")
    assert (other.columns, other.values[0].tolist()) == (["b", "c", "a"], [4, 7, 1])
    for options, words in (
        ({"target": "d"}, "There is no column 'd' to forecast; there are a, name, b, c."),
        ({"covariates": "d"}, "There is no column 'd' for a covariate"),
        ({"covariates": "a"}, "a is the series to forecast; it cannot be a covariate as well."),
        ({"date": "d"}, "There is no column 'd' for the dates"),
        ({"date": "name"}, "The column 'name' holds no dates (its first cell is 'x')"),
        ({"target": "name"}, "data.csv, line 2: 'x' in column name is no number"),
    ):
        with pytest.raises(UserError) as error:
            read_csv(path, **options)
        assert words in str(error.value)


def test_rows_out_of_order_are_sorted_and_it_is_said(tmp_path):
    one = read_csv(write(tmp_path, "date,a\n2003,3\n2001,1\n2002,2\n"))
    assert one.target.tolist() == [1, 2, 3]
    assert one.notes == ["The dates are not in order in the file; the rows were sorted by date."]
    back = read_csv(write(tmp_path, "date,a\n2003,3\n2002,2\n2001,1\n"))
    assert back.notes == ["The dates are in reverse order in the file; the rows were sorted by date."]


def test_repeated_dates(tmp_path):
    one = read_csv(write(tmp_path, "date,a\n2001,1\n2002,2\n2002,2\n2003,3\n"))
    assert one.target.tolist() == [1, 2, 3]
    assert one.notes == ["1 row that repeats a date and its values was left out."]
    with pytest.raises(UserError, match=r"Lines 3 and 4 have the same date and different values; keep one"):
        read_csv(write(tmp_path, "date,a\n2001,1\n2002,2\n2002,2.5\n2003,3\n"))


@pytest.mark.parametrize("missing", ["", "NA", "nan", "NULL", "?", None])
def test_missing_values_are_masked_and_it_is_said(tmp_path, missing):
    """Empty cells and absent rows alike; straight lines, which look ahead, only where they are asked for."""
    between = "" if missing is None else f"2002,{missing}\n2003,{missing}\n"
    path = write(tmp_path, f"date,a\n2000,0\n2001,1\n{between}2004,4\n2005,9\n2006,3\n")
    one = read_csv(path)
    np.testing.assert_array_equal(one.target, [0, 1, np.nan, np.nan, 4, 9, 3])
    assert one.notes == ["2 missing values of a (longest gap: 2) are masked: they are neither learnt from nor scored."]
    filled = read_csv(path, max_gap=2)
    assert filled.target.tolist() == [0, 1, 2, 3, 4, 9, 3]
    assert filled.notes == ["2 missing values of a (longest gap: 2) were filled by straight lines."]


def test_one_of_anything_is_said_as_one(tmp_path):
    text = "date,a\n2000,\n2001,1\n2002,2\n2003,NA\n2004,4\n2005,9\n2006,3\n"
    ends = "1 step without a at the ends was left out."
    assert read_csv(write(tmp_path, text)).notes == [
        ends,
        "1 missing value of a (longest gap: 1) is masked: it is neither learnt from nor scored.",
    ]
    assert read_csv(write(tmp_path, text), max_gap=1).notes == [
        ends,
        "1 missing value of a (longest gap: 1) was filled by a straight line.",
    ]


def test_gaps_longer_than_asked_for_stay_masked(tmp_path):
    labels = [*days(20), *days(3, "2020-01-23"), *days(20, "2020-01-30")]
    one = read_csv(write(tmp_path, "date,a\n" + rows(labels)), max_gap=3)
    assert np.flatnonzero(np.isnan(one.target)).tolist() == [25 - 2 + i for i in range(2, 6)]
    assert one.notes == [
        "2 missing values of a (longest gap: 2) were filled by straight lines.",
        "4 missing values of a (longest gap: 4) are masked: they are neither learnt from nor scored.",
    ]


def test_ends_without_a_target_are_cut(tmp_path):
    one = read_csv(write(tmp_path, "date,a\n1999-11,\n1999-12,1\n2000-01,2\n2000-02,3\n2000-03,NA\n"))
    assert (one.target.tolist(), one.label(0), one.label(2)) == ([1, 2, 3], "1999-12", "2000-02")
    assert one.notes == ["2 steps without a at the ends were left out."]


REFUSED = {
    "": "is empty; a series needs a column of dates and a column of numbers",
    "date,a\n2001,1\n": "has 1 row of data; a series needs many more",
    "date,a\n2001,1\n2002,2\n2002,2\n": "There are 2 different dates",
    "date,a\n2001,1\n2002,two\n2003,3\n": "line 3: 'two' in column a is no number; correct it or leave it empty",
    "date,a\n2001,1\n2002,inf\n2003,3\n": "line 3: 'inf' in column a is infinite",
    "date,a\n2001,1\n2002,2,5\n2003,3\n": "line 3, has 3 cells where line 1 has 2",
    "date,a,a\n2001,1,2\n2002,2,3\n2003,3,4\n": "has two columns called 'a'",
    "date,a\n2001,x\n2002,y\n2003,z\n": "No column holds numbers",
    "date,a\n2001,\n2002,\n2003,\n": "No column holds numbers",
    "date,a\n2001,1\n2002,2\n2003,3\n2004.5,4\n2005,3\n2006,3\n2007,1\n2008,1\n2009,1\n2010,1\n2011,1\n2012,2\n":
        "'2004.5' is no date of the form YYYY, as the others are, in line 5",
    "date,a\n2020-01-01,1\n2020-01-02,2\n2020-01-03,3\n2020-01-04T00:00+01:00,1\n":
        "has a time zone, unlike those before",
    "date,a\n2001,1\n2002,1_000\n2003,3\n": "line 3: '1_000' in column a is no number",
    "date,a\n9001-01-01,1\n9001-01-02,2\n9001-01-03,3\n": "The date in line 2 is in the year 9001",
    "date,a\n" + rows([*days(12), ""]): "There is no date in line 14",
    "date,a\n2020-01-01 00:00,1\n2020-01-01 01:00,2\n2020-01-01 02:00,3\n2020-01-01 03:30,1\n":
        "most are one hour apart, but 2020-01-01 03:30 in line 5 is not a whole number",
    "date,a\n" + rows(["2020-01-01", "2020-01-08", "2020-01-15", "2020-01-18", "2020-01-22"]): "not evenly spaced",
    "date,a\n" + rows(["2020-01-01", "2020-01-04", "2020-01-07", "2020-01-08"]): "most are 3 days apart, but 2020",
    "date,a\n" + rows(["2000-01-01", "2000-01-02", "2000-01-03", "2020-01-01"]): "Only 4 of the 7,306 steps of one day",
}  # fmt: skip


@pytest.mark.parametrize("text", REFUSED, ids=lambda t: REFUSED[t][:40])
def test_what_is_refused(tmp_path, text):
    with pytest.raises(UserError) as error:
        read_csv(write(tmp_path, text))
    assert REFUSED[text] in str(error.value)
    assert str(error.value).startswith("data.csv")
    assert "\n" not in str(error.value)


def test_files_that_are_no_csv(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"cannot be read .*; --data names a CSV file"):
        read_csv(tmp_path / "nothing.csv")
    with pytest.raises(UserError, match=r"cannot be read .there is no such file."):
        read_csv("no\0name.csv")
    with pytest.raises(UserError, match=r"is a folder; --data names a CSV file\.$"):
        read_csv(tmp_path)
    inside = write(tmp_path, "date,a\n")
    with pytest.raises(UserError) as error:
        read_csv(tmp_path)
    assert str(error.value) == f"{tmp_path} is a folder; --data names a CSV file, such as {inside}."
    with pytest.raises(UserError, match=r"is not UTF-8 text .byte 4.; save it as CSV in UTF-8"):
        read_csv(write(tmp_path, b"date\xff\xfe,a\n"))
    with pytest.raises(UserError, match="is a binary file"):
        read_csv(write(tmp_path, b"date,a\n\0\0\0\n"))
    with pytest.raises(UserError, match="cannot be read as CSV"):
        read_csv(write(tmp_path, "date,a\n2001," + "1" * 200_000 + "\n2002,2\n"))
    small = write(tmp_path, "date,a,b\n" + "\n".join(f"{y},1,2" for y in range(2000, 2010)))
    for name, limit, words in (
        ("MAX_BYTES", 20, "is larger than .* MB"),
        ("MAX_ROWS", 5, "has 10 rows; at most 5 are read"),
        ("MAX_COLUMNS", 2, "has 3 columns; at most 2 are read"),
    ):
        with monkeypatch.context() as patch, pytest.raises(UserError, match=words):
            patch.setattr(series, name, limit)
            read_csv(small)


def test_a_clock_that_is_not_exact(tmp_path):
    """Sensor times may be off by a quarter of a step."""
    labels = ["2020-01-01 00:00:00", "2020-01-01 00:01:02", "2020-01-01 00:01:59", "2020-01-01 00:04:01"]
    one = read_csv(write(tmp_path, "time,v\n" + rows(labels)))
    np.testing.assert_array_equal(one.target, [1, 2, 3, np.nan, 4])


def test_what_is_written_reads_back(tmp_path):
    for labels in (days(30), [f"{1990 + i}" for i in range(30)], [f"{1990 + i // 4}Q{i % 4 + 1}" for i in range(30)]):
        text = "date,a,b\n" + "\n".join(f"{d},{np.sin(i)},{i * 0.1}" for i, d in enumerate(labels))
        one = read_csv(write(tmp_path, text), target="b", covariates="all")
        again = read_csv(write(tmp_path, one.to_csv(), name="again.csv"), covariates="all")
        assert (again.columns, again.grid) == (one.columns, one.grid)
        np.testing.assert_array_equal(again.values, one.values)
    rowwise = read_csv(write(tmp_path, "a\n3\n1\n2\n"))
    table = list(csv.reader(rowwise.to_csv().splitlines()))
    assert table[:2] == [["row", "a"], ["1", "3.0"]]
    again = parse_csv(rowwise.to_csv().encode(), name="again.csv", covariates="all")
    assert (again.columns, again.grid, again.target.tolist()) == (["a"], rowwise.grid, [3.0, 1.0, 2.0])


@pytest.mark.parametrize("first", [0, 1])
def test_row_numbers_are_no_values(tmp_path, first):
    """As pandas writes a frame with its index."""
    text = ",date,a\n" + "\n".join(f"{i + first},{2001 + i},{i * i}" for i in range(5))
    one = read_csv(write(tmp_path, text))
    assert (one.columns, one.label(0), one.target.tolist()) == (["a"], "2001", [0, 1, 4, 9, 16])


def test_whatever_a_file_holds_is_a_series_or_one_sentence():
    """100 files with cells, lines and bytes exchanged at random."""
    source = random.Random(0)
    seeds = [
        "date,a\n" + rows(days(20)),
        "Datum;Wert\n12.02.2020;1,5\n13.02.2020;2,25\n14.02.2020;3\n",
        "year,quarter,gdp\n" + "\n".join(f"{1959 + i // 4},{i % 4 + 1},{i}" for i in range(12)),
        "t\tv\n" + "\n".join(f"2020-01-01T{h:02}:00+02:00\t{h}" for h in range(20)),
    ]
    marks = [
        '"',
        ",",
        ";",
        "\n",
        "\r",
        "#",
        "9" * 30,
        "-",
        "1e400",
        "nan",
        "9999-12-31",
        "0000",
        "\u2028",
        "Jan",
        "1/2/2020",
        "²",
    ]
    for _ in range(100):
        text = list(source.choice(seeds))
        for _ in range(source.randrange(1, 8)):
            at = source.randrange(len(text))
            text[at : at + source.randrange(4)] = source.choice(
                [source.choice(marks), chr(source.randrange(1, 300)), ""]
            )
        try:
            one = parse_csv("".join(text).encode(), name="data.csv", covariates=source.choice(["", "all"]), max_gap=50)
        except UserError:
            continue
        assert not np.isinf(one.values).any()
        assert one.label(len(one) + 100)


def decimals(line, header=""):
    """A hundred days, one line each."""
    return header + "\n".join(line(day, i) for i, day in enumerate(days(100)))


COMMAS = {
    "day first": decimals(lambda day, i: f"{day[8:]}.{day[5:7]}.{day[:4]};{i},5", "Datum;Wert\n"),
    "no header": decimals(lambda day, i: f"{day};{i},50"),
    "no header, like hours": decimals(lambda day, i: f"{day};{i:02},50"),
    "three columns": decimals(lambda day, i: f"{day};{i},5;{i},25", "Datum;Wert;mehr\n"),
    "three columns, no header": decimals(lambda day, i: f"{day};{i},5;{i},25"),
    "quoted, a comma in a name": decimals(lambda day, i: f'"{day}";"{i},5"', '"Datum";"Wert, netto"\n'),
    "tabs": decimals(lambda day, i: f"{day}\t{i},5", "Datum\tWert\n"),
    "tabs, no header": decimals(lambda day, i: f"{day}\t{i},50"),
    "bars": decimals(lambda day, i: f"{day}|{i},5"),
    "a comma in the time": decimals(lambda day, i: f"{day} 00:00:00,000;{i},5"),
}


@pytest.mark.parametrize("name", COMMAS)
def test_a_decimal_comma_is_no_delimiter(name):
    one = parse_csv(COMMAS[name].encode(), name="data.csv")
    assert one.target.tolist() == [i + 0.5 for i in range(100)]
    assert (one.grid.unit, one.label(0), one.label(99)) == ("day", "2020-01-01", "2020-04-09")


def test_a_wrong_line_does_not_change_the_delimiter():
    text = decimals(lambda day, i: f"{day};{i},5" + (";3" if i == 50 else ""), "Datum;Wert\n")
    with pytest.raises(UserError, match="line 52, has 3 cells where line 1 has 2"):
        parse_csv(text.encode(), name="data.csv")


def test_a_semicolon_in_a_text_is_no_delimiter():
    one = parse_csv(decimals(lambda day, i: f"{day},{i},a;b", "date,v,what\n").encode(), name="data.csv")
    assert one.target[:3].tolist() == [0, 1, 2]


@pytest.mark.parametrize("cell", ["2020-01-01;10", "2020-01-01\t10", "2020-01-01|10", "01.01.202010", "2020/01/01;10"])
def test_times_stand_after_a_space_or_t(cell):
    assert dates.forms_of([cell]) == []
    assert dates.forms_of(["2020-01-01T10", "2020-01-01 10", "2020-01-01  10:00"]) == ["%Y-%m-%d"]
    assert dates.forms_of(["31.01.2020 10:00", "31.01.2020T10:00"]) == ["%d-%m-%Y"]


def test_names_of_columns_are_printable():
    text = "date,\x1b[31mred\x1b[0m\x07\u202e,two\xa0words\n2001,1,2\n2002,2,3\n2003,4,4\n"
    assert parse_csv(text.encode(), name="data.csv", covariates="all").columns == ["[31mred[0m", "two words"]
    with pytest.raises(UserError, match="two columns called 'a'"):
        parse_csv(b"date,a,\x1ba\n2001,1,2\n2002,2,3\n2003,4,4\n", name="data.csv")


def test_times_with_one_offset_stay_as_they_are():
    hours = rows([f"2020-03-01T{h:02}:00:00+02:00" for h in range(24)])
    one = parse_csv(("time,v\n" + hours).encode(), name="data.csv")
    assert (one.label(0), one.label(24), one.notes) == ("2020-03-01 00:00:00", "2020-03-02 00:00:00", [])
    months = rows([f"2020-{m:02}-01T00:00:00+0{1 + (3 < m < 11)}:00" for m in range(1, 13)])  # summer time
    one = parse_csv(("time,v\n" + months).encode(), name="data.csv")
    assert (one.grid.name, one.label(0), one.notes) == ("month", "2020-01", [])


def test_times_with_several_offsets_are_utc_and_a_note_says_so():
    """The night in which the clock jumps from 2 to 3: evenly spaced in UTC only."""
    hours = rows([f"2020-03-29T{h:02}:00:00+0{1 if h < 2 else 2}:00" for h in range(24) if h != 2])
    one = parse_csv(("time,v\n" + hours).encode(), name="data.csv")
    assert (one.label(0), len(one)) == ("2020-03-28 23:00:00", 23)
    assert one.notes == ["The times have different offsets from UTC (+0100, +0200); they are shown in UTC."]


@pytest.mark.parametrize(("cell", "shown"), [('"12,345.67"', "12,345.67"), ("5%", "5%"), ("7 kg", "7 kg")])
def test_numbers_that_are_written_otherwise(cell, shown):
    text = "date,what,v\n" + "\n".join(f"{day},text,{cell}" for day in days(30))
    with pytest.raises(UserError) as error:
        parse_csv(text.encode(), name="data.csv")
    words = f"data.csv: No column holds numbers; '{shown}' in line 2, column v, is none: write them as 12345.67"
    assert str(error.value).startswith(words)
    assert "\n" not in str(error.value)


def test_values_too_large_for_single_precision():
    text = "date,v\n2001,1\n2002,{}\n2003,3\n"
    assert parse_csv(text.format(1.8e19).encode(), name="data.csv").target[1] == 1.8e19
    for value in (1.9e19, -1e300):
        with pytest.raises(UserError, match=r"line 3: '.*' in column v is too large, .*; give the series in a larger"):
            parse_csv(text.format(value).encode(), name="data.csv")


MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
UNDERSTOOD = {
    "short years": ([f"1/{d}/20" for d in range(1, 32)], "day", "2020-01-31"),
    "short years, day first": ([f"{d}/1/20" for d in range(1, 32)], "day", "2020-01-31"),
    "months of short years": ([f"{m}/1/{y}" for y in (19, 20) for m in range(1, 13)], "month", "2020-12"),
    "a clock of twelve hours": (
        [f"01/01/2020 {h}:00 {half}" for half in ("AM", "PM") for h in (12, *range(1, 12))] + ["01/02/2020 12:00 AM"],
        "hour", "2020-01-02 00:00:00",
    ),
    "named months": ([f"{m}-{y:02}" for y in (5, 6) for m in MONTHS], "month", "2006-12"),
    "years before 1969": ([f"{m}-{y}" for y in (49, 50) for m in MONTHS], "month", "1950-12"),
}  # fmt: skip


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("name", UNDERSTOOD)
def test_dates_as_spreadsheets_write_them(name, order):
    """Also newest first, and then they are not learnt backwards."""
    labels, step, last = UNDERSTOOD[name]
    text = "when,v\n" + "\n".join([f"{label},{i}" for i, label in enumerate(labels)][::order])
    one = parse_csv(text.encode(), name="data.csv")
    assert (one.grid.name, one.label(len(one) - 1)) == (step, last)
    assert one.target.tolist() == list(range(len(labels)))


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ([f"the {d}th of May" for d in range(4, 20)], "'when' was taken for the dates, and they are not understood"),
        ([f"{i}.5.20 or so" for i in range(1, 20)], "the first is '1.5.20 or so'"),
        ([f"{m}/1/20" for m in range(1, 13)], "can be read as DD-MM-YY or MM-DD-YY or YY-MM-DD ('1/1/20'); say which"),
        ([f"May-{d:02}" for d in range(5, 25)], "'when' can be read as Jan-DD or Jan-YY ('May-05')"),
        (["Dec-30", "Dec-31", "Jan-01", "Jan-02", "Jan-03"], "data.date"),
    ],
)
def test_dates_that_are_not_understood_are_refused(cells, words):
    text = "when,v\n" + rows(cells)
    with pytest.raises(UserError) as error:
        parse_csv(text.encode(), name="data.csv")
    assert words in str(error.value)
    assert "YYYY-MM-DD" in str(error.value)
    one = parse_csv(text.encode(), name="data.csv", date="none", target="v")
    assert one.target.tolist() == [1.0 + i for i in range(len(cells))]


def test_the_format_of_dates_can_be_given():
    text = ("when,v\n" + rows([f"{m}/1/20" for m in range(1, 13)])).encode()
    assert parse_csv(text, name="data.csv", date_format="%m/%d/%y").grid.name == "month"
    assert parse_csv(text, name="data.csv", date_format="%d/%m/%y").grid.name == "day"
    with pytest.raises(UserError, match="'1/1/20' is no date of the form YYYY"):
        parse_csv(text, name="data.csv", date_format="%Y")


def test_a_numbered_column_gives_the_order_of_the_rows():
    one = parse_csv(b"week,v\n3,30\n2,20\n1,10\n", name="data.csv")
    assert (one.columns, one.target.tolist(), one.grid.unit) == (["v"], [10, 20, 30], "row")
    with pytest.raises(UserError, match="'week' was taken for the dates"):
        parse_csv(b"week,v\n3,30\n2,20\n7,10\n", name="data.csv")
