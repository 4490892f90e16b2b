"""What a run reports while it trains: lines, results of epochs, its speed and the time that is left."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Thread
from typing import Any, Protocol


@dataclass(frozen=True)
class Progress:
    """Where training stands; ``metrics`` are the task's results on the training data so far, the main one first."""

    epoch: int
    epochs: int
    step: int
    steps: int
    unit: str
    per_second: float
    seconds_left: float
    metrics: dict[str, float]


class Reporter(Protocol):
    """Receives the progress of a run."""

    def say(self, text: str) -> None: ...
    def step(self, progress: Progress) -> None: ...
    def epoch(self, line: dict[str, Any], epochs: int) -> None: ...


class Silent:
    """The reporter of all ranks but the first."""

    def say(self, text: str) -> None:
        pass

    def step(self, progress: Progress) -> None:
        pass

    def epoch(self, line: dict[str, Any], epochs: int) -> None:
        pass


class Pace:
    """The speed of a run: from its second and third step first, then from the epoch under way.

    The first step is left out: it allocates memory and starts threads.
    """

    MEASURED = (1, 3)
    """Steps of this process after which :meth:`measure` is to be called."""

    def __init__(self) -> None:
        self.validation = 0.0  # seconds of the last one
        self._mark = self._began = time.perf_counter()
        self._before = self._first = 0.0

    def start(self, seconds: float, done: int) -> None:
        """An epoch begins, or goes on after ``done`` steps that took ``seconds``."""
        self._began, self._before, self._first = time.perf_counter(), seconds, done

    @property
    def seconds(self) -> float:
        """Training time of this epoch."""
        return self._before + time.perf_counter() - self._began

    def measure(self, steps: int) -> float:
        """Seconds per step between the last call and this one, ``steps`` apart."""
        now = time.perf_counter()
        taken, self._mark = now - self._mark, now
        return taken / steps

    def steps_per_second(self, done: int) -> float:
        """In this epoch, by this process."""
        return (done - self._first) / max(time.perf_counter() - self._began, 1e-9)


@contextmanager
def heartbeat(say: Callable[[str], None], what: str, *, every: float = 30.0) -> Iterator[None]:
    """Say every ``every`` seconds that the work inside the block goes on."""
    began, ended = time.monotonic(), Event()

    def beat() -> None:
        while not ended.wait(every):
            say(f"{what}: {duration(time.monotonic() - began)} so far.")

    thread = Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def duration(seconds: float) -> str:
    """In words: 40 s, 12 min, 2 h 10 min."""
    minutes = round(seconds / 60)
    if seconds < 100:
        return f"{max(1, round(seconds))} s"
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
