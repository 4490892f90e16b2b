"""How a subcommand ends when something goes wrong: one line on stderr and an exit status."""

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import typer

from bayesrnn.errors import AlreadyTold, UserError
from bayesrnn.reading import lack_of_memory, printable

P = ParamSpec("P")
R = TypeVar("R")


def one_line(command: Callable[P, R]) -> Callable[P, R]:
    """Wraps a subcommand: a :class:`UserError` or a lack of memory is one line and status 2, an interrupt is 130."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except UserError as error:
            raise _ended(str(error), 2, told=isinstance(error, AlreadyTold)) from None
        except (MemoryError, RuntimeError) as error:
            asked = lack_of_memory(error)
            if asked is None:
                raise
            advice = "use a smaller model, smaller batches or fewer draws."
            raise _ended(f"there is not enough memory ({asked}); {advice}", 2) from None
        except KeyboardInterrupt:
            raise _ended("interrupted.", 130) from None

    return wrapped


def _ended(text: str, status: int, *, told: bool = False) -> typer.Exit:
    """Says the line, unless another process has; one of several processes ends here."""
    line = f"bayesrnn: {printable(text)}"
    if not told:
        typer.echo(line, err=True)
    ranks = sys.modules.get("bayesrnn.train.ranks")  # no command but one that has joined others has loaded it
    if ranks is not None:
        ranks.end(line, status)
    return typer.Exit(status)
