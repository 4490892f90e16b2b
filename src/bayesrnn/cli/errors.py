"""How a subcommand ends when something goes wrong: one line on stderr and an exit status."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import typer

from bayesrnn.errors import AlreadyTold, UserError
from bayesrnn.reading import first_line, printable

P = ParamSpec("P")
R = TypeVar("R")


def one_line(command: Callable[P, R]) -> Callable[P, R]:
    """Wraps a subcommand: a :class:`UserError` or a lack of memory is one line and status 2, an interrupt is 130."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except UserError as error:
            if not isinstance(error, AlreadyTold):
                typer.echo(f"bayesrnn: {printable(str(error))}", err=True)
            raise typer.Exit(2) from None
        except (MemoryError, RuntimeError) as error:
            if not _is_memory(error):
                raise
            typer.echo(
                f"bayesrnn: there is not enough memory ({first_line(error)}); "
                "use a smaller model, smaller batches or fewer draws.",
                err=True,
            )
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            typer.echo("bayesrnn: interrupted.", err=True)
            raise typer.Exit(130) from None

    return wrapped


def _is_memory(error: Exception) -> bool:
    text = str(error).lower()
    return isinstance(error, MemoryError) or "out of memory" in text or "allocate memory" in text
