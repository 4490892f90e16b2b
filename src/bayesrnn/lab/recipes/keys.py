"""Recipes by name, from files and from ``key=value``; an error is one line that names the nearest key."""

import difflib
import functools
import math
import operator
import re
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from bayesrnn.errors import UserError
from bayesrnn.lab.reading import load_yaml, read_text, shown
from bayesrnn.lab.recipes.schema import MOST_DRAWS, Recipe, Section, Sections, recipe_model
from bayesrnn.lab.registry import TASKS, UNNAMED, recipe_files, task_class

_KINDS = {
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "tuple_type": "a list, such as [1, 2]",
    "model_type": "a set of keys and values",
}
_BOUNDS = {"greater_than": "more than", "greater_than_equal": "at least", "less_than": "below"}
_BOUNDS["less_than_equal"] = "at most"
_MOST = 1 << 16  # bytes of a recipe


def names() -> list[str]:
    """The recipes of all tasks."""
    return sorted(recipe_files())


def load(name: str) -> Recipe:
    """A recipe by name, or from a YAML file by path."""
    path = Path(name) if name.endswith((".yaml", ".yml")) else recipe_files().get(name)
    if path is None:
        near = difflib.get_close_matches(name, names(), n=1, cutoff=0.4)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UserError(f"There is no recipe {_shown(name)}; {hint}`bayesrnn recipes` lists them.")
    return from_dict(load_yaml(read_text(path, most=_MOST), where=str(path)), where=path.name)


@dataclass(frozen=True)
class Setting:
    """One setting of a recipe under its dotted key."""

    key: str
    value: Any
    default: Any
    meaning: str


def settings(recipe: Recipe) -> list[Setting]:
    """Every setting of a recipe, section by section."""
    parts = [("", recipe), *((f"{name}.", part) for name, part in recipe if isinstance(part, Section))]
    found = []
    for prefix, part in parts:
        for name, field in type(part).model_fields.items():
            value, choices = getattr(part, name), typing.get_args(field.annotation)
            if not isinstance(value, Section):
                meaning = field.description or ""
                if typing.get_origin(field.annotation) is typing.Literal and len(choices) > 1:
                    meaning += f" ({', '.join(choices)})"
                found.append(Setting(f"{prefix}{name}", value, field.get_default(), meaning))
    return found


def flatten(recipe: Recipe) -> dict[str, Any]:
    """All values under dotted keys."""
    return {setting.key: setting.value for setting in settings(recipe)}


def from_dict(values: Any, *, where: str) -> Recipe:
    """A recipe from parsed YAML or JSON; ``where`` names the source in messages, if it is not empty."""
    if not isinstance(values, dict):
        raise UserError(f"{where}: the recipe must be a set of keys and values.")
    name = values.get("task", UNNAMED)
    name = name if isinstance(name, str) and len(name) <= 60 else shown(name)
    try:
        model = recipe_model(name, _sections(name))
    except UserError as error:
        raise UserError(f"{where}: {error}" if where else str(error)) from None
    try:
        return model.model_validate(values)
    except ValidationError as error:
        # An unknown section explains more than what is wrong inside a known one.
        first = min(error.errors(include_url=False), key=lambda e: (e["type"] != "extra_forbidden", len(e["loc"])))
        raise UserError(_problem(first, model, where)) from None


def _sections(task: str) -> Sections:
    """The sections that a task declares."""
    cls = task_class(task)
    found = getattr(cls, "sections", None)
    if not isinstance(found, Sections):
        raise UserError(f"The task {task} ({cls.__name__}) has no `sections`; give it Sections(model=..., data=...).")
    return found


def _problem(error: Any, model: type[Recipe], where: str) -> str:
    """One error of pydantic as a sentence: which key, its value, and what it must be."""
    kind, value, loc = error["type"], error["input"], error["loc"]
    before = f"{where}: " if where else ""
    if kind in ("extra_forbidden", "invalid_key"):
        section: Any = model.model_fields[loc[0]].annotation if len(loc) > 1 else model
        hint = _near_or_all(str(loc[-1]), list(section.model_fields), ".".join(loc[:-1]))
        return f"{before}there is no key {'.'.join([*loc[:-1], _shown(loc[-1])])}; {hint}"
    key = ".".join(part for part in loc if isinstance(part, str))
    if kind == "literal_error" and not isinstance(value, str):
        kind = "string_type"
    if kind in _KINDS:
        return f"{before}{key} must be {_KINDS[kind]}, got {shown(value)}."
    wrong = error["msg"]
    if isinstance(value, float) and not math.isfinite(value):
        wrong = "it must be a finite number"
    elif kind == "literal_error":
        wrong = "it must be one of " + ", ".join(re.findall("'([^']*)'", error["ctx"]["expected"]))
    elif kind in _BOUNDS:
        (bound,) = error["ctx"].values()
        limit = f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"
        wrong = too_many_draws(key, value) or f"it must be {_BOUNDS[kind]} {limit}"
    return f"{key} is {shown(value)}; {wrong}."


def too_many_draws(name: str, value: Any) -> str:
    """Why a number of draws, of a setting or an option of this name, is refused; empty: it is not.

    A run folder may come from anyone, and each draw is a pass over the data: the command would not end.
    """
    if not name.endswith("samples") or not isinstance(value, int) or value <= MOST_DRAWS:
        return ""
    return f"it must be at most {MOST_DRAWS:,}: each draw is a pass over all the data"


def _shown(key: Any) -> str:
    return key if isinstance(key, str) and len(key) <= 60 and key.isprintable() else shown(key)


def _near(key: str, names: list[str]) -> str:
    """The name most like the key; empty: none is like it."""
    return next(iter(difflib.get_close_matches(key[:60], names, n=1, cutoff=0.65)), "")


def _near_or_all(key: str, names: list[str], section: str) -> str:
    near = _near(key, names)
    if near:
        return f"did you mean {section}{'.' * bool(section)}{near}?"
    return f"{section or 'a recipe'} has {', '.join(names) or 'no keys'}."


def full_key(recipe: Recipe, key: str) -> str:
    """The dotted key that ``key`` means: itself, or the only one that ends with it."""
    known = list(flatten(recipe))
    ends = [k for k in known if k == key] or [k for k in known if k.rpartition(".")[2] == key]
    if len(ends) > 1:
        raise UserError(f"{key} is in several sections; write one of {', '.join(ends)}.")
    if not ends:
        raise UserError(f"There is no key {_shown(key)}; {_hint(recipe, key, known)}")
    return ends[0]


def _hint(recipe: Recipe, key: str, known: list[str]) -> str:
    """What an unknown dotted key may mean: the nearest key, or what there is."""
    sections = {name: list(type(part).model_fields) for name, part in recipe if isinstance(part, Section)}
    there = f"sections are {', '.join(sections)}."
    section, dot, leaf = key.partition(".")
    if key in sections:
        return f"it is a section, and has {', '.join(sections[key]) or 'no keys'}."
    if not dot:
        shorts = {k.rpartition(".")[2]: k for k in known}
        near = _near(key, list(shorts))
        return f"did you mean {shorts[near]}?" if near else f"keys are written SECTION.KEY, and {there}"
    if elsewhere := [k for k in known if k.endswith(f".{leaf}") and not k.startswith("paper.")]:
        return f"did you mean {' or '.join(elsewhere)}?"
    return _near_or_all(leaf, sections[section], section) if section in sections else there


def override(recipe: Recipe, assignments: list[str]) -> Recipe:
    """The recipe with ``key=value`` applied: dotted keys, or the last part alone where it is the only one."""
    values = recipe.model_dump()
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UserError(f"{shown(text)} is not an override; write key=value, such as train.epochs=2.")
        full = full_key(recipe, key)
        if full == "task":
            raise UserError("The task of a recipe cannot be overridden; choose a recipe of that task.")
        section, _, leaf = full.rpartition(".")
        if section == "paper":
            raise UserError(f"{full} is a published result, and cannot be overridden.")
        parsed = load_yaml(value, where=f"The value of {full} cannot be read: {shown(value)}")
        (values[section] if section else values)[leaf] = parsed
    return from_dict(values, where="")


def json_schema(task: str | None = None) -> dict[str, Any]:
    """The JSON schema of a task's recipes, for editors; None: of all tasks' recipes."""
    models = [recipe_model(name, _sections(name)) for name in ([task] if task else TASKS)]
    if task:
        return models[0].model_json_schema()
    return TypeAdapter(functools.reduce(operator.or_, models)).json_schema()
