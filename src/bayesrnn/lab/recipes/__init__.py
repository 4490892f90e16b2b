"""Published systems as recipes: one YAML file each, with the paper's figures in it."""

import difflib
from pathlib import Path

from bayesrnn.errors import UserError
from bayesrnn.lab.reading import load_yaml, read_text, shown
from bayesrnn.lab.recipes.schema import Recipe, flatten, from_dict, override

__all__ = ["Recipe", "flatten", "from_dict", "load", "names", "override"]

_TASKS = Path(__file__).parent.parent / "tasks"
_MOST = 1 << 16  # bytes of a recipe


def names() -> list[str]:
    """The recipes that come with the library."""
    return sorted(_files())


def _files() -> dict[str, Path]:
    return {path.stem: path for path in _TASKS.glob("*/recipes/*.yaml")}


def load(name: str) -> Recipe:
    """A recipe by name, or from a YAML file by path."""
    own = not name.endswith((".yaml", ".yml"))
    path = _files().get(name, Path()) if own else Path(name)
    if own and name not in names():
        near = difflib.get_close_matches(name, names(), n=1, cutoff=0.4)
        hint = f"did you mean {near[0]}? " if near else ""
        text = name if len(name) <= 60 and name.isprintable() else shown(name)
        raise UserError(f"There is no recipe {text}; {hint}`bayesrnn recipes` lists them.")
    return from_dict(load_yaml(read_text(path, most=_MOST), where=str(path)), where=path.name)
