"""Time axes: stamps as whole numbers on an even grid, back to stamps, their seasons and calendar features."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bayesrnn.errors import UserError

Array = np.ndarray
_SECOND = 1_000_000  # stamps are microseconds
_HOUR, _DAY = 3600 * _SECOND, 86_400 * _SECOND
_MONTHS = {"M": 1, "MS": 1, "ME": 1, "BM": 1, "BMS": 1, "BME": 1, "Q": 3, "QS": 3, "QE": 3, "BQS": 3, "BQE": 3}
_MONTHS |= {"Y": 12, "YS": 12, "YE": 12, "A": 12, "AS": 12, "BYS": 12, "BYE": 12}


@dataclass(frozen=True)
class Clock:
    """Even steps of time.

    ``unit`` is "number" (a whole-number axis), "time" (steps of ``every`` microseconds), "weekday" (Monday to Friday)
    or "month" (``every`` months). Steps of a day or more follow the clock on the wall; shorter ones follow UTC, so that
    days of 23 and 25 hours have 23 and 25 steps. ``zone`` is that of the stamps, "" for none. ``day`` is the day of the
    month that stamps of months have, 0 for its last.
    """

    unit: str
    every: int
    zone: str = ""
    day: int = 1

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
            index = pd.DatetimeIndex(found.astype("M8[us]"))
        elif self.unit == "weekday":
            days = np.busday_offset(np.datetime64("1970-01-01"), numbers, roll="forward")
            index = pd.DatetimeIndex(days.astype("M8[us]"))
        else:
            index = pd.DatetimeIndex(np.asarray(numbers).astype("M8[us]"))
            if self.zone and not self.wall:
                return index.tz_localize("UTC").tz_convert(self.zone)
        return index.tz_localize(self.zone, ambiguous=True, nonexistent="shift_forward") if self.zone else index

    @property
    def seasons(self) -> tuple[int, ...]:
        """Likely seasons in steps, the shortest first."""
        if self.unit == "month":
            return (12 // self.every,) if self.every < 12 else ()
        if self.unit == "weekday":
            return (5,)
        if self.unit == "number":
            return ()
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
        if self.unit == "weekday":
            return "weekday"
        for size, word in ((7 * _DAY, "week"), (_DAY, "day"), (_HOUR, "hour"), (60 * _SECOND, "minute")):
            if self.every % size == 0:
                return word if self.every == size else f"{self.every // size} {word}s"
        return f"{self.every / _SECOND:g} seconds"

    def calendar(self, numbers: Array, holidays: str | None = None) -> Array:
        """Calendar features (n, C), float32: waves of the day and the year, weekday, month, holidays."""
        if self.unit == "number":
            return np.zeros((len(numbers), 0), np.float32)
        stamps = self.stamps(numbers)
        columns: list[Array] = []
        if self.unit == "time" and self.every < _DAY:
            columns += _waves((stamps.hour * 60 + stamps.minute) / 1440, 4)
        if self.unit == "weekday" or (self.unit == "time" and self.every <= _DAY):
            columns += [stamps.day_of_week == day for day in range(5 if self.unit == "weekday" else 7)]
        if self.unit == "month":
            columns += [stamps.month == m for m in range(1, 13)] if self.every < 12 else []
        else:
            columns += _waves(stamps.day_of_year / 365.25, 2)
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
            raise UserError(f"freq is {freq!r} and the stamps are whole numbers; give freq as a whole number from 1.")
        return Clock("number", int(freq) if freq is not None else _common(np.asarray(stamps), series))
    zone = "" if stamps.tz is None else str(stamps.tz)
    found = _found(stamps, series) if freq is None else _named(freq)
    if found.unit == "month":
        days = np.unique(stamps.day)
        last = bool(stamps.is_month_end.all())
        found = replace(found, day=0 if last and len(days) > 1 else int(days.max()))
    return replace(found, zone=zone)


def same_kind(clock: Clock, stamps: Any) -> Clock:
    """The clock of a fitted model, if these stamps are of its kind."""
    import pandas as pd

    dated = isinstance(stamps, pd.DatetimeIndex)
    if dated != (clock.unit != "number"):
        raise UserError(f"The model was fitted on steps of one {clock.name}; these stamps are of another kind.")
    if dated and (stamps.tz is None) != (clock.zone == ""):
        raise UserError(
            "The model was fitted on stamps with a time zone and these have none, or the reverse; use tz_localize."
        )
    return clock


def _named(freq: str | int) -> Clock:
    from pandas.tseries.frequencies import to_offset

    try:
        offset: Any = to_offset(freq if isinstance(freq, str) else None)
    except ValueError:
        offset = None
    if offset is None:
        raise UserError(f"freq is {freq!r}, which pandas does not know; use 'h', '15min', 'D', 'B', 'W', 'MS' or 'YS'.")
    name = offset.rule_code.split("-")[0].lstrip("0123456789")
    if name in _MONTHS:
        return Clock("month", _MONTHS[name] * offset.n)
    if name in ("B", "C"):
        return Clock("weekday", offset.n)
    if name == "W":
        return Clock("time", 7 * _DAY * offset.n)
    if name == "D":
        return Clock("time", _DAY * offset.n)
    nanos = getattr(offset, "nanos", 0)
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
    wall = stamps if stamps.tz is None else stamps.tz_convert("UTC")
    step = _common(wall.as_unit("us").asi8, series)
    days = step / _DAY
    for low, high, months in ((28, 31, 1), (90, 92, 3), (365, 366, 12)):
        if low <= days <= high and days != 28:
            return Clock("month", months)
    if days == 1:
        local = stamps if stamps.tz is None else stamps.tz_localize(None)
        weekend = (local.day_of_week >= 5).mean()
        return Clock("weekday", 1) if weekend == 0 and len(stamps) > 7 else Clock("time", _DAY)
    return Clock("time", step)
