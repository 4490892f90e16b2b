"""Progress of training: a bar where rich is installed and stderr is a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any


class Progress:
    """``say(text)`` and ``update(text, share)``; silent unless ``verbose``."""

    def __init__(self, verbose: bool) -> None:
        self.verbose, self._bar, self._task, self._last = verbose, None, None, 0.0
        self._part, self._begun, self._share = "", 0.0, 0.0

    def __enter__(self) -> Progress:
        if self.verbose and sys.stderr.isatty():
            try:
                from rich.console import Console
                from rich.progress import Progress as Bar
            except ImportError:
                return self
            bar: Any = Bar(console=Console(stderr=True), transient=True)
            self._bar, self._task = bar, bar.add_task("fitting", total=1.0)
            bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def say(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        elif self.verbose:
            print(text, file=sys.stderr)

    def update(self, text: str, share: float) -> None:
        if self._bar is not None:
            self._bar.update(self._task, description=text, completed=share)
        elif self.verbose:
            now, part = time.monotonic(), text.split(":")[0]
            if part != self._part:  # another network, or another part of the work
                self._part, self._begun, self._share = part, now, share
            if now - self._last > 5:
                gained = share - self._share
                left = f", {(1 - share) * (now - self._begun) / gained:.0f} s left" if gained > 0 else ""
                self._last = now
                print(f"{text} ({share:.0%}{left})", file=sys.stderr)
