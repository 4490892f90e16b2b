"""How a subcommand ends when something goes wrong: one line on stderr and an exit status."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import typer

from bayesrnn.errors import UserError

P = ParamSpec("P")
R = TypeVar("R")


def one_line(command: Callable[P, R]) -> Callable[P, R]:
    """Wraps a subcommand: a :class:`UserError` is one line and status 2, an interrupt is status 130."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except UserError as error:
            typer.echo(f"bayesrnn: {error}", err=True)
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            typer.echo("bayesrnn: interrupted.", err=True)
            raise typer.Exit(130) from None

    return wrapped
