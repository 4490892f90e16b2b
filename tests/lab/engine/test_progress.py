from threading import Event

import pytest

from bayesrnn.lab.engine import progress
from bayesrnn.lab.engine.progress import heartbeat


def test_long_work_says_that_it_goes_on():
    lines, said = [], Event()

    def say(text):
        lines.append(text)
        said.set()

    with heartbeat(say, "Validation after epoch 1", every=0.001):
        assert said.wait(60)
    assert lines[0] == "Validation after epoch 1: 1 s so far."


class Clock:
    """In place of the module time; stands still unless it is moved."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now


def test_the_pace_of_the_first_steps_leaves_out_the_first_one_and_validation(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)

    def told(seconds, steps, *, counts_only=False):
        """The step after which there is enough, and the seconds per step then."""
        pace, taken = progress.Pace(), 0
        while True:
            pace.start(0.0, 0)
            for done in range(1, steps + 1):
                clock.now, taken = clock.now + (seconds if taken else 60), taken + 1
                if pace.measured(taken, last=done == steps, counts_only=counts_only):
                    return taken, pace.mark(taken)
                if taken == 1:
                    assert pace.mark(taken) == 0
            clock.now += 500  # validation

    assert told(0.01, 1000) == (21, pytest.approx(0.01))
    assert told(0.3, 1000) == (5, pytest.approx(0.3))
    assert told(0.3, 1000, counts_only=True) == (21, pytest.approx(0.3))
    assert told(7, 1000) == (2, pytest.approx(7))
    assert told(0.01, 5) == (5, pytest.approx(0.01))  # before the epoch is over
    assert told(0.01, 1) == (2, pytest.approx(0.01))
