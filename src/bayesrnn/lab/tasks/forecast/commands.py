"""``bayesrnn forecast``: what comes after the end of a run's series, or of the series of a file, with intervals."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bayesrnn.errors import UserError
from bayesrnn.lab.console.errors import one_line

if TYPE_CHECKING:
    from bayesrnn.lab.tasks.forecast.tables import Asked

_FILE, _RUN, _DECISION = "For a file", "For a run", "Decisions"
_FOR_FILES = ("horizon", "minutes", "freq", "resample", "timezone", "target", "date", "series", "save")
_FOR_RUNS = ("samples", "device")


@one_line
def command(
    context: typer.Context,
    source: Annotated[
        Path,
        typer.Argument(
            metavar="RUN|FILE|FOLDER",
            help="A run folder of `bayesrnn train forecast`; a CSV, CSV.gz or Parquet file; or a folder of --save.",
        ),
    ],
    level: Annotated[
        list[float] | None,
        typer.Option(help="Probability of an interval: 80 or 0.8; may be given several times. Default: 80 and 95."),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="For a run or a saved forecaster: a file with newer rows of its series.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write .csv or .json. Default: stdout.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a PNG with up to 6 fan charts to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of training and of draws.")] = 1,
    horizon: Annotated[
        int, typer.Option(min=1, max=10_000, help="Steps ahead that the model forecasts.", rich_help_panel=_FILE)
    ] = 24,
    minutes: Annotated[
        float | None,
        typer.Option(
            help="Most minutes of training. Default: 1.5; 3 for more than 20,000 rows.", rich_help_panel=_FILE
        ),
    ] = None,
    freq: Annotated[
        str | None, typer.Option(help="Step between dates, such as h, D or MS. Default: found.", rich_help_panel=_FILE)
    ] = None,
    resample: Annotated[
        str | None,
        typer.Option(help="Put uneven dates on an even grid by mean, sum or last.", rich_help_panel=_FILE),
    ] = None,
    timezone: Annotated[
        str | None,
        typer.Option(help="Time zone of the dates, such as Europe/Berlin.", rich_help_panel=_FILE),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(help="Column to forecast. Default: y, or every column of numbers.", rich_help_panel=_FILE),
    ] = None,
    date: Annotated[
        str | None,
        typer.Option(help="Column of dates; none numbers the rows. Default: ds, or found.", rich_help_panel=_FILE),
    ] = None,
    series: Annotated[
        str | None,
        typer.Option(help="Column that names the series. Default: unique_id, or one series.", rich_help_panel=_FILE),
    ] = None,
    future: Annotated[
        Path | None,
        typer.Option(help="File with the dates of the horizon and the columns known ahead."),
    ] = None,
    save: Annotated[
        Path | None, typer.Option(help="Keep the forecaster, for explore and report.", rich_help_panel=_FILE)
    ] = None,
    walk: Annotated[
        int,
        typer.Option(min=0, max=1000, help="Backtest on this many windows and print scores.", rich_help_panel=_FILE),
    ] = 0,
    table: Annotated[
        Path | None, typer.Option(help="Write the forecasts of --walk to this CSV file.", rich_help_panel=_FILE)
    ] = None,
    above: Annotated[
        float | None,
        typer.Option(help="Probability that a series rises above this.", rich_help_panel=_DECISION),
    ] = None,
    below: Annotated[
        float | None, typer.Option(help="Probability that a series falls below this.", rich_help_panel=_DECISION)
    ] = None,
    over: Annotated[
        float | None,
        typer.Option(
            help="Cost of each unit too many. With --under, prints the best order.", rich_help_panel=_DECISION
        ),
    ] = None,
    under: Annotated[float | None, typer.Option(help="Cost of each unit too few.", rich_help_panel=_DECISION)] = None,
    anomalies: Annotated[
        Path | None, typer.Option(help="Score the new rows in this file for anomalies.", rich_help_panel=_DECISION)
    ] = None,
    false_alarms: Annotated[
        float, typer.Option(help="Share of ordinary rows that raise an alarm.", rich_help_panel=_DECISION)
    ] = 0.01,
    steps: Annotated[
        int | None,
        typer.Option(min=1, max=10_000, help="Steps to print, at most the horizon. Default: all."),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(min=1, max=100_000, help="Draws. Default: the recipe's.", rich_help_panel=_RUN),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu or cuda. Default: cuda where there is one.", rich_help_panel=_RUN)
    ] = None,
) -> None:
    """Forecast beyond the end of a run's series, or train on a file and forecast its series: mean, intervals, and both
    kinds of uncertainty for each step."""
    from bayesrnn.lab.tasks.forecast import SAVED, tables

    if not source.exists():
        raise UserError(f"There is no file or folder {source}; check the path.")
    given = {name for name in context.params if _given(context, name)}
    is_file = not source.is_dir()
    is_run = not is_file and not any((source / name).is_file() for name in SAVED)
    if is_file:
        other = "a run or a saved forecaster" if "data" in given else "a run"
        _refuse(given & {*_FOR_RUNS, "data"}, "a file", other)
        horizon = horizon if "horizon" in given else steps or horizon
    elif is_run:
        _refuse(given & {*_FOR_FILES, "walk", "table"}, "a run", "a file")
    else:
        _refuse(given & {*_FOR_FILES, *_FOR_RUNS}, "a saved forecaster", "a file or a run")
    asked = tables.Asked(
        level=tables.percentages(level or [80, 95]), future=future, walk=walk, table=table, above=above, below=below,
        over=over, under=under, anomalies=anomalies, false_alarms=false_alarms, out=out, plot=plot, as_json=as_json,
        steps=steps,
    )  # fmt: skip
    asked.check()
    if is_file:
        tables.from_file(
            source, asked, target=target, date=date, series=series, save=save, freq=freq, horizon=horizon,
            minutes=minutes, seed=seed, resample=resample, timezone=timezone,
        )  # fmt: skip
    elif is_run:
        _from_run(source, asked, data, samples, seed, device)
    else:
        tables.from_folder(source, asked, data)


def _from_run(
    folder: Path, asked: "Asked", data: str | None, samples: int | None, seed: int, device: str | None
) -> None:  # fmt: skip
    """Open the forecaster of a run, append newer rows, and answer."""
    from bayesrnn.lab.engine.launch import device_of
    from bayesrnn.lab.runs.opening import check_task, open_run
    from bayesrnn.lab.tasks.forecast.tables import update
    from bayesrnn.lab.tasks.forecast.task import opened

    check_task(folder, "forecast")
    run = open_run(folder, device_of(device))
    task = opened(run)
    made = task.finished(samples=samples, seed=seed).update(task.whole)
    if data is not None:
        update(made, data, run.recipe.data.date)
    replace(asked, date=run.recipe.data.date).write(made)


def _given(context: typer.Context, name: str) -> bool:
    found = context.get_parameter_source(name)
    return found is not None and found.name == "COMMANDLINE"


def _refuse(given: set[str], this: str, other: str) -> None:
    """Options that were given and are for something else."""
    if given:
        names = ", ".join(sorted(f"--{name.replace('_', '-')}" for name in given))
        omit = f"omit {'them' if len(given) > 1 else 'it'}"
        instead = " (a run has the horizon that it was trained with)" if "horizon" in given and this == "a run" else ""
        instead = " (bayesrnn evaluate RUN --table walks a run)" if "walk" in given else instead
        raise UserError(f"{names}: for {other}, not for {this}; {omit}{instead}.")
