"""A finished or unfinished run, read back: its recipe, the files of its data, and the best weights."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bayesrnn import recipes
from bayesrnn.data.text import Vocabulary
from bayesrnn.errors import UserError
from bayesrnn.reading import MB, counted, printable, read_bytes, read_json
from bayesrnn.tasks import language, sizes
from bayesrnn.tasks.base import Files, Task, file_digests, task_class

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
        source = data or self.config["data"]
        try:
            task = cls(self.recipe, None if source == cls.default_data else source, device)
        except UserError as error:
            if data or source == cls.default_data:
                raise
            named = f"{self.path / 'config.json'} has {printable(source)} as the {cls.source} of this run"
            if os.path.exists(source):
                raise UserError(f"{named}: {error} Where it is elsewhere now, {advice}.") from None
            seen = "" if os.path.isabs(source) else " (a path from where it was trained)"
            raise UserError(f"{named}{seen}, and it is not there; {advice}.") from None
        check_files(task, self.files, advice=f"name the {task.source} it was trained on with --data")
        task.folder = self.path
        task.attach(self.model)
        return task

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


def open_run(path: str | Path, device: torch.device) -> Trained:
    """Read a run folder; the weights are the best epoch's. Nothing is built that the checkpoint does not hold."""
    from bayesrnn.train import checkpoint
    from bayesrnn.train.run_folder import identity

    folder = Path(path)
    config, recipe = _described(folder)
    cls = task_class(recipe.task)
    files = {name: read_bytes(folder / name, most=_MOST) for name in _file_names(config, folder)}
    check_digests(config, files, folder)
    weights = folder / "best.safetensors"
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


def _described(folder: Path) -> tuple[dict[str, Any], recipes.Recipe]:
    """A run folder's config.json, and the recipe in it."""
    from bayesrnn.train.run_folder import check_format

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
