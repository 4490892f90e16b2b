"""A run folder, opened: its recipe, the files of its data, and the model with the best weights."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from bayesrnn.errors import UserError
from bayesrnn.lab import recipes
from bayesrnn.lab.reading import MB, counted, printable, read_bytes, read_json
from bayesrnn.lab.registry import task_class
from bayesrnn.lab.runs import checkpoint, sizes
from bayesrnn.lab.runs.folder import CONFIG, MARKER, Files, briefly_locked, check_format, file_digests, identity

if TYPE_CHECKING:
    from bayesrnn.lab.registry import Task

_MOST = 512 * MB  # of a file beside the weights: a series has up to 200


@dataclass(frozen=True)
class OpenedRun:
    """What commands on a run work with. The model is in eval mode; only :meth:`task` reads the data."""

    path: Path
    config: dict[str, Any]
    recipe: recipes.Recipe
    files: Files
    model: nn.Module
    epoch: int | None = None
    """The epoch of the weights; None: the checkpoint does not say."""

    def task(self, data: str | None, device: torch.device, *, advice: str = "name it with --data") -> "Task":
        """The run's task with the trained model; ``data`` is where its data is now, None: where config.json says."""
        cls = task_class(self.recipe.task)
        place = None if data is None and cls.keeps_data else self.place(data, device)
        try:
            if data is None and cls.keeps_data:
                return self._attached(cls.for_run(self.recipe, None, device, self.files))
            known = data and "data_digest" in self.config  # else other data could not be told from the run's own
            task = cls.for_run(self.recipe, place, device, self.files) if known else cls(self.recipe, place, device)
        except UserError as error:
            if data or place is None:
                raise
            source = self.config["data"]
            named = f"{self.path / CONFIG} has {printable(source)} as the {cls.source} of this run"
            if os.path.exists(source):
                raise UserError(f"{named}: {error} If it is elsewhere now, {advice}.") from None
            seen = "" if os.path.isabs(source) else " (a path from where it was trained)"
            raise UserError(f"{named}{seen}, and it is not there; {advice}.") from None
        check_files(task, self.files, advice=f"name the {task.source} it was trained on with --data")
        return self._attached(task)

    def _attached(self, task: "Task") -> "Task":
        task.folder = self.path
        task.attach(self.model)
        return task

    def place(self, data: str | None, device: torch.device) -> str | None:
        """Where the data is; None: it is the task's own data.

        As in training, a folder or file by the name of the task's own data goes first, if it fits the run.
        """
        cls = task_class(self.recipe.task)
        source = data or self.config["data"]
        if source != cls.default_data:
            return str(source)
        if not os.path.exists(source):
            return None
        there = os.path.join(".", source)  # a path, not the name
        if not data:
            try:
                check_files(cls(self.recipe, there, device), self.files, advice="")
            except UserError:
                return None
        return there

    def other_data(self, task: "Task") -> str:
        """A sentence if the task's data are not those of the run; empty: they are, or the run has no digest."""
        known = self.config.get("data_digest")
        if known is None or task.digest() == known:
            return ""
        said = f"The {task.source} given is not that of the run in {self.path}: config.json has another digest."
        return f"{said} {task.unknown_words()}".strip()


def check_files(task: "Task", before: Files, *, advice: str) -> None:
    """Refuse data whose files differ from those of the run."""
    for name, content in task.files().items():
        if content != before[name]:
            here, there = (part.count(b"\n") for part in (content, before[name]))
            raise UserError(
                f"The {Path(name).stem} of this {task.source} ({counted(here, 'line')}) is not that of the run "
                f"({name}, {counted(there, 'line')}); {advice}."
            )


def check_digests(config: dict[str, Any], files: Files, folder: Path) -> None:
    """Refuse files of a run folder that have changed since; earlier versions wrote no digests."""
    known = config.get("file_digests", {})
    for name, digest in file_digests(files).items():
        if not isinstance(known, dict) or known.get(name, digest) != digest:
            raise UserError(
                f"{folder / name} is not the file that the run was trained with: config.json has another digest of it; "
                "put the run's own file back."
            )


def check_task(path: str | Path, task: str) -> None:
    """Refuse a run of another task before anything else is read, and name the command for it."""
    folder = Path(path)
    found = read_config(folder)[1].task
    if found != task:
        wanted, other = task_class(task), task_class(found)
        raise UserError(
            f"{folder} is a {found} run; this command is for {wanted.runs_called}. "
            f"For this run: bayesrnn {other.command} {folder}"
        )


@dataclass(frozen=True)
class WeightsGuard:
    """Which run, and which of its weights, were measured: taken before the work, compared before writing."""

    path: Path
    run: str
    weights: str

    @classmethod
    def of(cls, folder: Path) -> "WeightsGuard":
        """Empty if there is nothing to read: opening the run says what is missing."""
        try:
            return cls(folder, identity(folder), checkpoint.digest(folder / checkpoint.BEST))
        except OSError:
            return cls(folder, "", "")

    def check(self) -> None:
        """Refuse a folder that holds another run by now, or other weights."""
        if (self.path / MARKER).exists() or WeightsGuard.of(self.path) != self:
            raise UserError(
                f"The run in {self.path} was replaced or trained further meanwhile: these results are of its former "
                "weights, and nothing was written; start this again when it has finished."
            )

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Inside, the folder has these weights, and no other process writes to it."""
        self.check()
        with briefly_locked(self.path):
            self.check()
            yield


def open_run(path: str | Path, device: torch.device) -> OpenedRun:
    """Read a run folder with the weights of its best epoch. Sizes are checked before the model is built."""
    folder = Path(path)
    config, recipe = read_config(folder)
    cls = task_class(recipe.task)
    names = config.get("files", ["vocabulary.txt"])
    if not isinstance(names, list) or len(names) > 100 or not all(isinstance(name, str) for name in names):
        raise UserError(f"{folder} is not a run of bayesrnn train; its config.json does not list its files.")
    names = [Path(name).name for name in names]  # files of the folder itself, whatever path a name pretends to
    files = {name: read_bytes(folder / name, most=_MOST) for name in names}
    check_digests(config, files, folder)
    weights = folder / checkpoint.BEST
    if not weights.is_file():
        raise UserError(f"There is no checkpoint {weights}; {_why_missing(folder, config)}")
    tensors, about = checkpoint.load_of(folder, checkpoint.BEST, "put the run's own file back")
    outlined = sizes.outline(cls, recipe, files, where=str(folder))
    if outlined is not None:
        sizes.check_fits(sizes.shapes(outlined), tensors, str(weights))
    model = cls.build(recipe, files)
    checkpoint.load_model(model, tensors, weights)
    return OpenedRun(folder, config, recipe, files, model.to(device).eval(), about.get("epoch"))


def _why_missing(folder: Path, config: dict[str, Any]) -> str:
    """Why the best weights may be missing, and how to get them."""
    if not (folder / MARKER).exists():
        return "the run had finished: put its file back, or start it over with --force."
    why = "was the run stopped before its first epoch ended?"
    if (folder / checkpoint.BEST).exists():
        why = "that path is not a regular file; move it."
    elif "pruned" in config:
        why += " If weights are removed in steps, that is the first epoch after the last step."
    command = "prune --retrain" if "pruned" in config else "train with --resume"
    return f"{why} The same bayesrnn {command} continues the run, and writes the file."


def read_config(folder: Path) -> tuple[dict[str, Any], recipes.Recipe]:
    """A run folder's config.json, and the recipe in it."""
    if not (folder / CONFIG).is_file():
        missing = f"it has no {CONFIG}" if folder.exists() else "there is no such folder"
        raise UserError(f"{folder} is not a run of bayesrnn train; {missing}.")
    config = read_json(folder / CONFIG, most=MB)
    if not isinstance(config, dict) or "settings" not in config or not isinstance(config.get("data", ""), str):
        raise UserError(f"{folder} is not a run of bayesrnn train; its config.json has no settings.")
    check_format(config, folder)
    try:
        return config, recipes.from_dict(config["settings"], where="config.json")
    except UserError as error:
        raise UserError(
            f"{folder} is no run of this version of bayesrnn: {str(error).rstrip('.')}; train again."
        ) from None
