"""Recipes by name or from a file."""

import difflib
from pathlib import Path

from bayesrnn.errors import UserError
from bayesrnn.lab.reading import load_yaml, read_text, shown
from bayesrnn.lab.recipes.keys import from_dict
from bayesrnn.lab.recipes.schema import Recipe
from bayesrnn.lab.registry import recipe_files

_MOST = 1 << 16  # bytes of a recipe


def names() -> list[str]:
    """The recipes that come with the library."""
    return sorted(recipe_files())


def load(name: str) -> Recipe:
    """A recipe by name, or from a YAML file by path."""
    if name.endswith((".yaml", ".yml")):
        path = Path(name)
    elif (found := recipe_files().get(name)) is not None:
        path = found
    else:
        near = difflib.get_close_matches(name, names(), n=1, cutoff=0.4)
        hint = f"did you mean {near[0]}? " if near else ""
        text = name if len(name) <= 60 and name.isprintable() else shown(name)
        raise UserError(f"There is no recipe {text}; {hint}`bayesrnn recipes` lists them.")
    return from_dict(load_yaml(read_text(path, most=_MOST), where=str(path)), where=path.name)
