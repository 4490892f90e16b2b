"""Shades and lines for words: how sure a model was of each."""

import itertools
from collections.abc import Sequence

LIGHT = ("#ffffff", "#fff1d0", "#ffdf9e", "#ffc966", "#ffae29")
DARK = ("#161616", "#382c10", "#54400d", "#6e5205", "#846200")
"""One hue, five shades; text on each has a contrast of at least 4.5."""
INK = {"light": "#1b1b1b", "dark": "#ffffff"}
LINES = (0, 1, 2, 3, 5)
"""Pixels."""
SHADES = {"light": LIGHT, "dark": DARK, "ink": INK, "lines": LINES}
"""For templates."""


def level(value: float, levels: Sequence[float]) -> int:
    """How many of the levels the value reaches."""
    return sum(value >= at for at in levels)


def ranges(levels: Sequence[float]) -> list[str]:
    """What each shade stands for, in words."""
    middle = [f"{a:g} to {b:g}" for a, b in itertools.pairwise(levels)]
    return [f"below {levels[0]:g}", *middle, f"{levels[-1]:g} and more"]
