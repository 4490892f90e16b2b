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
    """The speed of a run: from its first steps, then from the epoch under way.

    The first step is left out: it allocates memory and starts threads.
    """

    _STEPS, _SECONDS = 20, 1.0  # that are measured, whichever comes first; on a GPU, which runs ahead, only the steps

    def __init__(self) -> None:
        self.validation = 0.0  # seconds of the last one
        self._mark: tuple[int, float] | None = None  # steps of this process, and when they were done
        self._began = time.perf_counter()
        self._before = self._first = 0.0

    def start(self, seconds: float, done: int) -> None:
        """An epoch begins, or goes on after ``done`` steps that took ``seconds``."""
        self._began, self._before, self._first = time.perf_counter(), seconds, done
        if self._mark is not None:
            self._mark = self._mark[0], self._began

    def measured(self, steps: int, *, last: bool, counts_only: bool) -> bool:
        """Whether enough is measured after ``steps`` steps of this process, the last one of an epoch or not."""
        if self._mark is None:
            return False
        enough = steps - self._mark[0] >= self._STEPS or (last and steps > self._mark[0])
        return enough or (not counts_only and time.perf_counter() - self._mark[1] > self._SECONDS)

    def mark(self, steps: int) -> float:
        """Seconds per step since the last mark; 0 at the first one."""
        now = time.perf_counter()
        before, self._mark = self._mark or (steps - 1, now), (steps, now)
        return (now - before[1]) / (steps - before[0])

    @property
    def seconds(self) -> float:
        """Training time of this epoch."""
        return self._before + time.perf_counter() - self._began

    def pause(self, seconds: float) -> None:
        """So much of the time since the epoch began was not training."""
        self._began += seconds

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
