"""Published systems as recipes: one YAML file each, with the paper's figures in it."""

import difflib
from pathlib import Path

from bayesrnn.errors import UserError
from bayesrnn.recipes.schema import Recipe, flatten, from_dict, override

__all__ = ["Recipe", "flatten", "from_dict", "load", "names", "override"]

_FOLDER = Path(__file__).parent


def names() -> list[str]:
    """The recipes that come with the library."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


def load(name: str) -> Recipe:
    """A recipe by name, or from a YAML file by path."""
    import yaml

    path = Path(name) if name.endswith((".yaml", ".yml")) else _FOLDER / f"{name}.yaml"
    try:
        text = path.read_text("utf-8")
    except (OSError, ValueError) as error:
        if path.parent != _FOLDER:
            reason = getattr(error, "strerror", None) or "not UTF-8 text"
            raise UserError(f"{path} cannot be read ({reason}).") from None
        near = difflib.get_close_matches(name, names(), n=1, cutoff=0.4)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UserError(f"There is no recipe {name}; {hint}`bayesrnn recipes` lists them.") from None
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        first = str(error).splitlines()[0]
        raise UserError(f"{path} is not YAML ({first}).") from None
    return from_dict(values, where=path.name)
