"""The panel of forecasts: a fan chart at any origin, sampled paths, edited covariates, and walking forward."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from pydantic import Field
from torch import nn

from bayesrnn.errors import UserError
from bayesrnn.forecasting import Forecaster
from bayesrnn.forecasting.plots import doubt, short_names, worst_first
from bayesrnn.forecasting.scores import pit, scores
from bayesrnn.forecasting.training import minutes_of
from bayesrnn.lab.explore.panel import Handler, Options, Panel, Part, Request
from bayesrnn.lab.runs.opening import OpenedRun
from bayesrnn.lab.tasks.forecast.source import labels
from bayesrnn.lab.tasks.forecast.task import QUANTILES, opened

SHOWN = 240  # last steps of a series on the page
PATHS = 12
_NAMES = 1000  # series that can be chosen
_TIMES = 300  # points over time
_WORST = 4
LEVEL = (80, 95)
_WINDOWS = 20  # of walking forward, at most


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
    level: float = Field(0.9, ge=0.1, le=0.99)
    edits: list[Edit] = Field([], max_length=200)


class ForecasterPanel(Panel):
    """For a forecaster: any origin with enough rows before it; columns that are known ahead are edited after it too."""

    title = "Forecast"

    def __init__(self, made: Forecaster) -> None:
        self.made, self.names, self.horizon = made, made.ids, made.horizon
        self.history = lru_cache(64)(made.history)
        self.minutes = minutes_of(made.settings["minutes"], sum(made.rows.values()))
        self.note = (
            "The model was trained on these rows, so forecasts at earlier origins do not test it. A backtest "
            f"does: training a copy on earlier rows takes up to {self.minutes:g} minutes."
        )

    @classmethod
    def files(cls) -> dict[str, Path]:
        folder = Path(__file__).parent
        return {name: folder / name for name in ("panel.js", "panel.css")}

    @property
    def _columns(self) -> list[str]:
        """Covariates with numbers: those known up to now, then those known ahead."""
        columns = self.made.columns
        return [name for name in (*columns.past, *columns.future) if name in columns.means][:100]

    def shown(self, series: int) -> dict[str, Any]:
        """A series: first (the first step on the page), labels, values, covariates, and origins, the first and last.

        A covariate has ``name``, ``values`` from the first step shown, and ``ahead``: its values after the origin,
        which it then has for all steps of the horizon, can be changed too.
        """
        made, history = self.made, self.history(self.names[series])
        count, columns = len(history), made.columns
        first = max(0, count - SHOWN)
        assert made.model is not None
        future = future_of(made, history)
        covariates = []
        for name in self._columns:
            values = history[name].iloc[first:].tolist()
            ahead = name in columns.future
            covariates.append({"name": str(name)[:80], "ahead": ahead, "values": listed(
                [*values, *(future[name].tolist() if ahead else [])])})  # fmt: skip
        stamps = [*history[columns.time].iloc[first:], *stamps_after(made, history)]
        return {
            "first": first,
            "labels": labels(stamps),
            "values": listed(history[columns.target].iloc[first:]),
            "covariates": covariates,
            "origins": [min(max(first, made.model.shape.least), count - 1), count - 1],
        }

    def forecast(self, asked: Fan) -> dict[str, Any]:
        """Columns mean, low, high, aleatoric_std, epistemic_std, and paths."""
        made, history = self.made, self.history(self.names[asked.series])
        rows = history.iloc[: asked.origin + 1].copy()
        future = future_of(made, rows, history.iloc[asked.origin + 1 :])
        for edit in asked.edits:
            name, after = self._columns[edit.column - 1], edit.step - asked.origin - 1
            frame, row = (rows, edit.step) if after < 0 else (future, after)
            frame.iloc[row, frame.columns.get_loc(name)] = edit.value
        percent = round(100 * asked.level, 6)
        found = made.predict(rows, level=[percent], future=future)
        paths = made.sample_paths(PATHS, rows, future=future, seed=1)["y"].to_numpy().reshape(PATHS, -1)
        named = {"mean": "mean", "low": f"lo-{percent:g}", "high": f"hi-{percent:g}"}
        named |= {key: key for key in ("aleatoric_std", "epistemic_std")}
        return {**{key: listed(found[column]) for key, column in named.items()}, "paths": [listed(p) for p in paths]}

    def table(self) -> Any:
        """Forecasts beside observed values."""
        count = windows_of(self.made)
        if not count:
            raise UserError("The series are too short to train a copy on their earlier rows; give them more rows.")
        return walk_forward(self.made, count)

    @property
    def seconds(self) -> float:
        """About how long `table` takes."""
        return 60 * self.minutes + 5

    def about(self) -> dict[str, Any]:
        count = len(self.names)
        few = f" Of {count:,} series the first {_NAMES:,} can be chosen." if count > _NAMES else ""
        return {
            "names": list(short_names(self.names[:_NAMES], 80).values()), "horizon": self.horizon,
            "note": self.note + few, "shown": self.shown(0),
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
        """The work is done in a thread, so that the page can show how far it is, and give up."""
        found: list[Any] = []
        started, work = time.monotonic(), threading.Thread(target=lambda: found.append(_tried(self.table)), daemon=True)
        work.start()
        while work.is_alive():
            work.join(0.3)
            yield {"progress": min(0.95, (time.monotonic() - started) / self.seconds)}
        if isinstance(found[0], UserError):
            raise found[0]
        columns = self.made.columns
        yield summary(found[0].rename(columns={columns.id: "unique_id", columns.time: "ds"}))


def _tried(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except UserError as error:
        return error


def summary(table: Any) -> dict[str, Any]:
    """What the page draws of a table of `Forecaster.backtest`, with columns unique_id, ds and y."""
    by_step, times = scores(table, by="step"), table["ds"]
    order = np.sort(times.unique())
    group = np.searchsorted(order, times.to_numpy()) // -(-len(order) // _TIMES)
    over = doubt(table, group)
    edges, shares = pit(table)
    levels = sorted((c[9:] for c in by_step if c.startswith("coverage-")), key=float)
    worst = []
    for name, label in short_names(worst_first(table)[:_WORST], 80).items():
        rows = table[table["unique_id"] == name].drop_duplicates("ds", keep="last").sort_values("ds").tail(SHOWN)
        ends = {"low": rows[f"lo-{levels[-1]}"], "high": rows[f"hi-{levels[-1]}"]}
        columns = {"values": rows["y"], "median": rows["median"], **ends}
        about = {"name": label, "labels": labels(rows["ds"]), "crps": float(rows["crps"].mean())}
        worst.append({**about, **{key: listed(column) for key, column in columns.items()}})
    return {
        "rows": int(table["y"].notna().sum()), "crps": listed(by_step["crps"]), "edges": edges, "pit": shares,
        "coverage": [{"level": float(level), "shares": listed(by_step[f"coverage-{level}"])} for level in levels],
        "times": labels(times.groupby(group).first()), "aleatoric": listed(over["aleatoric_std"]),
        "epistemic": listed(over["epistemic_std"]), "relative": table["unique_id"].nunique() > 1, "worst": worst,
    }  # fmt: skip


def listed(column: Any) -> list[float | None]:
    """Numbers for JSON; None where unknown."""
    return [float(v) if np.isfinite(v) else None for v in np.asarray(column, dtype=float)]


class ForecastPanel(ForecasterPanel):
    """For a run: walking forward goes through its test part."""

    score_label = "scaled validation CRPS"
    seconds = 10.0

    def __init__(self, run: OpenedRun, options: Options) -> None:
        self.run, self.options = run, options
        self.own = opened(run)
        super().__init__(self.own.finished().update(self.own.whole))
        self.note = "The backtest goes through the test part, which the model has not seen."

    @property
    def why_no_data(self) -> str:
        """The run folder has the series itself."""
        return ""

    def table(self) -> Any:
        own = opened(self.run)
        return own.walk(own.finished(), 95.0)

    def score(self, model: nn.Module) -> float:
        whole = deepcopy(self.run.model)
        whole.networks = nn.ModuleList([model])
        return float(opened(replace(self.run, model=whole)).validate()["valid_crps"])


def windows_of(made: Forecaster) -> int:
    """How many windows to walk forward through: a fifth of the shortest series, at most so many; 0: it is too short."""
    shortest = int(made.history().groupby(made.columns.id).size().min())
    return min(_WINDOWS, max(shortest // 5 // made.horizon, int(shortest > 3 * made.horizon + 20)))


def walk_forward(made: Forecaster, windows: int, level: Any = LEVEL) -> Any:
    """The table of a backtest with quantiles, so that the histogram of PIT can be drawn."""
    return made.backtest(windows=windows, level=level, quantiles=QUANTILES)


def future_of(made: Forecaster, history: Any, later: Any = None) -> Any:
    """Values of columns that are known ahead, for the horizon after a history: those of ``later`` rows as far as they
    go, then the last season again; missing ones count as usual. None: there are no such columns."""
    import pandas as pd

    columns, horizon = made.columns, made.horizon
    if not columns.future or made.model is None:
        return None
    season = min(max(made.model.shape.season, 1), len(history))
    last = history.tail(season)
    again = pd.concat([last] * -(-horizon // season), ignore_index=True).iloc[:horizon]
    known = later.iloc[:horizon] if later is not None else history.iloc[:0]
    names = [columns.id, *columns.future]
    frame = pd.concat([known[names], again[names].iloc[len(known) :]], ignore_index=True)
    blank = {name: columns.means[name][0] if name in columns.means else "" for name in columns.future}
    return frame.fillna(blank).assign(**{columns.time: stamps_after(made, history)})


def stamps_after(made: Forecaster, history: Any) -> Any:
    """Those of the horizon after a history."""
    import pandas as pd

    assert made.panel is not None
    clock, last = made.panel.clock, history[made.columns.time].tail(1)
    end = clock.numbers(last.to_numpy() if clock.unit == "number" else pd.DatetimeIndex(last))[0]
    return clock.stamps(end + clock.every * np.arange(1, made.horizon + 1))
