"""Records of runs, ``results/RECIPE/SEED.json``: read with a check, and summed up over seeds."""

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bayesrnn.errors import UserError

Record = Mapping[str, Any]


def read(folder: Path, *, what: str = "a record of a run", needs: Sequence[str] = ("metrics",)) -> list[Record]:
    """All records of a folder, by seed; none where there is no such folder.

    Args:
        what: what a file should be, for the message when it is not.
        needs: dotted paths that every record must have, such as ``metrics.test_error``. A list there may not be empty,
            and ``metrics`` must be a table of figures.
    """
    records = []
    for path in sorted(folder.glob("*.json")):
        try:
            record = json.loads(path.read_text("utf-8"))
            sound = isinstance(record["metrics"], dict) and all(at(record, need) not in (None, []) for need in needs)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            sound = False
        if not sound:
            raise UserError(f"{path} is not {what}.")
        records.append(record)
    return sorted(records, key=lambda record: record.get("seed") or 0)


def at(record: Record, path: str) -> Any:
    """What is at a dotted path, such as ``metrics.end.test_rmse``; None where a part of it is missing."""
    value: Any = record
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def figures(records: Sequence[Record], path: str) -> list[float]:
    """The figure at this path below ``metrics``, of each record that has it."""
    found = (at(record["metrics"], path) for record in records)
    return [value for value in found if value is not None]


def mean(values: Sequence[float], pattern: str) -> str | None:
    """Mean over seeds, with their standard deviation where there are several; None without any."""
    if not values:
        return None
    spread = f" ± {pattern.format(statistics.stdev(values))}" if len(values) > 1 else ""
    return pattern.format(statistics.fmean(values)) + spread


def devices(records: Sequence[Record]) -> str:
    """Where they were made."""
    return "; ".join(sorted({f"{r['device']}, torch {r['versions']['torch']}" for r in records}))
