"""A finished or unfinished run, read back: its recipe, the files of its data, and the best weights."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bayesrnn import recipes
from bayesrnn.data.text import Vocabulary
from bayesrnn.errors import UserError
from bayesrnn.tasks import language
from bayesrnn.tasks.base import Files, Task, task_class


@dataclass(frozen=True)
class Trained:
    """What commands on a run work on. The model is in eval mode; the data is read only by :meth:`task`."""

    path: Path
    config: dict[str, Any]
    recipe: recipes.Recipe
    files: Files
    model: nn.Module

    def task(self, data: str | None, device: torch.device) -> Task:
        """The run's task with the trained model; ``data`` where the data has moved."""
        cls = task_class(self.recipe.task)
        source = data or self.config["data"]
        task = cls(self.recipe, None if source == cls.default_data else source, device)
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

    def _must_be_language(self) -> None:
        if self.recipe.task != "language":
            raise UserError(f"{self.path} is a {self.recipe.task} run; this command is for language models.")


def check_files(task: Task, before: Files, *, advice: str) -> None:
    """Refuse data whose files are not those of the run."""
    for name, content in task.files().items():
        if content != before[name]:
            here, there = (part.count(b"\n") for part in (content, before[name]))
            raise UserError(
                f"The {Path(name).stem} of this {task.source} ({here:,} lines) is not that of the run ({there:,}); "
                f"{advice}."
            )


def open_run(path: str | Path, device: torch.device) -> Trained:
    """Read a run folder; the weights are the best epoch's."""
    from bayesrnn.train import checkpoint
    from bayesrnn.train.run_folder import check_format

    folder = Path(path)
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
        check_format(config, folder)
        recipe = recipes.from_dict(config["settings"], where="config.json")
        cls = task_class(recipe.task)
        names = [Path(name).name for name in config.get("files", ["vocabulary.txt"])]
        files = {name: (folder / name).read_bytes() for name in names}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise UserError(
            f"{folder} is no run of bayesrnn train; its config.json and the files it names are needed."
        ) from None
    model = cls.build(recipe, files)
    weights = folder / "best.safetensors"
    tensors, _ = checkpoint.load(weights)
    checkpoint.load_model(model, tensors, weights)
    return Trained(folder, config, recipe, files, model.to(device).eval())
