"""Series as flat arrays on an even grid, from the frames, files and Series that people have."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bayesrnn.errors import UserError
from bayesrnn.forecasting.clock import Clock, clock_of, same_kind, snapped
from bayesrnn.forecasting.columns import LARGEST, Columns
from bayesrnn.forecasting.tables import CLOCKS, long_frame, stamps_of

Array = np.ndarray


@dataclass
class Panel:
    """Series one after the other: series i has rows ``offsets[i]`` to ``offsets[i + 1]``.

    ``ids`` are names, and ``labels`` (S,) the same as in the data: numbers, categories or text. ``first`` (S,) are the
    numbers of the clock at the first rows. ``y`` (N,) float64 is NaN where a value is missing.
    ``past`` (N, P), ``future`` (N, F) and ``static`` (S, K) are covariates, float32, NaN where missing.
    """

    ids: list[str]
    offsets: Array
    first: Array
    y: Array
    past: Array
    future: Array
    static: Array
    clock: Clock
    columns: Columns
    labels: Any

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def lengths(self) -> Array:
        return np.diff(self.offsets)

    def numbers(self, series: Array, rows: Array) -> Array:
        """Numbers of the clock at rows (counted from a series' first; they may lie beyond its end)."""
        return self.first[series] + rows * self.clock.every

    def part(self, series: Array) -> Panel:
        """Some of the series."""
        lengths = self.lengths[series]
        offsets = np.concatenate([[0], lengths.cumsum()])
        rows = np.repeat(self.offsets[series] - offsets[:-1], lengths) + np.arange(offsets[-1])
        return replace(
            self, ids=[self.ids[i] for i in series], offsets=offsets, first=self.first[series], y=self.y[rows],
            past=self.past[rows], future=self.future[rows], static=self.static[series], labels=self.labels.take(series),
        )  # fmt: skip

    def cut(self, series: Array, begin: Array, rows: int) -> Panel:
        """Pieces of so many rows, each a series of its own."""
        at = (self.offsets[series][:, None] + begin[:, None] + np.arange(rows)).reshape(-1)
        return replace(
            self, ids=[str(k) for k in range(len(series))], offsets=rows * np.arange(len(series) + 1), y=self.y[at],
            first=self.numbers(series, begin), past=self.past[at], future=self.future[at], static=self.static[series],
            labels=self.labels.take(series),
        )  # fmt: skip

    def until(self, ends: Array) -> Panel:
        """Each series up to a row; those without rows are left out."""
        keep = np.flatnonzero(ends > 0)
        whole = self.part(keep)
        mask = np.concatenate([np.arange(n) < e for n, e in zip(whole.lengths, ends[keep], strict=True)])
        offsets = np.concatenate([[0], np.minimum(whole.lengths, ends[keep]).cumsum()])
        return replace(
            whole, offsets=offsets, y=whole.y[mask], past=whole.past[mask], future=whole.future[mask]
        )  # fmt: skip


def _values(frame: Any, ids: Array, columns: Columns) -> Array:
    """The target as float64; NaN where missing."""
    import pandas as pd

    cells = frame[columns.target]
    if pd.api.types.is_bool_dtype(cells) or cells.dtype.kind in "mM":
        kind = "True and False" if pd.api.types.is_bool_dtype(cells) else "times"
        raise UserError(
            f"Column {columns.target!r} of series {str(ids[0])!r} holds {kind} from row 0 on, not numbers; convert "
            "them first."
        )
    values = np.array(pd.to_numeric(cells, errors="coerce"), dtype=float)
    if cells.dtype == object:
        values[[isinstance(cell, (bool, np.bool_)) for cell in cells]] = np.nan
    text = np.isnan(values) & cells.notna().to_numpy() & (cells.astype(str).str.strip() != "").to_numpy()
    wrong = {
        "no number; correct it or leave it empty": text,
        "infinite; correct it or leave it empty": np.isinf(values),
    }
    wrong["too large; give the series in a larger unit"] = np.abs(values) > LARGEST
    for what, rows in wrong.items():
        for row in np.flatnonzero(rows)[:1]:
            raise UserError(
                f"Series {str(ids[row])!r}: {str(cells.iloc[row])[:60]!r} in column {columns.target!r}, row "
                f"{row % frame.attrs.get('rows', len(frame))}, is {what}."
            )
    return values


def panel_of(
    data: Any, columns: Columns, *, freq: str | int | None, clock: Clock | None = None, resample: str | None = None,
    after: Panel | None = None,
) -> Panel:  # fmt: skip
    """The series of a frame on the grid of their clock; see `long_frame` for what a frame may be. ``after``: series
    that they follow."""
    import pandas as pd

    frame = long_frame(data, columns)
    missing = [c for c in (*columns.past, *columns.future, *columns.static) if c not in frame]
    if missing:
        raise UserError(f"The frame has no column {missing[0]!r}, which the model uses; add it.")
    codes, given = pd.factorize(frame[columns.id])
    alike, ids = pd.factorize(np.array([str(name) for name in given], dtype=object))
    codes = alike[codes]
    values, stamps = _values(frame, ids[codes], columns), stamps_of(frame, columns, clock, freq=freq, after=after)
    labels = frame[columns.id].array.take(np.unique(codes, return_index=True)[1])
    rows = np.arange(len(frame)) % frame.attrs.get("rows", len(frame))
    if resample is not None:
        stamps = snapped(freq, stamps)
    raw = stamps if not isinstance(stamps, pd.DatetimeIndex) else stamps.asi8
    order = np.lexsort((raw, codes))
    codes, values, rows, stamps = codes[order], values[order], rows[order], stamps[order]
    clock = clock_of(freq, stamps, codes) if clock is None else same_kind(clock, stamps)
    numbers = clock.numbers(stamps)
    ends = np.flatnonzero(np.diff(codes, append=len(ids)) > 0)
    starts = np.concatenate([[0], ends[:-1] + 1])
    phase = numbers % clock.every if resample is None else np.zeros_like(numbers)
    uneven = np.flatnonzero((phase != phase[starts][codes]) | clock.off(stamps))
    if len(uneven):
        i = uneven[0]
        raise UserError(
            f"Series {ids[codes[i]]!r}: the stamp {stamps[i]} in row {rows[i]} is off the grid of one {clock.name}; "
            'set freq to the step of the stamps, or resample="mean" to average them onto the grid.'
        )
    if resample is not None:
        numbers = clock.floor(numbers)
    twice = np.flatnonzero((np.diff(numbers) == 0) & (np.diff(codes) == 0))
    if len(twice) and resample is None:
        i = twice[0]
        for name in (n for n in (*frame, *ids) if str(n).lower() in CLOCKS - {columns.time}):
            if name not in frame or not frame.duplicated([columns.id, columns.time, name]).any():
                day = frame.attrs.get("stamps", columns.time)
                raise UserError(f"Columns {day!r} and {name!r} look like one stamp; join them in one column.")
        raise UserError(
            f"Series {ids[codes[i]]!r}: rows {min(rows[i], rows[i + 1])} and {max(rows[i], rows[i + 1])} are both at "
            f"{stamps[i]} (one step is one {clock.name}); drop one, correct freq, set resample='mean', "
            f"{'set timezone if clocks went back then, ' * (not clock.wall and not clock.zone)}or name the column of "
            "series with id_col."
        )
    _check_density(ids, starts, ends, numbers, clock, rows)
    ordered = frame.iloc[order]
    return assembled(
        [str(i) for i in ids], codes, numbers, values, columns.matrix(ordered, columns.past),
        columns.matrix(ordered, columns.future), columns.matrix(ordered.iloc[ends], columns.static), clock, columns,
        labels, resample,
    )  # fmt: skip


def assembled(
    ids: list[str], codes: Array, numbers: Array, y: Array, past: Array, future: Array, static: Array, clock: Clock,
    columns: Columns, labels: Any, resample: str | None = None,
) -> Panel:  # fmt: skip
    """A panel of rows in any order. Of two at the same step the later one counts, or both as they are resampled."""
    first, last = np.full(len(ids), np.iinfo(np.int64).max), np.full(len(ids), np.iinfo(np.int64).min)
    np.minimum.at(first, codes, numbers)
    np.maximum.at(last, codes, numbers)
    offsets = np.concatenate([[0], ((last - first) // clock.every + 1).cumsum()])
    at = offsets[codes] + (numbers - first[codes]) // clock.every
    placed = [_placed(at, block, int(offsets[-1]), resample) for block in (y[:, None], past, future)]
    return Panel(
        ids, offsets, first, placed[0][:, 0], placed[1].astype(np.float32), placed[2].astype(np.float32), static, clock,
        columns, labels,
    )  # fmt: skip


def _check_density(ids: Any, starts: Array, ends: Array, numbers: Array, clock: Clock, rows: Array) -> None:
    """Refuse a grid that is much finer than the rows."""
    counts, lengths = ends - starts + 1, (numbers[ends] - numbers[starts]) // clock.every + 1
    thin = np.flatnonzero(too_long(lengths, counts))
    if not len(thin) and lengths.sum() > 1.9 * counts.sum():
        steps = np.diff(numbers)[np.isin(np.arange(1, len(numbers)), starts, invert=True)]
        thin = np.arange(1) if len(steps) > 2 and (steps >= 2 * clock.every).mean() > 0.95 else thin
    for i in thin[:1]:
        gaps = np.diff(numbers[starts[i] : ends[i] + 1]) // clock.every
        k = int(gaps.argmax())
        if gaps[k] > 0.9 * lengths[i]:
            before, behind = clock.stamps(numbers[starts[i] + k : starts[i] + k + 2])
            raise UserError(
                f"Series {ids[i]!r}: no row lies between {before} in row {rows[starts[i] + k]} and {behind} in row "
                f"{rows[starts[i] + k + 1]}, {gaps[k]:,} steps of one {clock.name}; correct the stamp, or set freq to "
                "the step of the stamps."
            )
        raise UserError(
            f"Series {ids[i]!r} has {counts[i]:,} rows on {lengths[i]:,} steps of one {clock.name}; "
            "set freq to the step of the stamps."
        )


def too_long(lengths: Array, counts: Array) -> Array:
    """Which series have much more steps than rows."""
    return (lengths > 10 * counts) & (lengths > 1000)


def _placed(at: Array, values: Array, length: int, resample: str | None) -> Array:
    """Rows on the grid; NaN where there is none."""
    grid = np.full((length, values.shape[1]), np.nan)
    if resample is None:
        grid[at] = values
        return grid
    known = ~np.isnan(values)
    if resample == "last":
        rows, columns = np.nonzero(known)
        grid[at[rows], columns] = values[rows, columns]
        return grid
    total, count = np.zeros_like(grid), np.zeros_like(grid)
    np.add.at(total, at, np.where(known, values, 0))
    np.add.at(count, at, known)
    return np.where(count > 0, total if resample == "sum" else total / np.maximum(count, 1), np.nan)
