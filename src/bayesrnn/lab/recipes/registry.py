"""Finds tasks by name, and their recipes, without importing any task before it is asked for."""

import importlib
import importlib.metadata
from pathlib import Path
from typing import Any

from bayesrnn.errors import UserError

_FOLDER = Path(__file__).parent.parent / "tasks"

TASKS: dict[str, str | type[Any]] = {
    path.parent.name: f"bayesrnn.lab.tasks.{path.parent.name}.task:{path.parent.name.capitalize()}"
    for path in sorted(_FOLDER.glob("*/task.py"))
}
"""Names to classes, or to ``module:Class``. A folder ``lab/tasks/NAME`` with a class ``Name`` in ``task.py`` is a task.

``TASKS["mine"] = Mine`` adds one; so does an entry point of the group ``bayesrnn.tasks`` in an installed package.
"""


def find(name: str) -> type[Any]:
    """The class of a task, imported now. Its attribute ``sections`` declares the task's part of a recipe."""
    found = TASKS.get(name)
    if isinstance(found, str):
        module, _, attribute = found.partition(":")
        cls: type[Any] = getattr(importlib.import_module(module), attribute)
        return cls
    if found is not None:
        return found
    for entry in importlib.metadata.entry_points(group="bayesrnn.tasks", name=name):
        loaded: type[Any] = entry.load()
        return loaded
    raise UserError(f"There is no task {name}; there are {', '.join(TASKS)}.")


def recipe_files() -> dict[str, Path]:
    """The recipes of the tasks in the library, by name."""
    return {path.stem: path for path in sorted(_FOLDER.glob("*/recipes/*.yaml"))}
