"""The part of `hypothesis.strategies` that the readers' inputs are made with, as plain random choices.

Hypothesis looks for small counterexamples and takes milliseconds for an input; this takes microseconds, for the many.
"""

from __future__ import annotations

import functools
import math
import random
import struct
from collections.abc import Callable, Sequence
from typing import Any


class Strategy:
    """A function of a source of random numbers."""

    def __init__(self, make: Callable[[random.Random], Any]) -> None:
        self.make = make

    def map(self, change: Callable[[Any], Any]) -> Strategy:
        return Strategy(lambda r: change(self.make(r)))

    def __or__(self, other: Strategy) -> Strategy:
        return one_of(self, other)


def one_of(*parts: Strategy) -> Strategy:
    return Strategy(lambda r: r.choice(parts).make(r))


def just(value: Any) -> Strategy:
    return Strategy(lambda r: value)


def none() -> Strategy:
    return just(None)


def booleans() -> Strategy:
    return Strategy(lambda r: r.random() < 0.5)


def sampled_from(values: Sequence[Any]) -> Strategy:
    values = list(values)
    return Strategy(lambda r: r.choice(values))


def integers(low: int | None = None, high: int | None = None) -> Strategy:
    def make(r: random.Random) -> int:
        a, b = -(2**65) if low is None else low, 2**65 if high is None else high
        kind = r.random()
        if kind < 0.2:
            return r.choice((a, b))
        if kind < 0.6:  # near zero, or near the lower end
            start = min(max(0, a), b)
            return min(start + r.randrange(20), b)
        return r.randint(a, b)

    return Strategy(make)


def floats() -> Strategy:
    odd = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-320, 1e308, -1e308, math.inf, -math.inf, math.nan, 1e-7)

    def make(r: random.Random) -> float:
        if r.random() < 0.5:
            return r.choice(odd)
        return float(struct.unpack("<d", r.randbytes(8))[0])

    return Strategy(make)


def _length(r: random.Random, low: int, high: int) -> int:
    return r.choice((low, high, r.randint(low, high), r.randint(low, min(high, low + 3))))


def binary(*, max_size: int = 20) -> Strategy:
    return Strategy(lambda r: r.randbytes(_length(r, 0, max_size)))


def text(*, max_size: int = 20) -> Strategy:
    kinds = ((32, 126), (0, 31), (160, 0x24F), (0x300, 0xD7FF), (0xE000, 0xFFFF), (0x10000, 0x10FFFF))

    def make(r: random.Random) -> str:
        usual = r.random() < 0.6
        spans = [kinds[0] if usual else r.choice(kinds) for _ in range(_length(r, 0, max_size))]
        return "".join(chr(r.randint(*span)) for span in spans)

    return Strategy(make)


def lists(inner: Strategy, *, min_size: int = 0, max_size: int = 10) -> Strategy:
    return Strategy(lambda r: [inner.make(r) for _ in range(_length(r, min_size, max_size))])


def tuples(*parts: Strategy) -> Strategy:
    return Strategy(lambda r: tuple(part.make(r) for part in parts))


def dictionaries(keys: Strategy, inner: Strategy, *, max_size: int = 10) -> Strategy:
    return Strategy(lambda r: {keys.make(r): inner.make(r) for _ in range(_length(r, 0, max_size))})


def fixed_dictionaries(parts: dict[str, Strategy]) -> Strategy:
    return Strategy(lambda r: {key: part.make(r) for key, part in parts.items()})


def builds(target: Callable[..., Any], *parts: Strategy) -> Strategy:
    return Strategy(lambda r: target(*(part.make(r) for part in parts)))


def recursive(base: Strategy, extend: Callable[[Strategy], Strategy], *, max_leaves: int = 10) -> Strategy:
    levels = [base]
    for _ in range(3):
        levels.append(extend(one_of(base, levels[-1])))
    return one_of(*levels)


def composite(function: Callable[..., Any]) -> Callable[..., Strategy]:
    @functools.wraps(function)
    def strategy(*args: Any, **kwargs: Any) -> Strategy:
        return Strategy(lambda r: function(lambda part: part.make(r), *args, **kwargs))

    return strategy
