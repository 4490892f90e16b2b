"""The console that commands print to."""

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress


class CommandConsole(Console):
    """A console for whole lines of progress, which appear at once."""

    def say(self, text: str, style: str = "dim") -> None:
        self.print(text, style=style, soft_wrap=True, markup=False)
        self.file.flush()


def plain_console() -> CommandConsole:
    """A console without automatic colours, wide enough for tables where there is no terminal."""
    console = CommandConsole(highlight=False)
    return console if console.is_terminal else CommandConsole(highlight=False, width=140)


def command_line() -> str:
    """The command as the user gave it, for records."""
    return shlex.join(["bayesrnn", *sys.argv[1:]])


Report = Callable[[int, int], None]


@contextmanager
def bar(text: str) -> Iterator[Report]:
    """A progress bar on stderr, if that is a terminal; the block's value is called with (done, in all)."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(text, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
