"""What a recipe may say: one dataclass per section, every key known, every value checked."""

import contextlib
import dataclasses
import difflib
import math
import types
import typing
from dataclasses import dataclass, field
from typing import Any

from bayesrnn.errors import UserError

_CHOICES = {
    "posterior.kind": ("none", "bayes_by_backprop", "sharpened"),
    "posterior.group": ("input", "weight"),
    "train.optimizer": ("sgd", "adam"),
    "train.precision": ("tf32", "fp32", "bf16"),
}
_RATES = tuple(f"model.{part}_dropout" for part in ("word", "input", "recurrent", "output", "cell", "weight", "step"))
_POSITIVE = (
    "model.hidden model.layers model.init posterior.sigma0 posterior.pi posterior.eta_clip "
    "data.batch_size data.window data.min_count "
    "train.epochs train.lr train.decay train.clip train.patience "
    "evaluate.samples evaluate.dynamic_lr evaluate.dynamic_window"
).split()
_NOT_NEGATIVE = ("train.weight_decay", "train.decay_after", "train.save_every", "posterior.init_eta")


@dataclass(frozen=True)
class Paper:
    """The published figures of this row; None where the paper has none."""

    source: str = ""
    row: str = ""
    valid: float | None = None
    test: float | None = None
    test_mc: float | None = None
    valid_dynamic: float | None = None
    test_dynamic: float | None = None
    entropy_gap: float | None = None
    entropy_gap_mean: float | None = None
    words_per_second: float | None = None


@dataclass(frozen=True)
class Model:
    """Embedding, LSTM layers and decoder of one width; rates of the noise in them."""

    hidden: int = 650
    layers: int = 2
    tied: bool = False
    init: float = 0.05
    word_dropout: float = 0.0
    input_dropout: float = 0.0
    recurrent_dropout: float = 0.0
    output_dropout: float = 0.0
    cell_dropout: float = 0.0
    weight_dropout: float = 0.0
    step_dropout: float = 0.0
    tied_masks: bool = True


@dataclass(frozen=True)
class Posterior:
    """q(w) over the weights and its prior. Sigmas start between fractions of the prior's standard deviation."""

    kind: str = "none"
    pi: float = 0.25
    log_sigma1: float = -1.0
    log_sigma2: float = -7.0
    group: str = "input"
    lstm_low: float = 0.25
    lstm_high: float = 0.5
    other_low: float = 0.5
    other_high: float = 1.0
    sigma0: float = 0.02
    init_eta: float | None = None
    eta_clip: float = 0.1


@dataclass(frozen=True)
class Data:
    """How the text is cut."""

    batch_size: int = 20
    window: int = 35
    carry_state: bool = True
    min_count: int = 1


@dataclass(frozen=True)
class Train:
    """The optimiser and its schedule: the learning rate is lr * decay^max(0, epoch - decay_after)."""

    epochs: int = 39
    optimizer: str = "sgd"
    lr: float = 1.0
    decay: float = 1.0
    decay_after: int = 0
    clip: float = 5.0
    weight_decay: float = 0.0
    patience: int | None = None
    precision: str = "tf32"
    save_every: int = 0


@dataclass(frozen=True)
class Evaluate:
    """Defaults of ``bayesrnn evaluate``."""

    samples: int = 50
    dynamic_lr: float = 0.1
    dynamic_window: int = 35


@dataclass(frozen=True)
class Recipe:
    """One published row: the model, how it is trained, and what the paper got."""

    description: str = ""
    table: str = ""
    paper: Paper = field(default_factory=Paper)
    model: Model = field(default_factory=Model)
    posterior: Posterior = field(default_factory=Posterior)
    data: Data = field(default_factory=Data)
    train: Train = field(default_factory=Train)
    evaluate: Evaluate = field(default_factory=Evaluate)

    def __post_init__(self) -> None:
        values = flatten(self)
        for key, allowed in _CHOICES.items():
            if values[key] not in allowed:
                raise UserError(f"{key} is {values[key]!r}; it must be one of {', '.join(allowed)}.")
        for key, value in values.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise UserError(f"{key} is {value}; it must be a finite number.")
        for key in _RATES:
            if not 0 <= values[key] < 1:
                raise UserError(f"{key} is {values[key]}; a dropout rate is at least 0 and below 1.")
        for key in _POSITIVE:
            if values[key] is not None and not values[key] > 0:
                raise UserError(f"{key} is {values[key]}; it must be more than 0.")
        for key in _NOT_NEGATIVE:
            if values[key] is not None and values[key] < 0:
                raise UserError(f"{key} is {values[key]}; it must be at least 0.")
        if not self.posterior.pi < 1:
            raise UserError(f"posterior.pi is {self.posterior.pi}; it must be below 1.")
        if self.train.decay > 1:
            raise UserError(f"train.decay is {self.train.decay}; the learning rate is multiplied by it, so at most 1.")


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
    recipe: Recipe = _build(Recipe, values, where, "")
    return recipe


def _build(kind: Any, values: Any, where: str, prefix: str) -> Any:
    if not isinstance(values, dict):
        raise UserError(f"{where}: {prefix.rstrip('.') or 'the recipe'} must be a set of keys and values.")
    hints = typing.get_type_hints(kind)
    made = {}
    for key, value in values.items():
        if key not in hints:
            raise UserError(f"{where}: there is no key {prefix}{key}{_nearest(str(key), list(hints), prefix)}.")
        if dataclasses.is_dataclass(hints[key]):
            made[key] = _build(hints[key], value, where, f"{prefix}{key}.")
        else:
            made[key] = _typed(value, hints[key], f"{prefix}{key}", where)
    return kind(**made)


def _nearest(key: str, names: list[str], prefix: str = "") -> str:
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.4)
    return f"; did you mean {prefix}{near[0]}?" if near else ""


def _typed(value: Any, kind: Any, key: str, where: str) -> Any:
    optional = isinstance(kind, types.UnionType)
    if optional:
        if value is None:
            return None
        kind = next(k for k in typing.get_args(kind) if k is not type(None))
    if kind is float and isinstance(value, str):  # YAML reads 1e-7 as a word
        with contextlib.suppress(ValueError):
            value = float(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
        raise UserError(f"{where}: {key} must be {names[kind]}, got {value!r}.")
    return value


def override(recipe: Recipe, assignments: list[str]) -> Recipe:
    """The recipe with ``key=value`` applied: dotted keys, or the last part alone where it is the only one."""
    import yaml

    known = list(flatten(recipe))
    values = dataclasses.asdict(recipe)
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"{text!r} is no override; write key=value, such as train.epochs=2.")
        full = key if key in known else None
        if full is None:
            ends = [k for k in known if k.rpartition(".")[2] == key]
            if len(ends) > 1:
                raise UserError(f"{key} is in several sections; write one of {', '.join(ends)}.")
            full = ends[0] if ends else None
        if full is None:
            shorts = {k.rpartition(".")[2]: k for k in known}
            near = difflib.get_close_matches(key, [*known, *shorts], n=1, cutoff=0.4)
            hint = f"; did you mean {shorts.get(near[0], near[0])}?" if near else ""
            raise UserError(f"There is no key {key}{hint or '.'}")
        section, _, leaf = full.rpartition(".")
        try:
            parsed = yaml.safe_load(value)
        except yaml.YAMLError:
            raise UserError(f"The value of {full} cannot be read: {value!r}.") from None
        (values[section] if section else values)[leaf] = parsed
    return from_dict(values, where="override")
