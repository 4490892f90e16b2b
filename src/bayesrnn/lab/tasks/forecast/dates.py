"""Dates as people write them, and the even grid of time steps that they lie on."""

import itertools
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta

from bayesrnn.errors import UserError

_MONTHS = {name: i for i, name in enumerate("jan feb mar apr may jun jul aug sep oct nov dec".split(), start=1)}
_DAY = 86_400
_TIME = r"(?:(?: *T| +) *(\S.*)?)?"  # after a date: T or spaces, then the time; no delimiter of a table
Parser = Callable[[str], datetime]


def _int(text: str) -> int:
    return int(text.split(".")[0])


def _match(pattern: str, text: str) -> re.Match[str]:
    found = re.fullmatch(pattern, text, re.IGNORECASE)
    if found is None:
        raise ValueError(text)
    return found


def _year(text: str) -> datetime:
    return datetime(_int(_match(r"[12]\d{3}(\.0+)?", text)[0]), 1, 1)


def _year_month(text: str) -> datetime:
    found = _match(r"(\d{4})(?:[-/.m]|-m)(\d{1,2})", text)
    return datetime(int(found[1]), int(found[2]), 1)


def _month_year(text: str) -> datetime:
    found = _match(r"(\d{1,2})[-/.](\d{4})", text)
    return datetime(int(found[2]), int(found[1]), 1)


def _compact_month(text: str) -> datetime:
    found = _match(r"([12]\d{3})(\d{2})", text)
    return datetime(int(found[1]), int(found[2]), 1)


def _compact_day(text: str) -> datetime:
    found = _match(r"([12]\d{3})(\d{2})(\d{2})", text)
    return datetime(int(found[1]), int(found[2]), int(found[3]))


def _quarter(text: str) -> datetime:
    found = re.fullmatch(r"(\d{4})[-/ ]?q([1-4])", text, re.IGNORECASE)
    year, quarter = found.groups() if found else reversed(_match(r"q([1-4])[-/ ]?(\d{4})", text).groups())
    return datetime(int(year), 3 * int(quarter) - 2, 1)


def _week(text: str) -> datetime:
    found = _match(r"(\d{4})-?w(\d{2})(?:-?([1-7]))?", text)
    return datetime.fromisocalendar(int(found[1]), int(found[2]), int(found[3] or 1))


def _iso(text: str) -> datetime:
    found = _match(r"(\d{4})-(\d{1,2})-(\d{1,2})" + _TIME, text)
    return _with_time(int(found[1]), int(found[2]), int(found[3]), found[4])


def _slashed(text: str) -> datetime:
    found = _match(r"(\d{4})[/.](\d{1,2})[/.](\d{1,2})" + _TIME, text)
    return _with_time(int(found[1]), int(found[2]), int(found[3]), found[4])


def _day_first(text: str) -> datetime:
    found = _match(r"(\d{1,2})[-/.](\d{1,2})[-/.](\d{4})" + _TIME, text)
    return _with_time(int(found[3]), int(found[2]), int(found[1]), found[4])


def _month_first(text: str) -> datetime:
    found = _match(r"(\d{1,2})[-/](\d{1,2})[-/](\d{4})" + _TIME, text)
    return _with_time(int(found[3]), int(found[1]), int(found[2]), found[4])


def _named_month(text: str) -> datetime:
    """Jan 2020, 2020 January, 1 Jan 2020, Jan-1-2020, January 1, 2020."""
    parts = [p for p in re.split(r"[\s,./-]+", text.strip()) if p]
    names = [p for p in parts if p[:3].lower() in _MONTHS and p.isalpha()]
    numbers = [p for p in parts if p.isdigit()]
    years = [p for p in numbers if len(p) == 4]
    days = [p for p in numbers if len(p) <= 2]
    if len(names) != 1 or len(years) != 1 or len(days) > 1 or len(parts) != 2 + len(days):
        raise ValueError(text)
    return datetime(int(years[0]), _MONTHS[names[0][:3].lower()], int(days[0]) if days else 1)


def _epoch(text: str) -> datetime:
    number = int(_match(r"\d{10}|\d{13}", text)[0])
    seconds = number / 1000 if len(text) == 13 else number
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None)


def _with_time(year: int, month: int, day: int, time: str | None) -> datetime:
    return datetime.fromisoformat(f"{year:04}-{month:02}-{day:02}" + (f"T{time}" if time else ""))


# In this order: the first that reads a whole column is taken.
_PARSERS: dict[str, Parser] = {
    "YYYY-MM-DD": _iso,
    "YYYY/MM/DD": _slashed,
    "YYYY-MM": _year_month,
    "YYYYQ1": _quarter,
    "YYYY-W01": _week,
    "DD.MM.YYYY": _day_first,
    "MM/DD/YYYY": _month_first,
    "MM/YYYY": _month_year,
    "Jan 1, YYYY": _named_month,
    "YYYYMMDD": _compact_day,
    "YYYYMM": _compact_month,
    "YYYY": _year,
    "seconds since 1970": _epoch,
}
NUMERIC = ("YYYYMMDD", "YYYYMM", "YYYY", "seconds since 1970")  # forms that a column of values could have by chance


def form_of(cells: Sequence[str]) -> str | None:
    """The form of a column's dates, from a look at some of its cells; None: they are no dates."""
    cells = [cell for cell in cells if cell]
    forms = [form for form in _PARSERS if cells and sum(_reads(form, c) for c in cells) >= 0.9 * len(cells)]
    return forms[0] if forms else None


def _reads(form: str, cell: str) -> bool:
    try:
        _PARSERS[form](cell)
    except ValueError:
        return False
    return True


def parse(cells: Sequence[str], form: str, lines: Sequence[int], notes: list[str]) -> list[datetime]:
    """All dates of a column; ``lines`` are where the cells stand in the file.

    Times with a zone stay as the file has them if all have the same offset from UTC, or all are midnight; else they
    become UTC, and a note says so.
    """
    if form in ("DD.MM.YYYY", "MM/DD/YYYY"):
        form = _day_or_month_first(cells)
    dates, aware = [], None
    for cell, line in zip(cells, lines, strict=True):
        try:
            date = _PARSERS[form](cell)
        except ValueError:
            found = f"{cell[:60]!r} is no date of the form {form}, as the others are," if cell else "There is no date"
            raise UserError(f"{found} in line {line}; correct the cell or take the line out.") from None
        zone = date.tzinfo is not None
        if aware is not None and zone != aware:
            raise UserError(f"The date in line {line} {'has a' if zone else 'has no'} time zone, unlike those before.")
        aware = zone
        if not 1 < date.year < 5000:
            raise UserError(f"The date in line {line} is in the year {date.year}; only years up to 5000 are read.")
        dates.append(date)
    offsets = sorted({f"{date:%z}" for date in dates})  # "" where there is no zone
    if len(offsets) > 1 and any(date.time() != time.min for date in dates):
        notes.append(f"The times have different offsets from UTC ({_some(offsets)}); they are shown in UTC.")
        dates = [date.astimezone(UTC) for date in dates]
    return [date.replace(tzinfo=None) for date in dates]


def _some(words: Sequence[str]) -> str:
    return ", ".join(words[:3]) + (", …" if len(words) > 3 else "")


def _day_or_month_first(cells: Sequence[str]) -> str:
    """Which of the two a column has: the one that reads every cell, else the one with even steps."""
    fits = [form for form in ("DD.MM.YYYY", "MM/DD/YYYY") if all(_reads(form, cell) for cell in cells)]
    if len(fits) == 1:
        return fits[0]
    if fits:
        even = [form for form in fits if _even([_PARSERS[form](cell) for cell in cells])]
        if len(even) == 1:
            return even[0]
        raise UserError(
            f"The dates can be read with the day first or with the month first ({cells[0]!r}); "
            "write them as YYYY-MM-DD."
        )
    return "DD.MM.YYYY" if "." in cells[0] else "MM/DD/YYYY"


def _even(dates: list[datetime]) -> bool:
    days = [(b - a).days for a, b in itertools.pairwise(dates)]
    return bool(days) and min(days) > 0 and (max(days) <= min(days) or (min(days) >= 28 and max(days) <= 31))


@dataclass(frozen=True)
class Grid:
    """Even time steps: step i is at ``start + i * every`` units.

    ``unit`` is "month", "day", "weekday" (Monday to Friday), "second", or "row" where there are no dates.
    """

    unit: str
    every: float
    start: datetime

    def date(self, step: int) -> datetime:
        """The date of a step; of months the first day, whatever day the file has."""
        if self.unit == "month":
            months = _position(self.start, "month") + step * int(self.every)
            return datetime(int(months) // 12, int(months) % 12 + 1, 1)
        if self.unit == "weekday":
            weeks, day = divmod(int(_position(self.start, "weekday")) + step, 5)
            return datetime(1, 1, 1) + timedelta(days=7 * weeks + day)
        seconds = self.every * (_DAY if self.unit == "day" else 1)
        return self.start + timedelta(seconds=step * seconds)

    def step(self, date: datetime) -> int:
        """The step nearest to a date; before the start it is negative. Rows without dates begin alike."""
        if self.unit == "row":
            return 0
        return round((_position(date, self.unit) - _position(self.start, self.unit)) / self.every)

    def label(self, step: int) -> str:
        """The date as text, as fine as the steps are."""
        if self.unit == "row":
            return str(step + 1)
        if self.unit == "month":
            year, month = divmod(int(_position(self.start, "month")) + step * int(self.every), 12)
            if self.every % 12 == 0:
                return f"{year:04}"
            return f"{year:04}Q{month // 3 + 1}" if self.every == 3 else f"{year:04}-{month + 1:02}"
        try:
            date = self.date(step)
        except OverflowError:
            return f"{self.name} {step + 1:,}"
        return date.isoformat(" ", "auto") if self.unit == "second" else f"{date:%Y-%m-%d}"

    @property
    def name(self) -> str:
        """Of one step, in words."""
        common = {("month", 1): "month", ("month", 3): "quarter", ("month", 12): "year", ("day", 7): "week"}
        units = {"day": "day", "weekday": "weekday", "row": "row", "month": "month"}
        if (self.unit, self.every) in common:
            return common[self.unit, int(self.every)]
        if self.unit in units:
            return units[self.unit] if self.every == 1 else f"{self.every:g} {units[self.unit]}s"
        for size, word in ((3600, "hour"), (60, "minute"), (1, "second")):
            if self.every % size == 0:
                count = self.every / size
                return word if count == 1 else f"{count:g} {word}s"
        return f"{self.every:g} seconds"

    @property
    def size(self) -> str:
        """Of a step, with its number: one month, 3 days."""
        return self.name if self.name[0].isdigit() else f"one {self.name}"

    @property
    def season(self) -> int:
        """Steps after which such a series often repeats: a year of months, a week of days, a day of hours; else 1."""
        if self.unit == "month":
            return int(12 // self.every) if 12 % self.every == 0 else 1
        if self.unit == "day":
            return {1: 7, 7: 52}.get(int(self.every), 1)
        if self.unit == "weekday":
            return 5
        if self.unit == "second" and self.every < _DAY:
            whole = _DAY if self.every >= 300 else 3600
            return int(whole // self.every) if whole % self.every == 0 else 1
        return 1


def grid_of(dates: Sequence[datetime], lines: Sequence[int]) -> tuple[Grid, list[int]]:
    """The grid that sorted, distinct dates lie on, and the step of each.

    Raises:
        UserError: they are not evenly spaced; missing steps are no harm.
    """
    unit = _unit(dates)
    positions = [_position(date, unit) for date in dates]
    gaps = [b - a for a, b in itertools.pairwise(positions)]
    counts = Counter(gaps)
    every = min(counts, key=lambda gap: (-counts[gap], gap)) if unit != "second" else sorted(gaps)[len(gaps) // 2]
    steps = [0]
    for gap, line, date in zip(gaps, lines[1:], dates[1:], strict=True):
        count = round(gap / every)
        slack = 0.25 * every if unit == "second" else 0.0  # clocks of sensors are not exact
        if count < 1 or abs(gap - count * every) > slack:
            raise UserError(
                f"The dates are not evenly spaced: most are {Grid(unit, every, dates[0]).size} apart, but "
                f"{date:%Y-%m-%d %H:%M} in line {line} is not a whole number of these after the one before; "
                "resample the series first."
            )
        steps.append(steps[-1] + count)
    return Grid(unit, every, dates[0]), steps


def _unit(dates: Sequence[datetime]) -> str:
    if any(d.hour or d.minute or d.second or d.microsecond for d in dates):
        return "second"
    days = sorted((b - a).days for a, b in itertools.pairwise(dates))
    usual = days[len(days) // 2]
    months = [_position(d, "month") for d in dates]
    if usual >= 28 and len(set(months)) == len(months) and _same_day(dates):
        return "month"
    weekdays_only = all(d.weekday() < 5 for d in dates)
    return "weekday" if usual == 1 and weekdays_only and len(dates) >= 10 else "day"


def _same_day(dates: Sequence[datetime]) -> bool:
    """The same day of the month, or its last day throughout."""
    ends = all((d + timedelta(days=1)).day == 1 for d in dates)
    usual = max(d.day for d in dates)
    return ends or all(d.day == usual or (d.day >= 28 and usual > 28) for d in dates)


def _position(date: datetime, unit: str) -> float:
    if unit == "month":
        return date.year * 12 + date.month - 1
    if unit == "weekday":
        weeks, day = divmod((date - datetime(1, 1, 1)).days, 7)  # 1 January of year 1 was a Monday
        return weeks * 5 + day
    if unit == "day":
        return date.toordinal()
    return (date - datetime(1, 1, 1)).total_seconds()
