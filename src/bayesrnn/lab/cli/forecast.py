"""``bayesrnn forecast``: what comes after the end of a series, with intervals."""

from pathlib import Path
from typing import Annotated, Any

import typer

from bayesrnn.lab.cli.errors import one_line


@one_line
def command(
    run: Annotated[Path, typer.Argument(help="A run folder of `bayesrnn train forecast`.")],
    steps: Annotated[int | None, typer.Option(min=1, max=10_000, help="Steps ahead. Default: the horizon.")] = None,
    level: Annotated[float, typer.Option(help="Probability that an interval holds.")] = 0.95,
    plot: Annotated[Path | None, typer.Option(help="Write a PNG with bands to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    data: Annotated[str | None, typer.Option(help="CSV file that goes on where the run's series ended.")] = None,
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

    check_task(run, "forecast")
    if not 0 < level < 1:
        raise UserError(f"--level is {level}; it must be between 0 and 1, such as 0.95.")
    if plot is not None and (plot.suffix.lower() != ".png" or not plot.resolve().parent.is_dir()):
        raise UserError(f"{plot} cannot be written; --plot names a .png file in a folder that exists.")
    if plot is not None:
        check_free(plot, force=True, option="--plot")
    trained = open_run(run, device_of(device))
    found = forecast(trained, data, steps=steps, level=level, samples=samples, seed=seed)
    if plot is not None:
        _plot(found, plot)
    if as_json:
        typer.echo(json.dumps({key: value for key, value in found.items() if key != "past"}, indent=2))
    else:
        _print(found)


def forecast(
    trained: Any, data: str | None, *, steps: int | None, level: float, samples: int | None, seed: int
) -> dict[str, Any]:
    """The forecast as plain values: one row per step, and the last values of the series."""
    import torch

    from bayesrnn.errors import UserError
    from bayesrnn.lab.reading import counted
    from bayesrnn.lab.tasks.forecast.plan import FRAME, Plan, kept_series
    from bayesrnn.lab.tasks.forecast.series import Series
    from bayesrnn.lab.tasks.forecast.task import forecaster, read_series

    plan = Plan.from_json(trained.files[FRAME])
    series = own = kept_series(trained.files, plan, name=Path(trained.config["data"]).stem)
    if data is not None:
        series, file = read_series(data, trained.recipe.data), Path(data).name
        if tuple(series.columns) != plan.columns:
            trained_on, has = ", ".join(plan.columns), ", ".join(series.columns)
            raise UserError(f"{file}: The run was trained on {trained_on}; the file has {has}.")
        if series.grid.size != own.grid.size:
            raise UserError(
                f"{file}: The run was trained on steps of {own.grid.size}; the file's are {series.grid.size}."
            )
        if len(series) < plan.frame.first + 1:
            raise UserError(
                f"{file}: The series has {counted(len(series), 'step')}; the model looks back on "
                f"{plan.frame.first + 1}."
            )
        plan = plan.moved(own.grid.step(series.grid.start))
    values = torch.from_numpy(series.values).unsqueeze(1)
    evaluate = trained.recipe.evaluate
    ahead = forecaster(trained.model, plan, values, evaluate).ahead(
        steps or plan.frame.horizon, samples=samples or evaluate.samples, seed=seed, level=level
    )
    assert isinstance(series, Series)
    columns = {key: getattr(ahead, key).tolist() for key in ("mean", "low", "high", "aleatoric", "epistemic")}
    rows = [
        {
            "date": series.label(len(series) + i),
            **{key: column[i] for key, column in columns.items()},
            "method": "direct" if i < ahead.direct else "rollout",
        }
        for i in range(len(ahead.mean))
    ]
    shown = min(len(series), max(60, 3 * len(rows)))
    labels = [series.label(i) for i in range(len(series) - shown, len(series))]
    return {
        "series": series.name,
        "target": series.columns[0],
        "level": level,
        "direct": ahead.direct,
        "notes": series.notes if data is not None else [],
        "rows": rows,
        "past": {"labels": labels, "values": series.target[-shown:].tolist()},
    }


def _plot(found: dict[str, Any], path: Path) -> None:
    from bayesrnn.lab.runs.files import write_file
    from bayesrnn.lab.tasks.forecast.plots import forecast_plot

    rows = {key: [row[key] for row in found["rows"]] for key in ("mean", "low", "high", "epistemic")}
    labels = [*found["past"]["labels"], *(row["date"] for row in found["rows"])]
    png = forecast_plot(
        found["past"]["values"], rows, labels, name=found["target"], level=found["level"], direct=found["direct"]
    )
    write_file(path, png)


def _print(found: dict[str, Any]) -> None:
    from rich.markup import escape

    from bayesrnn.lab.cli.console import plain_console
    from bayesrnn.lab.report.tables import Column, rich_table

    console = plain_console()
    for note in found["notes"]:
        console.print(note, soft_wrap=True, markup=False)
    level = f"{found['level']:.0%}"
    columns = (
        Column("date", "date"),
        Column("mean", escape(found["target"]), "{:.5g}"),
        Column("low", f"{level} from", "{:.5g}"),
        Column("high", "to", "{:.5g}"),
        Column("aleatoric", "noise (sd)", "{:.3g}"),
        Column("epistemic", "model (sd)", "{:.3g}"),
    )
    console.print(rich_table(found["rows"], columns))
    if found["direct"] < len(found["rows"]):
        console.print(f"Steps after the first {found['direct']} are sampled roll-outs of the model.", soft_wrap=True)
