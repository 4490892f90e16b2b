"""The panel of forecasts: a fan chart at any origin, sampled paths, edited covariates, and walking forward."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from bayesrnn.errors import UserError
from bayesrnn.forecasting.plots import worst_first
from bayesrnn.forecasting.scores import pit, scores
from bayesrnn.lab.explore.panel import MOST_DRAWS, Handler, Panel, Part, Request
from bayesrnn.lab.tasks.forecast.forecaster import Forecaster, Walk, is_random
from bayesrnn.lab.tasks.forecast.plan import FRAME, Plan, kept_series
from bayesrnn.lab.tasks.forecast.task import forecaster

SHOWN = 240  # last steps of a series on the page
PATHS = 12
_NAMES = 1000  # series that can be chosen
_TIMES = 300  # points over time
_WORST = 4
_SCORED = 200  # origins of the validation part
_DRAWS = 32


class Edit(Request):
    """Another value of a covariate at a step."""

    step: int = Field(ge=0)
    column: int = Field(ge=1, le=100)
    value: float = Field(ge=-1e12, le=1e12)


class Which(Request):
    """One of the series."""

    series: int = Field(0, ge=0, lt=_NAMES)


class Fan(Which):
    """The forecast made at a step; what came later is unknown to it."""

    origin: int = Field(ge=0)
    draws: int = Field(_DRAWS, ge=1, le=MOST_DRAWS)
    level: float = Field(0.9, ge=0.1, le=0.99)
    edits: list[Edit] = Field([], max_length=200)


class FanPanel(Panel):
    """What forecasts of runs and of saved forecasters share.

    A covariate has ``name``, ``values`` from the first step shown, and ``ahead``: its values after the origin, which
    it then has for all steps of the horizon, can be changed too.
    """

    title = "Forecast"
    names: Sequence[str]
    horizon: int
    random: bool
    note = ""

    @classmethod
    def files(cls) -> dict[str, Path]:
        folder = Path(__file__).parent
        return {name: folder / name for name in ("panel.js", "panel.css")}

    @abstractmethod
    def shown(self, series: int) -> dict[str, Any]:
        """A series: first (the first step on the page), labels, values, covariates, and origins, the first and last."""

    @abstractmethod
    def forecast(self, asked: Fan) -> dict[str, Any]:
        """Columns mean, low, high, aleatoric_std, epistemic_std, and paths."""

    @abstractmethod
    def walked(self) -> Iterator[Any]:
        """Shares of the work that are done, then the table of forecasts beside what came."""

    def about(self) -> dict[str, Any]:
        count = len(self.names)
        few = f" Of {count:,} series the first {_NAMES:,} can be chosen." if count > _NAMES else ""
        return {
            "names": [str(name)[:80] for name in self.names[:_NAMES]], "horizon": self.horizon,
            "random": self.random, "note": self.note + few, "shown": self.shown(0),
        }  # fmt: skip

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "series": Handler(Which, self.series_of),
            "fan": Handler(Fan, self.fan),
            "walk": Handler(Request, self.walk_of),
        }

    def series_of(self, asked: Which) -> Iterator[Part]:
        yield {"shown": self.shown(self._known(asked))}

    def _known(self, asked: Which) -> int:
        if asked.series >= len(self.names):
            raise UserError("There is no such series.")
        return asked.series

    def fan(self, asked: Fan) -> Iterator[Part]:
        yield {"progress": 0.2}
        shown = self.shown(self._known(asked))
        first, last = shown["origins"]
        if not first <= asked.origin <= last:
            named = [shown["labels"][end - shown["first"]] for end in (first, last)]
            raise UserError(f"Forecasts can be made from {named[0]} to {named[1]}.")
        for edit in asked.edits:
            covariate = shown["covariates"][edit.column - 1] if edit.column <= len(shown["covariates"]) else None
            most = asked.origin + (self.horizon if covariate and covariate["ahead"] else 0)
            if covariate is None or not shown["first"] <= edit.step <= most:
                raise UserError("A change must be of a covariate, and after the origin only if it is known ahead.")
        reach = NormalDist().inv_cdf((1 + asked.level) / 2)
        yield {"series": asked.series, "origin": asked.origin, "reach": reach, **self.forecast(asked)}

    def walk_of(self, asked: Request) -> Iterator[Part]:
        for part in self.walked():
            yield {"progress": part} if isinstance(part, float) else summary(part)


def summary(table: Any) -> dict[str, Any]:
    """What the page draws of a table of `Forecaster.backtest`, with columns unique_id, ds and y."""
    by_step, times = scores(table, by="step"), table["ds"]
    order = np.sort(times.unique())
    group = np.searchsorted(order, times.to_numpy()) // -(-len(order) // _TIMES)
    over = table.groupby(group)[["aleatoric_std", "epistemic_std"]].mean()
    edges, shares = pit(table)
    levels = sorted((c[9:] for c in by_step if c.startswith("coverage-")), key=float)
    worst = []
    for name in worst_first(table)[:_WORST]:
        rows = table[table["unique_id"] == name].drop_duplicates("ds", keep="last").sort_values("ds").tail(SHOWN)
        ends = {"low": rows[f"lo-{levels[-1]}"], "high": rows[f"hi-{levels[-1]}"]}
        columns = {"values": rows["y"], "median": rows["median"], **ends}
        about = {"name": str(name)[:80], "labels": labels(rows["ds"]), "crps": float(rows["crps"].mean())}
        worst.append({**about, **{key: listed(column) for key, column in columns.items()}})
    return {
        "rows": int(table["y"].notna().sum()), "crps": listed(by_step["crps"]), "edges": edges, "pit": shares,
        "coverage": [{"level": float(level), "shares": listed(by_step[f"coverage-{level}"])} for level in levels],
        "times": labels(times.groupby(group).first()), "aleatoric": listed(over["aleatoric_std"]),
        "epistemic": listed(over["epistemic_std"]), "worst": worst,
    }  # fmt: skip


def labels(stamps: Any) -> list[str]:
    """Stamps as text: without a time of day where it is always midnight."""
    import pandas as pd

    index = pd.Index(stamps)
    if not isinstance(index, pd.DatetimeIndex):
        return [str(stamp) for stamp in index]
    whole = bool((index == index.normalize()).all())
    return index.strftime("%Y-%m-%d" if whole else "%Y-%m-%d %H:%M").tolist()


def listed(column: Any) -> list[float | None]:
    """Numbers for JSON; None where unknown."""
    return [float(v) if np.isfinite(v) else None for v in np.asarray(column, dtype=float)]


class ForecastPanel(FanPanel):
    """For a run: origins after its training part."""

    score_label = "validation CRPS"
    note = "Walking forward goes through the test part."

    @property
    def why_no_data(self) -> str:
        """The run folder has the series itself."""
        return ""

    @property
    def names(self) -> Sequence[str]:  # type: ignore[override]
        return self.plan.columns[:1]

    @property
    def horizon(self) -> int:  # type: ignore[override]
        return self.plan.frame.horizon

    @property
    def random(self) -> bool:  # type: ignore[override]
        return is_random(self.run.model)

    @cached_property
    def plan(self) -> Plan:
        return Plan.from_json(self.run.files[FRAME])

    @cached_property
    def series(self) -> Any:
        return kept_series(self.run.files, self.plan, name=Path(self.run.config["data"]).stem)

    @cached_property
    def values(self) -> Tensor:
        """(n, 1, F), target first."""
        return torch.from_numpy(self.series.values).unsqueeze(1)

    def _forecaster(self, model: nn.Module, values: Tensor) -> Forecaster:
        return forecaster(model, self.plan, values, self.run.recipe.evaluate)

    @cached_property
    def walk(self) -> Walk:
        """Forecasts at all origins after the training part: past errors decide how wide a forecast is."""
        return self._forecaster(self.run.model, self.values).walk(samples=_DRAWS, seed=1)

    def shown(self, series: int) -> dict[str, Any]:
        count = len(self.series)
        first = max(0, count - SHOWN)
        values = [listed(column) for column in self.values[first:, 0].T]
        covariates = zip(self.series.columns[1:], values[1:], strict=True)
        return {
            "first": first,
            "labels": [self.series.label(i) for i in range(first, count + self.horizon)],
            "values": values[0],
            "covariates": [{"name": name, "values": column, "ahead": False} for name, column in covariates],
            "origins": [max(first, self.plan.frame.first, self.plan.cut.train - 1), count - 1],
        }

    def forecast(self, asked: Fan) -> dict[str, Any]:
        values = self.values.clone()
        for edit in asked.edits:
            values[edit.step, 0, edit.column] = edit.value
        raw = self._forecaster(self.run.model, values).distribution(
            range(asked.origin, asked.origin + 1), samples=asked.draws, seed=1
        )
        found = raw.scaled(self.walk.scale[asked.origin - self.walk.origins.start])
        paths = _paths(found.means[:, 0], found.sigmas[:, 0], log=found.log)
        return {**{key: column[0].tolist() for key, column in found.summary(asked.level).items()}, "paths": paths}

    def walked(self) -> Iterator[Any]:
        yield 0.1
        cut, frame = self.plan.cut, self.plan.frame
        origins = cut.origins("test", first=frame.first, horizon=frame.horizon)
        yield self.walk.table(self.series, origins)

    def score(self, model: nn.Module) -> float:
        frame, ahead = self.plan.frame, torch.arange(1, self.plan.frame.horizon + 1)
        origins = self.plan.cut.origins("valid", first=frame.first, horizon=frame.horizon)[:_SCORED]
        made = self._forecaster(model, self.values)
        actual = made.actual[torch.tensor(origins).unsqueeze(1) + ahead]
        return float(made.distribution(origins, samples=1, seed=0).crps(actual).nanmean())


def _paths(means: Tensor, sigmas: Tensor, *, log: bool) -> list[list[float]]:
    """Sampled futures (paths, H) of Gaussians (draws, H): each keeps one draw of the weights."""
    source = torch.Generator().manual_seed(1)
    rows = torch.arange(PATHS) % len(means)
    paths = means[rows] + sigmas[rows] * torch.randn(PATHS, means.shape[1], generator=source, dtype=means.dtype)
    found: list[list[float]] = (paths.exp() if log else paths).tolist()
    return found
