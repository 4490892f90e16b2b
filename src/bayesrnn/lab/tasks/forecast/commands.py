"""``bayesrnn forecast``: what comes after the end of a run's series, or of the series of a file, with intervals."""

from pathlib import Path
from typing import Annotated, Any

import typer

from bayesrnn.lab.console.errors import one_line


@one_line
def command(
    run: Annotated[
        Path, typer.Argument(help="A run folder of `bayesrnn train forecast`, or a CSV, CSV.gz or Parquet file.")
    ],
    steps: Annotated[int | None, typer.Option(min=1, max=10_000, help="Steps ahead. Default: the horizon.")] = None,
    level: Annotated[
        list[float] | None,
        typer.Option(help="Probability that an interval holds (0.95); for a file percentages, several times."),
    ] = None,
    horizon: Annotated[int, typer.Option(min=1, max=10_000, help="For a file: steps ahead.")] = 24,
    minutes: Annotated[float, typer.Option(help="For a file: time for training.")] = 1.5,
    freq: Annotated[
        str | None, typer.Option(help="For a file: step of time, such as h, D or MS. Default: found.")
    ] = None,
    target: Annotated[str, typer.Option(help="For a file: column to forecast. Default: y, or all with numbers.")] = "y",
    date: Annotated[str, typer.Option(help="For a file: column of stamps. Default: found.")] = "ds",
    out: Annotated[Path | None, typer.Option(help="For a file: write .csv or .json. Default: CSV on stdout.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a PNG with bands to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    data: Annotated[str | None, typer.Option(help="CSV file that continues the run's series.")] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, max=100_000, help="Draws of the weights. Default: the recipe's.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draws.")] = 1,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. Default: cuda where there is one.")] = None,
) -> None:
    """Forecast beyond the end of a run's series, or train on a file and forecast its series: mean, intervals, and both
    kinds of uncertainty for each step."""
    import json

    from bayesrnn.errors import UserError
    from bayesrnn.lab.engine.launch import device_of
    from bayesrnn.lab.runs.opening import check_task, open_run
    from bayesrnn.lab.tasks.forecast import ahead

    if run.is_file() or run.suffix.lower() in (".csv", ".gz", ".parquet"):
        _forecast_file(
            run, out, as_json, plot, [100 * v if v < 1 else v for v in level or (80, 95)], horizon=steps or horizon,
            freq=int(freq) if freq and freq.isdigit() else freq, minutes=minutes, seed=seed, target_col=target,
            time_col=date,
        )  # fmt: skip
        return
    check_task(run, "forecast")
    chance = (level or [0.95])[-1]
    if not 0 < chance < 1:
        raise UserError(f"--level is {chance}; it must be between 0 and 1, such as 0.95.")
    _check(plot, (".png",), "--plot")
    trained = open_run(run, device_of(device))
    found = ahead.forecast(trained, data, steps=steps, level=chance, samples=samples, seed=seed)
    if plot is not None:
        ahead.plot(found, plot)
    if as_json:
        typer.echo(json.dumps({key: value for key, value in found.items() if key != "past"}, indent=2))
    else:
        ahead.show(found)


def _check(path: Path | None, suffixes: tuple[str, ...], option: str) -> None:
    from bayesrnn.errors import UserError
    from bayesrnn.lab.runs.files import check_free

    if path is None:
        return
    if path.suffix.lower() not in suffixes or not path.resolve().parent.is_dir():
        kinds = " or ".join(suffixes)
        raise UserError(f"{path} cannot be written; {option} names a {kinds} file in a folder that exists.")
    check_free(path, force=True, option=option)


def _forecast_file(
    data: Path, out: Path | None, as_json: bool, plot: Path | None, level: list[float], **settings: Any
) -> None:
    """Fit a `bayesrnn.forecasting.Forecaster` and write its forecasts."""
    from bayesrnn.forecasting import Forecaster
    from bayesrnn.forecasting.plots import fan_chart
    from bayesrnn.lab.runs.files import write_file

    for path, suffixes, option in ((out, (".csv", ".json"), "--out"), (plot, (".png",), "--plot")):
        _check(path, suffixes, option)
    forecaster = Forecaster(verbose=True, **settings).fit(data)
    found = forecaster.predict(level=level)
    if plot is not None:
        write_file(plot, fan_chart(forecaster, level=level))
    json_wanted = as_json or (out is not None and out.suffix.lower() == ".json")
    text = found.to_json(orient="records", date_format="iso", indent=2) if json_wanted else found.to_csv(index=False)
    if out is None:
        typer.echo(text.rstrip("\n"))
    else:
        write_file(out, text.encode())
