"""What a record was made with, beside the recipe as it is now."""

from collections.abc import Mapping
from typing import Any

from bayesrnn.errors import UserError
from bayesrnn.lab import recipes

_SECTIONS = ("model", "posterior", "data", "train")

TEXT = "ptb"
"""The folder of Penn Treebank, the text of the papers on language models: a record has no more than its name."""


def other_text(record: Mapping[str, Any]) -> str:
    """The name of the text that a language model was trained on, where that is not the papers'; empty: it is."""
    text = str(record.get("data") or TEXT)
    return "" if text == TEXT else text


def changed_settings(record: Mapping[str, Any], recipe: str | recipes.Recipe | None = None) -> list[str]:
    """KEY=VALUE of each setting of training that the recipe has otherwise now, whoever changed it since.

    A setting that came later than the record was at its default. Of a record without settings, or whose recipe is gone,
    nothing. ``recipe``: in place of the one that the record names, where its settings have become those of another
    recipe; or the recipe itself.
    """
    try:
        found = recipe if isinstance(recipe, recipes.Recipe) else recipes.load(recipe or str(record.get("recipe")))
    except UserError:
        return []
    now = recipes.flatten(found)
    then = {
        f"{section}.{key}": value
        for section in _SECTIONS
        for key, value in _table(_table(record.get("settings")).get(section)).items()
    }
    sections = {key.partition(".")[0] for key in then}
    defaults = recipes.flatten(recipes.from_dict({"task": found.task}, where="defaults"))
    then |= {key: defaults[key] for key in now if key.partition(".")[0] in sections and key not in then}
    removed = _table(record.get("pruned")).get("fraction")
    pruned = [] if removed is None else [f"pruned={_shown(removed)}"]  # no setting: weights were taken away
    return pruned + [f"{key}={_shown(value)}" for key, value in then.items() if key in now and now[key] != value]


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _shown(value: Any) -> str:
    """As it is written on the command line."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
