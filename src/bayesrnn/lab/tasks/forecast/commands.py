"""``bayesrnn forecast``: what comes after the end of a series, with intervals."""

from pathlib import Path
from typing import Annotated

import typer

from bayesrnn.lab.console.errors import one_line


@one_line
def command(
    run: Annotated[Path, typer.Argument(help="A run folder of `bayesrnn train forecast`.")],
    steps: Annotated[int | None, typer.Option(min=1, max=10_000, help="Steps ahead. Default: the horizon.")] = None,
    level: Annotated[float, typer.Option(help="Probability that an interval holds.")] = 0.95,
    plot: Annotated[Path | None, typer.Option(help="Write a PNG with bands to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    data: Annotated[str | None, typer.Option(help="CSV file that continues the run's series.")] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, max=100_000, help="Draws of the weights. Default: the recipe's.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draws.")] = 1,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. Default: cuda where there is one.")] = None,
) -> None:
    """Forecast beyond the end of a run's series: mean, interval, and both kinds of uncertainty for each step."""
    import json

    from bayesrnn.errors import UserError
    from bayesrnn.lab.engine.launch import device_of
    from bayesrnn.lab.runs.files import check_free
    from bayesrnn.lab.runs.opening import check_task, open_run
    from bayesrnn.lab.tasks.forecast import ahead

    check_task(run, "forecast")
    if not 0 < level < 1:
        raise UserError(f"--level is {level}; it must be between 0 and 1, such as 0.95.")
    if plot is not None and (plot.suffix.lower() != ".png" or not plot.resolve().parent.is_dir()):
        raise UserError(f"{plot} cannot be written; --plot names a .png file in a folder that exists.")
    if plot is not None:
        check_free(plot, force=True, option="--plot")
    trained = open_run(run, device_of(device))
    found = ahead.forecast(trained, data, steps=steps, level=level, samples=samples, seed=seed)
    if plot is not None:
        ahead.plot(found, plot)
    if as_json:
        typer.echo(json.dumps({key: value for key, value in found.items() if key != "past"}, indent=2))
    else:
        ahead.show(found)
