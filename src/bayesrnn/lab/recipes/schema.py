"""What a recipe may say: one dataclass per section, every key known, every value checked.

``paper``, ``model``, ``data`` and ``evaluate`` are declared by the task (:class:`bayesrnn.lab.tasks.base.Task`);
``posterior`` and ``train`` are everyone's. A field says with its default which values it takes::

    hidden: int = positive(650)
    word_dropout: float = rate()
    group: str = choice("input", "weight")
    patience: int | None = positive(None)
"""

import dataclasses
import difflib
import math
import re
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bayesrnn.errors import UserError
from bayesrnn.lab.reading import load_yaml, shown

_CHECK = "check"
_LARGEST = 10**9
_LAYERS = 1000
_DRAWS = 100_000
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def number(
    default: Any,
    *,
    above: float | None = None,
    least: float | None = None,
    below: float | None = None,
    most: float | None = None,
    why: str = "",
) -> Any:
    """A field for a number: more than ``above``, at least ``least``, less than ``below``, at most ``most``.

    ``why`` takes the place of the sentence that says so. None passes, where the field's type allows it.
    """

    def check(value: Any) -> str | None:
        if above is not None and not value > above:
            return why or f"it must be more than {above:g}"
        if least is not None and not value >= least:
            return why or f"it must be at least {least:g}"
        if below is not None and not value < below:
            return why or f"it must be below {below:g}"
        if most is not None and not value <= most:
            return why or f"it must be at most {most:g}"
        return None

    return field(default=default, metadata={_CHECK: check})


def positive(default: Any) -> Any:
    """A field for a number above 0."""
    return number(default, above=0)


def rate(default: float = 0.0) -> Any:
    """A field for a dropout rate."""
    return number(default, least=0, below=1, why="a dropout rate is at least 0 and below 1")


def choice(default: str, *others: str) -> Any:
    """A field for one of several words; the first is the default."""
    allowed = (default, *others)

    def check(value: Any) -> str | None:
        return None if value in allowed else f"it must be one of {', '.join(allowed)}"

    return field(default=default, metadata={_CHECK: check})


@dataclass(frozen=True)
class Paper:
    """Where the row was published. A task adds the figures its papers give, as ``float | None`` fields."""

    source: str = ""
    row: str = ""


@dataclass(frozen=True)
class Nothing:
    """A section without keys."""


@dataclass(frozen=True)
class Sections:
    """The dataclasses of a task's own sections; all their fields have defaults."""

    model: type
    data: type
    evaluate: type = Nothing
    paper: type = Paper


@dataclass(frozen=True)
class Posterior:
    """q(w) over the weights and its prior. Sigmas start between fractions of the prior's standard deviation.

    ``prior: normal`` is N(0, exp(log_sigma1)^2). Dropout is no kind of its own here: its rates are the model's.
    """

    kind: str = choice("none", "bayes_by_backprop", "sharpened")
    prior: str = choice("mixture", "normal")
    pi: float = number(0.25, above=0, below=1)
    log_sigma1: float = number(-1.0, least=-40, most=40)
    log_sigma2: float = number(-7.0, least=-40, most=40)
    group: str = choice("input", "weight")
    lstm_low: float = 0.25
    lstm_high: float = 0.5
    other_low: float = 0.5
    other_high: float = 1.0
    sigma0: float = positive(0.02)
    init_eta: float | None = number(None, least=0)
    eta_clip: float = positive(0.1)


@dataclass(frozen=True)
class Train:
    """The optimiser and its schedule.

    The learning rate of epoch e (from 1) and step i (from 0, over the whole run) is
    lr * decay^max(0, e - decay_after) * (1 + inverse_gamma * i)^-inverse_power.

    ``momentum`` is torch's: v = momentum * v + g, w -= lr * v. ``clip: null`` is no clipping. ``l2`` adds l2 * w to the
    clipped gradient (torch's weight_decay); ``weight_decay`` takes weight_decay * w off after the step, not multiplied
    by the learning rate (arXiv 1512.05287). With ``average_from`` the weights of all steps from that epoch on are
    averaged, and the averages are validated and kept; ``average_decay`` makes that an exponential average.
    ``save_every`` is in steps, ``patience`` in epochs without a better validation figure. ``shared_draw``: of several
    processes that train together all use one draw per step; otherwise each has its own.
    """

    epochs: int = positive(39)
    optimizer: str = choice("sgd", "adam")
    lr: float = positive(1.0)
    momentum: float = number(0.0, least=0, below=1)
    decay: float = number(1.0, above=0)
    decay_after: int = number(0, least=0)
    inverse_gamma: float = number(0.0, least=0)
    inverse_power: float = positive(0.75)
    clip: float | None = positive(5.0)
    weight_decay: float = number(0.0, least=0)
    l2: float = number(0.0, least=0)
    average_from: int | None = positive(None)
    average_decay: float | None = number(None, above=0, below=1)
    patience: int | None = positive(None)
    precision: str = choice("tf32", "fp32", "bf16")
    save_every: int = number(0, least=0)
    shared_draw: bool = False

    def __post_init__(self) -> None:
        if self.decay > 1:
            raise UserError(f"train.decay is {self.decay}; the learning rate is multiplied by it, so at most 1.")
        if self.optimizer == "adam" and self.momentum:
            raise UserError("train.momentum is for sgd; adam has its own, leave it at 0.")
        if self.average_decay is not None and self.average_from is None:
            raise UserError("train.average_decay needs train.average_from, the first epoch to average over.")


@dataclass(frozen=True)
class Recipe:
    """One published row: the task, its model and data, how it is trained, and what the paper got.

    The classes of ``paper``, ``model``, ``data`` and ``evaluate`` are the task's.
    """

    description: str
    table: str
    task: str
    paper: Any
    model: Any
    posterior: Posterior
    data: Any
    train: Train
    evaluate: Any

    def __post_init__(self) -> None:
        for part in dataclasses.fields(self):
            section = getattr(self, part.name)
            if dataclasses.is_dataclass(section):
                _check(section, f"{part.name}.")


def _check(section: Any, prefix: str) -> None:
    for item in dataclasses.fields(section):
        key, value = f"{prefix}{item.name}", getattr(section, item.name)
        if value is None:
            continue
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"{key} is {value}; it must be a finite number.")
        check: Callable[[Any], str | None] | None = item.metadata.get(_CHECK)
        most = _LAYERS if item.name == "layers" and isinstance(value, int) else _LARGEST
        for each in value if isinstance(value, tuple) else (value,):
            wrong = check(each) if check else None
            if isinstance(each, int) and abs(each) > most:
                wrong = f"it must be at most {most:,}"
            wrong = wrong or too_many_draws(item.name, each)
            if wrong:
                raise UserError(f"{key} is {shown(each)}; {wrong}.")


def too_many_draws(name: str, value: Any) -> str:
    """What is wrong with a number of draws, of a setting or an option by that name; empty: nothing.

    A run folder may be a stranger's, and each draw costs a pass over the data: the command would not end.
    """
    if not name.endswith("samples") or not isinstance(value, int) or value <= _DRAWS:
        return ""
    return f"it must be at most {_DRAWS:,}: each draw is a pass over all the data"


def flatten(recipe: Recipe) -> dict[str, Any]:
    """All values under dotted keys."""
    flat: dict[str, Any] = {}
    for name, value in dataclasses.asdict(recipe).items():
        if isinstance(value, dict):
            flat.update({f"{name}.{key}": inner for key, inner in value.items()})
        else:
            flat[name] = value
    return flat


def from_dict(values: Any, *, where: str) -> Recipe:
    """A recipe from parsed YAML or JSON; keys that do not exist are refused with the nearest that does."""
    from bayesrnn.lab.tasks.base import task_class

    if not isinstance(values, dict):
        raise UserError(f"{where}: the recipe must be a set of keys and values.")
    name = values.get("task", "language")
    own = task_class(name if isinstance(name, str) and len(name) <= 60 else shown(name)).sections
    kinds: dict[str, Any] = {
        "description": str,
        "table": str,
        "task": str,
        "paper": own.paper,
        "model": own.model,
        "posterior": Posterior,
        "data": own.data,
        "train": Train,
        "evaluate": own.evaluate,
    }
    made = {"description": "", "table": "", "task": name, **_values(kinds, values, where, "")}
    for key, kind in kinds.items():
        if key not in made:
            made[key] = kind()
    return Recipe(**made)


def _values(kinds: dict[str, Any], values: Any, where: str, prefix: str) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise UserError(f"{where}: {prefix.rstrip('.') or 'the recipe'} must be a set of keys and values.")
    made = {}
    for key, value in values.items():
        if key not in kinds:
            name = key if isinstance(key, str) and len(key) <= 60 and key.isprintable() else shown(key)
            raise UserError(_sentence(f"{where}: there is no key {prefix}{name}{_nearest(name, list(kinds), prefix)}"))
        if dataclasses.is_dataclass(kinds[key]):
            hints = typing.get_type_hints(kinds[key])
            made[key] = kinds[key](**_values(hints, value, where, f"{prefix}{key}."))
        else:
            made[key] = _typed(value, kinds[key], f"{prefix}{key}", where)
    return made


def _nearest(key: str, names: list[str], prefix: str = "") -> str:
    near = _near(key, names)
    if near:
        return f"; did you mean {prefix}{near}?"
    where = prefix.rstrip(".") or "a recipe"
    return f"; {where} has {', '.join(names) or 'no keys'}"


def _sentence(text: str) -> str:
    return text if text.endswith("?") else f"{text}."


def _near(key: str, names: list[str]) -> str:
    """The name that the key is a slip of; empty: none is that near."""
    found = difflib.get_close_matches(key[:60], names, n=1, cutoff=0.65)
    return found[0] if found else ""


def _typed(value: Any, kind: Any, key: str, where: str) -> Any:
    """The value as its field's type: int, float, bool, str, a tuple of one of them, or None where that is allowed."""
    if isinstance(kind, types.UnionType):
        if value is None:
            return None
        kind = next(k for k in typing.get_args(kind) if k is not type(None))
    if typing.get_origin(kind) is tuple:
        inner = typing.get_args(kind)[0]
        if not isinstance(value, list | tuple):
            raise UserError(f"{where}: {key} must be a list, such as [{_NAMES[inner]}, …], got {shown(value)}.")
        return tuple(_typed(each, inner, key, where) for each in value)
    if kind is float and isinstance(value, str) and _FLOAT.fullmatch(value):  # YAML 1.1 reads 1e-7 as a word
        value = float(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**300:
        value = float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise UserError(f"{where}: {key} must be {_NAMES[kind]}, got {shown(value)}.")
    return value


def kind_of(recipe: Recipe, key: str) -> type:
    """The type of a value by its full dotted key, None aside: int, float, bool, str or tuple."""
    section, _, leaf = key.rpartition(".")
    kind: Any = typing.get_type_hints(type(getattr(recipe, section) if section else recipe))[leaf]
    if isinstance(kind, types.UnionType):
        kind = next(k for k in typing.get_args(kind) if k is not type(None))
    return typing.get_origin(kind) or kind


def full_key(recipe: Recipe, key: str) -> str:
    """The dotted key that ``key`` means: itself, or the only one that ends with it."""
    known = list(flatten(recipe))
    if key in known:
        return key
    ends = [k for k in known if k.rpartition(".")[2] == key]
    if len(ends) > 1:
        raise UserError(f"{key} is in several sections; write one of {', '.join(ends)}.")
    if ends:
        return ends[0]
    name = key if len(key) <= 60 and key.isprintable() else shown(key)
    raise UserError(_sentence(f"There is no key {name}{_known(recipe, key, known)}"))


def _known(recipe: Recipe, key: str, known: list[str]) -> str:
    """What may have been meant by an unknown dotted key: the nearest, if one is near, or what there is."""
    sections = [name for name, value in vars(recipe).items() if dataclasses.is_dataclass(value)]
    there = f"sections are {', '.join(sections)}"
    section, dot, leaf = key.partition(".")
    if key in sections:
        return f"; it is a section, and has {_names(recipe, key)}"
    if not dot:
        shorts = {k.rpartition(".")[2]: k for k in known}
        near = _near(key, list(shorts))
        return f"; did you mean {shorts[near]}?" if near else f"; keys are written SECTION.KEY, and {there}"
    if elsewhere := [k for k in known if k.endswith(f".{leaf}") and not k.startswith("paper.")]:
        return f"; did you mean {' or '.join(elsewhere)}?"
    if section in sections:
        near = _near(leaf, [k.removeprefix(f"{section}.") for k in known if k.startswith(f"{section}.")])
        return f"; did you mean {section}.{near}?" if near else f"; {section} has {_names(recipe, section)}"
    return f"; {there}"


def _names(recipe: Recipe, section: str) -> str:
    return ", ".join(item.name for item in dataclasses.fields(getattr(recipe, section))) or "no keys"


def override(recipe: Recipe, assignments: list[str]) -> Recipe:
    """The recipe with ``key=value`` applied: dotted keys, or the last part alone where it is the only one."""
    values = dataclasses.asdict(recipe)
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UserError(f"{shown(text)} is no override; write key=value, such as train.epochs=2.")
        full = full_key(recipe, key)
        if full == "task":
            raise UserError("The task of a recipe cannot be overridden; choose a recipe of that task.")
        section, _, leaf = full.rpartition(".")
        if section == "paper":
            raise UserError(f"{full} is what was published, and cannot be overridden.")
        parsed = load_yaml(value, where=f"The value of {full} cannot be read: {shown(value)}")
        (values[section] if section else values)[leaf] = parsed
    return from_dict(values, where="override")
