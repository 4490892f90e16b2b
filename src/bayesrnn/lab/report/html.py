"""HTML from templates: pages with everything inside, which can be mailed and opened without a network.

Text is escaped wherever it enters a template; what these functions return is HTML already and is not escaped again.
"""

import base64
import itertools
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

_TEMPLATES = Path(__file__).parent / "templates"
LIGHT = ("#ffffff", "#fff1d0", "#ffdf9e", "#ffc966", "#ffae29")
DARK = ("#161616", "#382c10", "#54400d", "#6e5205", "#846200")
"""One hue, five shades; text on each has a contrast of at least 4.5."""
INK = {"light": "#1b1b1b", "dark": "#ffffff"}
LINES = (0, 1, 2, 3, 5)
"""Pixels."""
SHADES = {"light": LIGHT, "dark": DARK, "ink": INK, "lines": LINES}
"""For templates."""


@cache
def _environment(folder: Path = _TEMPLATES) -> Environment:
    """Templates of a task's folder, then those of reports."""
    loader = FileSystemLoader([folder, _TEMPLATES])
    made = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True,
    )  # fmt: skip
    made.globals |= {"shades": SHADES, "level": level}
    return made


def render(template: str, *, folder: Path = _TEMPLATES, **values: Any) -> str:
    """A template with these values; ``folder`` is where a task keeps templates of its own."""
    return _environment(folder).get_template(template).render(**values)


@cache
def _blocks() -> Any:
    return _environment().get_template("blocks.html").module


def __getattr__(name: str) -> Callable[..., Markup]:
    """The macros of ``blocks.html``, such as ``paragraphs`` and ``table``, as functions."""
    if name.startswith("_"):
        raise AttributeError(name)
    block: Callable[..., Markup] = getattr(_blocks(), name)
    return block


def breakable(name: str) -> Markup:
    """A name that may break after a dot, an underscore or an equals sign, but not within a number."""
    return _blocks().broken(re.split(r"(?<=[_=])|(?<=\.)(?!\d)", name))  # type: ignore[no-any-return]


def image(data: bytes, *, alt: str, caption: str = "", kind: str = "png") -> Markup:
    """A picture inside the page."""
    return _blocks().encoded(base64.b64encode(data).decode("ascii"), kind, alt, caption)  # type: ignore[no-any-return]


def level(value: float, levels: Sequence[float]) -> int:
    """How many of the levels the value reaches."""
    return sum(value >= at for at in levels)


def ranges(levels: Sequence[float]) -> list[str]:
    """What each shade stands for, in words."""
    middle = [f"{a:g} to {b:g}" for a, b in itertools.pairwise(levels)]
    return [f"below {levels[0]:g}", *middle, f"{levels[-1]:g} and more"]
