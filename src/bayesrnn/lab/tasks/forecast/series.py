"""Time series from CSV files, put on an even grid of steps. `frames` cuts them into windows.

series = read_csv("sales.csv", target="sales")     # or mauna_loa()
"""

import csv
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

import numpy as np

from bayesrnn.errors import UserError
from bayesrnn.lab.reading import counted
from bayesrnn.lab.tasks.forecast import dates as when
from bayesrnn.lab.tasks.forecast.dates import Grid
from bayesrnn.lab.tasks.forecast.tables import (
    LOOK,
    MAX_ROWS,
    MISSING,
    Table,
    naming,
    number,
    read_bytes,
    table_of,
    text_of,
)

_NAMES = {"date", "time", "datetime", "timestamp", "year", "month", "day", "week", "quarter", "period", "ds", "index"}
_COUNTERS = {"", "row", "index", "unnamed: 0"}
_LARGEST = math.sqrt(3.4028234e38)  # of values whose square is a float32
_PARTS = {"month": 12, "mon": 12, "quarter": 4, "qtr": 4}

Array = np.ndarray


@dataclass(frozen=True)
class Series:
    """Values on an even grid, without gaps.

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

    def to_csv(self) -> str:
        """The series as it is used: evenly spaced, gaps filled, target first."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["row" if self.grid.unit == "row" else "date", *self.columns])
        for step, row in enumerate(self.values):
            writer.writerow([self.label(step), *(repr(float(v)) for v in row)])
        return out.getvalue()


def mauna_loa() -> Series:
    """Monthly carbon dioxide at Mauna Loa, 1958 to 2001: the series that comes with the library (public domain)."""
    return read_csv(Path(__file__).with_name("mauna_loa.csv"))


def read_csv(
    path: str | Path,
    *,
    target: str = "",
    covariates: str = "",
    date: str = "",
    max_gap: int = 0,
) -> Series:
    """A series from a CSV file: one column of dates, one or more of numbers, in any order of rows.

    Delimiter (comma, semicolon, tab, bar), header, decimal comma and the form of the dates are found by looking. Rows
    are sorted by date; dates that are missing between the first and the last count as gaps.

    Args:
        target: the column to forecast; empty: the first with numbers.
        covariates: further columns that the model sees, separated by commas; "all": every other; empty: none.
        date: the column of dates; empty: found. Without one the rows are taken as evenly spaced.
        max_gap: gaps of up to this many steps are filled by straight lines; 0: 1% of the series, at least 3.
    """
    path = Path(path)
    return parse_csv(read_bytes(path), name=path.name, target=target, covariates=covariates, date=date, max_gap=max_gap)


def parse_csv(
    content: bytes, *, name: str, target: str = "", covariates: str = "", date: str = "", max_gap: int = 0
) -> Series:
    """As :func:`read_csv`, of a file's content; ``name`` is what errors call it."""
    table = table_of(text_of(content, name), name)
    notes: list[str] = []
    with naming(name):
        dated, table = _dated(table, date, notes)
        names = _chosen(table, target, covariates, notes)
    values = np.column_stack([_numbers(table, column, name) for column in names])
    with naming(name):
        grid, values = _placed(table, dated, values, notes)
        grid, values = _trimmed(grid, values, names[0], notes)
        values = _filled(values, names, grid, max_gap, notes)
    return Series(Path(name).stem, names, values, grid, notes)


def _dated(table: Table, given: str, notes: list[str]) -> tuple[list[datetime] | None, Table]:
    """The dates of the rows, and the table without the columns they came from."""
    table = _without_row_numbers(table)
    name, form = _date_column(table, given)
    if name is None or form is None:
        notes.append("No column holds dates; the rows are taken as evenly spaced, in the order of the file.")
        return None, table
    used, cells = [name], table.cells[name]
    part = next((c for c in table.cells if c.lower() in _PARTS and c != name), None)
    if form == "YYYY" and part is not None:
        used.append(part)
        cells, form = _joined(cells, table.cells[part], _PARTS[part.lower()], table.lines, part), "YYYY-MM"
    dates = when.parse(cells, form, table.lines, notes)
    rest = {column: values for column, values in table.cells.items() if column not in used}
    return dates, Table(rest, table.lines, table.comma)


def _without_row_numbers(table: Table) -> Table:
    """A first column that only counts the rows says nothing; programs write one without a name."""
    first, *rest = table.cells
    if not rest or first.lower() not in _COUNTERS:
        return table
    count = len(table.lines)
    counted = any(table.cells[first] == [str(i) for i in range(k, count + k)] for k in (0, 1))
    return replace(table, cells={name: table.cells[name] for name in rest}) if counted else table


def _joined(years: list[str], parts: list[str], most: int, lines: list[int], name: str) -> list[str]:
    """Years of one column and months or quarters of another, as year and month."""
    joined = []
    for year, part, line in zip(years, parts, lines, strict=True):
        digits = part.removesuffix(".0")
        if not digits.isdecimal() or not 1 <= int(digits) <= most:
            raise UserError(f"The {name} in line {line} is {part!r}; it must be a whole number from 1 to {most}.")
        month = int(digits) if most == 12 else 3 * int(digits) - 2
        joined.append(f"{year.split('.')[0]}-{month:02}")
    return joined


def _date_column(table: Table, given: str) -> tuple[str | None, str | None]:
    if given:
        if given not in table.cells:
            raise UserError(f"There is no column {given!r} for the dates; there are {_listed(table.cells)}.")
        form = when.form_of(table.cells[given][:LOOK])
        if form is None:
            raise UserError(
                f"The column {given!r} holds no dates (its first cell is {table.cells[given][0]!r}); "
                "write them as YYYY-MM-DD, YYYY-MM or YYYY."
            )
        return given, form
    forms = {name: when.form_of(cells[:LOOK]) for name, cells in table.cells.items()}
    found = [(name, form) for name, form in forms.items() if form is not None]
    first = next(iter(table.cells))
    for name, form in found:  # by name, then by form, then a first column of years or the like
        if name.lower() in _NAMES:
            return name, form
    for name, form in found:
        if form not in when.NUMERIC:
            return name, form
    cells = table.cells[first]
    return (first, forms[first]) if forms[first] and len(set(cells)) == len(cells) > 2 else (None, None)


def _listed(names: Sequence[str] | dict[str, list[str]]) -> str:
    listed = list(names)
    return ", ".join(listed[:8]) + (f" and {len(listed) - 8} more" if len(listed) > 8 else "")


def _chosen(table: Table, target: str, covariates: str, notes: list[str]) -> list[str]:
    """The target's column and those of the covariates."""
    numeric = [name for name, cells in table.cells.items() if _looks_numeric(cells, table.comma)]
    if target and target not in table.cells:
        raise UserError(f"There is no column {target!r} to forecast; there are {_listed(table.cells)}.")
    if not target and not numeric:
        raise UserError(f"No column holds numbers; {_why_not(table)}")
    name = target or numeric[0]
    others = [c for c in numeric if c != name]
    if covariates in ("", "none"):
        if others:
            notes.append(
                f"{name} is forecast from its own past; {_listed(others)} can be used with data.covariates=all."
            )
        return [name]
    if covariates == "all":
        return [name, *others]
    wanted = [c.strip() for c in covariates.split(",") if c.strip()]
    for c in wanted:
        if c not in table.cells:
            raise UserError(f"There is no column {c!r} for a covariate; there are {_listed(table.cells)}.")
        if c == name:
            raise UserError(f"{c} is the series to forecast; it cannot be a covariate as well.")
    return [name, *wanted]


def _why_not(table: Table) -> str:
    """What to do about a table without numbers: the first cell with a digit tells how they are written instead."""
    for i, line in enumerate(table.lines):
        for name, cells in table.cells.items():
            if re.search(r"\d", cells[i]):
                return (
                    f"{cells[i][:60]!r} in line {line}, column {name}, is none: write them as 12345.67 or, where the "
                    "delimiter is no comma, as 12345,67; without separators of thousands, percent signs and units."
                )
    return "a series needs a column of dates and a column of numbers."


def _looks_numeric(cells: list[str], comma: bool) -> bool:
    some = [c for c in cells[:LOOK] if c.lower() not in MISSING]
    return bool(some) and sum(number(c, comma) is not None for c in some) > 0.5 * len(some)


def _numbers(table: Table, name: str, file: str) -> Array:
    values = np.empty(len(table.lines))
    for i, (cell, line) in enumerate(zip(table.cells[name], table.lines, strict=True)):
        value = float("nan") if cell.lower() in MISSING else number(cell, table.comma)
        if value is None:
            raise UserError(
                f"{file}, line {line}: {cell[:60]!r} in column {name} is no number; correct it or leave it empty."
            )
        if np.isinf(value):
            raise UserError(
                f"{file}, line {line}: {cell[:60]!r} in column {name} is infinite; correct it or leave it empty."
            )
        if abs(value) > _LARGEST:
            raise UserError(
                f"{file}, line {line}: {cell[:60]!r} in column {name} is too large, its square is beyond single "
                "precision; give the series in a larger unit."
            )
        values[i] = value
    return values


def _placed(table: Table, dated: list[datetime] | None, values: Array, notes: list[str]) -> tuple[Grid, Array]:
    """Rows on the even grid; steps without a row are NaN."""
    if dated is None:
        return Grid("row", 1, datetime(1, 1, 1)), values
    lines = table.lines
    order = sorted(range(len(dated)), key=lambda i: dated[i])
    if order != list(range(len(dated))):
        what = "in reverse order" if order == list(range(len(dated)))[::-1] else "not in order"
        notes.append(f"The dates are {what} in the file; the rows were sorted by date.")
    kept: list[int] = []
    doubled = 0
    for i in order:
        if kept and dated[kept[-1]] == dated[i]:
            if not np.array_equal(values[kept[-1]], values[i], equal_nan=True):
                raise UserError(
                    f"Lines {lines[kept[-1]]} and {lines[i]} have the same date and different values; "
                    "keep one of them, or their mean."
                )
            doubled += 1
        else:
            kept.append(i)
    if doubled:
        rows = "1 row that repeats" if doubled == 1 else f"{doubled} rows that repeat"
        notes.append(f"{rows} a date and its values {'was' if doubled == 1 else 'were'} left out.")
    if len(kept) < 3:
        are = "is 1 date" if len(kept) == 1 else f"are {len(kept)} different dates"
        raise UserError(f"There {are}; a series needs many more.")
    grid, steps = when.grid_of([dated[i] for i in kept], [lines[i] for i in kept])
    if steps[-1] + 1 > MAX_ROWS or steps[-1] + 1 > 2 * len(kept):
        raise UserError(
            f"Only {len(kept):,} of the {steps[-1] + 1:,} steps of {grid.size} between the first and the last date "
            "have a row; resample the series to longer steps."
        )
    placed = np.full((steps[-1] + 1, values.shape[1]), np.nan)
    placed[steps] = values[kept]
    return grid, placed


def _trimmed(grid: Grid, values: Array, name: str, notes: list[str]) -> tuple[Grid, Array]:
    """Without the steps at both ends that have no target."""
    known = np.flatnonzero(~np.isnan(values[:, 0]))
    if len(known) == 0:
        raise UserError(f"The column {name} has no numbers.")
    first, last = int(known[0]), int(known[-1])
    if first or last + 1 < len(values):
        lost = first + len(values) - 1 - last
        notes.append(f"{counted(lost, 'step')} without {name} at the ends {'was' if lost == 1 else 'were'} left out.")
        start = grid.start if grid.unit == "row" else grid.date(first)
        grid = replace(grid, start=start)
    return grid, values[first : last + 1]


def _filled(values: Array, names: list[str], grid: Grid, max_gap: int, notes: list[str]) -> Array:
    """Small gaps filled by straight lines, large ones refused."""
    limit = max_gap or max(3, len(values) // 100)
    filled = values.copy()
    for j, name in enumerate(names):
        missing = np.isnan(values[:, j])
        if not missing.any():
            continue
        if missing.all():
            raise UserError(f"The column {name} has no numbers.")
        start, length = _longest(missing)
        if length > limit:
            raise UserError(
                f"{name} has no value for {counted(length, 'step')} from {grid.label(start)} on, and gaps of up to "
                f"{limit} are filled; cut the series there, fill it yourself, or allow it with data.max_gap={length}."
            )
        steps = np.arange(len(values))
        filled[missing, j] = np.interp(steps[missing], steps[~missing], values[~missing, j])
        many = int(missing.sum())
        lines = "was filled by a straight line" if many == 1 else "were filled by straight lines"
        notes.append(f"{counted(many, 'missing value')} of {name} (longest gap: {length}) {lines}.")
    return filled


def _longest(missing: Array) -> tuple[int, int]:
    """Start and length of the longest run."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], missing.astype(np.int8), [0]])))
    starts, ends = edges[::2], edges[1::2]
    i = int(np.argmax(ends - starts))
    return int(starts[i]), int(ends[i] - starts[i])
