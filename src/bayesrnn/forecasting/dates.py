"""The column of dates in a table of text, and its dates in whatever form they are written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from bayesrnn.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

_CELL = (
    r"^(?P<date>.*?\d.*?)(?:(?: *T *|(?<=\d-\d\d) +|(?<=\d-\d) +| +(?=\d{1,2}:| *\d{1,2} ?[AaPp]))"
    r"(?P<time>\d{1,2}(?::\d{2}(?::\d{2}(?:[.,]\d+)?)?)?) *(?P<half>[AaPp]\.?[Mm]\.?)? *"
    r"(?P<zone>Z|UTC|[+-]\d{2}:?\d{2})?)?$"
)
_MONTHS = r"(?i)\b(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
# Separators of a date are "-" by then, and single digits have a zero before them.
_FORMATS = (
    "%Y-%m-%d %Y-%m %d-%m-%Y %m-%d-%Y %m-%Y %b-%d-%Y %d-%b-%Y %Y-%b-%d %b-%Y %Y-%b "
    "%d-%m-%y %m-%d-%y %y-%m-%d %d-%b-%y %b-%d-%y %b-%y %b-%d %G-W%V-%u %Y%m%d %Y%m %Y "
    "%Y%j %Y%m%d%H %Y%m%d%H%M %Y%m%d%H%M%S"
).split()
_DIGITS = {6: "%Y%m", 7: "%Y%j", 8: "%Y%m%d", 10: "%Y%m%d%H", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}
_EPOCHS = {10: "s", 13: "ms", 16: "us", 19: "ns"}
_COMPACT = {6: ("%y%m%d", "%d%m%y", "%m%d%y"), 8: ("%d%m%Y", "%m%d%Y")}  # nothing tells which one it is
_NO_YEAR = "%b-%d"
EPOCH = "seconds since 1970"
LOOK = 200  # rows that decide on the delimiter, the header and the column of dates
_NAMES = {"date", "time", "datetime", "timestamp", "year", "month", "day", "week", "quarter", "period", "ds", "index"}
Table = Any  # a DataFrame of text, with the rows' lines in the file as index


def date_column(table: Table) -> str:
    """By name, then by form, then a first column of years or the like; empty: no column looks like dates.

    Raises:
        UserError: a column looks like dates, and they are not understood.
    """

    import pandas as pd

    if table.empty:
        return ""
    table = table.fillna("")
    first = table.columns[0]
    named = [c for c in table if c.lower() in _NAMES]
    forms = {c: forms_of(table[c].iloc[:LOOK].tolist()) for c in table}
    plain = {c: bool(table[c].iloc[:LOOK].str.fullmatch(r"[+-]?\d*\.?\d*").all()) for c in table}
    for column in [*(c for c in named if forms[c]), *(c for c in table if forms[c] and not plain[c])]:
        return column
    if forms[first] and table[first].is_unique and len(table) > 2:
        return first
    digits = {c: table[c].iloc[:LOOK].str.contains(r"\d").mean() > 0.9 and table[c].is_unique for c in table}
    words = {c: pd.to_numeric(table[c].str.replace(",", "."), errors="coerce").iloc[:LOOK].isna() for c in table}
    text = [c for c in table if digits[c] and words[c].mean() > 0.5]
    for column in [*named, *text][: 1 if len(table.columns) > 1 else 0]:
        raise UserError(
            f"The column {column!r} was taken for the dates, and they are not understood (the first is "
            f"{table[column].iloc[0][:60]!r}); write them as YYYY-MM-DD, or name another column with time_col."
        )
    return ""


def of_numbers(cells: pd.Series, zone: str = "") -> pd.Series | None:
    """Text of digits such as 202601, 20260131 or 1767225600 as dates; None: they are counts or dates in no such form.
    Seconds since 1970, or parts of them, are instants: in UTC if the stamps have a time zone."""
    import pandas as pd

    size = len(cells.iloc[0])
    if (cells.str.len() != size).any():
        return None
    for form in (_DIGITS.get(size), EPOCH):
        days = _read(cells, form) if form else pd.Series([pd.NaT])
        if not days.isna().any():
            return days.dt.tz_localize("UTC") if form == EPOCH and zone else days
    return None


def check_counts(whole: pd.Series, column: str, *, text: bool) -> None:
    """Refuse whole numbers that are dates in no form of `of_numbers` and look like some; ``text``: they are no numbers
    in the data. Numbers that rise by one step count."""
    import pandas as pd

    if whole.str.startswith("-").any():
        return
    numbers, size = np.sort(whole.astype(np.int64).to_numpy()), whole.str.len()
    named, even = re.search("date|time|stamp", column.lower()), len(np.unique(np.diff(numbers))) < 2
    remedy = "or set freq to their step as a whole number, such as 1, if they count"
    if named and 20_000 <= numbers[0] <= numbers[-1] < 60_000:
        raise UserError(
            f"Column {column!r} holds whole numbers such as {numbers[0]}, like the days that Excel counts; make dates "
            f"of them with pd.to_datetime(cells, unit='D', origin='1899-12-30'), {remedy}."
        )
    wide = whole.str.zfill(6 if size.max() < 7 else 8)
    forms = _COMPACT.get(len(wide[0]), ()) if size.min() > 4 and size.max() < 9 else ()
    compact = any(pd.to_datetime(wide, format=form, errors="coerce").notna().all() for form in forms)
    zero = (whole.str.startswith("0") & (size > 1)).any()
    looks = compact or zero or (named and numbers[-1] >= 10_000) or (text and size.between(6, 8).all())
    if (looks and not even) or (text and compact):
        raise UserError(
            f"Column {column!r} holds whole numbers that look like dates in no known form ({whole.iloc[0]!r}); write "
            f"them as YYYY-MM-DD, {remedy}."
        )


def _parts(cells: pd.Series) -> pd.DataFrame:
    """Columns date (separators are "-"), time (a Timedelta) and zone ("+0100") of each cell; NaN where it has none."""

    import pandas as pd

    found = cells.str.extract(_CELL)
    date = found["date"].str.strip().str.replace(r"[\s,./-]+", "-", regex=True)
    date = date.str.replace(_MONTHS, r"\1", regex=True).str.replace(r"^(\d{4})-0+$", r"\1", regex=True)
    date = date.str.replace(r"(?i)^(\d{4})-?m(\d{1,2})$", r"\1-\2", regex=True)
    date = date.str.replace(r"(?i)^q([1-4])-?(\d{4})$", r"\2Q\1", regex=True)
    date = date.str.replace(r"(?i)^(\d{4})-?q([1-4])$", lambda m: f"{m[1]}-{3 * int(m[2]) - 2:02}", regex=True)
    weeks = date.str.replace(
        r"(?i)^(\d{4})-?w(\d{2})(?:-?([1-7]))?$", lambda m: f"{m[1]}-W{m[2]}-{m[3] or 1}", regex=True
    )
    date = weeks.where(weeks.str.contains("W", na=False), date.str.replace(r"(?<!\d)(\d)(?!\d)", r"0\1", regex=True))
    clock = found["time"].str.replace(",", ".")
    clock = clock + clock.str.count(":").map({0: ":00:00", 1: ":00"}).fillna("")
    time = pd.to_timedelta(clock, errors="coerce").fillna(pd.Timedelta(0))
    noon, half = pd.Timedelta(hours=12), found["half"].str[0].str.lower()
    time = time.mask(half.notna() & (time >= noon), time - noon) + noon * (half == "p").astype(int)
    date = date.mask((time >= pd.Timedelta(days=1)) | (half.notna() & (time < pd.Timedelta(0))))
    zone = found["zone"].str.replace(":", "").replace({"Z": "+0000", "UTC": "+0000"})
    return pd.DataFrame({"date": date, "time": time, "zone": zone})


def _read(date: pd.Series, form: str) -> pd.Series:
    """Days of cells in one format; NaT where a cell has another. Two-digit years never lie in the future."""

    import pandas as pd

    if form == EPOCH:
        days = pd.Series(pd.NaT, date.index, "M8[us]")
        for size, unit in _EPOCHS.items():
            whole = date.str.fullmatch(rf"[1-3]\d{{{size - 1}}}", na=False)
            days[whole] = pd.to_datetime(date[whole].astype(np.int64), unit=unit).astype("M8[us]")
        return days
    for size in [size for size, digits in _DIGITS.items() if digits == form]:
        date = date.where(date.str.fullmatch(rf"({'1[6-9]' if size == 8 else '19'}|20)\d{{{size - 2}}}", na=False))
    days = pd.to_datetime(date, format=form, errors="coerce").astype("M8[us]")
    if "%y" in form:
        days = days.mask(days > pd.Timestamp.now(), days - pd.DateOffset(years=100))
    return days


def forms_of(cells: Sequence[str]) -> list[str]:
    """The formats that read at least nine in ten of the cells that are not empty; none: the column holds no dates."""
    kept = tuple(cell for cell in cells if cell)
    return list(_first_forms(kept) if len(kept) <= LOOK else _forms(kept))


@lru_cache(maxsize=64)
def _first_forms(cells: tuple[str, ...]) -> tuple[str, ...]:
    """Kept: readers ask several times about the first cells of a column."""
    return _forms(cells)


def _forms(cells: tuple[str, ...]) -> tuple[str, ...]:
    import pandas as pd

    if not cells:
        return ()
    date = _parts(pd.Series(cells, dtype=str))["date"]
    return tuple(form for form in (*_FORMATS, EPOCH) if _read(date, form).notna().mean() >= 0.9)


def parse(cells: Sequence[str], column: str, zone: str = "") -> pd.DatetimeIndex:
    """All dates of a column.

    Where several formats read every cell (01/02/2020), the one with even steps is taken. Times with an offset from UTC
    become UTC if the time zone is given. Without one they stay as they are written, if all have one offset or are
    midnight.

    Raises:
        UserError: a cell is no date, or the column can be read in more than one way.
    """

    import pandas as pd

    text = pd.Series(cells, dtype=str)
    parts = _parts(text)
    remedy = f"write the dates of column {column!r} as YYYY-MM-DD HH:MM"
    read = {f: _read(parts["date"], f) + parts["time"] for f in forms_of(cells)}
    if not read:
        raise UserError(f"The column {column!r} holds no dates that are understood ({cells[0][:60]!r}); {remedy}.")
    if text.str.contains(r"^\d+\.\d+\.", regex=True).any():
        read = {f: days for f, days in read.items() if not f.startswith("%m-%d")} or read
    whole = {f: days for f, days in read.items() if days.notna().all()}
    distinct = {tuple(days.to_numpy().astype(int)): f for f, days in reversed(whole.items())}
    even = [f for f in distinct.values() if len(distinct) == 1 or _even(whole[f])]
    if even == [_NO_YEAR]:
        raise UserError(f"The dates of column {column!r} have no year ({cells[0]!r}); {remedy}.")
    if len(distinct) > 1 and len(even) != 1:
        ways = " or ".join(_shown(f) for f in sorted(distinct.values()))
        raise UserError(f"The dates of column {column!r} can be read as {ways} ({cells[0]!r}); {remedy}.")
    best = even[0] if even else max(read, key=lambda f: int(read[f].notna().sum()))
    _check(read[best], cells, best, column)
    return pd.DatetimeIndex(_local(read[best], parts["zone"], column, zone))


def _shown(form: str) -> str:
    words = {"%Y": "YYYY", "%y": "YY", "%m": "MM", "%d": "DD", "%b": "Jan", "%G": "YYYY", "%V": "01", "%u": "1"}
    words |= {"%H": "HH", "%M": "MM", "%S": "SS"}
    for code, word in words.items():
        form = form.replace(code, word)
    return form


def _check(days: pd.Series, cells: Sequence[str], form: str, column: str) -> None:
    for i in np.flatnonzero(days.isna())[:1]:
        other = f"{cells[i][:60]!r} is no date of the form {_shown(form)}, as the others are,"
        found = other if cells[i] else "There is no date"
        raise UserError(f"{found} in row {i} of column {column!r}; correct the cell or drop the row.")
    for i in np.flatnonzero((days.dt.year >= 5000) | (days.dt.year < 2))[:1]:
        raise UserError(
            f"The date in row {i} is in the year {days.iloc[i].year}, and years up to 5000 are read; correct it."
        )


def _local(days: pd.Series, offset: pd.Series, column: str, zone: str) -> pd.Series:
    import pandas as pd

    has = offset.notna()
    if has.any() and not has.all():
        i = int(np.argmax(has.to_numpy() != has.iloc[0]))
        raise UserError(
            f"The date in row {i} {'has an' if has.iloc[i] else 'has no'} offset from UTC, unlike those before; write "
            f"all dates of column {column!r} with one, or none."
        )
    if not has.any():
        return days
    other = np.flatnonzero((offset != offset.iloc[0]).to_numpy())
    if not zone and (not len(other) or (days == days.dt.normalize()).all()):
        return days
    if not zone:
        raise UserError(
            f"The dates of column {column!r} have several offsets from UTC, {offset.iloc[0]} and, from row {other[0]}, "
            f"{offset.iloc[other[0]]}; set timezone to the zone of their clock, such as 'Europe/Berlin', or to 'UTC'."
        )
    return (days - pd.to_timedelta(offset.str[:3] + ":" + offset.str[3:] + ":00")).dt.tz_localize("UTC")


def _even(days: pd.Series) -> bool:
    """Whether the dates, in the order of the file or in reverse, lie on a grid and most of its steps have one."""
    import pandas as pd

    if days.nunique() < 2:
        return False
    rising = days.is_monotonic_increasing or days.is_monotonic_decreasing
    if not rising or not days.is_unique or len(days) < 2:
        return False
    dates = pd.DatetimeIndex(days.sort_values())
    unit = _unit(dates)
    gaps = np.diff(_positions(dates, unit))
    sizes, counts = np.unique(gaps, return_counts=True)
    every = float(sizes[counts.argmax()]) if unit != "second" else float(np.sort(gaps)[len(gaps) // 2])
    steps = np.rint(gaps / every)
    slack = 0.25 * every if unit == "second" else 0.0  # clocks of sensors are not exact
    return bool((steps >= 1).all() and (np.abs(gaps - steps * every) <= slack).all() and steps.sum() < 2 * len(days))


def _unit(dates: pd.DatetimeIndex) -> str:
    if (dates != dates.normalize()).any():
        return "second"
    usual = int(np.sort(np.diff(_positions(dates, "day")))[(len(dates) - 1) // 2])
    day = dates.day.to_numpy()
    same_day = dates.is_month_end.all() or bool(((day == day.max()) | ((day >= 28) & (day.max() > 28))).all())
    if usual >= 28 and same_day and len(np.unique(_positions(dates, "month"))) == len(dates):
        return "month"
    return "weekday" if usual == 1 and len(dates) >= 10 and (dates.day_of_week < 5).all() else "day"


def _positions(dates: pd.DatetimeIndex, unit: str) -> np.ndarray:
    """How many units after some fixed date; weekends have no place among weekdays."""

    import pandas as pd

    if unit == "month":
        return (dates.year * 12 + dates.month - 1).to_numpy()
    if unit == "second":
        return (dates - pd.Timestamp(1970, 1, 1)).total_seconds().to_numpy()
    days = dates.to_numpy().astype("M8[D]").astype(int) + 3  # 1 January 1970 was a Thursday
    return days if unit == "day" else days // 7 * 5 + days % 7
