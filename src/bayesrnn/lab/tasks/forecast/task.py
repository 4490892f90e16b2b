"""Forecasts on the lab's engine: `bayesrnn.forecasting.Forecaster`, whose networks are trained by epochs."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from bayesrnn.errors import UserError
from bayesrnn.forecasting import Forecaster, decisions, grids, scores
from bayesrnn.forecasting.model import Model
from bayesrnn.forecasting.panel import panel_of
from bayesrnn.forecasting.scores import pit
from bayesrnn.forecasting.selection import score
from bayesrnn.forecasting.storage import Parts, as_tensors, damaged, panel_arrays
from bayesrnn.forecasting.training import EVERY, Sampler, batch_size
from bayesrnn.lab.console.output import Report, bar
from bayesrnn.lab.reading import counted
from bayesrnn.lab.recipes.schema import Recipe
from bayesrnn.lab.runs.files import write_file
from bayesrnn.lab.tasks.base import Files, Say, State, Task
from bayesrnn.lab.tasks.forecast import COMMANDS
from bayesrnn.lab.tasks.forecast.card import CARD
from bayesrnn.lab.tasks.forecast.metrics import DETAILS, METRICS
from bayesrnn.lab.tasks.forecast.plan import (
    PLAN,
    SERIES,
    Plan,
    cutoffs,
    finished,
    forecaster_of,
    held_out,
    module_of,
    naive,
)
from bayesrnn.lab.tasks.forecast.settings import SECTIONS, Data, Evaluate
from bayesrnn.lab.tasks.forecast.source import Source, labels
from bayesrnn.lab.tasks.forecast.tables import check_file, percentages
from bayesrnn.lab.tasks.forecast.words import Words
from bayesrnn.lab.tasks.signature import ROWS, Signature

if TYPE_CHECKING:
    from bayesrnn.elbo import Terms
    from bayesrnn.lab.runs.opening import OpenedRun

QUANTILES = [k / 10 for k in range(1, 10)]


def read_source(data: str | None, settings: Data) -> Source:
    """The file of a recipe's data; None: the library's own series."""
    words = Words(spelling="data.{}", sets="=", option="--data")
    return Source.of(None if data is None else Path(data), settings.target, settings.date, words=words)


class Forecast(Task):
    """A file of series, or carbon dioxide at Mauna Loa, and forecasts of them for H steps ahead.

    An epoch is a fixed number of steps of random windows. Bases and windows are chosen before, on rows before the test
    part; ``files`` are those of a run that was.
    """

    sections = SECTIONS
    metric = "valid_crps"
    card, private, keeps_data = CARD, (SERIES,), True
    runs_called = "forecasts"
    command = "forecast"
    unit, source, default_data = "values", "series", "mauna_loa"
    limit = 50.0
    scaled = ("valid_crps",)
    metrics, details, conditions = METRICS, DETAILS, ("level", "samples", "draws_seed")
    commands = COMMANDS
    panel = "bayesrnn.lab.tasks.forecast.panel:ForecastPanel"
    report_sections = (
        "bayesrnn.lab.tasks.forecast.saved:section",
        "bayesrnn.lab.report.uncertainty:coverage",
        "bayesrnn.lab.report.weights:signal_to_noise",
        "bayesrnn.lab.report.weights:patterns",
    )

    def __init__(self, recipe: Recipe, data: str | None, device: torch.device, files: Files | None = None) -> None:
        super().__init__(recipe, data, device)
        self.unused: list[str] = []  # columns of the file
        self.plan = Plan.read(files) if files is not None else self._planned(data)
        self._files = dict(files) if files is not None else self.plan.files()
        self.whole = self.plan.panel
        if files is not None and data is not None:  # other series than the run's own
            source = read_source(data, recipe.data)
            with source.naming():
                rule, columns, clock = recipe.data.resample or None, self.whole.columns, self.whole.clock
                self.whole = panel_of(source.frame(), columns, freq=None, clock=clock, resample=rule)
        self.rows = slice(None)
        self.order = torch.zeros((), dtype=torch.long)  # seed of an epoch's windows
        self.examples: list[list[Tensor]] = []
        about, horizon = self.plan.about, recipe.data.horizon
        with damaged(f"{PLAN} of this run"):
            windows = int(about["windows"])
        self.steps = EVERY if windows else 1
        self.batch_size = min(recipe.data.batch_size or batch_size(windows), windows) or 1
        self.examples_per_step = self.batch_size * horizon
        if not windows:  # nothing is trained
            self.recipe = recipe.model_copy(update={"train": recipe.train.model_copy(update={"epochs": 1})})

    def _planned(self, data: str | None) -> Plan:
        source = read_source(data, self.recipe.data)
        made = forecaster_of(self.recipe, source)
        with source.naming(), bar("choosing a linear forecast") as report:
            test, frame = self.recipe.data.test, source.frame()
            panel = made.panel_of(frame, lambda panel: panel.lengths - held_out(panel, made.horizon, test))
            names = panel.columns
            used = {names.id, names.time, names.target, *names.past, *names.future, *names.static}
            self.unused = [str(name) for name in frame if name not in used]
            return Plan.of(made, panel, test, report)

    @classmethod
    def for_run(cls, recipe: Recipe, data: str | None, device: torch.device, files: Files) -> "Forecast":
        return cls(recipe, data, device, files)

    @staticmethod
    def build(recipe: Recipe, files: Files) -> nn.Module:
        return module_of(recipe, files)

    def attach(self, model: nn.Module) -> None:
        super().attach(model)
        assert isinstance(model, Parts)
        if self.plan.arrays is not None:
            for name, value in as_tensors(self.plan.arrays).items():
                model.get_buffer(name).copy_(value)
        self.made, self.prepared = self.plan.opened(model)
        self.trained = self.made.fitted.members
        self.random = any(member.draws > 1 for member in self.trained)
        if self.trained and self.prepared.fold is not None:
            self.sampler = Sampler(self.prepared.cuts[0], self.prepared.fold, np.random.default_rng(0))
            self.elbos = [member.elbo(self.sampler.total * self.made.horizon) for member in self.trained]
            for member in self.trained:
                member.head.start = member.head.start.to(self.device)
            self.fetch(0)

    def files(self) -> dict[str, bytes]:
        return self._files

    def content(self) -> Iterator[bytes]:
        for value in panel_arrays(self.whole).values():
            yield np.ascontiguousarray(value).tobytes()

    def tensors(self) -> dict[str, Tensor]:
        return {"order": self.order}

    def split(self, rows: slice) -> None:
        self.rows = rows

    def start_epoch(self, epoch: int) -> None:
        self.order.copy_(torch.randint(1 << 31, ()))

    def fetch(self, step: int) -> None:
        """Cut the windows of a step out of the panel, into tensors at fixed addresses."""
        if not self.trained:
            return
        self.sampler.rng = np.random.default_rng([int(self.order), step])
        series, ends = self.sampler.origins(self.batch_size)
        series, ends = series[self.rows], ends[self.rows]
        before, cuts = self.prepared.before, self.prepared.cuts
        batches = {k: cuts[k].batch(series, ends) for k in {member.base for member in self.trained}}
        found = [m.example(before[m.base], cuts[m.base], batches[m.base]) for m in self.trained]
        if not self.examples:
            self.examples = [[part.to(self.device) for part in example] for example in found]
            return
        for own, new in zip(self.examples, found, strict=True):
            for a, b in zip(own, new, strict=True):
                a.copy_(b)

    def batch(self, position: Tensor) -> list[list[Tensor]]:
        return self.examples

    def objective(self, batch: list[list[Tensor]], state: State) -> "tuple[Tensor, Terms, State]":
        """The mean of the networks' bounds."""
        from bayesrnn.elbo import Terms

        if not self.trained:
            zero = 0 * next(self.model.parameters()).sum()
            return zero, Terms(zero, zero, zero, zero), ()
        parts = zip(self.trained, self.elbos, batch, strict=True)
        terms = [member.loss(elbo, example) for member, elbo, example in parts]
        loss, nll = (torch.stack([getattr(t, key) for t in terms]).mean() for key in ("loss", "nll"))
        kl = torch.stack([t.kl for t in terms]).sum()
        return loss, replace(terms[0], loss=loss, nll=nll, kl=kl), ()

    def training(self, totals: Mapping[str, float]) -> dict[str, float]:
        found = {"train_nll": totals["nll"] / self.examples_per_step}
        return found if self.recipe.posterior.kind == "none" else {**found, "kl": totals["kl"]}

    @cached_property
    def _scored(self) -> list[Any]:
        prepared = self.prepared
        held = prepared.held
        assert held is not None
        return [
            m.scored(
                prepared.before[m.base], prepared.cuts[m.base], prepared.cuts[m.base].batch(held.series, held.ends)
            )
            for m in self.trained
        ]

    def validate(self) -> dict[str, Any]:
        """The mean of the networks' scores, without draws; without networks, that of the base for the last values."""
        if self.trained:
            return {"valid_crps": float(np.mean([measure() for measure in self._scored]))}
        panel, model = self.prepared.panel, self.prepared.model
        each = np.split(~np.isnan(panel.y), panel.offsets[1:-1])
        last = np.array([np.flatnonzero(known)[-1] + 1 if known.any() else len(known) for known in each])
        series, ends = np.arange(len(panel)), np.maximum(last - self.made.horizon, 1)
        grid, _ = model.grid(self.prepared.cuts, series, ends, seed=0)
        return {"valid_crps": score(grid, self.prepared.cuts[0].batch(series, ends), model.shape)}

    def final(self) -> dict[str, Any]:
        return {**self.validate(), **self.evaluate()}

    def finished(self, *, samples: int | None = None, seed: int = 1, say: Say = lambda text: None) -> Forecaster:
        """The forecaster, its networks weighed; its panel ends before the test part. Tests, reports and pages use the
        same draws."""
        self.made.settings["seed"] = seed
        for member in self.trained:
            member.settings = replace(member.settings, samples=samples or member.settings.samples)
        return finished(self.made, self.prepared, say)

    def evaluate(
        self,
        *,
        samples: int | None = None,
        seed: int = 1,
        say: Say = lambda text: None,
        level: float = 0.0,
        table: str = "",
    ) -> dict[str, Any]:
        """Walk forward through the test part, without learning on, and the same for naive forecasts.

        ``level`` is that of the intervals, 80 or 0.8; 0: the recipe's. ``table``: a CSV file for all forecasts, one row
        per cutoff and step ahead.
        """
        settings: Evaluate = self.recipe.evaluate
        level = percentages([level])[0] if level else round(100 * settings.level, 6)
        if samples == 0:
            raise UserError("--samples is 0; a forecast is a mixture over draws, so at least 1. Default: the recipe's.")
        check_file(Path(table) if table else None, (".csv",), "--table")
        made = self.finished(samples=samples, seed=seed, say=say)
        say("backtest on the test part")
        with bar("backtest") as progress:
            walk = self.walk(made, level, progress)
        if table:
            write_file(Path(table), walk.to_csv(index=False).encode())
            say(f"forecasts are in {table}")
        found: dict[str, Any] = {"level": level / 100, "samples": max((m.draws for m in self.trained), default=1)}
        found |= {"draws_seed": seed} if self.random else {}
        found |= _scores(walk, level, "test")
        variance = (walk[["aleatoric_std", "epistemic_std"]] ** 2).mean()
        found["epistemic_share"] = float(variance["epistemic_std"] / variance.sum())
        for name, model in naive(made, self.prepared).items():
            found |= {k: v for k, v in _scores(self.walk(made, level, model=model), level, name).items()
                      if k.endswith(("crps", "coverage", "width"))}  # fmt: skip
        by_step = scores(walk, by="step")
        found["by_horizon"] = {"crps": _short(by_step["crps"]), "coverage": _short(by_step[f"coverage-{level:g}"])}
        found["reliability"] = _reliability(walk, level)
        found["weights"] = dict(zip(self._parts(), _short(made.fitted.weights), strict=True))
        return found

    def walk(self, made: Forecaster, level: float, progress: Report = lambda done, count: None,
             model: Model | None = None) -> Any:  # fmt: skip
        """The table of `Forecaster.backtest` for the test part; ``model``: another one."""
        panel = self.whole
        first, count, step = cutoffs(panel, made.horizon, self.recipe.data.test)
        levels = list(dict.fromkeys([80.0, level]))
        own, made.model = made.model, model or made.model
        try:
            return decisions.walk_forward(
                made, panel, first, count, step, adaptive=True, progress=progress,
                summary=lambda grid, share, ends: grids.summary(grid, share, levels, QUANTILES, ends),
            )  # fmt: skip
        finally:
            made.model = own

    def _parts(self) -> list[str]:
        model = self.made.fitted
        return [*(f"base {k + 1}" for k in range(len(model.bases))),
                *(f"network {k + 1} ({m.likelihood})" for k, m in enumerate(model.members))]  # fmt: skip

    @classmethod
    def remark(cls, metrics: Mapping[str, Any]) -> str:
        weights = metrics.get("weights", {})
        used = any(weight for name, weight in weights.items() if name.startswith("network"))
        return "" if used or not weights else "No network is used: the linear forecast is better without."

    @staticmethod
    def exported(model: nn.Module) -> nn.Module:
        networks = model.networks if isinstance(model, Parts) else nn.ModuleList([model])
        if not len(networks):
            raise UserError(
                "This run has no network, because its series is too short for one; there is nothing to export."
            )
        return networks[0] if len(networks) == 1 else networks

    @staticmethod
    def weights(model: nn.Module) -> nn.Module:
        return model.networks[0] if isinstance(model, Parts) and len(model.networks) == 1 else model

    @classmethod
    def signature(cls, run: "OpenedRun") -> Signature:
        model = cls.exported(run.model)
        if isinstance(model, nn.ModuleList):
            raise UserError("This run has several networks, which are not one program; use --format torch.")
        rows = torch.zeros(ROWS, dtype=torch.long, device=next(model.parameters()).device)
        x, known, ahead = (part.index_select(int(k == 0), rows) for k, part in enumerate(opened(run).examples[0][:3]))
        axes = ((x.shape[0], "batch", x.shape[2]), ("batch", known.shape[1]), ("batch", *ahead.shape[1:]))
        return Signature(model, (x, known, ahead), ("patches", "window", "ahead"), ("parameters",), axes)

    @staticmethod
    def analyse(run: "OpenedRun", known: Mapping[str, Any], say: Say) -> dict[str, Any]:
        """The forecaster with all rows, and the walk through the test part."""
        task = opened(run)
        made = task.finished()
        say("backtest on the test part")
        table = task.walk(made, 95.0)
        return {"forecaster": made.update(task.whole), "table": table}

    def describe(self) -> str:
        panel, about, horizon = self.plan.panel, self.plan.about, self.recipe.data.horizon
        names = ", ".join(panel.ids[:3]) + (f" and {len(panel) - 3} more" if len(panel) > 3 else "")
        ends = panel.numbers(np.arange(len(panel)), panel.lengths - 1)
        first, last = labels(panel.clock.stamps(np.array([panel.first.min(), ends.max()])))
        held = int((panel.lengths - self.plan.ends)[0])
        gaps = int(np.isnan(panel.y).sum())
        missing = f" {counted(gaps, 'value')} missing: neither learnt from nor scored." if gaps else ""
        lines = [
            f"{names}: {len(panel.y):,} rows of one {panel.clock.name}, {first} to {last}; of each series the last "
            f"{held} are held out for the test.{missing}"
        ]
        if self.unused:
            lines.append(f"Not used: {', '.join(self.unused[:8])}; data.covariates=all gives them to the model.")
        if len(about["members"]):
            count = counted(len(about["members"]), "network")
            learn = "learns" if len(about["members"]) == 1 else "learn"
            lines.append(f"{counted(horizon, 'step')} ahead: {count} {learn} the errors of a linear forecast from "
                         f"{counted(about['windows'], 'window')}, on {self.device}.")  # fmt: skip
        else:
            kind = "a trend and seasons in closed form" if "memory" in about["bases"][0] else "a linear forecast"
            lines.append(f"Too few rows for networks: {kind} without any; nothing is trained.")
        return "\n".join(lines)

    def about(self) -> dict[str, Any]:
        panel, about = self.plan.panel, self.plan.about
        shape = about["bases"][0]["shape"]
        return {
            "series": {
                "names": panel.ids[:20], "series": len(panel), "rows": len(panel.y), "step": panel.clock.name,
                "held_out": int((panel.lengths - self.plan.ends)[0]), "windows": about["windows"],
                "window": shape["context"], "seasons": shape["seasons"], "notes": list(self.plan.notes),
            }
        }  # fmt: skip


def opened(run: "OpenedRun") -> Forecast:
    """The task of a run on its own series, with the run's weights."""
    task = run.task(None, next(run.model.parameters()).device)
    assert isinstance(task, Forecast)
    return task


def _scores(table: Any, level: float, name: str) -> dict[str, float]:
    whole = scores(table).iloc[0]
    keys = {
        "crps": "crps",
        "mae": "mae",
        "rmse": "rmse",
        "coverage": f"coverage-{level:g}",
        "width": f"width-{level:g}",
    }
    return {f"{name}_{key}": float(whole[column]) for key, column in keys.items()}


def _reliability(table: Any, level: float) -> dict[str, list[float]]:
    """Shares of values between quantiles, and in the bins that deciles make."""
    y = table["y"].to_numpy()
    known, found = ~np.isnan(y), {}
    ends = {round(1 - 2 * q, 1): (f"q-{q:g}", f"q-{1 - q:g}") for q in (0.4, 0.3, 0.2, 0.1)}
    for share, (low, high) in {**ends, level / 100: (f"lo-{level:g}", f"hi-{level:g}")}.items():
        inside = (table[low].to_numpy() <= y) & (y <= table[high].to_numpy())
        found[share] = float(inside[known].mean())
    return {"levels": list(found), "coverage": _short(found.values()), "pit": _short(pit(table)[1])}


def _short(column: Any) -> list[float]:
    """Six digits, for a record."""
    return [float(f"{v:.6g}") for v in column]
