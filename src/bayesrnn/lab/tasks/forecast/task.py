"""Forecasting a series with uncertainty: an LSTM whose outputs are Gaussians, for several steps ahead at once."""

import math
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from bayesrnn.errors import UserError
from bayesrnn.forecasting.autoregression import gather
from bayesrnn.forecasting.mixture import Mixture, by_horizon, measures, reliability, together
from bayesrnn.forecasting.series import Series, mauna_loa, naming, read_csv
from bayesrnn.lab.console.output import bar
from bayesrnn.lab.reading import counted
from bayesrnn.lab.recipes.schema import Recipe
from bayesrnn.lab.runs.files import write_file
from bayesrnn.lab.tasks.base import Files, Minibatches, Say, State, Task, posterior
from bayesrnn.lab.tasks.forecast import COMMANDS
from bayesrnn.lab.tasks.forecast.card import CARD
from bayesrnn.lab.tasks.forecast.forecaster import PARTS, Forecaster, Walk, is_random
from bayesrnn.lab.tasks.forecast.metrics import DETAILS, METRICS
from bayesrnn.lab.tasks.forecast.model import Components, GaussianHeads, network, prior_cost
from bayesrnn.lab.tasks.forecast.plan import FRAME, SERIES, Plan
from bayesrnn.lab.tasks.forecast.settings import SECTIONS, Data, Evaluate
from bayesrnn.lab.tasks.forecast.tables import check_file, percentages
from bayesrnn.lab.tasks.signature import ROWS, Signature

if TYPE_CHECKING:
    from bayesrnn.lab.runs.opening import OpenedRun

MIXTURE = "valid_crps_mixture"
_SHOWN = 500  # last forecasts of the test part that the record keeps


class Forecast(Task):
    """A CSV file, or carbon dioxide at Mauna Loa, and forecasts of it for H steps ahead."""

    sections = SECTIONS
    metric = "valid_crps"
    card, private = CARD, (SERIES,)
    runs_called = "forecasts"
    command = "forecast"
    unit, source, default_data = "values", "series", "mauna_loa"
    limit = 50.0
    metrics, details, conditions = METRICS, DETAILS, ("level", "samples", "draws_seed", "ahead.direct")
    commands = COMMANDS
    panel = "bayesrnn.lab.tasks.forecast.panel:ForecastPanel"
    report_sections = (
        "bayesrnn.lab.tasks.forecast.sections:ahead",
        "bayesrnn.lab.tasks.forecast.sections:walk",
        "bayesrnn.lab.tasks.forecast.sections:by_step",
        "bayesrnn.lab.report.uncertainty:coverage",
        "bayesrnn.lab.report.weights:signal_to_noise",
        "bayesrnn.lab.report.weights:patterns",
    )

    def __init__(self, recipe: Recipe, data: str | None, device: torch.device) -> None:
        super().__init__(recipe, data, device)
        settings: Data = recipe.data
        if recipe.model.prior_sigma and recipe.posterior.kind != "none":
            raise UserError("model.prior_sigma is for dropout models; a posterior has its own prior, set it to 0.")
        if recipe.model.components > 1 and recipe.posterior.kind != "none":
            raise UserError("model.components is for dropout models; with a posterior over weights set it to 1.")
        self.series = read_series(data, settings)
        with naming(Path(data).name) if data is not None else nullcontext():
            plan = Plan.from_json(Plan.of(self.series, settings).to_json().encode())
        self.plan, self.frame, self.cut = plan, plan.frame, plan.cut
        self.values = torch.from_numpy(self.series.values).unsqueeze(1)
        train = torch.tensor(self.cut.origins("train", first=self.frame.first, horizon=self.frame.horizon))
        self.features = self.frame.features(self.values)[:, 0].float().to(device)
        targets = self.frame.targets(self.values, train).float()
        some = (~targets.isnan()).any(1)
        train, targets = train[some], targets[some]
        self.minibatches = Minibatches(
            train.to(device), targets.to(device), batch_size=min(settings.batch_size, len(train)), last="wrap"
        )
        self.steps, self.batch_size = self.minibatches.steps, self.minibatches.batch_size
        self.num_data = int((~targets.isnan()).sum())
        self.examples_per_step = round(self.batch_size * self.num_data / len(train))
        # -log p of a scaled target plus this is -log p in the units of the series, as in validation.
        self._log_unit = float(torch.tensor(self.frame.target_spread, dtype=torch.float64).log().mean())
        if self.frame.log:
            steps = train.unsqueeze(1) + torch.arange(1, self.frame.horizon + 1)
            self._log_unit += float(self.values[steps, 0, 0].log().nanmean())

    @staticmethod
    def build(recipe: Recipe, files: Files) -> nn.Module:
        plan = Plan.from_json(files[FRAME])
        plain = network(
            len(plan.columns) * (1 + plan.frame.masked), plan.frame.window, plan.frame.horizon, recipe.model
        )
        return posterior(plain, recipe.posterior, recurrent="rnn.*", exclude="log_sigma")

    @classmethod
    def compared(cls, recipe: Recipe) -> str:
        """For a mixture, its own CRPS; it is never worse than the mean of its components."""
        return MIXTURE if recipe.model.components > 1 else cls.metric

    def attach(self, model: nn.Module) -> None:
        import bayesrnn as br

        super().attach(model)
        self.random = is_random(model)
        likelihood: Any = GaussianHeads()
        # With prior_sigma, a dropout model's -log p(w) takes the place of the KL and is scaled like it.
        penalised = self.recipe.posterior.kind != "none" or bool(self.recipe.model.prior_sigma)
        self.elbo = br.ELBO(model, likelihood, num_data=self.num_data, kl_weight=float(penalised), check_finite=False)
        self.forecaster = forecaster(model, self.plan, self.values, self.recipe.evaluate)

    def files(self) -> dict[str, bytes]:
        return {FRAME: self.plan.to_json().encode(), SERIES: self.series.to_csv().encode()}

    def content(self) -> Iterator[bytes]:
        yield self.series.to_csv().encode()

    def batch(self, position: Tensor) -> tuple[Tensor, Tensor]:
        origins, targets = self.minibatches(position)
        return gather(self.features, origins, self.frame.window), targets

    def objective(self, batch: tuple[Tensor, Tensor], state: State) -> tuple[Tensor, Any, State]:
        """With several components, the mean of their bounds; it is never below the bound of their mixture."""
        x, y = batch
        model, sigma, count = self.model, self.recipe.model.prior_sigma, self.recipe.model.components
        penalty = prior_cost(model, sigma) / count if sigma else None
        if isinstance(model, Components):
            terms, _ = self.elbo.evaluate(lambda: model.each(x), y.expand(count, *y.shape), kl=penalty)
            terms = replace(terms, nll=terms.nll / count)
        else:
            terms, _ = self.elbo.evaluate(lambda: model(x), y, kl=penalty)
        return terms.loss, terms, ()

    def training(self, totals: Mapping[str, float]) -> dict[str, float]:
        found = {"train_nll": totals["nll"] / self.examples_per_step + self._log_unit}
        return found if self.recipe.posterior.kind == "none" else {**found, "kl": totals["kl"]}

    @torch.no_grad()
    def validate(self) -> dict[str, Any]:
        """The score of one draw on the validation part, as the model gives it; its masks are the same in every epoch.

        Of components, which are stopped one by one, the mean of each one's lowest score so far; and the score of the
        mixture of those that are kept, with one draw of each.
        """
        origins = self._origins("valid")
        actual = self.forecaster.actual[torch.tensor(origins).unsqueeze(1) + torch.arange(1, self.frame.horizon + 1)]

        def said(model: nn.Module) -> Mixture:
            one = forecaster(model, self.plan, self.values, self.recipe.evaluate)
            return one.distribution(origins, samples=1, seed=0)

        def crps(raw: Mixture) -> float:
            return float(raw.crps(actual).nanmean())

        found = {}
        if isinstance(self.model, Components):
            scores = [crps(said(network)) for network in self.model.networks]
            self.model.keep(scores, self.recipe.train.patience or math.inf)
            whole = together([said(network) for network in self.model.kept])
            found = {"valid_crps": float(self.model.best.mean()), MIXTURE: crps(whole)}
        raw = said(self.model)
        own = {"valid_crps": crps(raw), "valid_nll": float(-raw.log_density(actual).nanmean())}
        return {**own, **found}

    def final(self) -> dict[str, Any]:
        return self.evaluate()

    def evaluate(
        self,
        *,
        samples: int | None = None,
        seed: int = 1,
        say: Say = lambda text: None,
        level: float = 0.0,
        table: str = "",
    ) -> dict[str, Any]:
        """Walk forward through validation and test part, without learning on, and the same for naive forecasts.

        ``level`` is that of the intervals, 80 or 0.8; 0: the recipe's. ``table``: a CSV file for all forecasts, one row
        per origin and step ahead.
        """
        settings: Evaluate = self.recipe.evaluate
        level = percentages([level])[0] / 100 if level else settings.level
        if samples == 0:
            raise UserError("--samples is 0; a forecast is a mixture over draws, so at least 1. Default: the recipe's.")
        check_file(Path(table) if table else None, (".csv",), "--table")
        say("walking forward through the validation and test part")
        with bar("walking forward") as progress:
            walk = self.forecaster.walk(samples=samples or settings.samples, seed=seed, progress=progress)
        if table:
            write_file(Path(table), walk.table(self.series, level=level).to_csv(index=False).encode())
            say(f"forecasts are in {table}")
        found: dict[str, Any] = {"level": level, "samples": walk.raw.means.shape[0]}
        found |= {"draws_seed": seed} if self.random else {}
        for part in PARTS:
            rows = walk.rows(self._origins(part))
            raw = measures(walk.raw[rows], walk.actual[rows], level)
            found |= {f"{part}_{k}": v for k, v in measures(walk.forecast[rows], walk.actual[rows], level).items()}
            found |= {f"{part}_{k}_raw": raw[k] for k in ("crps", "coverage", "width")}
        naive: dict[str, tuple[int, bool | None]] = {"naive": (1, None), "seasonal_naive": (self.plan.season, None)}
        if not self.frame.log and not bool((self.values[:, :, 0] <= 0).any()):
            naive["seasonal_naive_log"] = (self.plan.season, True)
        for name, (lag, log) in naive.items():
            if lag > 1 or name == "naive":
                say(f"{name.replace('_', ' ')} forecasts")
                other = self.forecaster.naive(lag, log=log)
                rows = other.rows(self._origins("test"))
                scores = measures(other.forecast[rows], other.actual[rows], level)
                found |= {f"{name}_{k}": scores[k] for k in ("crps", "coverage", "width")}
        test = walk.rows(self._origins("test"))
        forecast, actual = walk.forecast[test], walk.actual[test]
        found["epistemic_share"] = float((forecast.epistemic / forecast.variance).mean())
        found["by_horizon"] = by_horizon(forecast, actual, level)
        found["reliability"] = reliability(forecast, actual)
        found["walk"] = self._shown(walk, level)
        say("forecasts beyond the end")
        found["ahead"] = self._ahead(level, samples or settings.samples, seed)
        return found

    def _origins(self, part: str) -> range:
        return self.cut.origins(part, first=self.frame.first, horizon=self.frame.horizon)

    def _shown(self, walk: Walk, level: float) -> dict[str, Any]:
        """The last forecasts of the test part one step ahead, beside what came, for plots."""
        origins = self._origins("test")[-_SHOWN:]
        rows = walk.rows(origins)
        columns = {**walk.forecast[rows].summary(level), "actual": walk.actual[rows]}
        dates = [self.series.label(t + 1) for t in origins]
        return {"date": dates, **{key: _short(column[:, 0]) for key, column in columns.items()}}

    def _ahead(self, level: float, samples: int, seed: int) -> dict[str, Any]:
        """The last values and what is forecast after them: the horizon, and twice as much again by roll-outs."""
        horizon, length = self.frame.horizon, len(self.series)
        steps = 3 * horizon if self.values.shape[-1] == 1 else horizon
        # Without twins, as in all records that are kept.
        found = self.forecaster.ahead(steps, samples=samples, seed=seed, level=level, mirrored=False)
        columns = {
            key: _short(getattr(found, key)) for key in ("mean", "low", "high", "aleatoric_std", "epistemic_std")
        }
        first = max(0, length - 10 * horizon)
        dates = [self.series.label(i) for i in range(first, length + steps)]
        return {"date": dates, "past": _short(self.values[first:, 0, 0]), **columns, "direct": found.direct}

    @staticmethod
    def exported(model: nn.Module) -> nn.Module:
        """For a mixture, the networks that were kept."""
        return model.at_mean() if isinstance(model, Components) else model

    @classmethod
    def signature(cls, run: "OpenedRun") -> Signature:
        plan, model = Plan.from_json(run.files[FRAME]), cls.exported(run.model)
        steps, columns = plan.frame.window, len(plan.columns)
        window = torch.zeros(steps, ROWS, columns, device=next(model.parameters()).device)
        return Signature(model, (window,), ("window",), ("mean_and_log_sigma",), ((steps, "batch", columns),))

    def describe(self) -> str:
        series, cut, frame = self.series, self.cut, self.frame
        parts = (("train", 0, cut.train), ("validate", cut.train, cut.valid), ("test", cut.valid, cut.length))
        spans = ", ".join(f"{name} {series.label(a)} to {series.label(b - 1)}" for name, a, b in parts)
        changes = {0: "as they are", 1: "as changes from the last value"}
        change = changes.get(frame.lag, f"as changes from {frame.lag} steps before")
        season = f"a season of {self.plan.season}" if self.plan.season > 1 else "no season"
        lines = [
            f"{series.columns[0]}: {len(series):,} steps of one {series.grid.name}, {season}: {spans}.",
            f"{counted(self.minibatches.count, 'training window')} of {counted(frame.window, 'step')} on "
            f"{self.device}; "
            f"{counted(frame.horizon, 'step')} ahead, {change}{', in logarithms' if frame.log else ''}.",
        ]
        return "\n".join([*series.notes, *lines])

    def about(self) -> dict[str, Any]:
        frame = {"window": self.frame.window, "horizon": self.frame.horizon, "lag": self.frame.lag}
        return {
            "series": {
                "name": self.series.name,
                "columns": self.series.columns,
                "steps": len(self.series),
                "step": self.series.grid.name,
                "first": self.series.label(0),
                "last": self.series.label(len(self.series) - 1),
                "season": self.plan.season,
                "cut": [self.cut.train, self.cut.valid, self.cut.length],
                **frame,
                "notes": self.series.notes,
            }
        }


def _short(column: Tensor) -> list[float]:
    """Six digits, for a record."""
    return [float(f"{v:.6g}") for v in column.tolist()]


def read_series(data: str | None, settings: Data) -> Series:
    """The file's series with a recipe's columns; None: the library's own."""
    if data is None:
        return mauna_loa()
    return read_csv(
        data,
        target=settings.target,
        covariates=settings.covariates,
        date=settings.date,
        date_format=settings.date_format,
        max_gap=settings.max_gap,
    )


def forecaster(model: nn.Module, plan: Plan, values: Tensor, settings: Evaluate) -> Forecaster:
    return Forecaster(model, plan.frame, values, plan.cut, memory=settings.memory or None)
