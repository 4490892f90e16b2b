"""Series as flat arrays on an even grid, from the frames, files and Series that people have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from bayesrnn.errors import UserError
from bayesrnn.forecasting.clock import Clock, clock_of, same_kind, snapped

Array = np.ndarray
_CATEGORIES = 64  # the most frequent ones have a column each
_LARGEST = 1e18  # of a value


@dataclass(frozen=True)
class Columns:
    """Which columns a frame has, and what is needed to make numbers of further columns.

    ``codes`` maps a column of text or categories to its categories: one column each, so that the network's first layer
    is their embedding.
    """

    id: str = "unique_id"
    time: str = "ds"
    target: str = "y"
    past: tuple[str, ...] = ()
    future: tuple[str, ...] = ()
    static: tuple[str, ...] = ()
    codes: dict[str, list[str]] = field(default_factory=dict)
    means: dict[str, tuple[float, float]] = field(default_factory=dict)

    def width(self, names: Sequence[str]) -> int:
        return sum(len(self.codes[name]) if name in self.codes else 1 for name in names)

    def learnt(self, frame: Any) -> Columns:
        """With categories, means and spreads of these rows."""
        import pandas as pd

        codes, means = {}, {}
        for name in (*self.past, *self.future, *self.static):
            cells = frame[name]
            if pd.api.types.is_numeric_dtype(cells) or pd.api.types.is_bool_dtype(cells):
                values = cells.to_numpy(dtype=float, na_value=np.nan)
                values = values[np.isfinite(values)]
                spread = float(values.std()) if len(values) else 0.0
                means[name] = (float(values.mean()) if len(values) else 0.0, spread if spread > 0 else 1.0)
            else:
                codes[name] = [str(v) for v in cells.astype(str).value_counts().index[:_CATEGORIES]]
        return replace(self, codes=codes, means=means)

    def matrix(self, frame: Any, names: Sequence[str]) -> Array:
        """Columns as numbers (n, width), float32: scaled, or one per category; NaN where missing."""
        parts: list[Array] = []
        for name in names:
            if name in self.codes:
                cells = frame[name].astype(str).to_numpy()
                parts += [(cells == code).astype(np.float32) for code in self.codes[name]]
                continue
            mean, spread = self.means[name]
            try:
                values = frame[name].to_numpy(dtype=float, na_value=np.nan)
            except (TypeError, ValueError):
                raise UserError(
                    f"The column {name!r} was numbers when the model was fitted, and has text now."
                ) from None
            for row in np.flatnonzero(np.isinf(values))[:1]:
                raise UserError(
                    f"Series {str(frame[self.id].iloc[row])!r}: column {name!r} is infinite at "
                    f"{frame[self.time].iloc[row]}; correct it or leave it empty."
                )
            parts.append(np.clip((values - mean) / spread, -20, 20).astype(np.float32))
        return np.stack(parts, 1) if parts else np.zeros((len(frame), 0), np.float32)


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


def read(path: Path) -> Any:
    """A CSV, CSV.gz or Parquet file as a frame."""
    import pandas as pd

    try:
        if path.suffix in (".parquet", ".pq"):
            return pd.read_parquet(path)
        frame = pd.read_csv(path)
        if len(frame.columns) == 1 and ";" in str(frame.columns[0]):
            frame = pd.read_csv(path, sep=";", decimal=",")
        return frame
    except FileNotFoundError:
        raise UserError(f"There is no file {path}; give the path of a CSV, CSV.gz or Parquet file.") from None
    except ImportError:
        raise UserError("Parquet files need pyarrow; pip install 'bayesrnn[forecast]'") from None
    except (ValueError, OSError) as error:
        raise UserError(
            f"{path} cannot be read as a table ({str(error).splitlines()[0][:200]}); give a CSV, CSV.gz or "
            "Parquet file with a header."
        ) from None


def time_column(frame: Any, name: str) -> str:
    """The column of stamps of a file: the one of this name; where the name is the default, any with dates."""
    from bayesrnn.forecasting.dates import date_column

    if name in frame or name != Columns.time or frame.index.dtype.kind != "i":  # Parquet keeps an index of dates
        return name
    return date_column(frame.head(200).astype(str)) or name


def long_frame(data: Any, columns: Columns, *, target: bool = True) -> Any:
    """Any of the accepted forms as a long frame with the columns id, time and target, then further ones."""
    import pandas as pd

    if isinstance(data, (str, Path)):
        data = read(Path(data))
        data = data.rename(columns={time_column(data, columns.time): columns.time})
    unnamed = "series" if columns.target == Columns.target else columns.target
    if isinstance(data, pd.Series):
        name = str(data.name) if data.name is not None else unnamed
        data = pd.DataFrame({columns.id: name, columns.time: data.index, columns.target: data.to_numpy()})
    if not isinstance(data, pd.DataFrame):
        raise UserError(f"The data must be a DataFrame, a Series or a path, got {type(data).__name__}.")
    frame = data
    _check_names(frame)
    if columns.time not in frame:
        dated = isinstance(frame.index, (pd.DatetimeIndex, pd.PeriodIndex)) or frame.index.name == columns.time
        if not dated:
            raise UserError(
                f"The frame has no column {columns.time!r} and no DatetimeIndex; its columns are "
                f"{_listed(frame.columns)}: name the column of stamps with time_col."
            )
        frame = frame.reset_index(names=columns.time)
    if target and columns.target not in frame:
        if columns.id in frame or columns.target != Columns.target:
            raise UserError(
                f"The frame has no column {columns.target!r} to forecast; its columns are {_listed(frame.columns)}: "
                "name it with target_col."
            )
        values = [c for c in frame if c != columns.time and pd.api.types.is_numeric_dtype(frame[c])]
        if not values:
            raise UserError(
                f"The frame has no column {columns.target!r} and no column of numbers; its columns are "
                f"{_listed(frame.columns)}: name the one to forecast with target_col."
            )
        rows = len(frame)
        frame = frame.melt([columns.time], values, columns.id, columns.target)
        frame.attrs["rows"] = rows  # of the wide frame: messages count these
    if columns.id not in frame:
        frame = frame.assign(**{columns.id: unnamed})
    if not len(frame):
        raise UserError("The frame has no rows; give at least one series with values.")
    for row in np.flatnonzero(frame[columns.id].isna())[:1]:
        raise UserError(f"Row {row} has no name of a series in column {columns.id!r}; fill it or drop the row.")
    for name in frame:
        if np.iscomplexobj(frame[name]) or isinstance(frame[name].iloc[0], (list, dict, set, np.ndarray)):
            raise UserError(f"Column {name!r} holds neither numbers nor text; drop it, or make it one value per row.")
    return frame


def _check_names(frame: Any) -> None:
    if frame.columns.nlevels > 1:
        raise UserError("The frame's columns have several levels; give each one name, for example by droplevel.")
    if frame.columns.duplicated().any():
        raise UserError(f"Two columns are called {frame.columns[frame.columns.duplicated()][0]!r}; rename one.")


def _listed(names: Any) -> str:
    shown = [repr(str(n)) for n in list(names)[:8]]
    return ", ".join(shown) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def stamps_of(cells: Any, name: str) -> Any:
    """A DatetimeIndex, or whole numbers."""
    import pandas as pd

    if isinstance(cells.dtype, pd.PeriodDtype):
        return pd.DatetimeIndex(cells.dt.to_timestamp())
    if pd.api.types.is_integer_dtype(cells):
        if not cells.isna().any():
            return cells.to_numpy(dtype=np.int64)
    elif not pd.api.types.is_datetime64_any_dtype(cells):
        text = cells
        if pd.api.types.is_float_dtype(cells) and (cells % 1 == 0).all():
            return cells.to_numpy(dtype=np.int64)
        if pd.api.types.is_float_dtype(cells) or pd.api.types.is_bool_dtype(cells):
            raise UserError(f"The column {name!r} holds {cells.dtype} values, not stamps; use dates or whole numbers.")
        cells = _dates(text, name)
    missing = cells.isna().to_numpy().nonzero()[0]
    if len(missing):
        raise UserError(f"Row {missing[0]} has no stamp in column {name!r}; fill it or drop the row.")
    return pd.DatetimeIndex(cells)


def _dates(text: Any, name: str) -> Any:
    """Text as dates: ISO, else in any form that `dates.parse` knows and that can be read in one way only."""
    import pandas as pd

    from bayesrnn.forecasting.dates import parse

    try:
        return pd.Series(pd.to_datetime(text, format="ISO8601"))
    except (ValueError, TypeError, OverflowError):
        pass
    try:
        return pd.Series(parse(text.fillna("").astype(str).tolist(), list(range(len(text))), name))
    except (UserError, ValueError) as error:
        why = str(error).split(";")[0].replace(" in line ", " in row ")
        raise UserError(f"{why}; write the dates of column {name!r} as YYYY-MM-DD HH:MM.") from None


def _values(frame: Any, ids: Array, columns: Columns) -> Array:
    """The target as float64; NaN where missing."""
    import pandas as pd

    cells = frame[columns.target]
    values = np.array(pd.to_numeric(cells, errors="coerce"), dtype=float)
    text = np.isnan(values) & cells.notna().to_numpy() & (cells.astype(str).str.strip() != "").to_numpy()
    wrong = {
        "no number; correct it or leave it empty": text,
        "infinite; correct it or leave it empty": np.isinf(values),
    }
    wrong["too large; give the series in a larger unit"] = np.abs(values) > _LARGEST
    for what, rows in wrong.items():
        for row in np.flatnonzero(rows)[:1]:
            raise UserError(
                f"Series {str(ids[row])!r}: {str(cells.iloc[row])[:60]!r} in column {columns.target!r}, row "
                f"{row % frame.attrs.get('rows', len(frame))}, is {what}."
            )
    return values


def panel_of(
    data: Any, columns: Columns, *, freq: str | int | None, clock: Clock | None = None, resample: str | None = None
) -> Panel:  # fmt: skip
    """The series of a frame on the grid of their clock; see `long_frame` for what a frame may be."""
    import pandas as pd

    frame = long_frame(data, columns)
    missing = [c for c in (*columns.past, *columns.future, *columns.static) if c not in frame]
    if missing:
        raise UserError(f"The frame has no column {missing[0]!r}, which the model uses; add it.")
    codes, given = pd.factorize(frame[columns.id])
    alike, ids = pd.factorize(np.array([str(name) for name in given], dtype=object))
    codes = alike[codes]
    values, stamps = _values(frame, ids[codes], columns), stamps_of(frame[columns.time], columns.time)
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
        raise UserError(
            f"Series {ids[codes[i]]!r}: rows {min(rows[i], rows[i + 1])} and {max(rows[i], rows[i + 1])} are both at "
            f"{stamps[i]} (one step is one {clock.name}); drop one, correct freq, set resample='mean', or "
            "name the column of series with id_col."
        )
    lengths = (numbers[ends] - numbers[starts]) // clock.every + 1
    _check_density(ids, starts, ends, lengths, numbers, clock)
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
    """A panel of rows in any order; of two at the same step the later one counts, unless they are resampled."""
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


def _check_density(ids: Any, starts: Array, ends: Array, lengths: Array, numbers: Array, clock: Clock) -> None:
    """Refuse a grid that is much finer than the rows."""
    counts = ends - starts + 1
    thin = np.flatnonzero((lengths > 10 * counts) & (lengths > 1000))
    if not len(thin) and lengths.sum() > 1.9 * counts.sum():
        steps = np.diff(numbers)[np.isin(np.arange(1, len(numbers)), starts, invert=True)]
        thin = np.arange(1) if len(steps) > 2 and (steps >= 2 * clock.every).mean() > 0.95 else thin
    for i in thin[:1]:
        raise UserError(
            f"Series {ids[i]!r} has {counts[i]:,} rows on {lengths[i]:,} steps of one {clock.name}; "
            "set freq to the step of the stamps."
        )


def _placed(at: Array, values: Array, length: int, resample: str | None) -> Array:
    """Rows on the grid; NaN where there is none."""
    grid = np.full((length, values.shape[1]), np.nan)
    if resample is None or resample == "last":
        grid[at] = values
        return grid
    known = ~np.isnan(values)
    total, count = np.zeros_like(grid), np.zeros_like(grid)
    np.add.at(total, at, np.where(known, values, 0))
    np.add.at(count, at, known)
    return np.where(count > 0, total if resample == "sum" else total / np.maximum(count, 1), np.nan)
