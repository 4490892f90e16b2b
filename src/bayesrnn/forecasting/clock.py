"""Time axes: stamps as whole numbers on an even grid, back to stamps, their seasons and calendar features."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from bayesrnn.errors import UserError

Array = np.ndarray
_SECOND = 1_000_000  # stamps are microseconds
_HOUR, _DAY = 3600 * _SECOND, 86_400 * _SECOND
_OLD = {"M": "ME", "Q": "QE", "Y": "YE", "A": "YE", "BM": "BME", "BQ": "BQE", "BY": "BYE", "BA": "BYE", "CBM": "CBME"}
_OLD |= {"SM": "SME", "AS": "YS", "BAS": "BYS", "H": "h", "T": "min", "S": "s", "L": "ms", "U": "us"}  # before pandas 3


@dataclass(frozen=True)
class Clock:
    """Even steps of time.

    ``unit`` is "number" (a whole-number axis), "time" (steps of ``every`` microseconds), "weekday" (Monday to Friday),
    "month" (``every`` months) or "offset" (of the pandas frequency ``freq``, such as "SME"). Steps of a day or more
    follow the clock on the wall; shorter ones follow UTC, so that days of 23 and 25 hours have 23 and 25 steps.
    ``zone`` is that of the stamps, "" for none. ``day`` is the day of the month that stamps of months have, 0 for its
    last; ``business``: the weekday next to it within the month. ``time`` are microseconds after midnight.
    """

    unit: str
    every: int
    zone: str = ""
    day: int = 1
    business: bool = False
    freq: str = ""
    time: int = 0

    @property
    def wall(self) -> bool:
        """Whether steps follow the local calendar."""
        return self.unit != "time" or self.every % _DAY == 0

    def numbers(self, stamps: Any) -> Array:
        """Stamps (a DatetimeIndex, or whole numbers) as int64 on a line on which time steps are even."""
        if self.unit == "number":
            return np.asarray(stamps, dtype=np.int64)
        wall = stamps if stamps.tz is None else stamps.tz_localize(None) if self.wall else stamps.tz_convert("UTC")
        if self.unit == "month":
            return np.asarray(wall.year * 12 + wall.month - 1, dtype=np.int64)
        if self.unit == "weekday":
            days = wall.normalize().values.astype("M8[D]")
            return np.busday_count(np.datetime64("1970-01-01"), days).astype(np.int64)
        if self.unit == "offset":
            return np.searchsorted(_dates(self.freq), wall.normalize().values.astype("M8[D]"))
        return np.asarray(wall.as_unit("us").asi8, dtype=np.int64)

    def stamps(self, numbers: Array) -> Any:
        """What `numbers` came from: a DatetimeIndex, or the numbers."""
        import pandas as pd

        if self.unit == "number":
            return numbers
        if self.unit == "month":
            starts = np.asarray(numbers).astype("M8[M]") - np.timedelta64(1970 * 12, "M")
            first, after = starts.astype("M8[D]"), (starts + 1).astype("M8[D]")
            found = after - 1 if self.day == 0 else np.minimum(first + self.day - 1, after - 1)
            if self.business:
                found = np.busday_offset(found, 0, roll="backward" if self.day == 0 else "forward")
        elif self.unit == "weekday":
            found = np.busday_offset(np.datetime64("1970-01-01"), numbers, roll="forward")
        elif self.unit == "offset":
            known = _dates(self.freq)
            found = known[np.clip(numbers, 0, len(known) - 1)]
        if self.unit != "time":
            index = pd.DatetimeIndex(found.astype("M8[us]") + np.timedelta64(self.time, "us"))
        else:
            index = pd.DatetimeIndex(np.asarray(numbers).astype("M8[us]"))
            if self.zone and not self.wall:
                return index.tz_localize("UTC").tz_convert(self.zone)
        return index.tz_localize(self.zone, ambiguous=True, nonexistent="shift_forward") if self.zone else index

    def off(self, stamps: Any) -> Array:
        """Which stamps `stamps` would move."""
        if self.unit in ("number", "time"):
            return np.zeros(len(stamps), bool)
        return np.asarray(replace(self, zone="").stamps(self.numbers(stamps)) != _wall(stamps))

    def floor(self, numbers: Array) -> Array:
        """Numbers at the beginning of their steps; steps of a week or more begin with the first."""
        base = 0 if self.unit == "time" and self.every % (7 * _DAY) else numbers.min()
        return numbers - (numbers - base) % self.every

    @property
    def seasons(self) -> tuple[int, ...]:
        """Likely seasons in steps, the shortest first."""
        if self.unit == "month":
            return (12 // self.every,) if self.every < 12 else ()
        if self.unit == "weekday":
            return (5,)
        if self.unit in ("number", "offset"):
            return {"": (), "S": (24,)}.get(self.freq[:1], (12,))
        lengths = (_DAY, 7 * _DAY) if self.every < _DAY else (7 * _DAY,) if self.every == _DAY else ()
        found = [n // self.every for n in lengths if n % self.every == 0]
        yearly = {_DAY: 365, 7 * _DAY: 52}.get(self.every)
        return tuple(n for n in [*found, *([yearly] if yearly else [])] if n > 1)

    @property
    def name(self) -> str:
        if self.unit == "number":
            return "unit" if self.every == 1 else f"{self.every} units"
        if self.unit == "month":
            return {1: "month", 3: "quarter", 12: "year"}.get(self.every, f"{self.every} months")
        if self.unit in ("weekday", "offset"):
            return self.freq or "weekday"
        for size, word in ((7 * _DAY, "week"), (_DAY, "day"), (_HOUR, "hour"), (60 * _SECOND, "minute")):
            if self.every % size == 0:
                return word if self.every == size else f"{self.every // size} {word}s"
        return f"{self.every / _SECOND:g} seconds"

    def calendar(self, numbers: Array, holidays: str | None = None, *, year: bool = True) -> Array:
        """Calendar features (n, C), float32: waves of the day and the year, weekday, month, holidays. ``year`` False:
        the place in the year is 0."""
        if self.unit == "number":
            return np.zeros((len(numbers), 0), np.float32)
        stamps = self.stamps(numbers)
        columns: list[Array] = []
        if self.unit == "time" and self.every < _DAY:
            columns += _waves((stamps.hour * 60 + stamps.minute) / 1440, 4)
        if self.unit == "weekday" or (self.unit == "time" and self.every <= _DAY):
            columns += [stamps.day_of_week == day for day in range(5 if self.unit == "weekday" else 7)]
        if self.unit == "month":
            columns += [year * (stamps.month == m) for m in range(1, 13)] if self.every < 12 else []
        else:
            columns += [year * wave for wave in _waves(stamps.day_of_year / 365.25, 2)]
        if holidays:
            columns.append(np.isin(stamps.date, _holidays(holidays, int(stamps.year.min()), int(stamps.year.max()))))
        return np.stack([np.asarray(c, dtype=np.float32) for c in columns], 1) if columns else np.zeros(
            (len(numbers), 0), np.float32)  # fmt: skip


def _waves(phase: Any, count: int) -> list[Array]:
    angle = 2 * np.pi * np.asarray(phase, dtype=float)
    return [wave(k * angle) for k in range(1, count + 1) for wave in (np.sin, np.cos)]


def _holidays(country: str, first: int, last: int) -> list[Any]:
    try:
        from holidays import country_holidays
    except ImportError:
        raise UserError("holidays= needs the holidays package; pip install holidays") from None
    try:
        return list(country_holidays(country, years=range(first, last + 1)))
    except NotImplementedError:
        raise UserError(f"The holidays package has no country {country!r}; use a code such as DE or US.") from None


def clock_of(freq: str | int | None, stamps: Any, series: Array) -> Clock:
    """The clock of a frequency, or of the stamps where none is given; ``series`` are the rows' codes, both sorted."""
    import pandas as pd

    if not isinstance(stamps, pd.DatetimeIndex):
        if freq is not None and (not isinstance(freq, (int, np.integer)) or isinstance(freq, bool) or freq < 1):
            raise UserError(
                f"freq is {freq!r} and the stamps are whole numbers; give freq as a whole number from 1, or dates."
            )
        return Clock("number", int(freq) if freq is not None else _common(np.asarray(stamps), series))
    zone = "" if stamps.tz is None else str(stamps.tz)
    found = _found(stamps, series) if freq is None else named_clock(freq)
    if freq is None and found.unit == "time":
        steps = np.diff(found.numbers(stamps))[np.diff(series) == 0]
        if len(steps) > 2 and (steps % found.every != 0).mean() > 0.5:
            raise UserError(
                f"The stamps are uneven: steps between {_span(steps.min())} and {_span(steps.max())} in rows of one "
                "series; set freq, such as 'h', and resample='mean' to average them onto its grid."
            )
    if found.unit != "time":
        wall = _wall(stamps)
        found = replace(found, time=int(wall[0].value // 1000 % _DAY))
        if found.unit == "month":
            found = _dated(found, wall, freq is not None) or found
    return replace(found, zone=zone)


def _span(microseconds: int) -> str:
    return Clock("time", int(microseconds)).name if microseconds > 0 else "0 seconds"


def _wall(stamps: Any) -> Any:
    return stamps if stamps.tz is None else stamps.tz_localize(None)


def _dated(clock: Clock, wall: Any, named: bool) -> Clock | None:
    """A clock of months with the day of these stamps: as its frequency says, or any rule that all of them follow."""
    rules = [(0, False), (int(wall[0].day), False), (1, True), (0, True), (int(wall.day.max()), False)]
    for day, business in [(clock.day, clock.business)] * named + rules:
        tried = replace(clock, day=day, business=business)
        if not tried.off(wall).any():
            return tried
    return None


def snapped(freq: str | int | None, stamps: Any) -> Any:
    """Stamps at the dates of a calendar frequency, for resampling: ends after them, others before."""
    import pandas as pd

    if not isinstance(freq, str) or not isinstance(stamps, pd.DatetimeIndex):
        return stamps
    offset = _offset(freq)
    if isinstance(offset, (pd.offsets.Tick, pd.offsets.Day)):
        return stamps
    day, place = np.unique(_wall(stamps).normalize(), return_inverse=True)
    base = offset.base
    ends = isinstance(base, pd.offsets.Week) or type(base).__name__.endswith("End")
    moved = [(base.rollforward if ends else base.rollback)(pd.Timestamp(d)) for d in day]
    return pd.DatetimeIndex(moved)[place].tz_localize(stamps.tz)


@cache
def _dates(freq: str) -> Array:
    """Days of a pandas frequency."""
    import pandas as pd

    return pd.date_range("1700-01-01", "2250-12-31", freq=_offset(freq)).values.astype("M8[D]")


def same_kind(clock: Clock, stamps: Any) -> Clock:
    """The fitted model's clock, if it can read these timestamps."""
    import pandas as pd

    dated = isinstance(stamps, pd.DatetimeIndex)
    if dated != (clock.unit != "number"):
        raise UserError(
            f"The model was fitted on steps of one {clock.name}, and these stamps are "
            f"{'dates' if dated else 'numbers'}; give stamps of the same kind."
        )
    if dated and (stamps.tz is None) != (clock.zone == ""):
        raise UserError(
            "The model was fitted on stamps with a time zone and these have none, or the reverse; use tz_localize, or "
            "fit with timezone, which reads both."
        )
    return clock


def _offset(freq: str | int) -> Any:
    """A pandas offset, in the spelling of any pandas."""
    from pandas.tseries.frequencies import to_offset

    if isinstance(freq, str) and (parts := re.fullmatch(r"(\d*)([A-Za-z]+)(-\w+)?", freq)):
        count, name, anchor = parts.groups("")
        back = {new: old for old, new in _OLD.items() if old not in ("A", "AS", "BA", "BAS")}
        for tried in dict.fromkeys((_OLD.get(name, name), name, back.get(name, name))):
            try:
                return to_offset(count + tried + anchor)
            except ValueError:
                continue
    try:
        found = to_offset(freq) if isinstance(freq, str) else None
    except ValueError:
        found = None
    if found is None:
        raise UserError(f"freq is {freq!r}, which pandas does not know; use 'h', '15min', 'D', 'B', 'W', 'MS' or 'YS'.")
    return found


def named_clock(freq: str | int) -> Clock:
    from pandas import offsets

    offset = _offset(freq)
    kind, count = type(offset).__name__, int(offset.n)
    months = re.fullmatch(r"(B|Business|CustomBusiness|)(Month|Quarter|Year)(Begin|End)", kind)
    if months and count > 0:
        every = {"Month": 1, "Quarter": 3, "Year": 12}[months[2]] * count
        return Clock("month", every, day=0 if months[3] == "End" else 1, business=bool(months[1]))
    if isinstance(offset, (offsets.BusinessDay, offsets.CustomBusinessDay)):
        return Clock("weekday", count)
    if isinstance(offset, offsets.Week):
        return Clock("time", 7 * _DAY * count)
    if isinstance(offset, offsets.Day):
        return Clock("time", _DAY * count)
    if isinstance(offset, (offsets.SemiMonthBegin, offsets.SemiMonthEnd, offsets.WeekOfMonth, offsets.LastWeekOfMonth)):
        return Clock("offset", count, freq=offset.base.freqstr)
    nanos = offset.nanos if isinstance(offset, offsets.Tick) else 0
    if nanos < 1000 or nanos % 1000:
        raise UserError(f"freq {freq!r} is not an even step of time; use 'h', '15min', 'D', 'B', 'W', 'MS' or 'YS'.")
    return Clock("time", nanos // 1000)


def _common(numbers: Array, series: Array) -> int:
    """The most common difference within series."""
    steps = np.diff(numbers)[np.diff(series) == 0]
    steps = steps[steps > 0]
    if not len(steps):
        return 1
    sizes, counts = np.unique(steps, return_counts=True)
    return int(sizes[counts.argmax()])


def _found(stamps: Any, series: Array) -> Clock:
    wall = _wall(stamps)
    step = _common((stamps if stamps.tz is None else stamps.tz_convert("UTC")).as_unit("us").asi8, series)
    days, apart = step / _DAY, np.diff(wall.values.astype("M8[D]").astype(int))[np.diff(series) == 0]
    least = int(apart[apart > 0].min()) if (apart > 0).any() else 0
    if least >= 27:
        months = Clock("month", 1, time=int(wall[0].value // 1000 % _DAY))
        if _dated(months, wall, False):
            return replace(months, every=_common(months.numbers(stamps), series))
    for first, freq in ((wall.day == 1, "SMS"), (wall.is_month_end, "SME")):
        if 13 <= least <= 16 and (first | (wall.day == 15)).all() and len(stamps) > 3:
            return named_clock(freq)
    if days == 1:
        weekend = (wall.day_of_week >= 5).mean()
        return Clock("weekday", 1) if weekend == 0 and len(stamps) > 7 else Clock("time", _DAY)
    return Clock("time", step)
