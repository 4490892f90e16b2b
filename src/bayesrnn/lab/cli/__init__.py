"""The ``bayesrnn`` command: one file per subcommand, which imports what it needs when it runs (``--help`` is quick)."""

from typing import Annotated

import typer

from bayesrnn._version import __version__
from bayesrnn.lab.cli import (
    bench,
    caption,
    evaluate,
    export,
    forecast,
    predict,
    prune,
    quickstart,
    recipes,
    report,
    reproduce,
    sweep,
    tokenize,
    train,
)
from bayesrnn.lab.cli.errors import run
from bayesrnn.lab.cli.options import WithSettings

app = typer.Typer(
    name="bayesrnn",
    help="Bayesian recurrent networks: regularisation, uncertainty and pruning for sequence models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"bayesrnn {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


app.command("quickstart")(quickstart.command)
app.command("recipes")(recipes.command)
app.command("train", cls=WithSettings)(train.command)
# Options that are a task's own are read by the command itself.
app.command("evaluate", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(evaluate.command)
app.command("sweep", cls=WithSettings)(sweep.command)
app.command("tokenize")(tokenize.command)
app.command("predict")(predict.command)
app.command("forecast")(forecast.command)
app.command("prune")(prune.command)
app.command("caption")(caption.command)
app.command("export")(export.command)
app.command("report")(report.command)
app.command("reproduce", cls=WithSettings)(reproduce.command)
app.command("bench")(bench.command)


def main() -> None:
    """Entry point of the ``bayesrnn`` command."""
    run(app)
