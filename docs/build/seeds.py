"""Records of several seeds in a table: which are read, one metric of each, and its mean."""

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bayesrnn.errors import UserError
from bayesrnn.lab.runs.record import Record, read_folder


def records_of(folder: Path, *, what: str, needs: Sequence[str]) -> list[Record]:
    """All records of a folder by seed.

    Args:
        what: what each should be, for the error message.
        needs: dotted paths that every record must have, such as ``metrics.test_error``; a list there is not empty.
    """
    found = read_folder(folder)
    for record in found:
        if missing := [need for need in needs if _at(record.to_dict(), need) in (None, [])]:
            raise UserError(f"A file in {folder} is not {what}: seed {record.seed} has no {missing[0]}.")
    return found


def _at(values: Any, path: str) -> Any:
    for part in path.split("."):
        values = values.get(part) if isinstance(values, dict) else None
    return values


def values(records: Iterable[Record], path: str) -> list[float]:
    """One metric of each record that has it."""
    return [value for record in records if (value := record.metric(path)) is not None]


def devices(records: Iterable[Record]) -> str:
    """Where the runs were made."""
    return "; ".join(sorted({record.made_on for record in records}))


def mean(numbers: Sequence[float], pattern: str) -> str | None:
    """The mean, with the standard deviation where there are several; None without numbers."""
    if not numbers:
        return None
    spread = f" ± {pattern.format(statistics.stdev(numbers))}" if len(numbers) > 1 else ""
    return pattern.format(statistics.fmean(numbers)) + spread
