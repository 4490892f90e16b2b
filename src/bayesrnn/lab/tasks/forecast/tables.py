"""Tables in text files as people and programs write them: delimiter, header, decimal comma, comments, limits."""

import csv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bayesrnn.errors import UserError
from bayesrnn.lab.reading import counted
from bayesrnn.lab.tasks.forecast import dates as when

MAX_BYTES = 50_000_000
MAX_ROWS = 1_000_000
MAX_COLUMNS = 1_000
MISSING = {"", "na", "nan", "n/a", "#n/a", "null", "none", "-", ".", "?"}
LOOK = 200  # rows that decide on delimiter, header and date column
_MARKS = ";\t|,"  # a comma may be a decimal one: it comes last


@dataclass(frozen=True)
class Table:
    """Cells by column; ``lines`` are the lines of the file that the rows stand in."""

    cells: dict[str, list[str]]
    lines: list[int]
    comma: bool
    """Whether numbers have a decimal comma."""


def table_of(text: str, file: str) -> Table:
    """Cells by column; delimiter, header and decimal comma are found by looking. ``file`` is what errors call it."""
    rows, lines, delimiter = _rows(text, file)
    width = len(rows[0])
    for row, line in zip(rows, lines, strict=True):
        if len(row) != width:
            raise UserError(
                f"{file}, line {line}, has {len(row)} cells where line {lines[0]} has {width}; "
                "put quotes around cells that hold the delimiter, or correct the line."
            )
    if width > MAX_COLUMNS:
        raise UserError(f"{file} has {width:,} columns; at most {MAX_COLUMNS:,} are read.")
    comma = delimiter != "," and any(_is_comma_number(cell) for row in rows[1:LOOK] for cell in row)
    header = any(cell and not _is_data(cell, comma) for cell in rows[0])
    names = [_printable(cell) for cell in rows[0]] if header else [f"column {i + 1}" for i in range(width)]
    if len(set(names)) < width:
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(f"{file} has two columns called {twice!r}; give each its own name.")
    body, where = (rows[1:], lines[1:]) if header else (rows, lines)
    if len(body) < 2:
        raise UserError(f"{file} has {counted(len(body), 'row')} of data; a series needs many more.")
    if len(body) > MAX_ROWS:
        raise UserError(f"{file} has {len(body):,} rows; at most {MAX_ROWS:,} are read.")
    return Table({name: [row[i] for row in body] for i, name in enumerate(names)}, where, comma)


def _rows(text: str, file: str) -> tuple[list[list[str]], list[int], str]:
    """The file's cells without blank lines and comments (#), their line numbers, and the delimiter."""
    lines = text.splitlines()
    useful = [line for line in lines[: 5 * LOOK] if line.strip() and not line.lstrip().startswith("#")][:LOOK]
    if not useful:
        raise UserError(f"{file} is empty; a series needs a column of dates and a column of numbers.")
    delimiter = _delimiter(useful)
    rows, numbers = [], []
    reader = csv.reader(lines, delimiter=delimiter, skipinitialspace=True)
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            if any(cells) and not cells[0].startswith("#"):
                rows.append(cells)
                numbers.append(reader.line_num)
    except csv.Error as error:
        raise UserError(f"{file}, line {reader.line_num}, cannot be read as CSV ({error}).") from None
    if not rows:
        raise UserError(f"{file} is empty; a series needs a column of dates and a column of numbers.")
    while len(rows[0]) > 1 and all(len(row) == len(rows[0]) and not row[-1] for row in rows):
        rows = [row[:-1] for row in rows]  # lines that end with a delimiter
    return rows, numbers, delimiter


def _delimiter(lines: Sequence[str]) -> str:
    """The mark that cuts all lines into equally many cells, else most of them.

    Where several do, the one with which more cells are numbers or dates: 2020-01-01;10,5 has a decimal comma.
    """
    ranks = {mark: _rank(lines, mark) for mark in _MARKS}
    best = max(_MARKS, key=lambda mark: ranks[mark])
    return best if ranks[best] > (0, 0.0, 1) else ","


def _rank(lines: Sequence[str], mark: str) -> tuple[int, float, int]:
    """How well the lines agree on their cells (2: all, 1: most, 0: not), the share that is data, and the columns."""
    try:
        rows = [row for row in csv.reader(lines, delimiter=mark, skipinitialspace=True) if row]
    except csv.Error:
        return 0, 0.0, 1
    widths = [len(row) for row in rows]
    usual = max(set(widths), key=widths.count)
    share = widths.count(usual) / len(widths)
    if usual == 1 or share < 0.8:
        return 0, 0.0, 1
    cells = [cell.strip() for row in rows[-20:] for cell in row[:50]]
    return 1 + (share == 1), sum(_is_data(cell, mark != ",") for cell in cells) / len(cells), usual


def _printable(name: str) -> str:
    """Without what a terminal would act on; whatever is like a space is one."""
    return "".join(" " if c.isspace() else c for c in name if c.isprintable() or c.isspace()).strip()


def read_bytes(path: Path) -> bytes:
    """The file's content, if it is not too much."""
    try:
        if path.is_dir():
            raise UserError(f"{path} is a folder; --data names a CSV file{_such_as(path)}.")
        if not path.is_file():
            raise UserError(f"{path} cannot be read (there is no such file); --data names a CSV file.")
        with open(path, "rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "its name is not one"
        raise UserError(f"{path} cannot be read ({reason}); --data names a CSV file.") from None
    if len(content) > MAX_BYTES:
        raise UserError(f"{path} is larger than {MAX_BYTES // 1_000_000} MB; cut or aggregate the series first.")
    return content


def _such_as(folder: Path) -> str:
    """The first CSV file in a folder, as a suggestion."""
    inside = sorted(path for path in folder.iterdir() if path.suffix.lower() == ".csv")
    return f", such as {inside[0]}" if inside else ""


@contextmanager
def naming(file: str) -> Iterator[None]:
    """Errors inside the block begin with the file's name."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{file}: {error}") from None


def text_of(content: bytes, file: str) -> str:
    """UTF-8, or UTF-16 with its mark."""
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not UTF-8 text (byte {error.start}); save it as CSV in UTF-8.") from None
    if "\0" in text:
        raise UserError(f"{file} is a binary file; save the series as CSV.")
    return text


def _is_comma_number(cell: str) -> bool:
    head, comma, tail = cell.partition(",")
    return bool(comma) and head.lstrip("+-").isdigit() and tail.isdigit()


def _is_data(cell: str, comma: bool) -> bool:
    if cell.lower() in MISSING or when.form_of([cell]) is not None:
        return True
    return number(cell, comma) is not None


def number(cell: str, comma: bool) -> float | None:
    """The cell as a number; None: it is none."""
    try:
        return None if "_" in cell else float(cell.replace(",", ".") if comma else cell)
    except ValueError:
        return None
