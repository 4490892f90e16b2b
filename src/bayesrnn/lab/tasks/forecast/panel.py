"""The panel of forecasts: a fan chart at any origin after the training part, sampled paths, edited covariates."""

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from statistics import NormalDist
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from bayesrnn.errors import UserError
from bayesrnn.lab.explore.panel import MOST_DRAWS, Handler, Panel, Part, Request
from bayesrnn.lab.tasks.forecast.forecaster import Forecaster, Walk, is_random
from bayesrnn.lab.tasks.forecast.plan import FRAME, Plan, kept_series
from bayesrnn.lab.tasks.forecast.task import forecaster

_SHOWN = 240  # last steps of the series on the page
_PATHS = 12
_SCORED = 200  # origins of the validation part
_DRAWS = 32


class Edit(Request):
    """Another value of a covariate at a step."""

    step: int = Field(ge=0)
    column: int = Field(ge=1, le=100)
    value: float = Field(ge=-1e12, le=1e12)


class Fan(Request):
    """The forecast made at a step; what came later is unknown to it."""

    origin: int = Field(ge=0)
    draws: int = Field(_DRAWS, ge=1, le=MOST_DRAWS)
    level: float = Field(0.9, ge=0.1, le=0.99)
    edits: list[Edit] = Field([], max_length=200)


class ForecastPanel(Panel):
    title = "Forecast"
    score_label = "validation CRPS"

    @property
    def why_no_data(self) -> str:
        """The run folder has the series itself."""
        return ""

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

    def about(self) -> dict[str, Any]:
        count, horizon = len(self.series), self.plan.frame.horizon
        first = max(0, count - _SHOWN)
        values = self.values[first:, 0].T.tolist()
        return {
            "random": is_random(self.run.model),
            "name": self.series.columns[0],
            "first": first,
            "labels": [self.series.label(i) for i in range(first, count + horizon)],
            "values": values[0],
            "covariates": [
                {"name": name, "values": column}
                for name, column in zip(self.series.columns[1:], values[1:], strict=True)
            ],
            "origins": [max(first, self.plan.frame.first, self.plan.cut.train - 1), count - 1],
            "horizon": horizon,
        }

    def handlers(self) -> Mapping[str, Handler]:
        return {"fan": Handler(Fan, self.fan)}

    def fan(self, asked: Fan) -> Iterator[Part]:
        yield {"progress": 0.2}
        if asked.origin not in self.walk.origins:
            named = [self.series.label(end) for end in (self.walk.origins[0], self.walk.origins[-1])]
            raise UserError(f"Forecasts can be made from {named[0]} to {named[1]}, after the training part.")
        values = self.values.clone()
        for edit in asked.edits:
            if edit.step > asked.origin or edit.column >= values.shape[-1]:
                raise UserError("A change must be of a covariate, and not after the origin.")
            values[edit.step, 0, edit.column] = edit.value
        row = asked.origin - self.walk.origins.start
        raw = self._forecaster(self.run.model, values).distribution(
            range(asked.origin, asked.origin + 1), samples=asked.draws, seed=1
        )
        found = raw.scaled(self.walk.scale[row])
        low, high = found.interval(asked.level)
        columns = {"mean": found.mean, "low": low, "high": high}
        columns |= {"aleatoric_std": found.aleatoric.sqrt(), "epistemic_std": found.epistemic.sqrt()}
        yield {
            "origin": asked.origin,
            "reach": NormalDist().inv_cdf((1 + asked.level) / 2),
            **{key: column[0].tolist() for key, column in columns.items()},
            "paths": _paths(found.means[:, 0], found.sigmas[:, 0], log=found.log),
        }

    def score(self, model: nn.Module) -> float:
        frame, ahead = self.plan.frame, torch.arange(1, self.plan.frame.horizon + 1)
        origins = self.plan.cut.origins("valid", first=frame.first, horizon=frame.horizon)[:_SCORED]
        made = self._forecaster(model, self.values)
        actual = made.actual[torch.tensor(origins).unsqueeze(1) + ahead]
        return float(made.distribution(origins, samples=1, seed=0).crps(actual).nanmean())


def _paths(means: Tensor, sigmas: Tensor, *, log: bool) -> list[list[float]]:
    """Sampled futures (paths, H) of Gaussians (draws, H): each keeps one draw of the weights."""
    source = torch.Generator().manual_seed(1)
    rows = torch.arange(_PATHS) % len(means)
    paths = means[rows] + sigmas[rows] * torch.randn(_PATHS, means.shape[1], generator=source, dtype=means.dtype)
    found: list[list[float]] = (paths.exp() if log else paths).tolist()
    return found
