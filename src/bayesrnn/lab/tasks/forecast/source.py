"""Files as frames for a forecaster, with errors that name the file, its lines, and the options of a command."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayesrnn import forecasting
from bayesrnn.errors import UserError
from bayesrnn.forecasting.columns import Columns
from bayesrnn.forecasting.tables import long_frame, read, time_column

MAUNA_LOA = Path(forecasting.__file__).with_name("mauna_loa.csv")
_COMMAND = "--{}"
_OPTIONS = {"time_col": "date", "target_col": "target", "freq": "freq", "timezone": "timezone"}


@dataclass(frozen=True)
class Source:
    """A table and its roles. ``spelling`` is how an option is written: "--{}" or "data.{}"; ``sets`` joins a value."""

    path: Path
    table: Any
    columns: Columns
    stamps: str
    spelling: str
    sets: str

    @classmethod
    def of(
        cls, path: Path | None, target: str | None, date: str | None, *, time: str = Columns.time,
        series: str | None = None, spelling: str = _COMMAND, sets: str = " ",
    ) -> "Source":  # fmt: skip
        """Read a file; None: carbon dioxide at Mauna Loa. ``date`` "none": the rows are numbered. ``time``: what the
        column of stamps is called in a frame. ``series``: the column of names of series."""
        table = read(path) if path is not None else _mauna_loa()
        given = (target, "target"), (date if date != "none" else "", "date"), (series, "series")
        for name, option in given:
            if name and name not in table:
                raise UserError(
                    f"{path} has no column {name!r}; {spelling.format(option)} is one of {', '.join(map(str, table))}."
                )
        if date == "none":
            table = table.assign(**{Columns.time: range(len(table))})
        stamps = date if date and date != "none" else time_column(table, Columns.time)
        columns = Columns(series or Columns.id, time, target or Columns.target)
        return cls(path or MAUNA_LOA, table, columns, stamps, spelling, sets)

    def frame(self) -> Any:
        """The table as a long frame."""
        return long_frame(self.table.rename(columns={self.stamps: self.columns.time}), self.columns)

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Errors of the library inside the block, in the words of the command."""
        try:
            yield
        except UserError as error:
            raise UserError(self._said(str(error))) from None

    def _said(self, message: str) -> str:
        """With names of options, and lines and columns as in the file."""
        resample = self.spelling.format("resample") + self.sets
        message = re.sub(r"""\bresample=['"](\w+)['"]""", rf"{resample}\1", message)
        for name, option in (_OPTIONS | ({"id_col": "series"} if self.spelling == _COMMAND else {})).items():
            message = re.sub(rf"(?<![-\w.]){name}\b", self.spelling.format(option), message)
        message = _ahead(message).replace(", and predict(df) then takes short ones", "")
        if "y" not in self.table:  # a wide file: the series is the column
            message = message.replace(" in column 'y'", "")
        message = message.replace("column 'ds' and no DatetimeIndex", "column of dates")
        message = message.replace("'ds'", repr(self.stamps))
        message = message.replace("The frame", str(self.path)).replace("the frame", "the file")
        if self.path.suffix.lower() in (".parquet", ".pq"):
            return message

        def line(row: str) -> int:
            return int(row) % len(self.table) + 2  # below the header; columns of a wide file follow each other

        message = re.sub(r"\brows (\d+) and (\d+) are", lambda m: f"lines {line(m[1])} and {line(m[2])} are", message)
        return re.sub(r"(?<!\()\b([Rr])ow (\d+)", lambda m: f"{'L' if m[1] == 'R' else 'l'}ine {line(m[2])}", message)


@contextmanager
def ahead_option() -> Iterator[None]:
    """Errors of the library about columns that are known ahead, with the name of the option."""
    try:
        yield
    except UserError as error:
        raise UserError(_ahead(str(error))) from None


def _ahead(message: str) -> str:
    for words, option in (
        ("give predict(future=...) a frame", "give --future a file"), (": future has", ": --future has"),
        ("future is given, and", "--future is given, and"),
        ("name them in future= and fit again", "omit it, or train with it"),
    ):  # fmt: skip
        message = message.replace(words, option)
    return message


def _mauna_loa() -> Any:
    """Monthly carbon dioxide at Mauna Loa, 1958 to 2001 (public domain)."""
    import pandas as pd

    return pd.read_csv(MAUNA_LOA, comment="#")


def labels(stamps: Any) -> list[str]:
    """Stamps as text: without a time of day where it is always midnight."""
    import pandas as pd

    index = pd.Index(stamps)
    if not isinstance(index, pd.DatetimeIndex):
        return [str(stamp) for stamp in index]
    whole = bool((index == index.normalize()).all())
    return index.strftime("%Y-%m-%d" if whole else "%Y-%m-%d %H:%M").tolist()
