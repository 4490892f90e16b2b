"""Times of several functions that take turns."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch


def take_turns(steps: dict[str, Callable[[], Any]], seconds: float, *, cuda: bool, each: int = 1) -> dict[str, float]:
    """Median milliseconds of each; they take turns, so that what else the machine does falls on all."""

    def turn(step: Callable[[], Any]) -> float:
        if not cuda:
            start = time.perf_counter()
            for _ in range(each):
                step()
            return (time.perf_counter() - start) * 1000 / each
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()  # type: ignore[no-untyped-call]
        for _ in range(each):
            step()
        end.record()  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        elapsed: float = begin.elapsed_time(end)  # type: ignore[no-untyped-call]
        return elapsed / each

    for step in steps.values():
        turn(step)
    times: dict[str, list[float]] = {name: [] for name in steps}
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop or len(next(iter(times.values()))) < 5:
        for name, step in steps.items():
            times[name].append(turn(step))
    return {name: statistics.median(values) for name, values in times.items()}
