"""Tasks by name. Generic code asks here, and imports no task itself."""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from bayesrnn.errors import UserError

if TYPE_CHECKING:
    from bayesrnn.lab.tasks.base import Task as Task

TASKS: "dict[str, str | type[Task]]" = {
    "language": "bayesrnn.lab.tasks.language.task:Language",
    "sentiment": "bayesrnn.lab.tasks.sentiment.task:Sentiment",
    "digits": "bayesrnn.lab.tasks.digits.task:Digits",
    "captioning": "bayesrnn.lab.tasks.captioning.task:Captioning",
    "forecast": "bayesrnn.lab.tasks.forecast.task:Forecast",
}
"""Names to classes, or to ``module:class``, imported on demand. ``TASKS["mine"] = Mine`` adds a task; so does an entry
point of the group ``bayesrnn.tasks`` in any installed package."""


def task_class(name: str) -> "type[Task]":
    """The task of this name."""
    found = TASKS.get(name)
    if isinstance(found, str):
        module, _, attribute = found.partition(":")
        cls: type[Task] = getattr(importlib.import_module(module), attribute)
        return cls
    if found is not None:
        return found
    from importlib.metadata import entry_points

    for entry in entry_points(group="bayesrnn.tasks", name=name):
        loaded: type[Task] = entry.load()
        return loaded
    raise UserError(f"There is no task {name}; there are {', '.join(TASKS)}.")


def recipe_files() -> dict[str, Path]:
    """Recipes by name: the files in the folder ``recipes`` of each task."""
    return {path.stem: path for path in (Path(__file__).parent / "tasks").glob("*/recipes/*.yaml")}
