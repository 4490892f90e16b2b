"""``bayesrnn sweep``: one recipe with many settings, compared on validation data."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from bayesrnn.lab.cli.errors import one_line

PICTURE = "sweep.png"


@one_line
def command(
    recipe: Annotated[str, typer.Argument(help="A name from `bayesrnn recipes`, or a YAML file.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings of all runs, such as train.epochs=2.")
    ] = None,
    grid: Annotated[
        list[str] | None, typer.Option(metavar="KEY=A,B,…", help="Try these values; all combinations of several.")
    ] = None,
    search: Annotated[
        list[str] | None, typer.Option(metavar="KEY=LOW:HIGH[:log]", help="Look for a value in this range.")
    ] = None,
    trials: Annotated[int | None, typer.Option(min=1, help="Runs of a search, over all processes.")] = None,
    data: Annotated[str | None, typer.Option(help="The data, as for train.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of one sweep's runs and tables. Default: sweeps/RECIPE.")
    ] = None,
    storage: Annotated[str | None, typer.Option(help="SQL URL of the trials. Default: a file in --out.")] = None,
    study: Annotated[str | None, typer.Option(help="Name of the sweep in the storage. Default: RECIPE.")] = None,
    prune: Annotated[
        bool, typer.Option("--prune", help="Give up runs that are behind the median of the others.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of every run and of the search.")] = 1,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. Default: cuda where there is one.")] = None,
    graph: Annotated[bool, typer.Option(help="Record a CUDA step as one graph.")] = True,
) -> None:
    """Try settings of a recipe and compare validation figures; writes sweep.json and, of two settings, sweep.png.

    Start it again, or several times with the same --storage and --out, to share the work; a killed run goes on.
    """
    from bayesrnn.lab.cli.console import plain_console
    from bayesrnn.lab.engine.sweep import sweep
    from bayesrnn.lab.report.sweep import heat_map
    from bayesrnn.lab.report.tables import Column, rich_table
    from bayesrnn.lab.runs.files import write_file

    console = plain_console()
    where = out or Path("sweeps") / Path(recipe).stem

    def say(text: str) -> None:
        console.print(text, style="dim", soft_wrap=True)
        console.file.flush()

    record = sweep(
        recipe,
        out=where,
        say=say,
        grid=grid,
        search=search,
        trials=trials,
        data=data,
        overrides=overrides,
        seed=seed,
        device=device,
        storage=storage,
        study=study,
        prune=prune,
        graph=graph,
        command=_without_password(sys.argv[1:]),
    )
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
    if record["kind"] == "grid" and len(record["space"]) == 2:
        down, right = record["space"]
        label = record["metric"].replace("valid_", "validation ").replace("_", " ")
        values = (record["space"][down], record["space"][right])
        write_file(where / PICTURE, heat_map(record["trials"], keys=(down, right), values=values, label=label))
    console.print(_summary(record, where), soft_wrap=True)


def _short(value: Any) -> str:
    from bayesrnn.lab.engine.space import as_given

    return f"{value:.4g}" if isinstance(value, float) else as_given(value)


def _summary(record: dict[str, Any], where: Path) -> str:
    from bayesrnn.lab.engine.space import as_given
    from bayesrnn.lab.reading import counted

    running = sum(row["state"] == "running" for row in record["trials"])
    text = f"Written to {where}"
    if running:
        text = f"{counted(running, 'run')} still under way elsewhere; the same command shows more later. {text}"
    if record["best"] is None:
        return f"No run has ended well. {text}"
    settings = shlex.join(f"{key}={as_given(value)}" for key, value in record["best"]["settings"].items())
    return f"Best: {settings}, {record['metric']} {record['best']['value']:.5g}. {text}"


def _without_password(words: list[str]) -> str:
    """The command as it was given, for the record; what a URL has between user and host is left out."""
    import re

    return shlex.join(["bayesrnn", *(re.sub(r"(://[^:/@]*):[^@]*@", r"\1:***@", word) for word in words)])
