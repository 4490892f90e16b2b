"""Records of runs, ``results/RECIPE/SEED.json``: read with a check, and summed up over seeds."""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar

from bayesrnn.errors import UserError

Record = Mapping[str, Any]
R = TypeVar("R", bound=Record)


def read(folder: Path, *, what: str = "a record of a run", needs: Sequence[str] = ("metrics",)) -> list[Record]:
    """All records of a folder, by seed, each run once; none where there is no such folder.

    Args:
        what: what a file should be, for the message when it is not.
        needs: dotted paths that every record must have, such as ``metrics.test_error``. A list there may not be empty,
            and ``metrics`` must be a table of figures.
    """
    records = []
    for path in sorted(folder.glob("*.json")):
        try:
            record = json.loads(path.read_text("utf-8"))
            sound = isinstance(record["metrics"], dict) and isinstance(record.get("seed"), (int, NoneType))
            sound = sound and all(at(record, need) not in (None, []) for need in needs)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            sound = False
        if not sound:
            raise UserError(f"{path} is not {what}.")
        records.append(record)
    return sorted(once(records), key=lambda record: record.get("seed") or 0)


def once(records: Iterable[R]) -> list[R]:
    """Each run once, in the order given: of copies of its record the one with the most figures.

    Two records are of one run where it began at the same second and went the same way. Evaluating a run adds to the
    figures of one copy alone, so these may differ. Where it is not known when a run began, all must be the same.
    """
    found: dict[str, R] = {}
    for record in records:
        ran = {key: record.get(key) for key in ("recipe", "seed", "data", "settings", "started", "curves")}
        key = json.dumps(ran if record.get("started") else record, sort_keys=True)
        if key not in found or len(record["metrics"]) > len(found[key]["metrics"]):
            found[key] = record
    return list(found.values())


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
