"""The settings that a sweep tries: values on a grid, or ranges to search."""

import re
from dataclasses import dataclass
from typing import Any

from bayesrnn.errors import UserError
from bayesrnn.lab import recipes
from bayesrnn.lab.recipes.keys import full_key
from bayesrnn.lab.recipes.schema import Recipe


@dataclass(frozen=True)
class Range:
    """The range of one setting in a search."""

    low: float
    high: float
    log: bool


Space = dict[str, tuple[str, ...]] | dict[str, Range]


def read_grid(recipe: Recipe, texts: list[str]) -> dict[str, tuple[str, ...]]:
    """Parse ``key=a,b,c`` and check every value on the recipe. Commas inside brackets do not separate values."""
    grid: dict[str, tuple[str, ...]] = {}
    for text in texts:
        key, equals, rest = text.partition("=")
        values = tuple(value.strip() for value in re.split(r",(?![^\[]*\])", rest))
        if not equals or not all(values):
            raise UserError(
                f"{text!r} is not a grid; write key=value,value, such as model.recurrent_dropout=0,0.25,0.5."
            )
        full = full_key(recipe, key)
        parsed = [read_value(recipe, full, value) for value in values]
        if full in grid or any(value in parsed[:k] for k, value in enumerate(parsed)):
            raise UserError(f"{text!r} repeats a setting or value.")
        grid[full] = values
    return grid


def read_search(recipe: Recipe, texts: list[str]) -> dict[str, Range]:
    """Parse ``key=low:high`` or ``key=low:high:log``, for settings that are numbers."""
    space: dict[str, Range] = {}
    for text in texts:
        key, _, rest = text.partition("=")
        full = full_key(recipe, key)
        if isinstance(recipes.flatten(recipe)[full], bool | str | tuple):
            raise UserError(f"{full} is not a number; give its values with --grid.")
        try:
            low, high, *log = rest.split(":")
            found = Range(float(low), float(high), log == ["log"])
        except ValueError:
            found = None
        if found is None or log not in ([], ["log"]) or not found.low < found.high or (log and found.low <= 0):
            raise UserError(
                f"{text!r} is not a range; write key=low:high or key=low:high:log, such as train.lr=1e-4:1e-1:log."
            )
        if full in space:
            raise UserError(f"{text!r} repeats a setting or value.")
        # Whole numbers where the setting is one.
        space[full] = Range(read_value(recipe, full, low), read_value(recipe, full, high), found.log)
    return space


def read_value(recipe: Recipe, key: str, text: str) -> Any:
    """The value as the recipe stores it, in its field's type."""
    return recipes.flatten(recipes.override(recipe, [f"{key}={text}"]))[key]


def as_overrides(values: dict[str, Any]) -> list[str]:
    return [f"{key}={value}" for key, value in values.items()]
