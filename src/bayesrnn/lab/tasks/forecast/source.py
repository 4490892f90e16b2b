"""Files as frames for a forecaster, with errors that name the file, its lines, and the options of a command."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bayesrnn import forecasting
from bayesrnn.errors import UserError
from bayesrnn.forecasting.columns import Columns
from bayesrnn.forecasting.dates import forms_of
from bayesrnn.forecasting.panel import Panel
from bayesrnn.forecasting.tables import long_frame, read, time_column
from bayesrnn.lab.tasks.forecast.words import COMMAND, Words

MAUNA_LOA = Path(forecasting.__file__).with_name("mauna_loa.csv")
ROW = "row"
"""The column of stamps where rows are numbered."""


@dataclass(frozen=True)
class Source:
    """A table, its roles, and the words for its errors."""

    table: Any
    columns: Columns
    words: Words

    @classmethod
    def of(
        cls, path: Path | None, target: str | None, date: str | None, *, time: str = Columns.time,
        series: str | None = None, words: Words = COMMAND,
    ) -> "Source":  # fmt: skip
        """Read a file; None: carbon dioxide at Mauna Loa. ``date`` "none": the rows are numbered. ``time``: what the
        column of stamps is called in a frame. ``series``: the column of names of series."""
        if path is not None and path.is_dir():
            raise UserError(f"{path} is a folder; {words.option or '--data'} names a CSV, CSV.gz or Parquet file.")
        table = read(path) if path is not None else _mauna_loa()
        given = (target, "target"), (date if date != "none" else "", "date"), (series, "series")
        for name, option in given:
            if name and name not in table:
                raise UserError(
                    f"{path} has no column {name!r}; {words.spelling.format(option)} is one of "
                    f"{', '.join(map(str, table))}."
                )
        columns = Columns(series or Columns.id, time, target or Columns.target)
        if date == "none":
            table = numbered(table, columns)
        words = replace(words, columns=columns)
        with words.naming():
            stamps = date if date and date != "none" else time_column(table, columns.time)
        return cls(table, columns, _of(words, path or MAUNA_LOA, table, columns, stamps))

    @property
    def renamed(self) -> Any:
        """The table, its column of stamps called as in a frame."""
        return self.table.rename(columns={self.words.stamps: self.columns.time})

    def frame(self) -> Any:
        """The table as a long frame."""
        return long_frame(self.renamed, self.columns)

    def naming(self) -> AbstractContextManager[None]:
        return self.words.naming()


def newer(path: Path, panel: Panel, option: str, date: str = "") -> Source:
    """A file of ``option`` with rows after those of a panel. Numbered rows go on with its numbers. ``date``: the column
    of stamps as in `Source.of`, if it is called otherwise in the panel."""
    columns = panel.columns
    words = Words(roles=False, columns=columns, option=option)
    if path.is_dir():
        raise UserError(f"{path} is a folder; {option} names a CSV, CSV.gz or Parquet file.")
    table = read(path)
    if date == "none" or (columns.time == ROW and ROW not in table):
        table = numbered(table, columns, _following(panel, table))
    with words.naming():
        stamps = date if date in table else time_column(table, columns.time)
    return Source(table, columns, _of(words, path, table, columns, stamps))


def _of(words: Words, path: Path, table: Any, columns: Columns, stamps: str) -> Words:
    wide, lines = columns.target not in table, table.index.tolist()
    rows = tuple(lines) if all(isinstance(line, int) for line in lines) else ()  # of a Parquet file, any index
    return replace(words, path=path, rows=rows, stamps=stamps, wide=wide, columns=columns)


def numbered(table: Any, columns: Columns, first: Mapping[str, int] | None = None) -> Any:
    """A table whose rows are numbered within each series, from ``first`` on; columns of dates are left out."""
    ids = table[columns.id].astype(str) if columns.id in table else None
    count = np.arange(len(table)) if ids is None else table.groupby(columns.id, sort=False).cumcount()
    start = 0 if not first else max(first.values()) if ids is None else ids.map(first).fillna(0).astype(int)
    dates = [c for c in table if c not in (columns.id, columns.target) and _dated(table[c])]
    return table.drop(columns=dates).assign(**{columns.time: start + count})


def _dated(cells: Any) -> bool:
    """Whether cells are dates, or text that is different in every row: no covariate."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(cells):
        return False
    return pd.api.types.is_datetime64_any_dtype(cells) or cells.is_unique or bool(
        forms_of(cells.head(200).fillna("").astype(str).tolist()))  # fmt: skip


def _following(panel: Panel, table: Any) -> dict[str, int]:
    """The numbers after the last rows; empty if the table begins with the rows of the panel's first series."""
    columns, name, values = panel.columns, panel.ids[0], panel.y[: panel.lengths[0]]
    own = table[table[columns.id].astype(str) == name] if columns.id in table else table
    column = columns.target if columns.target in table else name
    same = column in own and len(own) >= len(values) and own[column].dtype.kind in "if"
    if same and np.allclose(own[column].head(len(values)), values, rtol=1e-9, atol=0, equal_nan=True):
        return {}
    last = panel.numbers(np.arange(len(panel)), panel.lengths)
    return dict(zip(panel.ids, last.tolist(), strict=True))


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
