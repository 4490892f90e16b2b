"""Published tables, row by row. A table may report other values than the paper that a recipe is from."""

from typing import TYPE_CHECKING, Any

from bayesrnn.lab import recipes

if TYPE_CHECKING:
    from bayesrnn.lab.recipes import Recipe

TABLES = {
    "gal2016": "dropout in recurrent networks, arXiv 1512.05287",
    "fortunato2017": "Bayes by Backprop for them, arXiv 1704.02798",
}
_SOURCE = "arXiv 1704.02798, table 1"
_ALSO: dict[str, dict[str, dict[str, Any]]] = {
    "fortunato2017": {
        "zaremba-medium": {
            "source": _SOURCE, "row": "LSTM, dropout",
            "valid": 86.2, "test": 82.1, "valid_dynamic": 79.7, "test_dynamic": 77.1,
        },
        "variational-tied-medium": {
            "source": _SOURCE, "row": "variational LSTM", "valid": 81.8, "test": 79.7, "test_mc": 79.0,
        },
    },
}  # fmt: skip


def rows(table: str) -> "dict[str, Recipe]":
    """The recipes of a table by name, each with the values that this table reports."""
    also, found = _ALSO.get(table, {}), {}
    for name in recipes.names():
        recipe = recipes.load(name)
        if recipe.table == table:
            found[name] = recipe
        elif name in also:
            found[name] = recipe.model_copy(update={"paper": type(recipe.paper)(**also[name])})
    return found


def published(name: str, recipe: "Recipe | None" = None) -> tuple[dict[str, Any], dict[str, str]]:
    """The values of the recipe's own paper, with gaps filled from other tables, and the source of each filled value."""
    values, others = dict(vars((recipe or recipes.load(name)).paper)), {}
    for also in _ALSO.values():
        for key, value in also.get(name, {}).items():
            if values[key] is None:
                values[key], others[key] = value, also[name]["source"]
    return values, others
