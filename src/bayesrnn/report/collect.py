"""What a report is made from: run folders and records, read with care, seeds of one setting put together."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bayesrnn.errors import UserError
from bayesrnn.reading import MB, parse_json, printable, read_json, read_text

_DEPTH = 3  # of folders in folders: runs/RECIPE/SEED
_NAMED = 2  # settings in a label
_TEXTS = ("description", "table", "task")
_ENVIRONMENT = ("device", "versions", "commit", "command", "data", "started", "cuda_graph")


class NoRecord(UserError):
    """The file is whole, and of something else."""


LeftOut = dict[str, list[Path]]
"""Why, and which files."""


@dataclass(frozen=True)
class Run:
    """One run. ``folder`` is None where there is a record alone."""

    recipe: str
    seed: int | None
    task: str
    settings: dict[str, Any]
    overrides: tuple[str, ...]
    curves: dict[str, list[float]]
    metrics: dict[str, Any]
    environment: dict[str, Any]
    finished: bool = True
    folder: Path | None = None
    pruning: dict[str, Any] | None = None
    series: dict[str, Any] = field(default_factory=dict)
    """Of forecasts: what the record says about the series."""

    @property
    def paper(self) -> dict[str, Any]:
        """The published figures, by the names of the recipe's section."""
        paper = self.settings.get("paper")
        return paper if isinstance(paper, dict) else {}


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed alone, under one label."""

    label: str
    runs: list[Run] = field(default_factory=list)

    @property
    def first(self) -> Run:
        return self.runs[0]

    def values(self, key: str) -> list[float]:
        """A metric by its (dotted) name, of every run that has it as a finite number."""
        found = (scalars(run.metrics).get(key) for run in self.runs)
        return [v for v in found if v is not None and math.isfinite(v)]


def scalars(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Numbers among the metrics; those one level down under dotted names."""
    flat: dict[str, float] = {}
    for key, value in metrics.items():
        inner = value.items() if isinstance(value, dict) else [(None, value)]
        for name, number in inner:
            if isinstance(number, (int, float)) and not isinstance(number, bool):
                flat[key if name is None else f"{key}.{name}"] = float(number)
    return flat


def read(path: str | Path, left_out: LeftOut | None = None) -> list[Run]:
    """The runs at a path: a run folder, a record, or a folder of those, such as ``results/`` or ``runs/``.

    What else such a folder holds is added to ``left_out``; a file or run folder that is named itself is an error.
    """
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
    return any((folder / name).exists() for name in ("record.json", "config.json"))


def _below(folder: Path, left_out: LeftOut, depth: int) -> Iterator[Run]:
    """Records, then folders, by their names; numbers in their order."""
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
        except NoRecord:
            left_out.setdefault("no records of runs", []).append(path)
        except UserError as error:
            left_out.setdefault(printable(str(error)).rstrip("."), []).append(path)


def _record(path: Path, folder: Path | None = None) -> Run:
    record = read_json(path)
    if not isinstance(record, dict) or not isinstance(record.get("metrics"), dict):
        if isinstance(record, dict) and "table" in record and "findings" in record:
            raise NoRecord(f"{path} is of a quickstart, which has a page of its own, index.html beside it.")
        raise NoRecord(f"{path} is not the record of a run.")
    return _run(record, path, finished=True, folder=folder)


def _run(record: dict[str, Any], path: Path, *, finished: bool, folder: Path | None) -> Run:
    settings, curves = record.get("settings"), record.get("curves")
    if not isinstance(settings, dict) or not isinstance(curves, dict):
        raise NoRecord(f"{path} is not the record of a run; it has no settings or no curves.")
    seed = record.get("seed")
    task = settings.get("task", "language")
    overrides = record.get("overrides")
    return Run(
        recipe=str(record.get("recipe", path.stem)),
        seed=seed if isinstance(seed, int) else None,
        task=task if isinstance(task, str) else "",
        settings=settings,
        overrides=tuple(map(str, overrides)) if isinstance(overrides, list) else (),
        curves={str(k): numbers for k, v in curves.items() if (numbers := _numbers(v)) is not None},
        metrics=record.get("metrics") or {},
        environment={k: record[k] for k in _ENVIRONMENT if record.get(k) is not None},
        finished=finished,
        folder=folder,
        pruning=_optional(folder, "prune.json") or _embedded(record, "pruning") or _curve(record),
        series=_embedded(record, "series") or {},
    )


def _numbers(values: Any) -> list[float] | None:
    if not isinstance(values, list) or not values:
        return None
    plain = [v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
    return [float(v) for v in plain] if len(plain) == len(values) else None


def _curve(record: dict[str, Any]) -> dict[str, Any] | None:
    """The pruning curve that a task has measured itself."""
    points = (record.get("metrics") or {}).get("pruning")
    return {"curve": points} if isinstance(points, list) else None


def _embedded(record: dict[str, Any], key: str) -> dict[str, Any] | None:
    value = record.get(key)
    return value if isinstance(value, dict) else None


def _optional(folder: Path | None, name: str) -> dict[str, Any] | None:
    if folder is None or not (folder / name).exists():
        return None
    value = read_json(folder / name)
    return value if isinstance(value, dict) else None


def _folder(folder: Path) -> Run:
    """A run folder, finished or not; evaluation.json has the latest figures."""
    if (folder / "record.json").exists():
        run = _record(folder / "record.json", folder)
    else:
        config = read_json(folder / "config.json")
        if not isinstance(config, dict):
            raise UserError(f"{folder / 'config.json'} is not the configuration of a run.")
        lines = metrics_lines(folder / "metrics.jsonl") if (folder / "metrics.jsonl").exists() else []
        keys = lines[0].keys() - {"epoch"} if lines else set()
        curves = {k: [line.get(k) for line in lines] for k in sorted(keys)}
        run = _run({**config, "curves": curves, "metrics": {}}, folder, finished=False, folder=folder)
    latest = _optional(folder, "evaluation.json")
    if latest is not None:
        run.metrics.update(latest)
    return run


def metrics_lines(path: Path) -> list[dict[str, Any]]:
    """The epochs of a metrics.jsonl; a line that a killed run has cut short is left out."""
    found = []
    for text in read_text(path, most=256 * MB).splitlines():
        try:
            line = parse_json(text, where="a line")
        except UserError:
            continue
        if isinstance(line, dict):
            found.append(line)
    return found


def groups(runs: Iterable[Run]) -> list[Group]:
    """Runs of one recipe and one setting together, in the order given; labels that tell them apart."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        key = json.dumps([run.recipe, completed(run.settings), _data(run)], sort_keys=True, default=str)
        found.setdefault(key, []).append(run)
    together = list(found.values())
    counts: dict[str, int] = {}
    made = []
    for members in together:
        alike = [other[0] for other in together if other[0].recipe == members[0].recipe]
        label = _label(members[0], alike)
        counts[label] = counts.get(label, 0) + 1
        made.append(Group(label if counts[label] == 1 else f"{label} #{counts[label]}", members))
    return made


def _data(run: Run) -> str:
    return str(run.environment.get("data", ""))


def _label(run: Run, alike: Sequence[Run]) -> str:
    """The recipe; among several runs ``alike`` of it also the data, or what settings differ from the plainest one's."""
    data = Path(_data(run)).stem
    others = alike
    name = run.recipe
    if len({_data(one) for one in alike}) > 1 and data:
        name = f"{run.recipe}, {data}"
        others = [one for one in alike if _data(one) == _data(run)]
    plainest = min(others, key=lambda one: len(one.overrides))
    if run is plainest and (len(others) == 1 or not run.overrides):
        return name
    own = completed(run.settings)
    if run is not plainest:
        base = completed(plainest.settings)
        changes = [f"{k}={v}" for k, v in own.items() if k in base and base[k] != v and k not in _TEXTS]
    else:
        changes = list(run.overrides)
    if not changes:
        return name
    more = f", {len(changes) - _NAMED} more" if len(changes) > _NAMED else ""
    return f"{name} ({', '.join(change[:40] for change in changes[:_NAMED])}{more})"


def completed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings under dotted keys. Those that a record is too old to have are what they are where nobody sets them."""
    from bayesrnn.recipes.schema import flatten, from_dict

    own = flat(settings)
    try:
        known = flatten(from_dict(dict(settings), where="the record"))
    except (UserError, ImportError):  # of a task that is not installed, or of another version
        return own
    return {**{k: v for k, v in known.items() if not k.startswith("paper.")}, **own}


def flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings under dotted keys, the published figures aside."""
    out: dict[str, Any] = {}
    for key, value in settings.items():
        if key == "paper":
            continue
        if isinstance(value, dict):
            out.update({f"{key}.{name}": inner for name, inner in value.items()})
        else:
            out[key] = value
    return out
