"""``bayesrnn forecast``: what comes after the end of a run's series, or of the series of a file, with intervals."""

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from bayesrnn.errors import UserError
from bayesrnn.lab.console.errors import one_line

_FOR_FILES = ("horizon", "minutes", "freq", "resample", "target", "date", "out")
_FOR_RUNS = ("data", "samples", "device")


@one_line
def command(
    context: typer.Context,
    run: Annotated[
        Path, typer.Argument(help="A run folder of `bayesrnn train forecast`, or a CSV, CSV.gz or Parquet file.")
    ],
    steps: Annotated[int | None, typer.Option(min=1, max=10_000, help="Steps ahead. Default: the horizon.")] = None,
    level: Annotated[
        list[float] | None,
        typer.Option(
            help="Probability of an interval: 80 or 0.8. Several times for a file. Default: 95; file: 80, 95."
        ),
    ] = None,
    horizon: Annotated[int, typer.Option(min=1, max=10_000, help="For a file: steps ahead.")] = 24,
    minutes: Annotated[float, typer.Option(help="For a file: time for training.")] = 1.5,
    freq: Annotated[
        str | None, typer.Option(help="For a file: step of time, such as h, D or MS. Default: found.")
    ] = None,
    resample: Annotated[
        str | None,
        typer.Option(help="For a file: put uneven stamps on the grid by mean, sum or last. Default: refuse."),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="For a file: column to forecast. Default: y, or all with numbers.")
    ] = None,
    date: Annotated[str | None, typer.Option(help="For a file: column of stamps. Default: ds, or found.")] = None,
    out: Annotated[Path | None, typer.Option(help="For a file: write .csv or .json. Default: CSV on stdout.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a PNG with bands to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    data: Annotated[str | None, typer.Option(help="For a run: CSV file that continues its series.")] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, max=100_000, help="For a run: draws of the weights. Default: the recipe's.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draws.")] = 1,
    device: Annotated[
        str | None, typer.Option(help="For a run: cpu or cuda. Default: cuda where there is one.")
    ] = None,
) -> None:
    """Forecast beyond the end of a run's series, or train on a file and forecast its series: mean, intervals, and both
    kinds of uncertainty for each step."""
    import json

    from bayesrnn.lab.engine.launch import device_of
    from bayesrnn.lab.runs.opening import check_task, open_run
    from bayesrnn.lab.tasks.forecast import ahead

    if run.is_file() or run.suffix.lower() in (".csv", ".gz", ".parquet"):
        _refuse(context, _FOR_RUNS, "a file", "a run")
        if resample not in (None, "mean", "sum", "last"):
            raise UserError(f"--resample is {resample}; choose mean, sum or last.")
        _forecast_file(
            run, out, as_json, plot, _percentages(level or [80, 95]), target, date, horizon=steps or horizon,
            freq=int(freq) if freq and freq.isdigit() else freq, minutes=minutes, seed=seed, resample=resample,
        )  # fmt: skip
        return
    check_task(run, "forecast")
    _refuse(context, _FOR_FILES, "a run", "a file")
    chances = _percentages(level or [95])
    if len(chances) > 1:
        raise UserError("A run's forecast has one interval; give --level once.")
    _check(plot, (".png",), "--plot")
    trained = open_run(run, device_of(device))
    found = ahead.forecast(trained, data, steps=steps, level=chances[0] / 100, samples=samples, seed=seed)
    if plot is not None:
        ahead.plot(found, plot)
    if as_json:
        typer.echo(json.dumps({key: value for key, value in found.items() if key != "past"}, indent=2))
    else:
        ahead.show(found)


def _refuse(context: typer.Context, names: tuple[str, ...], this: str, other: str) -> None:
    """Options that were given and are for something else."""
    sources = {name: context.get_parameter_source(name) for name in names}
    given = [f"--{name}" for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    if given:
        omit = f"omit {'them' if given[1:] else 'it'}"
        steps = " (--steps sets the steps of a run)" if "--horizon" in given else ""
        raise UserError(f"{', '.join(given)}: for {other}, not for {this}; {omit}{steps}.")


def _percentages(levels: list[float]) -> list[float]:
    """Each once; below 1 they are fractions."""
    for value in levels:
        if not 0 < value < 100 or value == 1:
            raise UserError(f"--level is {value:g}; it must be between 0 and 100%, such as 80 or 0.8.")
    return list(dict.fromkeys(round(100 * value, 9) if value < 1 else value for value in levels))


def _check(path: Path | None, suffixes: tuple[str, ...], option: str) -> None:
    from bayesrnn.lab.runs.files import check_free

    if path is None:
        return
    if path.suffix.lower() not in suffixes or not path.resolve().parent.is_dir():
        kinds = " or ".join(suffixes)
        raise UserError(f"{path} cannot be written; {option} names a {kinds} file in a folder that exists.")
    check_free(path, force=True, option=option)


def _forecast_file(
    data: Path, out: Path | None, as_json: bool, plot: Path | None, level: list[float], target: str | None,
    date: str | None, **settings: Any,
) -> None:  # fmt: skip
    """Fit a `bayesrnn.forecasting.Forecaster` and write its forecasts."""
    from bayesrnn.forecasting import Forecaster
    from bayesrnn.forecasting.panel import Columns, long_frame, read, time_column
    from bayesrnn.forecasting.plots import fan_chart
    from bayesrnn.lab.runs.files import write_file

    for path, suffixes, option in ((out, (".csv", ".json"), "--out"), (plot, (".png",), "--plot")):
        _check(path, suffixes, option)
    columns = Columns(time=date or Columns.time, target=target or Columns.target)
    table = read(data)
    for name, option in ((target, "--target"), (date, "--date")):
        if name is not None and name not in table:
            raise UserError(f"{data} has no column {name!r}; {option} is one of {', '.join(map(str, table))}.")
    stamps = time_column(table, columns.time)
    try:
        frame = long_frame(table.rename(columns={stamps: columns.time}), columns)
        if target is None:
            names = [columns.target] if columns.target in table else frame[columns.id].unique().tolist()
            more = f" and {len(names) - 8} more" if len(names) > 8 else ""
            typer.echo(f"Forecasts {', '.join(names[:8])}{more}; --target chooses one column.", err=True)
        forecaster = Forecaster(verbose=True, time_col=columns.time, target_col=columns.target, **settings).fit(frame)
    except UserError as error:
        raise UserError(_as_options(str(error), data, stamps, table)) from None
    found = forecaster.predict(level=level)
    if plot is not None:
        write_file(plot, fan_chart(forecaster, level=level))
    json_wanted = as_json or (out is not None and out.suffix.lower() == ".json")
    text = found.to_json(orient="records", date_format="iso", indent=2) if json_wanted else found.to_csv(index=False)
    if out is None:
        typer.echo(text.rstrip("\n"))
    else:
        write_file(out, text.encode())


def _as_options(message: str, data: Path, stamps: str, table: Any) -> str:
    """A message of the library with the names of the command's options, and lines and columns as in the file."""
    message = re.sub(r"""\bresample=['"](\w+)['"]""", r"--resample \1", message)
    for name, option in (("time_col", "date"), ("target_col", "target"), ("freq", "freq")):
        message = re.sub(rf"(?<![-\w]){name}\b", f"--{option}", message)
    if "y" not in table:  # a wide file: the series is the column
        message = message.replace(" in column 'y'", "")
    message = message.replace("column 'ds' and no DatetimeIndex", "column of dates").replace("'ds'", repr(stamps))
    message = message.replace("The frame", str(data)).replace("the frame", "the file")
    if data.suffix.lower() in (".parquet", ".pq"):
        return message

    def line(row: str) -> int:
        return int(row) % len(table) + 2  # below the header; columns of a wide file follow each other

    message = re.sub(r"\brows (\d+) and (\d+) are", lambda m: f"lines {line(m[1])} and {line(m[2])} are", message)
    return re.sub(r"(?<!\()\b([Rr])ow (\d+)", lambda m: f"{'L' if m[1] == 'R' else 'l'}ine {line(m[2])}", message)
