"""Errors that the caller can fix: one sentence says what is wrong and what to do."""

from collections.abc import Iterator
from contextlib import contextmanager

_LONGEST = 1000


class UserError(Exception):
    """Shown by the command as one line on stderr with exit status 2, never as a traceback.

    A message quotes what is wrong; where that is very long, its middle is left out.
    """

    def __str__(self) -> str:
        text = super().__str__()
        return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 300]} … {text[-297:]}"


@contextmanager
def needed_by(what: str, install: str) -> Iterator[None]:
    """Say how to install an optional package that ``what`` imports inside the block."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{what} needs {error.name}: pip install {install}", name=error.name) from None


class AlreadyTold(UserError):
    """Another rank has already reported this error."""
