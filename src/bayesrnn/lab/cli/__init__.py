"""The ``bayesrnn`` command: one file per subcommand, which imports what it needs when it runs (``--help`` is quick)."""

import inspect
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from bayesrnn._version import __version__
from bayesrnn.lab import registry
from bayesrnn.lab.cli import bench, evaluate, explore, export, quickstart, recipes, report, sweep, train
from bayesrnn.lab.cli.options import WithSettings
from bayesrnn.lab.console.errors import run


class _Commands(TyperGroup):
    """Commands of this package, and of tasks that other packages have installed, which are imported only if needed."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *registry.commands(installed=True)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        own = super().get_command(ctx, cmd_name)
        function = None if own is not None else registry.commands(installed=True).get(cmd_name)
        if function is None:
            return own
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        alone.command(cmd_name)(function)
        return typer.main.get_command(alone)


app = typer.Typer(
    name="bayesrnn",
    cls=_Commands,
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
for _name, _command in registry.commands().items():
    _settings = "overrides" in inspect.signature(_command).parameters
    app.command(_name, cls=WithSettings if _settings else None)(_command)
app.command("export")(export.command)
app.command("report")(report.command)
app.command("explore")(explore.command)
app.command("bench")(bench.command)


def main() -> None:
    """Entry point of the ``bayesrnn`` command."""
    run(app)
