"""Pictures of forecasts for the documentation, from the records that :mod:`docs.build.forecast` reads."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from bayesrnn.lab.report.plots import canvas, plain, png
from bayesrnn.lab.runs.record import Record
from bayesrnn.lab.runs.record import values as values_of
from bayesrnn.lab.tasks.forecast.plots import BLACK, FORECAST, columns_of, forecast_plot, walked
from docs.build.forecast import records_by_series
from docs.build.pictures import write


def walk_plot(record: Record, *, last: int = 120) -> bytes:
    """Forecasts one step ahead through the test part beside what came, and the two uncertainties below. PNG bytes."""
    walk = record.metric("walk")
    name, level = record.extra["series"]["columns"][0], record.metric("level")
    return walked(columns_of(walk), walk["date"], name=name, level=level, last=last)


def pit_plot(records: Mapping[str, Sequence[Record]]) -> bytes:
    """A histogram per series of where values fell in their predictive distributions; flat is right. PNG bytes."""
    columns = min(len(records), 4 if len(records) > 6 else 3)
    rows = math.ceil(len(records) / columns)
    figure = canvas((7.2, 0.4 + 2.0 * rows), dpi=150)
    panels = figure.subplots(rows, columns, sharey=True, squeeze=False).flatten()
    for axes in panels[len(records) :]:
        axes.set_visible(False)
    for axes, (name, group) in zip(panels, records.items(), strict=False):
        bars = [fmean(column) for column in zip(*values_of(group, "reliability.pit"), strict=True)]
        width = 1 / len(bars)
        axes.bar([(i + 0.5) * width for i in range(len(bars))], bars, width=0.9 * width, color=FORECAST)
        axes.axhline(width, color=BLACK, linewidth=1, linestyle=(0, (4, 2)))
        axes.set_title(name, fontsize=9)
        axes.set_xticks([0, 0.5, 1])
        plain(axes, lines="y")
    figure.supxlabel("P(forecast ≤ what came)", fontsize=9)
    figure.supylabel("share", fontsize=9)
    return png(figure)


def ahead_plot(record: Record) -> bytes:
    """What a record says comes after the end of its series. PNG bytes."""
    ahead = record.metric("ahead")
    return forecast_plot(
        ahead["past"],
        columns_of(ahead),
        ahead["date"],
        name=record.extra["series"]["columns"][0],
        level=record.metric("level"),
        direct=ahead["direct"],
    )


def write_figures(results: Path, folder: Path) -> list[Path]:
    """The pictures of docs/forecasting.md, from records; those without one are left out."""
    found = records_by_series(results)
    makers: dict[str, Any] = {}
    for name, kind, plot in (("mauna_loa", "ahead", ahead_plot), ("elnino", "walk", walk_plot)):
        records = found.get(name, {}).get("forecast")
        if records:
            makers[f"forecast-{kind}-{name}.png"] = lambda plot=plot, record=records[0]: plot(record)
    bayesian = {name: group["forecast"] for name, group in found.items() if "forecast" in group}
    if bayesian:
        makers["forecast-pit.png"] = lambda: pit_plot(bayesian)
    return write({name: make() for name, make in makers.items()}, folder)
