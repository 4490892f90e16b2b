"""The settings of a recipe: one frozen pydantic model per section, with a description and bounds for every field.

``posterior`` and ``train`` are the same for all tasks. A task declares ``model``, ``data``, ``evaluate`` and ``paper``
as subclasses of :class:`Section` and lists them in :class:`Sections`; every field needs a default::

    class Model(Section):
        hidden: Count = Field(650, description="units of each layer")
        input_dropout: Rate = Field(0.0, description="dropout rate of each layer's input")
        cell: Literal["lstm", "gru"] = Field("lstm", description="recurrent layer")
        patience: Count | None = Field(None, description="epochs without improvement before stopping")
"""

import functools
import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model, model_validator

from bayesrnn.errors import UserError
from bayesrnn.lab.registry import UNNAMED

MOST_DRAWS = 100_000
_LARGEST = 10**9
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


def _real(value: Any) -> Any:
    """Whole numbers, and text such as 1e-7 (a word to YAML 1.1), become floats."""
    if isinstance(value, str) and _FLOAT.fullmatch(value):
        return float(value)
    whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**300
    return float(value) if whole else value


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


_READ = BeforeValidator(_real)  # last, so that bounds see its result
Real = Annotated[float, Field(allow_inf_nan=False), _READ]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False), _READ]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), _READ]
Share = Annotated[float, Field(gt=0, lt=1), _READ]
Rate = Annotated[float, Field(ge=0, lt=1), _READ]
KLWeight = Annotated[
    float, Field(gt=0, le=1, description="factor of the KL: 1 is the ELBO, less a cold posterior"), _READ
]
Whole = Annotated[int, Field(ge=0, le=_LARGEST)]
Count = Annotated[int, Field(gt=0, le=_LARGEST)]
Layers = Annotated[int, Field(gt=0, le=1000)]
Draws = Annotated[int, Field(gt=0, le=MOST_DRAWS)]
DrawsOrNone = Annotated[int, Field(ge=0, le=MOST_DRAWS)]
Counts = Annotated[tuple[Count, ...], BeforeValidator(_tuple)]
NotNegatives = Annotated[tuple[NotNegative, ...], BeforeValidator(_tuple)]


class Section(BaseModel):
    """Base class of all sections: values cannot be changed, unknown keys and values of another type are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Paper(Section):
    """Where the row was published. A task adds the values that its papers report, as ``Real | None`` fields."""

    source: str = Field("", description="the paper and its table")
    row: str = Field("", description="the row's name in that table")


class WordLayers(Section):
    """The dropout rates of an embedding and recurrent layers."""

    word_dropout: Rate = Field(0.0, description="rate at which word types are dropped per sequence (p_E)")
    input_dropout: Rate = Field(0.0, description="dropout rate of each layer's input, one mask per sequence (p_W)")
    recurrent_dropout: Rate = Field(0.0, description="dropout rate of h in the recurrent product (p_U)")
    output_dropout: Rate = Field(0.0, description="dropout rate before the output layer, one mask per sequence")
    step_dropout: Rate = Field(0.0, description="ordinary dropout of layers' inputs and outputs, new at each step")


class Nothing(Section):
    """A section without keys."""


class PosteriorSettings(Section):
    """The posterior q(w) over the weights, and its prior."""

    kind: Literal["none", "bayes_by_backprop", "sharpened"] = Field(
        "none", description="posterior over the weights; dropout is not one of these, its rates are in model"
    )
    prior: Literal["mixture", "normal"] = Field(
        "mixture", description="scale mixture of two Gaussians, or N(0, exp(log_sigma1)^2)"
    )
    pi: Share = Field(0.25, description="weight of the mixture's first Gaussian")
    log_sigma1: Real = Field(-1.0, ge=-40, le=40, description="log standard deviation of the first Gaussian")
    log_sigma2: Real = Field(-7.0, ge=-40, le=40, description="log standard deviation of the second Gaussian")
    group: Literal["input", "weight"] = Field(
        "input", description="the mixture chooses a Gaussian once per input unit, or once per weight"
    )
    lstm_low: Real = Field(0.25, description="lowest initial sigma of recurrent weights, as a part of the prior's")
    lstm_high: Real = Field(0.5, description="highest initial sigma of recurrent weights, as a part of the prior's")
    other_low: Real = Field(0.5, description="lowest initial sigma of all other weights, as a part of the prior's")
    other_high: Real = Field(1.0, description="highest initial sigma of all other weights, as a part of the prior's")
    sigma0: Positive = Field(0.02, description="standard deviation of the sharpened posterior around its mean")
    init_eta: NotNegative | None = Field(None, description="first step size of sharpening; null: chosen by the library")
    eta_clip: Positive = Field(0.1, description="largest norm of the gradient of the step sizes of sharpening")


class Train(Section):
    """The optimiser and its schedule.

    The learning rate of epoch e (from 1) and step i (from 0, over the whole run) is
    lr * decay^max(0, e - decay_after) * (1 + inverse_gamma * i)^-inverse_power, times
    (1 + cos(pi (e - cosine_from) / (epochs + 1 - cosine_from))) / 2 from epoch ``cosine_from`` on.
    """

    epochs: Count = Field(39, description="passes over the training data")
    optimizer: Literal["sgd", "adam", "adamw"] = Field(
        "sgd", description="optimiser; adamw is adam with l2 * w added to its step instead of to the gradient"
    )
    lr: Positive = Field(1.0, description="learning rate of the first epoch")
    momentum: Rate = Field(0.0, description="momentum of sgd: v = momentum * v + g, w -= lr * v")
    decay: Positive = Field(1.0, description="factor of the learning rate per epoch after decay_after, at most 1")
    decay_after: Whole = Field(0, description="last epoch with the first learning rate")
    inverse_gamma: NotNegative = Field(0.0, description="lr is multiplied by (1 + inverse_gamma * step)^-inverse_power")
    inverse_power: Positive = Field(0.75, description="exponent of the inverse decay of lr, see inverse_gamma")
    cosine_from: Count | None = Field(
        None, description="from this epoch on lr falls along half a cosine, which would end at 0 after the last epoch"
    )
    clip: Positive | None = Field(5.0, description="largest norm of the gradient; null: no clipping")
    weight_decay: NotNegative = Field(
        0.0, description="part of each weight subtracted after a step, not multiplied by lr (arXiv 1512.05287)"
    )
    l2: NotNegative = Field(0.0, description="l2 * w is added to the clipped gradient, like torch's weight_decay")
    average_from: Count | None = Field(
        None, description="average the weights of all steps from this epoch on; the averages are validated and kept"
    )
    average_stall: Count | None = Field(
        None,
        description="begin to average after an epoch whose validation result is worse than the best one of more than "
        "this many epochs before (non-monotone trigger, arXiv 1708.02182)",
    )
    average_restarts: Counts = Field(
        (), description="epochs that start from the averaged weights, and average anew from there"
    )
    average_decay: Share | None = Field(None, description="decay of an exponential average; null: a plain mean")
    patience: Count | None = Field(None, description="stop after this many epochs without a better validation result")
    precision: Literal["tf32", "fp32", "bf16"] = Field("tf32", description="arithmetic on a GPU; a CPU uses float32")
    save_every: Whole = Field(0, description="steps between checkpoints inside an epoch; 0: only after epochs")
    shared_draw: bool = Field(False, description="processes that train together use one draw of the weights per step")

    @property
    def averages(self) -> bool:
        """Whether weights are averaged, at least in some epochs."""
        return self.average_from is not None or self.average_stall is not None

    @model_validator(mode="after")
    def _fits_together(self) -> "Train":
        if self.decay > 1:
            raise UserError(f"train.decay is {self.decay}; the learning rate is multiplied by it, so at most 1.")
        if self.optimizer != "sgd" and self.momentum:
            raise UserError(f"train.momentum is for sgd; {self.optimizer} has its own, so set it to 0.")
        for name in ("average_decay", "average_restarts"):
            if getattr(self, name) and not self.averages:
                raise UserError(f"train.{name} needs train.average_from, the first epoch to average over.")
        return self


@dataclass(frozen=True)
class Sections:
    """The sections of a recipe that a task declares."""

    model: type[Section]
    data: type[Section]
    evaluate: type[Section] = Nothing
    paper: type[Section] = Paper


class Recipe(Section):
    """One published row: the task, its model and data, how it is trained, and the paper's results."""

    description: str = Field("", description="the system in one line")
    table: str = Field("", description="published table that the row belongs to, for `bayesrnn reproduce`")
    task: str = Field(UNNAMED, description="what the model learns")
    paper: Any = Field(description="published results; they cannot be overridden")
    model: Any = Field(description="the network and its dropout rates")
    posterior: PosteriorSettings = Field(PosteriorSettings(), description="posterior over the weights, and prior")
    data: Any = Field(description="how the data is read and cut")
    train: Train = Field(Train(), description="optimiser and schedule")
    evaluate: Any = Field(description="defaults of `bayesrnn evaluate`")


@functools.cache
def recipe_model(task: str, sections: Sections) -> type[Recipe]:
    """The model of a task's recipes: :class:`Recipe` with the task's own sections."""
    own: dict[str, Any] = {}
    for name, cls in vars(sections).items():
        without = [key for key, field in cls.model_fields.items() if field.is_required()]
        if without:
            raise UserError(f"The setting {name}.{without[0]} of the task {task} has no default; give it one.")
        own[name] = (cls, Field(cls(), description=Recipe.model_fields[name].description))
    known = Recipe.model_fields["task"]
    default = ... if task != known.default else task
    own["task"] = (Literal[task], Field(default, description=known.description))
    return create_model(f"{task.capitalize()}Recipe", __base__=Recipe, **own)
