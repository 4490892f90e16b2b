"""A forecaster that `Forecaster.save` wrote, for `bayesrnn explore` and `bayesrnn report`."""

import threading
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from bayesrnn.errors import UserError
from bayesrnn.forecasting import Forecaster, plots, scores
from bayesrnn.lab.explore.panel import Panel
from bayesrnn.lab.reading import counted
from bayesrnn.lab.report import html
from bayesrnn.lab.report.labels import number
from bayesrnn.lab.report.parts import Page, file_name
from bayesrnn.lab.tasks.base import Say
from bayesrnn.lab.tasks.forecast.panel import PATHS, SHOWN, Fan, FanPanel, labels, listed

QUANTILES = [k / 10 for k in range(1, 10)]
_LEVEL = (80, 95)
_WINDOWS = 20  # of walking forward, at most
_FANS = 3  # series in a report
_WIDTH = 4.6


class Saved:
    """A folder with a forecaster."""

    task = "forecaster"

    def __init__(self, path: Path) -> None:
        self.path, self.forecaster = path, Forecaster.load(path)
        ids = self.forecaster.ids
        named = ", ".join(ids[:3]) + (f" and {len(ids) - 3} more" if len(ids) > 3 else "")
        self.title = f"Forecasts of {named}"[:100]

    def panels(self) -> dict[str, Panel]:
        return {"task": SavedPanel(self.forecaster)}

    def report(self, page: Page, *, fast: bool, say: Say) -> None:
        """Fan charts; and, unless ``fast``, calibration, doubt over time and the worst series of a walk forward."""
        made = self.forecaster
        table = None
        if not fast and (count := windows_of(made)):
            say(f"walking forward through {counted(count, 'window')}; a copy is trained on the rows before them")
            table = walk_forward(made, count)
        names = plots.worst_first(table, made.columns.id)[:_FANS] if table is not None else made.ids[:_FANS]
        page.add("ahead", "Forecasts", html.paragraphs(
            "What comes after the end of the series. Orange: how much of the interval comes from not knowing the "
            "model's weights."), html.pictures([self._fan(page, str(name)) for name in names]))  # fmt: skip
        if table is not None:
            _walk_sections(page, table, made)

    def _fan(self, page: Page, name: str) -> Any:
        history = self.forecaster.history(name)
        future = future_of(self.forecaster, history)
        found = self.forecaster.predict(history, level=_LEVEL, future=future)
        low, high = found[f"lo-{_LEVEL[-1]}"].iloc[-1], found[f"hi-{_LEVEL[-1]}"].iloc[-1]
        end = labels(found[self.forecaster.columns.time])[-1]
        said = f"{end}: {number(float(found['median'].iloc[-1]))} ({number(float(low))} to {number(float(high))})"
        png = plots.fan_chart(self.forecaster, name, level=_LEVEL, future=future, width=_WIDTH)
        alt = f"The end of {name} and its forecast. {said}."
        return page.figure(f"fan-{file_name(name)[:60]}", png, alt=alt, caption=f"{name[:60]}. {said}.")


def _walk_sections(page: Page, table: Any, made: Forecaster) -> None:
    """Calibration, both uncertainties over time, the worst series, and scores by series."""
    whole, columns = scores(table).iloc[0], made.columns
    said = ", ".join(f"{level}% intervals hold {whole[f'coverage-{level}']:.1%}" for level in _LEVEL)
    about = (
        f"{counted(int(table['y'].notna().sum()), 'value')} were forecast by a copy that was trained on earlier rows"
    )
    page.add_figure(
        "calibration", "Calibration", plots.calibration(table, width=_WIDTH), text=f"{about}.",
        alt=f"Where values fell in their forecasts, and coverage by steps ahead. {said}.",
        caption=f"Above: where values fell in their forecasts; flat is right. Below: {said}, by steps ahead.",
    )  # fmt: skip
    share = float(
        (table["epistemic_std"] ** 2).mean() / (table[["aleatoric_std", "epistemic_std"]] ** 2).sum(axis=1).mean()
    )
    page.add_figure(
        "doubt", "Doubt over time", plots.epistemic_share(table, columns.time, width=_WIDTH),
        alt=f"Standard deviations of both kinds over time; {share:.1%} of the variance is epistemic.",
        caption=f"Noise in the data, and the model's own doubt: {share:.1%} of the variance.",
    )  # fmt: skip
    if len(made.ids) > 1:
        page.add_figure(
            "worst", "Worst series", plots.worst_series(table, 4, columns.id, columns.time, width=_WIDTH),
            alt="The series with the largest CRPS relative to their size: what came, medians and intervals.",
            caption="Largest CRPS relative to the size of the series. Black: what came.",
        )  # fmt: skip
    by_series = scores(table, by=columns.id).loc[plots.worst_first(table, columns.id)[:20]]
    rows = [
        [str(name)[:60], *(number(float(row[key])) for key in ("crps", "mae")),
         *(f"{row[f'coverage-{level}']:.1%}" for level in _LEVEL)]
        for name, row in [*by_series.iterrows(), ("all series", whole)]
    ]  # fmt: skip
    head = ["series", "CRPS", "MAE", *(f"{level}% holds" for level in _LEVEL)]
    page.add("scores", "Scores", html.wide(html.table(head, rows)))


def windows_of(made: Forecaster) -> int:
    """How many windows to walk forward through: a fifth of the shortest series, at most so many; 0: it is too short."""
    shortest = int(made.history().groupby(made.columns.id).size().min())
    return min(_WINDOWS, max(shortest // 5 // made.horizon, int(shortest > 3 * made.horizon + 20)))


def walk_forward(made: Forecaster, windows: int, level: Any = _LEVEL) -> Any:
    """The table of a backtest with quantiles, so that the histogram of PIT can be drawn."""
    return made.backtest(windows=windows, level=level, quantiles=QUANTILES)


def future_of(made: Forecaster, history: Any, later: Any = None) -> Any:
    """Values of columns that are known ahead, for the horizon after a history: those of ``later`` rows as far as they
    go, then the last season again. None: there are no such columns."""
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
    return frame.assign(**{columns.time: stamps_after(made, history)})


def stamps_after(made: Forecaster, history: Any) -> Any:
    """Those of the horizon after a history."""
    import pandas as pd

    assert made.panel is not None
    clock, last = made.panel.clock, history[made.columns.time].tail(1)
    end = clock.numbers(last.to_numpy() if clock.unit == "number" else pd.DatetimeIndex(last))[0]
    return clock.stamps(end + clock.every * np.arange(1, made.horizon + 1))


class SavedPanel(FanPanel):
    """For a forecaster: any origin with enough rows before it; columns that are known ahead are edited after it too."""

    random = False

    def __init__(self, made: Forecaster) -> None:
        self.made, self.names, self.horizon = made, made.ids, made.horizon
        self.history = lru_cache(64)(made.history)
        self.note = (
            "The model was trained on these rows, so a forecast at an earlier origin is no test of it. Walking forward "
            f"is: a copy is trained on earlier rows, which takes up to {made.settings['minutes']:g} minutes."
        )

    @property
    def _columns(self) -> list[str]:
        """Covariates with numbers: those known up to now, then those known ahead."""
        columns = self.made.columns
        return [name for name in (*columns.past, *columns.future) if name in columns.means][:100]

    def shown(self, series: int) -> dict[str, Any]:
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

    def walked(self) -> Iterator[Any]:
        """The work is done in a thread, so that the page can show how far it is, and give up."""
        count = windows_of(self.made)
        if not count:
            raise UserError("The series are too short to train a copy on their earlier rows; give them more rows.")
        found: list[Any] = []
        started, expected = time.monotonic(), 60 * self.made.settings["minutes"] + 5
        work = threading.Thread(target=lambda: found.append(_tried(self.made, count)), daemon=True)
        work.start()
        while work.is_alive():
            work.join(0.3)
            yield min(0.95, (time.monotonic() - started) / expected)
        if isinstance(found[0], UserError):
            raise found[0]
        columns = self.made.columns
        yield found[0].rename(columns={columns.id: "unique_id", columns.time: "ds"})


def _tried(made: Forecaster, count: int) -> Any:
    try:
        return walk_forward(made, count)
    except UserError as error:
        return error
