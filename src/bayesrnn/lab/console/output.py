"""The console that commands print to."""

import shlex
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def plain_console() -> "Console":
    """A console without automatic colours, wide enough for tables where there is no terminal."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=140)


def command_line() -> str:
    """The command as the user gave it, for records."""
    return shlex.join(["bayesrnn", *sys.argv[1:]])
