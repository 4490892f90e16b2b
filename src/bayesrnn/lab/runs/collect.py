"""What a report is made from: run folders and records, read with care, seeds of one setting put together."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from bayesrnn.errors import UserError
from bayesrnn.lab.reading import MB, parse_json, printable, read_json, read_text

_DEPTH = 3  # of folders in folders: runs/RECIPE/SEED
_NAMED = 2  # settings in a label
_LARGEST = 1e150  # of a metric: means and deviations over seeds are finite
_MOST_NAMED = 6  # where fewer do not tell runs apart
_TEXTS = ("description", "table", "task")
_KEPT = ("train.save_every",)  # what changes no figure is named last
_ENVIRONMENT = ("device", "versions", "commit", "command", "data", "started", "cuda_graph", "kernel")


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
        """A metric by its (dotted) name, of every run that has it as a number whose square is finite."""
        return [one[key] for one in self.figures if abs(one.get(key, math.nan)) <= _LARGEST]

    @cached_property
    def figures(self) -> list[dict[str, float]]:
        """The numbers among the metrics of every run, by their dotted names."""
        return [scalars(run.metrics) for run in self.runs]


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
        metrics=_named_rules(record.get("metrics") or {}),
        environment={k: record[k] for k in _ENVIRONMENT if record.get(k) is not None},
        finished=finished,
        folder=folder,
        pruning=_optional(folder, "prune.json") or _embedded(record, "pruning") or _curve(record),
        series=_embedded(record, "series") or {},
    )


def _named_rules(metrics: dict[str, Any]) -> dict[str, Any]:
    """Figures of dynamic evaluation under the name of their rule; the papers' has none."""
    from bayesrnn.lab.runs.figures import OF_A_RULE, PAPERS_RULE, by_rule

    names = {key: name for key, name in OF_A_RULE.items() if "_perplexity" in key}
    found = {k: value for k, value in metrics.items() if "_perplexity_dynamic" not in k and k != "dynamic_tried"}
    for rule, figures in by_rule(metrics).items():
        end = "" if rule == PAPERS_RULE else f"_{rule}"
        found |= {k.replace("_dynamic", f"_dynamic{end}"): figures[n] for k, n in names.items() if n in figures}
    return found


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
    """A run folder, finished or not; evaluation.json counts only without a record, which has its figures too.

    Before figures of other data had files of their own, they could be in an evaluation.json, never in a record.
    """
    if (folder / "record.json").exists():
        return _record(folder / "record.json", folder)
    config = read_json(folder / "config.json")
    if not isinstance(config, dict):
        raise UserError(f"{folder / 'config.json'} is not the configuration of a run.")
    lines = metrics_lines(folder / "metrics.jsonl") if (folder / "metrics.jsonl").exists() else []
    keys = lines[0].keys() - {"epoch"} if lines else set()
    curves = {k: [line.get(k) for line in lines] for k in sorted(keys)}
    metrics = _optional(folder, "evaluation.json") or {}
    return _run({**config, "curves": curves, "metrics": metrics}, folder, finished=False, folder=folder)


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
    found: dict[str, tuple[_Told, list[Run]]] = {}
    for run in runs:
        settings = completed(run.settings)
        key = json.dumps([run.recipe, settings, _data(run)], sort_keys=True, default=str)
        found.setdefault(key, (_Told(run, settings), []))[1].append(run)
    labels = _labels([told for told, _ in found.values()])
    return [Group(label, _once(members)) for label, (_, members) in zip(labels, found.values(), strict=True)]


def _once(runs: Iterable[Run]) -> list[Run]:
    """Each run once, though its folder and a copy of its record, or one of them twice, were named.

    Of copies the one with the most figures counts; where a folder is among them, its weights belong to it.
    """
    found: dict[str, Run] = {}
    for run in runs:
        started = run.environment.get("started")
        key = json.dumps([run.seed, started, run.curves, None if started else run.metrics], default=str)
        other = found.get(key, run)
        more, less = (run, other) if len(run.metrics) > len(other.metrics) else (other, run)
        found[key] = replace(more, folder=more.folder or less.folder, pruning=more.pruning or less.pruning)
    return list(found.values())


@dataclass(frozen=True)
class _Told:
    """A run to be told from others, with its settings under dotted keys."""

    run: Run
    settings: dict[str, Any]


def _data(run: Run) -> str:
    return str(run.environment.get("data", ""))


def _labels(told: Sequence[_Told]) -> list[str]:
    """The recipe; where several are of one, also the data, then what settings differ, then where the data are."""
    labels = [one.run.recipe for one in told]
    for name_of in (_by_data, _by_settings, _by_folder):
        for members in _alike(labels):
            names = name_of([told[k] for k in members])
            for k, name in zip(members, names, strict=True):
                labels[k] += name
    for members in _alike(labels):
        for number, k in enumerate(members[1:], 2):
            labels[k] += f" #{number}"
    return labels


def _alike(labels: Sequence[str]) -> list[list[int]]:
    """Places of those with one label, where there are several."""
    places: dict[str, list[int]] = {}
    for k, label in enumerate(labels):
        places.setdefault(label, []).append(k)
    return [members for members in places.values() if len(members) > 1]


def _by_data(told: Sequence[_Told]) -> list[str]:
    stems = [Path(_data(one.run)).stem for one in told]
    return [f", {stem}" if stem and len(set(stems)) > 1 else "" for stem in stems]


def _by_folder(told: Sequence[_Told]) -> list[str]:
    paths = [_data(one.run) for one in told]
    return [f", {path[-40:]}" if path and len(set(paths)) > 1 else "" for path in paths]


def _by_settings(told: Sequence[_Told]) -> list[str]:
    """What each has that is not usual among them; first what fewest have, and the settings with most values."""
    keys = [k for k in dict.fromkeys(k for one in told for k in one.settings) if k not in _TEXTS]
    values = {k: [_value(one.settings.get(k)) for one in told] for k in keys}
    counts = {k: Counter(texts) for k, texts in values.items()}
    differing = sorted((k for k in keys if len(counts[k]) > 1), key=lambda k: -len(counts[k]))
    plain = [k for k, one in enumerate(told) if not one.run.overrides]
    usual = {k: values[k][plain[0]] if len(plain) == 1 else _majority(values[k]) for k in differing}
    changes = []
    for n in range(len(told)):
        own = [k for k in differing if values[k][n] != usual[k]]
        own.sort(key=lambda k: (k in _KEPT, counts[k][values[k][n]]))
        changes.append([f"{k}={values[k][n]}" for k in own])
    named = _NAMED
    while True:
        labels = [_listed(own, named) for own in changes]
        if len(set(labels)) == len(labels) or named >= _MOST_NAMED:
            return labels
        named += 1


def _majority(texts: Sequence[str]) -> str | None:
    """What more than half of them are."""
    text, count = Counter(texts).most_common(1)[0]
    return text if 2 * count > len(texts) else None


def _value(value: Any) -> str:
    return printable(f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value))[:40]


def _listed(changes: Sequence[str], named: int) -> str:
    if not changes:
        return ""
    more = f", {len(changes) - named} more" if len(changes) > named else ""
    return f" ({', '.join(changes[:named])}{more})"


def completed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings under dotted keys. Those that a record is too old to have are what they are where nobody sets them."""
    from bayesrnn.lab.recipes import flatten, from_dict

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
