"""Tasks by name. Generic code asks here, and imports no task itself."""

import difflib
import importlib
import pkgutil
import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from bayesrnn.errors import UserError
from bayesrnn.reading import first_line

if TYPE_CHECKING:
    from bayesrnn.lab.tasks.base import Task as Task

_PACKAGE = "bayesrnn.lab.tasks"
_FOLDER = Path(__file__).parent / "tasks"

TASKS: "dict[str, str | type[Task]]" = {
    found.name: f"{_PACKAGE}.{found.name}.task:{found.name.capitalize()}"
    for found in pkgutil.iter_modules([str(_FOLDER)])
    if found.ispkg and (_FOLDER / found.name / "task.py").exists()
}
"""Names to classes, or to ``module:class``, imported on demand.

A folder ``lab/tasks/NAME`` with a class ``Name`` in its ``task.py`` is a task; so is an entry point of the group
``bayesrnn.tasks``, and ``TASKS["mine"] = Mine``. To keep ``--help`` quick, the ``__init__`` of a task's package may
have ``COMMANDS``, names to ``module:function``, ``EVALUATE_OPTIONS``, a function whose parameters are options of
``bayesrnn evaluate``, and ``SAVED``, names of files to a :class:`Saved` of the folders that have them.
"""


UNNAMED = "language"
"""The task of recipes and records that name none: there was one task at first."""


class Saved(Protocol):
    """A model in a folder that is not a run, for ``bayesrnn explore`` and ``bayesrnn report``."""

    path: Path
    task: str
    title: str

    def panels(self) -> dict[str, Any]:
        """Panels of ``explore`` by name."""

    def report(self, page: Any, *, fast: bool, say: Any) -> None:
        """Add sections to a page. ``fast``: only what takes seconds."""


def task_class(name: str) -> "type[Task]":
    """The task of this name."""
    found = TASKS.get(name) or _installed().get(name)
    if found is None:
        names = [*TASKS, *_installed()]
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}."
        raise UserError(f"There is no task {name}; {hint}")
    try:
        cls: type[Task] = resolve(found)
    except (ImportError, AttributeError) as error:
        if name in TASKS:
            raise
        raise UserError(_broken(name, found, error)) from None
    return cls


def _broken(name: str, target: Any, error: Exception) -> str:
    return f"The task {name} of another package ({target}) cannot be loaded: {first_line(error)}"


def resolve(target: Any) -> Any:
    """The object that ``module:attribute`` names; any other object is itself."""
    if not isinstance(target, str):
        return target
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


@cache
def _installed() -> dict[str, str]:
    """Tasks of other packages, as their entry points name them. Reading those of all packages takes 20 ms."""
    return {entry.name: entry.value for entry in entry_points(group="bayesrnn.tasks")}


def commands(*, installed: bool = False) -> dict[str, Any]:
    """Commands of the tasks of this package, or of those that other packages have installed: functions by name."""
    found: dict[str, Any] = {}
    for name, target in (_installed() if installed else TASKS).items():
        try:
            found |= {command: resolve(function) for command, function in _commands(target).items()}
        except Exception as error:
            if not installed:
                raise
            _warn(_broken(name, target, error))
    return found


@cache
def _warn(line: str) -> None:
    """Once: a package of someone else is broken, and everything but that goes on."""
    print(f"bayesrnn: {line}", file=sys.stderr)


def _commands(target: "str | type[Task]") -> Mapping[str, Any]:
    declared = _declared(target, "COMMANDS")
    if declared is None and isinstance(target, str) and target.startswith(f"{_PACKAGE}."):
        return {}  # declared without importing the task, or not at all
    commands: Mapping[str, Any] = resolve(target).commands if declared is None else declared
    return commands


def evaluate_options(task: str | None = None) -> list[Any]:
    """Functions whose parameters are options of ``bayesrnn evaluate``: of this task, or of all."""
    declared = (_declared(target, "EVALUATE_OPTIONS") for name, target in TASKS.items() if task in (None, name))
    return [resolve(target) for target in declared if target is not None]


def _declared(target: "str | type[Task]", name: str) -> Any:
    """What the ``__init__`` of a task's package says under this name, without importing the task; None: nothing."""
    package = target.partition(":")[0].rpartition(".")[0] if isinstance(target, str) else ""
    return getattr(importlib.import_module(package), name, None) if package else None


def open_saved(folder: Path) -> Saved | None:
    """The model in a folder that a task of this package declares; None: it is a run, or something else."""
    for target in TASKS.values():
        for name, kind in (_declared(target, "SAVED") or {}).items():
            if (folder / name).is_file():
                opened: Saved = resolve(kind)(folder)
                return opened
    return None


def recipe_files() -> dict[str, Path]:
    """Recipes by name: the files in the folder ``recipes`` of each task."""
    found: dict[str, Path] = {}
    for target in [*TASKS.values(), *_installed().values()]:
        try:
            spec = find_spec(target.partition(":")[0]) if isinstance(target, str) else None
        except Exception as error:  # of another package
            _warn(f"The recipes of {target} cannot be found: {first_line(error)}")
            continue
        if spec is not None and spec.origin is not None:
            found |= {path.stem: path for path in (Path(spec.origin).parent / "recipes").glob("*.yaml")}
    return found
