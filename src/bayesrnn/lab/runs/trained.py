"""A finished or unfinished run, read back: its recipe, the files of its data, and the best weights."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bayesrnn.errors import UserError
from bayesrnn.lab import recipes
from bayesrnn.lab.reading import MB, counted, printable, read_bytes, read_json
from bayesrnn.lab.runs import sizes
from bayesrnn.lab.tasks.base import Files, Task, file_digests, task_class
from bayesrnn.lab.tasks.language import task as language
from bayesrnn.lab.tasks.language.text import Vocabulary

_MOST = 512 * MB  # of a file beside the weights: a series has up to 200


@dataclass(frozen=True)
class Trained:
    """What commands on a run work on. The model is in eval mode; the data is read only by :meth:`task`."""

    path: Path
    config: dict[str, Any]
    recipe: recipes.Recipe
    files: Files
    model: nn.Module

    def task(self, data: str | None, device: torch.device, *, advice: str = "name it with --data") -> Task:
        """The run's task with the trained model; ``data`` where the data has moved.

        ``advice`` is what to do where it is not at the place that config.json has.
        """
        cls = task_class(self.recipe.task)
        place = self.place(data, device)
        try:
            task = cls(self.recipe, place, device)
        except UserError as error:
            if data or place is None:
                raise
            source = self.config["data"]
            named = f"{self.path / 'config.json'} has {printable(source)} as the {cls.source} of this run"
            if os.path.exists(source):
                raise UserError(f"{named}: {error} Where it is elsewhere now, {advice}.") from None
            seen = "" if os.path.isabs(source) else " (a path from where it was trained)"
            raise UserError(f"{named}{seen}, and it is not there; {advice}.") from None
        check_files(task, self.files, advice=f"name the {task.source} it was trained on with --data")
        task.folder = self.path
        task.attach(self.model)
        return task

    def place(self, data: str | None, device: torch.device) -> str | None:
        """Where the data is; None: it is the task's own, whose name may also be that of a folder or a file.

        What is there by that name goes first, as in training; where only config.json has the name, if it fits the run.
        """
        cls = task_class(self.recipe.task)
        source = data or self.config["data"]
        if source != cls.default_data:
            return str(source)
        if not os.path.exists(source):
            return None
        there = os.path.join(".", source)  # which is not the name
        if not data:
            try:
                check_files(cls(self.recipe, there, device), self.files, advice="")
            except UserError:
                return None
        return there

    @property
    def vocabulary(self) -> Vocabulary:
        """Of a language run."""
        self._must_be_language()
        return language.vocabulary_of(self.files)

    def streams(self, data: str | None, device: torch.device) -> language.Streams:
        """A language run's text; ``data`` where it has moved."""
        self._must_be_language()
        task = self.task(data, device)
        assert isinstance(task, language.Language)
        return task.streams

    def other_data(self, task: Task) -> str:
        """A sentence where the task's data are not those of the run; empty: they are, or nobody knows."""
        known = self.config.get("data_digest")
        if known is None or task.digest() == known:
            return ""
        return f"The {task.source} given is not that of the run in {self.path}: config.json has another digest."

    def _must_be_language(self) -> None:
        _check_task(self.path, self.recipe.task, "language")


def check_files(task: Task, before: Files, *, advice: str) -> None:
    """Refuse data whose files are not those of the run."""
    for name, content in task.files().items():
        if content != before[name]:
            here, there = (part.count(b"\n") for part in (content, before[name]))
            raise UserError(
                f"The {Path(name).stem} of this {task.source} ({counted(here, 'line')}) is not that of the run "
                f"({name}, {counted(there, 'line')}); {advice}."
            )


def check_digests(config: dict[str, Any], files: Files, folder: Path) -> None:
    """Refuse files of a run folder that are not those it was written with; earlier versions did not say."""
    known = config.get("file_digests", {})
    for name, digest in file_digests(files).items():
        if not isinstance(known, dict) or known.get(name, digest) != digest:
            raise UserError(
                f"{folder / name} is not the file that the run was trained with: config.json has another digest of it; "
                "put the run's own file back."
            )


def check_task(path: str | Path, task: str) -> None:
    """Refuse a run of another task before anything else is looked at, and say which command is for it."""
    _check_task(Path(path), _described(Path(path))[1].task, task)


_FOR = {"language": "language models", "captioning": "captioning runs", "forecast": "forecasts"}
_COMMANDS = {"language": "predict", "captioning": "caption", "forecast": "forecast"}


def _check_task(folder: Path, found: str, wanted: str) -> None:
    if found != wanted:
        other = _COMMANDS.get(found, "evaluate")
        raise UserError(
            f"{folder} is a {found} run; this command is for {_FOR[wanted]}. For this run: bayesrnn {other} {folder}"
        )


@dataclass(frozen=True)
class Measured:
    """Which run, and which weights of it, figures are of: taken before they are read, compared before it is written."""

    path: Path
    run: str
    weights: str

    @classmethod
    def of(cls, folder: Path) -> "Measured":
        """Empty where there is nothing to read: opening the run says what is missing."""
        from bayesrnn.lab.runs import checkpoint
        from bayesrnn.lab.runs.folder import identity

        try:
            return cls(folder, identity(folder), checkpoint.digest(folder / checkpoint.BEST))
        except OSError:
            return cls(folder, "", "")

    def check(self) -> None:
        """Refuse a folder that has another run by now, or other weights."""
        from bayesrnn.lab.runs.folder import MARKER

        if (self.path / MARKER).exists() or Measured.of(self.path) != self:
            raise UserError(
                f"The run in {self.path} was replaced or trained on meanwhile: the figures are of its former weights, "
                "and nothing was written; start this again when it has finished."
            )

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Inside, the folder has this run's weights, and no other process writes to it."""
        from bayesrnn.lab.runs.folder import briefly_locked

        self.check()
        with briefly_locked(self.path):
            self.check()
            yield


def open_run(path: str | Path, device: torch.device) -> Trained:
    """Read a run folder; the weights are the best epoch's. Nothing is built that the checkpoint does not hold."""
    from bayesrnn.lab.runs import checkpoint
    from bayesrnn.lab.runs.folder import identity

    folder = Path(path)
    config, recipe = _described(folder)
    cls = task_class(recipe.task)
    files = {name: read_bytes(folder / name, most=_MOST) for name in _file_names(config, folder)}
    check_digests(config, files, folder)
    weights = folder / checkpoint.BEST
    if not weights.is_file():
        raise UserError(f"There is no checkpoint {weights}; {_why_missing(folder, config)}")
    try:
        tensors, _ = checkpoint.load_own(weights, identity(folder))
    except checkpoint.Foreign:
        raise UserError(
            f"{weights} does not belong to {folder / 'config.json'}: it is another run's, or config.json was changed "
            "afterwards; put the run's own file back."
        ) from None
    outlined = sizes.outline(cls, recipe, files, where=str(folder))
    if outlined is not None:
        sizes.check_fits(sizes.shapes(outlined), tensors, str(weights))
    model = cls.build(recipe, files)
    checkpoint.load_model(model, tensors, weights)
    return Trained(folder, config, recipe, files, model.to(device).eval())


def _why_missing(folder: Path, config: dict[str, Any]) -> str:
    """What may have kept the best weights from being there, and what brings them."""
    from bayesrnn.lab.runs.folder import MARKER

    if not (folder / MARKER).exists():
        return "the run had finished: put its file back, or start it over with --force."
    why = "was the run stopped before its first epoch ended?"
    if (folder / "best.safetensors").exists():
        why = "what has its name is no file: move it away."
    elif "pruned" in config:
        why += " Where weights go by steps, that is the first epoch with all of them gone."
    command = "prune --retrain" if "pruned" in config else "train with --resume"
    return f"{why} The same bayesrnn {command} goes on with the run, and writes the file."


def _described(folder: Path) -> tuple[dict[str, Any], recipes.Recipe]:
    """A run folder's config.json, and the recipe in it."""
    from bayesrnn.lab.runs.folder import check_format

    if not (folder / "config.json").is_file():
        raise UserError(f"{folder} is no run of bayesrnn train; its config.json and the files it names are needed.")
    config = read_json(folder / "config.json", most=MB)
    if not isinstance(config, dict) or "settings" not in config or not isinstance(config.get("data", ""), str):
        raise UserError(f"{folder} is no run of bayesrnn train; its config.json has no settings.")
    check_format(config, folder)
    return config, recipes.from_dict(config["settings"], where="config.json")


def _file_names(config: dict[str, Any], folder: Path) -> list[str]:
    """Files of the run folder itself, whatever path a name pretends to."""
    names = config.get("files", ["vocabulary.txt"])
    if not isinstance(names, list) or len(names) > 100 or not all(isinstance(name, str) for name in names):
        raise UserError(f"{folder} is no run of bayesrnn train; its config.json does not list its files.")
    return [Path(name).name for name in names]
