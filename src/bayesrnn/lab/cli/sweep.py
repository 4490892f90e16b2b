"""``bayesrnn sweep``: one recipe with many settings, compared on validation data."""

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from bayesrnn.lab.cli.options import SEEDS, Device, Graph, Overrides, Recipe, Set
from bayesrnn.lab.console.errors import one_line
from bayesrnn.lab.reading import as_given, counted


@one_line
def command(
    recipe: Recipe,
    overrides: Overrides = None,
    settings: Set = None,
    grid: Annotated[
        list[str] | None, typer.Option(metavar="KEY=A,B,…", help="Values to try; several --grid try all combinations.")
    ] = None,
    search: Annotated[list[str] | None, typer.Option(metavar="KEY=LOW:HIGH[:log]", help="Range to search.")] = None,
    trials: Annotated[int | None, typer.Option(min=1, help="Number of runs of a search, over all processes.")] = None,
    data: Annotated[str | None, typer.Option(help="The data, as for train.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the runs and the table of this sweep. Default: sweeps/RECIPE.")
    ] = None,
    prune: Annotated[
        bool, typer.Option("--prune", help="Stop runs that are worse than the median of the others.")
    ] = False,
    seed: Annotated[int, typer.Option(**SEEDS, help="Seed of every run and of the search.")] = 1,
    device: Device = None,
    graph: Graph = True,
) -> None:
    """Try settings of a recipe and compare validation results. Writes sweep.json.

    Start it again, also in several processes with the same --out, to share the work; killed runs are continued.
    """
    from bayesrnn.lab.console.output import command_line, plain_console
    from bayesrnn.lab.engine.sweep import sweep
    from bayesrnn.lab.report.tables import Column, rich_table

    console = plain_console()
    where = out or Path("sweeps") / Path(recipe).stem
    record = sweep(
        recipe, out=where, say=console.say, grid=grid, search=search, trials=trials, data=data, seed=seed,
        device=device, overrides=[*(overrides or []), *(settings or [])], prune=prune, graph=graph,
        command=command_line(),
    )  # fmt: skip
    rows = [{**row, **{key: _short(value) for key, value in row["settings"].items()}} for row in record["trials"]]
    columns = (
        Column("trial", "trial"),
        *(Column(key, key) for key in record["space"]),
        Column("value", record["metric"], "{:.5g}"),
        Column("best_epoch", "best epoch"),
        Column("epochs", "epochs"),
        Column("state", "state"),
    )
    console.print(rich_table(rows, columns))
    console.print(_summary(record, where), soft_wrap=True)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else as_given(value)


def _summary(record: dict[str, Any], where: Path) -> str:
    running = sum(row["state"] == "running" for row in record["trials"])
    text = f"Written to {where}"
    if running:
        text = f"{counted(running, 'run')} still running elsewhere; start the same command later to see more. {text}"
    if record["best"] is None:
        return f"No run has finished. {text}"
    settings = shlex.join(f"{key}={as_given(value)}" for key, value in record["best"]["settings"].items())
    return f"Best: {settings}, {record['metric']} {record['best']['value']:.5g}. {text}"
