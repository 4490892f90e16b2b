"""HTML from templates: pages with everything inside, which can be mailed and opened without a network.

Text is escaped wherever it enters a template; what these functions return is HTML already and is not escaped again.
"""

import base64
import itertools
import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment
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
def _environment(folder: Path = _TEMPLATES) -> "Environment":
    """Templates of a task's folder, then those of reports."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader([folder, _TEMPLATES])
    made = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True,
    )  # fmt: skip
    made.globals["shades"] = SHADES
    return made


def render(template: str, *, folder: Path = _TEMPLATES, **values: Any) -> str:
    """A template with these values; ``folder`` is where a task keeps templates of its own."""
    return _environment(folder).get_template(template).render(**values)


def _block(name: str, *values: Any) -> "Markup":
    made: Markup = getattr(_blocks(), name)(*values)
    return made


@cache
def _blocks() -> Any:
    return _environment().get_template("blocks.html").module


def paragraphs(*texts: str) -> "Markup":
    return _block("paragraphs", texts)


def bullets(texts: Sequence[str]) -> "Markup":
    return _block("bullets", texts)


def heading(text: str, level: int = 2) -> "Markup":
    return _block("heading", text, level)


def breakable(name: str) -> "Markup":
    """A name that may break after a dot, an underscore or an equals sign, but not within a number."""
    return _block("breakable", re.split(r"(?<=[_=])|(?<=\.)(?!\d)", name))


def wide(inner: "Markup") -> "Markup":
    """HTML that scrolls sideways on a narrow screen instead of widening the page."""
    return _block("wide", inner)


def details(summary: str, inner: "Markup", *, is_open: bool = False) -> "Markup":
    """HTML that is folded away below a summary."""
    return _block("details", summary, inner, is_open)


def pictures(figures: Sequence["Markup"]) -> "Markup":
    """Pictures side by side."""
    return _block("group", figures)


def image(data: bytes, *, alt: str, caption: str = "", kind: str = "png") -> "Markup":
    """A picture inside the page."""
    return _block("image", base64.b64encode(data).decode("ascii"), kind, alt, caption)


def definitions(items: Iterable[tuple[str, str]], *, code: bool = False) -> "Markup":
    return _block("definitions", list(items), code)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, text: bool = False) -> "Markup":
    """A table; the first cell of a row is its name. ``text``: cells are words, not numbers."""
    return _block("table", head, list(rows), text)


def value(text: str, *, best: bool = False, paper: str = "") -> "Markup":
    """A number in a table, the paper's below it; empty: a dash."""
    return _block("value", text, best, paper)


def word(text: str, *, shade: int, line: int, title: str) -> "Markup":
    """A word with a shade behind it and a line below it, see :data:`SHADES`."""
    return _block("word", text, shade, line, title)


def shaded(words: Sequence["Markup"]) -> "Markup":
    """A line of shaded words."""
    return _block("shaded", words)


def key(name: str, mark: str, texts: Sequence[str]) -> "Markup":
    """What shades (``mark`` "s") or lines ("i") mean."""
    return _block("key", name, mark, texts)


def level(value: float, levels: Sequence[float]) -> int:
    """How many of the levels the value reaches."""
    return sum(value >= at for at in levels)


def ranges(levels: Sequence[float]) -> list[str]:
    """What each shade stands for, in words."""
    middle = [f"{a:g} to {b:g}" for a, b in itertools.pairwise(levels)]
    return [f"below {levels[0]:g}", *middle, f"{levels[-1]:g} and more"]
