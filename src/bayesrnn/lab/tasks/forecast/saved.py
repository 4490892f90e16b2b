"""Reports on forecasters: those that `Forecaster.save` wrote, and those of runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bayesrnn.forecasting import Forecaster, plots, scores
from bayesrnn.forecasting.training import minutes_of
from bayesrnn.lab.explore.panel import Panel
from bayesrnn.lab.reading import counted
from bayesrnn.lab.report import html
from bayesrnn.lab.report.analysis import Analysis
from bayesrnn.lab.report.labels import number
from bayesrnn.lab.report.parts import Page, file_name
from bayesrnn.lab.runs.collection import SeedGroup
from bayesrnn.lab.tasks.base import Say
from bayesrnn.lab.tasks.forecast.heading import duration
from bayesrnn.lab.tasks.forecast.panel import LEVEL, ForecasterPanel, future_of, walk_forward, windows_of
from bayesrnn.lab.tasks.forecast.source import labels

_FANS = 3  # series in a report
_WIDTH = 4.6


class Saved:
    """A folder with a forecaster."""

    task = "forecaster"

    def __init__(self, path: Path) -> None:
        self.path, self.forecaster = path, Forecaster.load(path)
        ids = self.forecaster.ids
        named = ", ".join(name if len(name) <= 25 else f"{name[:24]}…" for name in ids[:3])
        self.title = f"Forecasts of {named}" + (f" and {len(ids) - 3} more" if len(ids) > 3 else "")

    def panels(self) -> dict[str, Panel]:
        return {"task": ForecasterPanel(self.forecaster)}

    def report(self, page: Page, *, fast: bool, say: Say) -> None:
        """Fan charts; and, unless ``fast``, calibration, doubt over time and the worst series of a backtest."""
        made = self.forecaster
        table = None
        if not fast and (count := windows_of(made)):
            time = duration(minutes_of(made.settings["minutes"], sum(made.rows.values())))
            say(f"backtest on {counted(count, 'window')}: training a copy on the rows before them takes up to {time}")
            table = walk_forward(made, count)
        add_sections(page, made, table, "a copy that was trained on earlier rows")


def section(page: Page, groups: Sequence[SeedGroup], analyses: Mapping[str, Analysis]) -> None:
    """The same for runs."""
    for group in groups:
        own = analyses[group.label].own if group.label in analyses else {}
        if "forecaster" in own:
            name = group.label if len(groups) > 1 else ""
            add_sections(page, own["forecaster"], own["table"], "the model, which has not seen the test part", name)


def add_sections(page: Page, made: Forecaster, table: Any, who: str, name: str = "") -> None:
    """Fan charts, and what a backtest of ``who`` shows. ``name``: the run, where there are several."""
    names = plots.worst_first(table, made.columns.id)[:_FANS] if table is not None else made.ids[:_FANS]
    prefix, key = (f"{name}: ", f"-{file_name(name)}") if name else ("", "")
    said = (
        "Forecasts after the end of the series. Orange: the part of the interval from not knowing the model's weights."
    )
    if made.columns.future:
        names_ahead = ", ".join(made.columns.future)
        said += f" Future values of {names_ahead} are not known here: the pictures repeat those of the last season."
    shown = plots.short_names(names, 60)
    files = [f"fan-{file_name(each)[:60]}" for each in names]
    files = [file if file not in files[:k] else f"{file}-{k + 1}" for k, file in enumerate(files)]
    pictures = [_fan(page, made, each, shown[each], f"{file}{key}") for each, file in zip(names, files, strict=True)]
    page.add(f"ahead{key}", f"{prefix}Forecasts", html.paragraphs(said), html.pictures(pictures))
    if table is not None:
        _walk_sections(page, table, made, who, prefix, key)


def _fan(page: Page, made: Forecaster, name: str, shown: str, file: str) -> Any:
    history = made.history(name)
    future = future_of(made, history)
    found = made.predict(history, level=LEVEL, future=future)
    low, high = found[f"lo-{LEVEL[-1]}"].iloc[-1], found[f"hi-{LEVEL[-1]}"].iloc[-1]
    end = labels(found[made.columns.time])[-1]
    said = f"{end}: {number(float(found['median'].iloc[-1]))} ({number(float(low))} to {number(float(high))})"
    png = plots.fan_chart(made, name, level=LEVEL, future=future, width=_WIDTH)
    alt = f"The end of {name} and its forecast. {said}."
    return page.figure(file, png, alt=alt, caption=f"{shown}. {said}.")


def _walk_sections(page: Page, table: Any, made: Forecaster, who: str, prefix: str, key: str) -> None:
    """Calibration, both uncertainties over time, the worst series, and scores by series."""
    whole, columns = scores(table).iloc[0], made.columns
    said = ", ".join(f"{level}% intervals cover {whole[f'coverage-{level}']:.1%}" for level in LEVEL)
    about = f"{counted(int(table['y'].notna().sum()), 'value')} were forecast by {who}"
    page.add_figure(
        f"calibration{key}", f"{prefix}Calibration", plots.calibration(table, width=_WIDTH), text=f"{about}.",
        alt=f"Where values fell in their forecasts, and coverage by steps ahead. {said}.",
        caption=f"Above: where values fell in their forecasts; flat means calibrated. Below: {said}, by steps ahead.",
    )  # fmt: skip
    variances = plots.relative(table, columns.id) ** 2
    share = float(variances["epistemic_std"].sum() / variances.to_numpy().sum())
    several = ", each series divided by its mean absolute value" if len(made.ids) > 1 else ""
    png = plots.epistemic_share(table, columns.time, id_col=columns.id, width=_WIDTH)
    page.add_figure(
        f"doubt{key}", f"{prefix}Doubt over time", png,
        alt=f"Standard deviations of both kinds over time; {share:.1%} of the variance is epistemic.",
        caption=f"Noise in the data, and the model's own doubt ({share:.1%} of the variance){several}.",
    )  # fmt: skip
    worst = plots.worst_first(table, columns.id)
    if len(worst) > 1:
        png = plots.worst_series(table, 4, columns.id, columns.time, width=_WIDTH)
        page.add_figure(
            f"worst{key}", f"{prefix}Worst series", png,
            alt="The series with the largest CRPS relative to their size: observed values, medians and intervals.",
            caption="Largest CRPS relative to the size of the series. Black: observed.",
        )  # fmt: skip
    by_series = scores(table, by=columns.id).loc[worst[:20]]
    shown = plots.short_names(worst[:20], 60)
    rows = [
        [shown.get(name, name), *(number(float(row[key])) for key in ("crps", "mae")),
         *(f"{row[f'coverage-{level}']:.1%}" for level in LEVEL)]
        for name, row in [*by_series.iterrows(), ("all series", whole)]
    ]  # fmt: skip
    head = ["series", "CRPS", "MAE", *(f"{level}% coverage" for level in LEVEL)]
    page.add(f"scores{key}", f"{prefix}Scores", html.wide(html.table(head, rows)))
