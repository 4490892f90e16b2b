"""The record of a run: one type, one reader, one writer, one merge, and one rule for copies.

``bayesrnn train`` writes ``record.json`` into the run folder; ``results/RECIPE/SEED.json`` are copies of such files. A
record without a format number is of format 1.
"""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, PrivateAttr, StrictInt, ValidationError, model_validator

from bayesrnn.errors import UserError
from bayesrnn.lab import recipes
from bayesrnn.lab.reading import as_given, is_number, read_json
from bayesrnn.lab.registry import UNNAMED, task_class
from bayesrnn.lab.runs.files import as_json, write_file

RECORD, EVALUATION = "record.json", "evaluation.json"
FORMAT = 1
_ENVIRONMENT = ("device", "versions", "commit", "command", "data", "started", "cuda_graph", "kernel")
_TRAINING = ("model", "posterior", "data", "train")
_OF_ONE_RUN = ("recipe", "seed", "data", "settings", "started", "curves")


_Number = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]


class NotARunRecord(UserError):
    """Valid JSON, but not a run record."""


class Record(BaseModel):
    """What a run was, and what it measured. Keys that a task adds are kept in :attr:`extra`.

    Example:
        >>> record = Record(recipe="mine", seed=1, metrics={"end": {"rmse": 0.2}}, curves={"valid_rmse": [0.3, 0.2]})
        >>> record.metric("end.rmse"), record.metric("end.mae"), record.curve("valid_rmse")
        (0.2, None, [0.3, 0.2])
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    program: str = "bayesrnn"
    format: StrictInt = FORMAT
    recipe: str = ""
    seed: StrictInt | None = None
    commit: str | None = None
    device: str | None = None
    versions: dict[str, str] = {}
    command: str | None = None
    data: str | None = None
    overrides: list[str] = []
    ranks: int | None = None
    cuda_graph: bool | None = None
    kernel: str | None = None
    note: str | None = None
    started: str | None = None
    settings: dict[str, Any] = {}
    curves: dict[str, list[_Number]] = {}
    metrics: dict[str, Any] = {}

    _folder: Path | None = PrivateAttr(None)
    _pruning: dict[str, Any] | None = PrivateAttr(None)
    _finished: bool = PrivateAttr(True)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {key: value for key, value in values.items() if value is not None or key not in cls.model_fields}

    @property
    def extra(self) -> dict[str, Any]:
        """What the task has added: sizes of the data, the columns of a series."""
        return self.model_extra or {}

    @property
    def task(self) -> str:
        """The name of the task."""
        task = self.settings.get("task", UNNAMED)
        return task if isinstance(task, str) else ""

    @property
    def paper(self) -> dict[str, Any]:
        """The published values, by their keys in the recipe."""
        paper = self.settings.get("paper")
        return paper if isinstance(paper, dict) else {}

    @property
    def environment(self) -> dict[str, Any]:
        """Where and how the run was made; only what is known."""
        return {key: value for key in _ENVIRONMENT if (value := getattr(self, key)) not in (None, {})}

    @property
    def made_on(self) -> str:
        """Device and version of torch."""
        return f"{self.device}, torch {self.versions['torch']}"

    @property
    def folder(self) -> Path | None:
        """The run folder; None where only the record is known."""
        return self._folder

    @property
    def finished(self) -> bool:
        """Whether the run has ended; False: read from the folder of a run that has not."""
        return self._finished

    @property
    def pruning(self) -> dict[str, Any] | None:
        """The pruning curve: of ``bayesrnn prune``, or measured by the task."""
        embedded, points = self.extra.get("pruning"), self.metric("pruning")
        own = {"curve": points} if isinstance(points, list) else None
        return self._pruning or (embedded if isinstance(embedded, dict) else own)

    def metric(self, path: str) -> Any:
        """The metric at a dotted path, such as ``end.test_rmse``; None where it is missing."""
        return _at(self.metrics, path)

    def number(self, path: str) -> float | None:
        """Like :meth:`metric`, if it is a number."""
        value = self.metric(path)
        return value if is_number(value) else None

    def setting(self, path: str) -> Any:
        """The setting at a dotted path, such as ``train.lr``; None where it is missing."""
        return _at(self.settings, path)

    def curve(self, key: str) -> list[float]:
        """Values per epoch, NaN where the run diverged; empty where there are none."""
        return self.curves.get(key, [])

    def scalars(self) -> dict[str, float]:
        """All metrics that are numbers; those one level down under dotted names."""
        pairs = (
            (key if name is None else f"{key}.{name}", number)
            for key, value in self.metrics.items()
            for name, number in (value.items() if isinstance(value, dict) else [(None, value)])
        )
        return {key: float(number) for key, number in pairs if is_number(number)}

    def changed_settings(self, recipe: str | recipes.Recipe | None = None) -> list[str]:
        """KEY=VALUE of each setting of training that differs from the recipe as it is now.

        Settings newer than the record were at their defaults. Empty without settings, or without the recipe.

        Args:
            recipe: compare with this one instead of the recipe that the record names.
        """
        try:
            found = recipe if isinstance(recipe, recipes.Recipe) else recipes.load(recipe or self.recipe)
        except UserError:
            return []
        now = _lists(recipes.flatten(found))
        sections = {name: part for name in _TRAINING if isinstance(part := self.settings.get(name), dict) and part}
        then = _lists({f"{name}.{key}": value for name, part in sections.items() for key, value in part.items()})
        defaults = _lists(recipes.flatten(recipes.from_dict({"task": found.task}, where="defaults")))
        then |= {key: defaults[key] for key in now if key.partition(".")[0] in sections and key not in then}
        removed = _at(self.extra, "pruned.fraction")
        pruned = [] if removed is None else [f"pruned={as_given(removed)}"]
        return pruned + [f"{key}={as_given(value)}" for key, value in then.items() if key in now and now[key] != value]

    def at(self, folder: Path | None, *, finished: bool = True, pruning: dict[str, Any] | None = None) -> Self:
        """This record, with the folder that it was read from."""
        found = self.model_copy()
        found._folder, found._finished, found._pruning = folder, finished, pruning
        return found

    def evaluated(self, new: Mapping[str, Any]) -> Self:
        """This record with the metrics of a later evaluation, merged by the rules of its task."""
        return self.model_copy(update={"metrics": task_class(self.task).merge_metrics(self.metrics, new)})

    def to_dict(self) -> dict[str, Any]:
        """What a file holds: only what is known."""
        return {"program": self.program, "format": self.format, **self.model_dump(exclude_unset=True)}

    def write(self, path: Path) -> Path:
        """Write the file, whole or not at all."""
        return write_file(path, as_json(self.to_dict()))


def _lists(values: Mapping[str, Any]) -> dict[str, Any]:
    """Tuples as lists, as JSON has them."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}


def _at(values: Any, path: str) -> Any:
    for part in path.split("."):
        values = values.get(part) if isinstance(values, Mapping) else None
    return values


def from_json(values: Any, *, where: str | Path) -> Record:
    """A record from parsed JSON; JSON of another kind is :class:`NotARunRecord`."""
    if not isinstance(values, dict) or not isinstance(values.get("metrics"), dict):
        raise NotARunRecord(f"{where} is not the record of a run.")
    number = values.get("format", FORMAT)
    if isinstance(number, int) and number > FORMAT:
        raise UserError(
            f"{where} was written by a newer bayesrnn (its format is {number}, this one reads up to {FORMAT}); "
            "update bayesrnn."
        )
    try:
        return Record.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))[:80]
        raise NotARunRecord(f"{where} is not the record of a run ({key}: {first['msg']}).") from None


def read(path: Path) -> Record:
    """The record in a file."""
    return from_json(read_json(path), where=path)


def read_folder(folder: Path) -> list[Record]:
    """All records and runs of a folder by seed, each run once; none where the folder is missing."""
    records = []
    for path in (*sorted(folder.glob("*.json")), *sorted(folder.glob(f"*/{RECORD}"))):
        try:
            records.append(read(path))
        except UserError:
            raise UserError(f"{path} is not a record of a run.") from None
    return sorted(once(records), key=lambda record: record.seed or 0)


def once(records: Iterable[Record]) -> list[Record]:
    """Each run once, in the order given: the copy with the most metrics, with the folder of any of them.

    Records are copies if they started at the same second and have the same curves: later evaluations add metrics to one
    copy only. Without a start time the whole record must be the same.
    """
    found: dict[str, Record] = {}
    for record in records:
        whole = record.to_dict()
        own = {key: whole.get(key) for key in _OF_ONE_RUN} if record.started else whole
        key = json.dumps(own, sort_keys=True, default=str)
        other = found.get(key, record)
        more, less = (record, other) if len(record.metrics) > len(other.metrics) else (other, record)
        found[key] = more.at(more.folder or less.folder, finished=more.finished, pruning=more._pruning or less._pruning)
    return list(found.values())


def add_evaluation(run: Path, metrics: Mapping[str, Any]) -> dict[str, Any] | None:
    """Write evaluation.json, and merge its metrics into the run's record.

    Returns what evaluation.json holds; None if there is no record to merge into.
    """
    try:
        record = read(run / RECORD)
        cls = task_class(record.task)
        latest = cls.merge_metrics(cls.carried_metrics(record.metrics, metrics), metrics)
        record = record.evaluated(metrics)
    except UserError:
        write_file(run / EVALUATION, as_json(dict(metrics)))
        return None
    write_file(run / EVALUATION, as_json(latest))
    record.write(run / RECORD)
    return latest
