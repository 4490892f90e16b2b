"""Errors of the library in the words of a command: its options, and the lines and columns of its files."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bayesrnn.errors import UserError
from bayesrnn.forecasting.columns import Columns

_ROLES = {"time_col": "date", "target_col": "target", "id_col": "series"}
_NAMED = "horizon|freq|timezone|minutes|seed|level|over|under|false_alarms|resample"
_COVARIATES = {"past": "data.covariates", "future": "data.future", "static": "data.covariates"}


class Said(UserError):
    """An error that is in the words of the command already."""


@dataclass(frozen=True)
class Words:
    """What a command calls things.

    ``spelling`` is how an option is written: "--{}" or "data.{}"; ``sets`` joins a value. ``roles``: whether options
    name the columns; a trained model has fixed names. ``option`` names the file at ``path``, whose rows are at the
    lines ``rows`` + 2, with the dates in column ``stamps``; a ``wide`` one has a column per series. ``threshold`` is
    the option with the threshold.
    """

    spelling: str = "--{}"
    sets: str = " "
    roles: bool = True
    columns: Columns = field(default_factory=Columns)
    option: str = ""
    path: Path | None = None
    rows: tuple[int, ...] = ()
    stamps: str = ""
    wide: bool = False
    threshold: str = "above"

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Errors inside the block are said in these words; those of an inner block stay as they are."""
        try:
            yield
        except Said:
            raise
        except UserError as error:
            raise Said(self.said(str(error))) from None

    def said(self, message: str) -> str:
        return self._lines(self._things(self._options(message)))

    def _options(self, message: str) -> str:
        """With names of options."""
        spell, sets = self.spelling.format, self.sets
        if not self.roles:
            message = re.sub(r"name (?:it|the \w+(?: \w+)*?) with (\w+_col)", self._renamed, message)
        for name, option in _ROLES.items():
            if option == "series" and self.spelling != "--{}":
                continue  # a recipe has no such key
            message = re.sub(rf"(?<![-\w.]){name}\b", spell(option), message)
        message = re.sub(r"""\bresample=['"](\w+)['"]""", rf"{spell('resample')}{sets}\1", message)
        message = re.sub(r"(?<![-\w.'])(freq|timezone)\b(?!=)", lambda m: spell(m[1]), message)
        message = re.sub(
            rf"^({_NAMED}) (is|has) ", lambda m: f"{spell(m[1].replace('_', '-'))} {m[2]} ", message
        )  # fmt: skip
        message = re.sub(r"^threshold is ", f"--{self.threshold} is ", message)
        recipe = self.spelling != "--{}"
        return re.sub(
            r"\bwhich (past|future|static)= names",
            lambda m: f"which {_COVARIATES[m[1]]} names" if recipe else "which the model needs", message,
        )  # fmt: skip

    def _renamed(self, found: "re.Match[str]") -> str:
        if found[1] == "time_col":
            return "add one with the dates"
        return f"call it {(self.columns.target if found[1] == 'target_col' else self.columns.id)!r}"

    def _things(self, message: str) -> str:
        """With names of files and columns."""
        message = re.sub(
            r"The model (?:knows|needs)(?: future values of)? (.+?)(?: ahead)?; give predict\(future=\.\.\.\) a frame "
            r".* for (\d+) steps after each series\.",
            r"The model needs future values of \1; give --future a file with the dates of the next \2 steps and \1.",
            message,
        )
        for words, option in (
            ("give predict(future=...) a frame", "give --future a file"), (": future has", ": --future has"),
            ("future is given, and", "--future is given, and"), ("future has no column", "--future has no column"),
            (", which the model knows ahead; add it", "; the model needs its future values"),
            ("name them in future= and fit again", "omit it, or train with it"), (" of future", " of --future"),
            ("in future, which has", "in --future, which has"),
            (", and predict(df) then takes short ones", ""),
        ):  # fmt: skip
            message = message.replace(words, option)
        message = message.replace(f"column {self.columns.time!r} and no DatetimeIndex", "column of dates")
        if self.path is not None:
            message = message.replace("The frame", str(self.path))
        if self.wide:  # the series is the column
            message = message.replace(f" in column {self.columns.target!r}", "")
        if self.stamps:
            message = message.replace(repr(self.columns.time), repr(self.stamps))
        return message.replace("the frame", "the file")

    def _lines(self, message: str) -> str:
        """Rows of the file as its lines, below the header; those in brackets count within a series."""
        message = re.sub(r" \(row \d+\)| \(\d+ to \d+\)", "", message)
        message = re.sub(r"\(rows \d+ to \d+ are ([^)]*)\)", r"(always \1)", message)
        if self.path is None or self.path.suffix.lower() in (".parquet", ".pq"):
            return message

        def line(row: str) -> int:
            place = int(row) % max(len(self.rows), 1)  # columns of a wide file follow each other
            return (self.rows[place] if self.rows else int(row)) + 2

        message = re.sub(r"\brows (\d+) and (\d+)\b", lambda m: f"lines {line(m[1])} and {line(m[2])}", message)
        return re.sub(r"\b([Rr])ow (\d+)", lambda m: f"{'L' if m[1] == 'R' else 'l'}ine {line(m[2])}", message)


COMMAND = Words()
