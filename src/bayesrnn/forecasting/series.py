"""Time series from CSV files, read by pandas and put on an even grid of steps. `frames` cuts them into windows.

series = read_csv("sales.csv", target="sales")     # or mauna_loa()
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bayesrnn.errors import UserError
from bayesrnn.forecasting import dates as when
from bayesrnn.forecasting.dates import LOOK, Grid, Table, listed
from bayesrnn.reading import counted, read_bytes

if TYPE_CHECKING:
    import pandas as pd

MAX_BYTES = 50 << 20
MAX_ROWS = 1_000_000
MAX_COLUMNS = 1_000
_MISSING = ("", "na", "nan", "n/a", "#n/a", "null", "none", "-", ".", "?")
_LARGEST = math.sqrt(3.4028234e38)  # its square is still a float32

Array = np.ndarray


@dataclass(frozen=True)
class Series:
    """Values on an even grid; NaN where the file has none.

    ``values`` has shape (n, columns), the target first and covariates after it; ``notes`` say what was done to the
    file's rows, one sentence each.
    """

    name: str
    columns: list[str]
    values: Array
    grid: Grid
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def target(self) -> Array:
        return self.values[:, 0]

    def label(self, step: int) -> str:
        """The date of a step as text, also beyond the end."""
        return self.grid.label(step)

    def dates(self, steps: range) -> pd.Index:
        """Steps as stamps, also beyond the end; counted from 1 where the rows have none, or none that pandas has."""
        import pandas as pd

        if self.grid.unit != "row":
            with suppress(OverflowError, ValueError):
                return pd.DatetimeIndex([self.grid.date(step) for step in steps])
        return pd.RangeIndex(steps.start + 1, steps.stop + 1)

    def to_csv(self) -> str:
        """The series as it is used: evenly spaced, target first, empty cells where values are missing."""

        import pandas as pd

        labels = pd.Index(map(self.label, range(len(self))), name="row" if self.grid.unit == "row" else "date")
        return pd.DataFrame(self.values, index=labels, columns=self.columns).to_csv(lineterminator="\n")


def mauna_loa() -> Series:
    """Monthly carbon dioxide at Mauna Loa, 1958 to 2001 (public domain); its 5 missing months are filled."""
    return read_csv(Path(__file__).with_name("mauna_loa.csv"), max_gap=3)


def read_csv(path: str | Path, **options: str | int) -> Series:
    """A series from a CSV file: one column of dates, one or more of numbers, in any order of rows.

    Delimiter (comma, semicolon, tab, bar), header, decimal comma and the form of the dates are found by looking. Rows
    are sorted by date. Steps between the first and the last date that have no row or no value are NaN.

    Args:
        options: as :func:`parse_csv` has them.
    """
    path = Path(path)
    try:
        inside = sorted(p for p in path.iterdir() if p.suffix.lower() == ".csv") if path.is_dir() else None
    except OSError:
        inside = []
    if inside is not None:
        raise UserError(f"{path} is a folder; --data names a CSV file{f', such as {inside[0]}' if inside else ''}.")
    try:
        content = read_bytes(path, most=MAX_BYTES)
    except UserError as error:
        raise UserError(f"{str(error).rstrip('.')}; --data names a CSV file.") from None
    return parse_csv(content, name=path.name, **options)  # type: ignore[arg-type]


def parse_csv(
    content: bytes, *, name: str, target: str = "", covariates: str = "", date: str = "", date_format: str = "",
    max_gap: int = 0,
) -> Series:  # fmt: skip
    """Like :func:`read_csv`, from a file's content.

    Args:
        name: what errors call the file.
        target: the column to forecast; empty: the first with numbers.
        covariates: further columns that the model sees, separated by commas; "all": every other; empty: none.
        date: the column of dates; empty: found; "none": rows are evenly spaced, in the order of the file.
        date_format: how dates are written, as strptime has it (%d/%m/%Y); empty: found.
        max_gap: gaps of up to this many steps are filled by straight lines, which look ahead; 0: none. What is not
            filled stays NaN.
    """
    with naming(name):
        table, comma = _table(_text(content))
        notes: list[str] = []
        dates, table = when.dates_of(table, date, date_format, notes)
        names = _chosen(table, target, covariates, comma, notes)
        values = np.column_stack([_numbers(table[column], comma) for column in names])
        grid, values = _placed(table.index, dates, values, notes)
        grid, values = _trimmed(grid, values, names, notes)
        values = _filled(values, names, max_gap, notes)
    return Series(Path(name).stem, names, values, grid, notes)


@contextmanager
def naming(file: str) -> Iterator[None]:
    """Errors inside the block begin with the file's name."""
    try:
        yield
    except UserError as error:
        mark = ", " if str(error).startswith("line ") else ": "
        raise UserError(f"{file}{mark}{error}") from None


def _text(content: bytes) -> str:
    """UTF-8, or UTF-16 with its mark, without lines of comments."""
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        raise UserError(f"it is not UTF-8 text (byte {error.start}); save it as CSV in UTF-8.") from None
    if "\0" in text:
        raise UserError("it is a binary file; save the series as CSV.")
    return re.sub(r"(?m)^[^\S\n]*#.*$", "", text.replace("\r\n", "\n").replace("\r", "\n"))


def _table(text: str) -> tuple[Table, bool]:
    """Cells as text, the rows' lines in the file as index; and whether numbers have a decimal comma."""

    import pandas as pd

    useful = [line for line in text.split("\n", 5 * LOOK)[: 5 * LOOK] if line.strip()][:LOOK]
    if not useful:
        raise UserError("it is empty; a series needs a column of dates and a column of numbers.")
    mark = _delimiter(useful)
    width = len(next(csv.reader(useful, delimiter=mark, skipinitialspace=True)))
    if width > MAX_COLUMNS:
        raise UserError(f"it has {width:,} columns; at most {MAX_COLUMNS:,} are read.")
    try:
        table: Table = pd.read_csv(  # one column more than the first line has shows lines that are longer
            io.StringIO(text), sep=mark, header=None, names=range(width + 1), dtype=str, keep_default_na=False,
            na_values=[], skip_blank_lines=False, skipinitialspace=True, index_col=False, engine="python",
        )  # fmt: skip
    except (pd.errors.ParserError, csv.Error) as error:
        found = re.search(r"in line (\d+), saw (\d+)", str(error))
        if found is not None:
            raise _uneven(int(found[1]), int(found[2]), width) from None
        raise UserError(f"it cannot be read as CSV ({str(error).splitlines()[0]}).") from None
    table.index = table.index + 1
    table = table.apply(lambda cells: cells.str.strip())
    table = table[(table.fillna("") != "").any(axis=1)]
    for line in table.index[table[width].fillna("") != ""][:1]:
        raise _uneven(line, width + 1, width)
    table = table.drop(columns=width)
    for line, cells in table[table.isna().any(axis=1)][:1].iterrows():
        raise _uneven(int(str(line)), int(cells.notna().sum()), width)
    while width > 1 and (table[width - 1] == "").all():  # lines that end with a delimiter
        width -= 1
        table = table.drop(columns=width)
    comma = mark != "," and bool(table.iloc[1:LOOK].apply(lambda c: c.str.fullmatch(r"[+-]?\d+,\d+")).any(axis=None))
    named = any(not _is_data(cell, comma) for cell in table.iloc[0])
    names = [_printable(cell) for cell in table.iloc[0]] if named else [f"column {i + 1}" for i in range(width)]
    for twice in [name for name in names if names.count(name) > 1][:1]:
        raise UserError(f"it has two columns called {twice!r}; give each its own name.")
    table.columns = pd.Index(names)
    table = table.iloc[1:] if named else table
    if len(table) < 2:
        raise UserError(f"it has {counted(len(table), 'row')} of data; a series needs many more.")
    if len(table) > MAX_ROWS:
        raise UserError(f"it has {len(table):,} rows; at most {MAX_ROWS:,} are read.")
    return table, comma


def _uneven(line: int, cells: int, width: int) -> UserError:
    return UserError(
        f"line {line}, has {cells} cells where line 1 has {width}; put quotes around cells that hold the "
        "delimiter, or correct the line."
    )


def _delimiter(lines: Sequence[str]) -> str:
    """The mark that cuts the first line and most others into equally many cells; a comma, which may be a decimal one,
    only where no other mark does."""
    for mark in ";\t|":
        try:
            widths = [len(row) for row in csv.reader(lines, delimiter=mark, skipinitialspace=True)]
        except csv.Error:
            continue
        if widths[0] > 1 and widths.count(widths[0]) >= 0.8 * len(widths):
            return mark
    return ","


def _is_data(cell: str, comma: bool) -> bool:
    return cell.lower() in _MISSING or not math.isnan(_to_numbers([cell], comma)[0]) or bool(when.forms_of([cell]))


def _printable(name: str) -> str:
    """Without what a terminal would act on; whatever is like a space is one."""
    return "".join(" " if c.isspace() else c for c in name if c.isprintable() or c.isspace()).strip()


def _chosen(table: Table, target: str, covariates: str, comma: bool, notes: list[str]) -> list[str]:
    """The target's column and those of the covariates."""
    numeric = [c for c in table if _looks_numeric(table[c], comma)]
    if target and target not in table:
        raise UserError(f"There is no column {target!r} to forecast; there are {listed(table)}.")
    if not target and not numeric:
        raise UserError(f"No column holds numbers; {_why_not(table)}")
    name = target or numeric[0]
    wanted = [c.strip() for c in covariates.split(",") if c.strip() not in ("", "none")]
    others = [c for c in numeric if c != name]
    if covariates == "all":
        wanted = others
    elif others and not wanted:
        notes.append(f"{name} is forecast from its own past; {listed(others)} can be used with data.covariates=all.")
    for c in wanted:
        if c not in table:
            raise UserError(f"There is no column {c!r} for a covariate; there are {listed(table)}.")
        if c == name:
            raise UserError(f"{c} is the series to forecast; it cannot be a covariate as well.")
    text = [c for c in table if c not in (*numeric, name, *wanted) and (table[c] != "").any()]
    if text:
        notes.append(f"{listed(text)} {'holds' if len(text) == 1 else 'hold'} text and cannot be used.")
    return [name, *wanted]


def _why_not(table: Table) -> str:
    """What to do about a table without numbers: the first cell with a digit tells how they are written instead."""
    for line, cells in table.iterrows():
        for column, cell in cells.items():
            if re.search(r"\d", cell):
                return (
                    f"{cell[:60]!r} in line {line}, column {column}, is none: write them as 12345.67 or, where the "
                    "delimiter is no comma, as 12345,67; without separators of thousands, percent signs and units."
                )
    return "a series needs a column of dates and a column of numbers."


def _looks_numeric(cells: pd.Series, comma: bool) -> bool:
    some = [c for c in cells.iloc[:LOOK] if c.lower() not in _MISSING]
    return bool(some) and float(np.isnan(_to_numbers(some, comma)).mean()) < 0.5


def _to_numbers(cells: Iterable[str], comma: bool) -> Array:
    """NaN where a cell is no number. numpy rounds correctly, so that what is written reads back; pandas does not."""

    import pandas as pd

    text = pd.Series(list(cells), dtype=str)
    text = text.str.replace(",", ".", regex=False) if comma else text
    values = np.array(pd.to_numeric(text, errors="coerce"), dtype=float)
    good = ~np.isnan(values)
    values[good] = text[good].to_numpy(dtype=str).astype(float)
    return values


def _numbers(cells: pd.Series, comma: bool) -> Array:
    values = _to_numbers(cells, comma)
    wrong = {
        "is no number; correct it or leave it empty": np.isnan(values) & ~cells.str.lower().isin(_MISSING).to_numpy(),
        "is infinite; correct it or leave it empty": np.isinf(values),
        "is too large, its square is beyond single precision; give the series in a larger unit": abs(values) > _LARGEST,
    }
    for what, rows in wrong.items():
        for i in np.flatnonzero(rows)[:1]:
            raise UserError(f"line {cells.index[i]}: {cells.iloc[i][:60]!r} in column {cells.name} {what}.")
    return values


def _placed(lines: pd.Index, dates: pd.DatetimeIndex | None, values: Array, notes: list[str]) -> tuple[Grid, Array]:
    """Rows on the even grid; steps without a row are NaN."""
    if dates is None:
        return Grid("row", 1, datetime(1, 1, 1)), values
    if not dates.is_monotonic_increasing:
        what = "in reverse order" if dates.is_monotonic_decreasing else "not in order"
        notes.append(f"The dates are {what} in the file; the rows were sorted by date.")
    order = np.argsort(dates, kind="stable")
    dates, lines, values = dates[order], lines[order], values[order]
    again = np.flatnonzero(dates[1:] == dates[:-1]) + 1
    for i in again.tolist():
        if not np.array_equal(values[i - 1], values[i], equal_nan=True):
            raise UserError(
                f"Lines {lines[i - 1]} and {lines[i]} have the same date and different values; keep one of them, or "
                "their mean."
            )
    if len(again):
        rows = "1 row that repeats" if len(again) == 1 else f"{len(again)} rows that repeat"
        notes.append(f"{rows} a date and its values {'was' if len(again) == 1 else 'were'} left out.")
    dates, lines, values = dates.delete(again), lines.delete(again), np.delete(values, again, 0)
    if len(dates) < 3:
        are = "is 1 date" if len(dates) == 1 else f"are {len(dates)} different dates"
        raise UserError(f"There {are}; a series needs many more.")
    grid, steps = when.grid_of(dates, list(lines))
    if steps[-1] + 1 > MAX_ROWS or steps[-1] + 1 > 2 * len(dates):
        raise UserError(
            f"Only {len(dates):,} of the {steps[-1] + 1:,} steps of {grid.size} between the first and the last date "
            "have a row; resample the series to longer steps."
        )
    placed = np.full((steps[-1] + 1, values.shape[1]), np.nan)
    placed[steps] = values
    return grid, placed


def _trimmed(grid: Grid, values: Array, names: list[str], notes: list[str]) -> tuple[Grid, Array]:
    """Without the steps at both ends that have no target."""
    for name, column in zip(names, values.T, strict=True):
        if np.isnan(column).all():
            raise UserError(f"The column {name} has no numbers.")
    known = np.flatnonzero(~np.isnan(values[:, 0]))
    first, last = int(known[0]), int(known[-1])
    lost = first + len(values) - 1 - last
    if lost:
        notes.append(
            f"{counted(lost, 'step')} without {names[0]} at the ends {'was' if lost == 1 else 'were'} left out."
        )
        grid = replace(grid, start=grid.start if grid.unit == "row" else grid.date(first))
    return grid, values[first : last + 1]


def _filled(values: Array, names: list[str], max_gap: int, notes: list[str]) -> Array:
    """Gaps of up to ``max_gap`` steps filled by straight lines; longer ones stay NaN."""

    import pandas as pd

    columns = []
    for name, column in zip(names, values.T, strict=True):
        missing = pd.Series(np.isnan(column))
        lengths = missing.groupby((~missing).cumsum()).transform("sum").where(missing, 0)
        filled = pd.Series(column).interpolate(limit_direction="both").where(lengths <= max_gap, np.nan)
        columns.append(filled.to_numpy())
        rest, longest = int(filled.isna().sum()), int(lengths.max())
        if done := int(missing.sum()) - rest:
            lines = "was filled by a straight line" if done == 1 else "were filled by straight lines"
            gap = int(lengths[lengths <= max_gap].max())
            notes.append(f"{counted(done, 'missing value')} of {name} (longest gap: {gap}) {lines}.")
        if rest:
            are = "is masked: it is" if rest == 1 else "are masked: they are"
            found = counted(rest, "missing value")
            notes.append(f"{found} of {name} (longest gap: {longest}) {are} neither learnt from nor scored.")
    return np.column_stack(columns)
