"""Published systems as recipes: one YAML file each, with the paper's results in it.

The names below are imported when they are first used: pydantic would slow down ``bayesrnn --help``.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bayesrnn.lab.recipes.keys import flatten, from_dict, load, names, override
    from bayesrnn.lab.recipes.schema import Recipe

__all__ = ["Recipe", "flatten", "from_dict", "load", "names", "override"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.keys"), name)
