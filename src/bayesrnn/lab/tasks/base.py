"""What the engine trains: the interface of a task, and helpers for writing one.

A task joins data, model, likelihood and metrics; a recipe selects it with ``task: NAME``. What happens in a run:

    bayesrnn train RECIPE     task = task_class(recipe.task)(recipe, data, device)    reads the data; moves it once
                              torch.manual_seed(seed)
                              task.attach(task.build(recipe, task.files()).to(device))
                              every epoch: task.start_epoch(epoch), then task.steps times:
                                  task.fetch(step)                                    if the data is elsewhere
                                  batch = task.batch(position)                        on CUDA these lines are
                                  loss, terms, state = task.objective(batch, state)   recorded once, as one graph
                                  clip, update, copy the state, add up the terms
                              after every epoch: task.validate()
                              at the end, with the best weights: task.final()
    bayesrnn evaluate RUN     the same task with the best weights: task.evaluate(**options)

The engine does the rest: optimisers, schedules, checkpoints, CUDA graphs, the run folder and the record.

Three rules make one step one CUDA graph. They hold for ``batch`` and ``objective``, and cost nothing elsewhere:

1. The data lies on the device before training; a step selects from it by a position *tensor* (``index_select``).
2. All shapes are the same at every step.
3. No value is read back (no ``float(tensor)``, ``.item()``, ``if tensor``); randomness is torch's global generator.

A task with minibatches of independent examples gets 1 and 2 from :class:`Minibatches`.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

import bayesrnn as br
from bayesrnn.elbo import ELBO, Terms
from bayesrnn.errors import UserError
from bayesrnn.lab.cards import Card
from bayesrnn.lab.explore.panel import Panel
from bayesrnn.lab.metrics import Metric
from bayesrnn.lab.modules import evaluating as evaluating
from bayesrnn.lab.modules import weights_digest as weights_digest
from bayesrnn.lab.reading import counted, is_number
from bayesrnn.lab.recipes.schema import PosteriorSettings, Recipe, Sections
from bayesrnn.lab.registry import TASKS as TASKS
from bayesrnn.lab.registry import task_class as task_class
from bayesrnn.lab.runs.folder import Files as Files
from bayesrnn.lab.runs.opening import OpenedRun
from bayesrnn.lab.tasks.minibatches import Minibatches as Minibatches
from bayesrnn.lab.tasks.signature import Signature
from bayesrnn.likelihoods import Likelihood

Say = Callable[[str], None]
State = tuple[Tensor, ...]
NO_DRAWS = "{} is for draws, and this run has none: its model has no noise; omit it."
"""What commands say to an option about draws."""


def merge_draws(kept: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics of a run with those of a later evaluation, which win where both have one.

    An evaluation of the posterior mean (``samples`` is 0) removes the metrics of draws, whose names contain ``_mc``.
    """
    stale = {key for key in kept if key == "draws_seed" or "_mc" in key} if new.get("samples") == 0 else set()
    return {**{key: value for key, value in kept.items() if key not in stale}, **new}


def is_random(recipe: Recipe) -> bool:
    """Whether draws of a recipe's model differ: it has a posterior, or a dropout rate above 0."""
    rates = (value for name, value in recipe.model if name.endswith("dropout"))
    return recipe.posterior.kind != "none" or any(rates)


class Task:
    """One task on one data set, for one recipe. Members without a default here must be given.

    Args:
        recipe: the settings; ``recipe.model``, ``.data``, ``.evaluate`` and ``.paper`` are this task's own sections.
        data: the value of ``--data``; None: the task's own data. Unusable data is a :class:`UserError`.
        device: where all tensors go.
    """

    sections: ClassVar[Sections]
    """The recipe's sections that are this task's own."""
    metric: ClassVar[str]
    """The metric of :meth:`validate` that chooses the best epoch, such as ``valid_rmse``; lower is better."""
    unit: ClassVar[str] = "examples"
    """What ``examples_per_step`` counts: words, images, windows. Speeds are recorded as ``{unit}_per_second``."""
    source: ClassVar[str] = "data"
    """What a user calls the data, for messages: text, reviews, images, series."""
    default_data: ClassVar[str] = ""
    """The name of the data that ``data=None`` means, for the record; empty: there is none."""
    runs_called: ClassVar[str] = "runs of this task"
    """What several runs are called in messages: language models, forecasts."""
    command: ClassVar[str] = "evaluate"
    """The command that a run of this task is mostly used with."""
    artifacts: ClassVar[tuple[str, ...]] = ()
    """Files that ``bayesrnn evaluate`` writes into the run folder besides its metrics; JSON that names the program."""
    card: ClassVar[Card] = Card()
    """What the card of an exported model says."""
    private: ClassVar[tuple[str, ...]] = ()
    """Names among :meth:`files` that hold the data itself; they are not exported with a model."""
    keeps_data: ClassVar[bool] = False
    """Whether :meth:`files` hold all data, so that :meth:`for_run` with ``data=None`` needs nothing else."""
    metrics: ClassVar[Sequence[Metric]] = ()
    """What runs are compared by, in the order of a table; those with a ``paper_key`` stand beside the paper's value."""
    scaled: ClassVar[Sequence[str]] = ()
    """Metrics that are not in the unit of the data, though their names are those of metrics that are."""
    details: ClassVar[Sequence[Metric]] = ()
    """Further metrics, which a report folds away."""
    conditions: ClassVar[Sequence[str]] = ("samples", "draws_seed")
    """Keys among a record's metrics that say how the others were measured."""
    draw_options: ClassVar[Sequence[str]] = ("samples",)
    """Options of ``bayesrnn evaluate`` that are about draws, and are refused for a model without noise."""
    report_sections: ClassVar[Sequence[str | Callable[..., None]]] = ()
    """Further sections of a report: functions as in :mod:`bayesrnn.lab.report.sections`, or ``module:function``."""
    commands: ClassVar[Mapping[str, str | Callable[..., Any]]] = {}
    """Further commands of ``bayesrnn``: names to functions for typer, or ``module:function``; see ``TASKS``."""
    panel: ClassVar[str | type[Panel] | None] = None
    """The panel of ``bayesrnn explore``: a class as in :mod:`bayesrnn.lab.explore.panel`, or ``module:class``."""

    model: nn.Module
    folder: Path | None = None
    """The run folder while a run is evaluated, for :attr:`artifacts`; None while it is trained."""
    steps: int
    """Steps per epoch."""
    batch_size: int
    """Sequences, images, … in a step: the rows of a batch."""
    examples_per_step: int
    """Targets in a step; for a language model words, batch_size * window. ``terms.nll`` is a sum over these."""
    random: bool = True
    """Whether draws of the model differ. False: `bayesrnn evaluate` refuses options about draws."""
    limit: float = math.inf
    """The run has diverged if -log p per target, averaged over the epoch so far, is above this."""
    first_best: int = 1
    """The first epoch that may be the best one."""
    masks: Mapping[str, Tensor] = {}
    """Parameter names to tensors, 1 for the entries that are trained, 0 for those that stay 0; read at every step."""

    def __init__(self, recipe: Recipe, data: str | None, device: torch.device) -> None:
        self.recipe, self.device = recipe, device

    @classmethod
    def for_run(cls, recipe: Recipe, data: str | None, device: torch.device, files: Files) -> "Task":
        """The task on data that need not be the run's own; override to read them with the run's :meth:`files`."""
        return cls(recipe, data, device)

    @classmethod
    def remark(cls, metrics: Mapping[str, Any]) -> str:
        """A sentence on a finished run for the line at the end of training; empty: nothing."""
        return ""

    def unknown_words(self) -> str:
        """A sentence on what the run's files lack of this data; empty: nothing."""
        return ""

    @classmethod
    def compared(cls, recipe: Recipe) -> str:
        """The metric of :meth:`validate`, at the best epoch, that a sweep compares."""
        return cls.metric

    @staticmethod
    def build(recipe: Recipe, files: Files) -> nn.Module:
        """The model with its initial weights, on the CPU; made of the recipe and the run's :meth:`files` alone."""
        raise NotImplementedError

    def split(self, rows: slice) -> None:
        """Keep only these rows of every batch: the part of this process, if several train one model together.

        Called before :meth:`attach`; sizes and the divisor of the KL stay. The losses of all parts are averaged, so the
        loss must be a mean over the rows of this part (see :meth:`Minibatches.whole`). Tasks with ``minibatches`` need
        not override this.
        """
        if (minibatches := self._minibatches()) is None:
            raise UserError(f"A {self.recipe.task} run cannot be shared by several processes.")
        minibatches.rows = rows

    def _minibatches(self) -> Minibatches | None:
        found = vars(self).get("minibatches")
        return found if isinstance(found, Minibatches) else None

    def attach(self, model: nn.Module) -> None:
        """Take the model, which is on the device. Override, and call this, to make the objective."""
        self.model = model

    def best_weights(self) -> AbstractContextManager[None]:
        """Inside, the model has the weights to save for the best epoch."""
        return nullcontext()

    def files(self) -> dict[str, bytes]:
        """Files of the data that the model needs, by name: a vocabulary, a scale. The run folder keeps them."""
        return {}

    def content(self) -> Iterable[Tensor | bytes]:
        """The data for :meth:`digest`, as it was read, in a fixed order, before :meth:`split`.

        By default the :meth:`files`, and the tensors of ``minibatches``, ``valid`` and ``test``.
        """
        yield from self.files().values()
        minibatches = self._minibatches()
        yield from minibatches.data if minibatches is not None else ()
        for name in ("valid", "test"):
            found = vars(self).get(name, ())
            yield from (t for t in (found if isinstance(found, tuple | list) else (found,)) if isinstance(t, Tensor))

    def digest(self) -> str:
        """A digest of the data: a run is resumed, and shared by several processes, only where it is the same."""
        found = hashlib.sha256()
        for part in self.content():
            if isinstance(part, Tensor):
                part = part.detach().cpu()
                found.update(f"{part.dtype} {tuple(part.shape)}\n".encode())
                found.update(part.contiguous().reshape(-1).view(torch.uint8).numpy().data)
            else:
                found.update(f"{len(part)}\n".encode() + part)
        return found.hexdigest()[:32]

    def tensors(self) -> dict[str, Tensor]:
        """Further tensors for a checkpoint, by name; loading copies into them (default: those of ``minibatches``)."""
        minibatches = self._minibatches()
        return {} if minibatches is None else minibatches.tensors()

    def state(self) -> State:
        """What one step hands to the next, at the start of an epoch: zeros. The engine carries it."""
        return ()

    def start_epoch(self, epoch: int) -> None:
        """Called before the first step of each epoch (from 1), not when one is resumed; shuffles ``minibatches``."""
        if (minibatches := self._minibatches()) is not None:
            minibatches.shuffle()

    def fetch(self, step: int) -> None:
        """Called before each step with its number if the data is not on the device: copies a batch to fixed tensors."""

    def batch(self, position: Tensor) -> Any:
        """The batch of a step of this epoch; ``position`` is its number from 0, a long scalar on the device."""
        raise NotImplementedError

    def objective(self, batch: Any, state: State) -> tuple[Tensor, Terms, State]:
        """The loss to minimise, its terms as unscaled sums (they are only reported), and the next state."""
        raise NotImplementedError

    def training(self, totals: Mapping[str, float]) -> dict[str, float]:
        """Training metrics from means per step of loss, nll, kl and sharpening; the first is shown while training."""
        return {"train_nll": totals["nll"] / self.examples_per_step, "kl": totals["kl"]}

    def validate(self) -> dict[str, Any]:
        """Metrics after an epoch, :attr:`metric` among them; the model is in eval mode. Each key is a curve.

        Give draws a seed (``br.predict(..., seed=)``).
        """
        raise NotImplementedError

    def evaluation_seconds(self) -> tuple[float, float] | None:
        """How long :meth:`validate` and :meth:`final` will take, measured on small parts; None: not known."""
        return None

    def final(self) -> dict[str, Any]:
        """Metrics of the finished run for its record, with the best weights, in eval mode."""
        return self.validate()

    def evaluate(self, *, samples: int | None = None, seed: int = 1, say: Say = lambda text: None) -> dict[str, Any]:
        """What ``bayesrnn evaluate`` measures, with the best weights, in eval mode.

        Keyword parameters are the command's options: ``beam: int = 3`` is ``--beam 3``, a bool is a flag; int, float,
        bool and str (or None) are possible. ``say`` receives progress. ``samples=None`` means the recipe's. Lists and
        dicts among the metrics are written but not shown.
        """
        return self.final()

    @staticmethod
    def merge_metrics(kept: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
        """A record's metrics with those of a later evaluation."""
        return merge_draws(kept, new)

    @staticmethod
    def carried_metrics(kept: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
        """Metrics of the record that evaluation.json repeats beside the new ones."""
        return {}

    @staticmethod
    def report_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
        """A record's metrics under the names that a report shows."""
        return dict(metrics)

    @classmethod
    def paper_values(cls, settings: Mapping[str, Any]) -> dict[str, float]:
        """Published values in a recipe's settings, by the metric that each is to be compared with."""
        paper = settings.get("paper")
        values = paper if isinstance(paper, dict) else {}
        found = {metric.key: values.get(metric.paper_key) for metric in cls.metrics if metric.paper_key}
        return {key: float(value) for key, value in found.items() if value is not None and is_number(value)}

    @staticmethod
    def table(metrics: Mapping[str, Any]) -> dict[str, Any]:
        """The rows that ``bayesrnn evaluate`` prints, by name: all metrics that are not lists or dicts."""
        return {key: value for key, value in metrics.items() if not isinstance(value, list | dict)}

    @staticmethod
    def remarks(metrics: Mapping[str, Any]) -> list[str]:
        """Sentences that ``bayesrnn evaluate`` prints below the table."""
        return []

    @staticmethod
    def analyse(run: OpenedRun, known: Mapping[str, Any], say: Say) -> dict[str, Any]:
        """What a report computes from a run's weights for this task's sections; ``known`` are the record's metrics."""
        return {}

    @staticmethod
    def exported(model: nn.Module) -> nn.Module:
        """The part of a trained model that predictions need."""
        return model

    @staticmethod
    def weights(model: nn.Module) -> nn.Module:
        """The part of a trained model whose weights, and posterior, a report and ``explore`` show."""
        return model

    @classmethod
    def signature(cls, run: OpenedRun) -> Signature:
        """How the model is called, for ``bayesrnn export``."""
        raise UserError(f"The task {run.recipe.task} has no signature(), which this format needs; use --format torch.")

    def describe(self) -> str:
        """One line on the data, said at the start."""
        return f"{counted(self.steps, 'step')} of {self.examples_per_step:,} {self.unit} per epoch on {self.device}."

    def about(self) -> dict[str, Any]:
        """More keys for the record: what the data is made of."""
        return {}


def posterior(
    plain: nn.Module,
    settings: PosteriorSettings,
    *,
    recurrent: str | None = None,
    exclude: str | list[str] | None = None,
) -> nn.Module:
    """The module with the posterior of a recipe; the module itself if its kind is "none".

    Args:
        recurrent: name pattern of the weights that start with the sigmas of ``lstm_low`` and ``lstm_high``; all others
            start between ``other_low`` and ``other_high``, in units of the prior's standard deviation.
        exclude: name patterns of parameters that stay ordinary.
    """
    if settings.kind == "none":
        return plain
    first, second = math.exp(settings.log_sigma1), math.exp(settings.log_sigma2)
    mixture = br.ScaleMixture(settings.pi, first, second, group=settings.group)
    prior: Any = br.Normal(first) if settings.prior == "normal" else mixture
    spread = {"*": (prior.sigma * settings.other_low, prior.sigma * settings.other_high)}
    if recurrent is not None:
        spread = {recurrent: (prior.sigma * settings.lstm_low, prior.sigma * settings.lstm_high), **spread}
    q = br.BayesByBackprop(plain, prior=prior, init_sigma=spread, exclude=exclude)
    if settings.kind == "bayes_by_backprop":
        return q
    return br.PosteriorSharpening(q, settings.sigma0, init_eta=settings.init_eta)


def recipe_elbo(
    model: nn.Module, likelihood: Likelihood, settings: PosteriorSettings, *, num_data: float, **options: Any
) -> ELBO:
    """The :class:`bayesrnn.ELBO` of a model that :func:`posterior` made; ``settings`` is ``recipe.posterior``.

    A recipe without a posterior has no KL here: it writes the L2 term of dropout as ``l2`` or ``weight_decay``.

    Example::

        terms, logits = self.elbo.evaluate(lambda: self.model(images), labels)
        return terms.loss, terms, ()
    """
    if settings.kind == "none":
        options["kl_weight"] = 0.0
    return br.ELBO(model, likelihood, num_data=num_data, check_finite=False, **options)
