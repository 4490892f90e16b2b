"""Ends a command that fails with one line on stderr and an exit status."""

import errno
import functools
import io
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import ParamSpec, TypeVar

import typer

from bayesrnn.errors import AlreadyTold, UserError
from bayesrnn.lab.reading import first_line, lack_of_memory, printable

P = ParamSpec("P")
R = TypeVar("R")
_INTERRUPTED = 130
_TELLING = 3.0  # seconds for the process that prints the line: torchrun kills all others when the first one ends
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def one_line(command: Callable[P, R]) -> Callable[P, R]:
    """Wraps a command: a :class:`UserError`, too little memory or a full disk ends it with one line and status 2.

    An interrupt ends it with status 130.
    """

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        with _errors_as_lines():
            with suppress(ImportError):  # before torch, which imports it in C and loses an interrupt meanwhile
                import numpy  # noqa: F401
            return command(*args, **kwargs)

    return wrapped


def run(app: Callable[[], None]) -> None:
    """Run the program: errors outside of a subcommand, such as help on a full disk, are one line too.

    Characters that the output's encoding lacks become question marks: a locale without UTF-8 ends no command.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        with _errors_as_lines():
            app()
    except typer.Exit as end:
        sys.exit(end.exit_code)
    except SystemExit as end:
        if end.code == _INTERRUPTED and not _LastLine.line:  # before a subcommand starts, typer prints nothing
            _end("interrupted.", _INTERRUPTED)
        raise


@contextmanager
def _errors_as_lines() -> Iterator[None]:
    try:
        yield
    except (typer.Exit, typer.Abort):
        raise
    except UserError as error:
        raise _end(str(error), 2, told=isinstance(error, AlreadyTold)) from None
    except KeyboardInterrupt:
        raise _end("interrupted.", _INTERRUPTED) from None
    except OSError as error:
        if error.errno not in _FULL or error.filename is not None:
            _fault(error)
            raise
        with suppress(OSError, ValueError):  # else Python writes the rest again at exit, and prints an error of its own
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise _end(f"the output cannot be written ({error.strerror}); send it elsewhere.", 2) from None
    except Exception as error:
        asked = lack_of_memory(error)
        if asked is None:
            _fault(error)
            raise
        advice = "use a smaller model, smaller batches or fewer draws."
        raise _end(f"there is not enough memory ({asked}); {advice}", 2) from None


class _LastLine:
    """The line that this command ended with."""

    line = ""


def _end(text: str, status: int, *, told: bool = False) -> typer.Exit:
    """Print the line, unless another process has; a process that is one of several ends here."""
    line = _LastLine.line = f"bayesrnn: {printable(text)}"
    if not told:
        typer.echo(line, err=True)
    elif _is_among_others():
        time.sleep(_TELLING)
    _end_among_others(line, status)
    return typer.Exit(status)


def _fault(error: Exception) -> None:
    """Print the traceback of a bug, also in one of several processes."""
    if _is_among_others():
        traceback.print_exception(error)
        _end_among_others(f"bayesrnn: {type(error).__name__}: {first_line(error)}", 1)


def _is_among_others() -> bool:
    ranks = sys.modules.get("bayesrnn.lab.engine.ranks")  # loaded only by a command that has joined other processes
    return ranks is not None and ranks.is_distributed()


def _end_among_others(line: str, status: int) -> None:
    if _is_among_others():
        sys.modules["bayesrnn.lab.engine.ranks"].end(line, status)
