"""Run folders and records read for a report: what is unreadable is set aside, seeds of one setting form a group."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from bayesrnn.errors import UserError
from bayesrnn.lab.reading import MB, is_number, parse_json, printable, read_json, read_text
from bayesrnn.lab.recipes import flatten, from_dict
from bayesrnn.lab.registry import task_class
from bayesrnn.lab.runs.files import read_own
from bayesrnn.lab.runs.folder import CONFIG
from bayesrnn.lab.runs.record import EVALUATION, RECORD, NotARunRecord, Record, from_json, once

_DEPTH = 3  # folders in folders: runs/RECIPE/SEED
_NAMED = 4  # settings in a label
_LARGEST = 1e150  # of a metric, so that means and deviations over seeds are finite
_TEXTS = ("description", "table", "task")

LeftOut = dict[str, list[Path]]
"""Reasons, and the files that were not read for each."""


@dataclass(frozen=True)
class SeedGroup:
    """Runs that differ only in their seed, under one label."""

    label: str
    runs: list[Record] = field(default_factory=list)

    @property
    def first(self) -> Record:
        return self.runs[0]

    def values(self, key: str) -> list[float]:
        """A metric by its (dotted) name, from every run that has it as a number whose square is finite."""
        return [one[key] for one in self.scalars if abs(one.get(key, math.nan)) <= _LARGEST]

    @cached_property
    def scalars(self) -> list[dict[str, float]]:
        """The metrics of every run that are numbers, by their dotted names."""
        return [run.scalars() for run in self.runs]


def read(path: str | Path, left_out: LeftOut | None = None) -> list[Record]:
    """The runs at a path: a run folder, a record, or a folder of those; its other files are added to ``left_out``."""
    path = Path(path)
    if not path.exists():
        raise UserError(f"There is no run or record {path}.")
    if not path.is_dir():
        return [_record(path)]
    if _is_run(path):
        return [_folder(path)]
    found = list(_below(path, {} if left_out is None else left_out, _DEPTH))
    if not found:
        raise UserError(f"{path} holds neither a run nor records; name a run folder or results/RECIPE/SEED.json.")
    return found


def _is_run(folder: Path) -> bool:
    return any((folder / name).exists() for name in (RECORD, CONFIG))


def _below(folder: Path, left_out: LeftOut, depth: int) -> Iterator[Record]:
    """Records, then folders, by name; numbers in their order."""
    try:
        inside = [p for p in folder.iterdir() if p.name[0] != "." and (p.suffix == ".json" or p.is_dir())]
    except OSError as error:
        raise UserError(f"{folder} cannot be read ({error.strerror}).") from None
    inside.sort(key=lambda p: (p.is_dir(), int(p.stem) if p.stem.isdecimal() else -1, p.name))
    for path in inside:
        try:
            if not path.is_dir():
                yield _record(path)
            elif _is_run(path):
                yield _folder(path)
            elif depth > 1:
                yield from _below(path, left_out, depth - 1)
        except NotARunRecord:
            left_out.setdefault("no records of runs", []).append(path)
        except UserError as error:
            left_out.setdefault(printable(str(error)).rstrip("."), []).append(path)


def _record(path: Path, folder: Path | None = None) -> Record:
    values = read_json(path)
    if isinstance(values, dict) and {"table", "findings"} <= values.keys() and "metrics" not in values:
        raise NotARunRecord(f"{path} is of a quickstart, which has a page of its own, index.html beside it.")
    return _for_report(values, path).at(folder, pruning=_pruning(folder))


def _for_report(values: Any, path: Path) -> Record:
    """A record with its metrics under the names of a report, and without empty curves."""
    record = from_json(values, where=path)
    if not {"settings", "curves"} <= record.model_fields_set:
        raise NotARunRecord(f"{path} is not the record of a run; it has no settings or no curves.")
    try:
        metrics = task_class(record.task).report_metrics(record.metrics)
    except (UserError, ImportError):  # a task that is not installed
        metrics = record.metrics
    curves = {key: curve for key, curve in record.curves.items() if curve}
    return record.model_copy(update={"recipe": record.recipe or path.stem, "metrics": metrics, "curves": curves})


def _pruning(folder: Path | None) -> dict[str, Any] | None:
    return (read_own(folder / "prune.json") or None) if folder is not None else None


def _folder(folder: Path) -> Record:
    """A run folder, finished or not. Without a record, evaluation.json has the metrics."""
    if (folder / RECORD).exists():
        return _record(folder / RECORD, folder)
    config = read_json(folder / CONFIG)
    if not isinstance(config, dict):
        raise UserError(f"{folder / CONFIG} is not the configuration of a run.")
    lines = metrics_lines(folder / "metrics.jsonl") if (folder / "metrics.jsonl").exists() else []
    keys = lines[0].keys() - {"epoch"} if lines else set()
    curves = {key: curve for key in sorted(keys) if all(map(is_number, curve := [line.get(key) for line in lines]))}
    about = {key: config[key] for key in ("recipe", "seed", "data", "settings") if key in config}
    values = {**about, "curves": curves, "metrics": read_own(folder / EVALUATION)}
    return _for_report(values, folder).at(folder, finished=False, pruning=_pruning(folder))


def metrics_lines(path: Path) -> list[dict[str, Any]]:
    """The epochs of a metrics.jsonl, without a last line that a killed run cut short."""
    found = []
    for text in read_text(path, most=256 * MB).splitlines():
        with suppress(UserError):
            found.append(parse_json(text, where="a line"))
    return [line for line in found if isinstance(line, dict)]


def groups(runs: Iterable[Record]) -> list[SeedGroup]:
    """Runs of one recipe and one setting together, in the order given, with labels that tell them apart."""
    found: dict[str, tuple[dict[str, Any], list[Record]]] = {}
    for run in runs:
        settings = {"recipe": run.recipe, "data": run.data, **with_defaults(run.settings)}
        key = json.dumps(settings, sort_keys=True, default=str)
        found.setdefault(key, (settings, []))[1].append(run)
    labels = _labels([settings for settings, _ in found.values()])
    return [SeedGroup(label, once(members)) for label, (_, members) in zip(labels, found.values(), strict=True)]


def _labels(groups: Sequence[dict[str, Any]]) -> list[str]:
    """The recipe; where several share one, also what differs between them, and a number if that is not enough."""
    labels: list[str] = []
    for own in groups:
        others = [settings for settings in groups if settings["recipe"] == own["recipe"]]
        values = {key: {_value(settings.get(key)) for settings in others} for key in own if key not in _TEXTS}
        differing = sorted((key for key in values if len(values[key]) > 1), key=lambda key: -len(values[key]))
        named = [f"{key}={_value(own[key])}" for key in differing[:_NAMED]]
        more = [f"{len(differing) - _NAMED} more"] if len(differing) > _NAMED else []
        label = f"{own['recipe']} ({', '.join(named + more)})" if named else own["recipe"]
        alike = sum(other.partition(" #")[0] == label for other in labels)
        labels.append(f"{label} #{alike + 1}" if alike else label)
    return labels


def _value(value: Any) -> str:
    return printable(f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value))[-40:]


def with_defaults(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings under dotted keys; those that are newer than the record have their defaults."""
    own = flat(settings)
    try:
        known = flatten(from_dict(dict(settings), where="the record"))
    except (UserError, ImportError):  # a task that is not installed, or another version
        return own
    return {**{k: v for k, v in known.items() if not k.startswith("paper.")}, **own}


def flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings under dotted keys, without the published values."""
    out: dict[str, Any] = {}
    for key, value in settings.items():
        if key != "paper":
            out |= {f"{key}.{k}": inner for k, inner in value.items()} if isinstance(value, dict) else {key: value}
    return out
