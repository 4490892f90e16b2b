"""Sphinx: the site of the documentation. Build it with `make docs`."""

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from docutils.nodes import SkipNode
from docutils.utils.math.latex2mathml import tex2mathml

from bayesrnn import __version__

project = "bayesrnn"
author = "bayesrnn authors"
copyright = "bayesrnn authors"
release = version = __version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["build", "figures", "static"]
nitpicky = False
suppress_warnings = ["misc.highlighting_failure"]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_execution_show_tb = True

default_role = "code"  # docstrings mark code with single backticks
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # signatures have them
autodoc_default_options = {"members": True}
napoleon_use_rtype = False
napoleon_custom_sections = [("Shapes", "notes_style")]

html_math_renderer = "mathml"  # in the page itself: no script, no network
html_theme = "furo"
html_title = f"bayesrnn {__version__}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False


_HEAD = re.compile(r"^\s*\*{0,2}\w+(, \*{0,2}\w+)*:")  # "x, *args:", which napoleon reads


def _plain(line: str) -> str:
    """Prose of a docstring as reStructuredText: stars and bars are themselves, and "`Weight`s" is a plural."""
    head = _HEAD.match(line)
    start = head.end() if head else 0
    parts = re.split(r"(`+[^`]*`+)", line[start:])
    parts[::2] = [re.sub(r"([*|])", r"\\\1", part) for part in parts[::2]]
    parts[2::2] = [f"\\ {part}" if part[:1].isalnum() else part for part in parts[2::2]]
    return line[:start].replace(", *", ", \\*") + "".join(parts)


def _docstring(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Escape the prose of our docstrings; code and equations, the blocks after "::", stay as they are."""
    block: int | None = None
    for i, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        if block is not None and line.strip() and indent <= block:
            block = None
        if block is None and line.strip():
            if "::" in line:
                block = indent
            else:
                lines[i] = _plain(line)


def _skip(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """scikit-learn adds these to every estimator."""
    return True if name in ("set_fit_request", "set_predict_request", "set_score_request") else None


def _mathml(translator: Any, node: Any) -> None:
    """Parentheses fit what they enclose: MathML has no fixed sizes."""
    tex = re.sub(r"\\[bB]ig([(\[])", r"\\left\1", node.astext())
    tex = re.sub(r"\\[bB]ig([)\]])", r"\\right\1", tex).replace(r"\dots", r"\ldots")
    translator.body.append(tex2mathml(tex, as_block=node.tagname == "math_block"))
    raise SkipNode


def _unsearched(app: Any, doctree: Any) -> None:
    """The tree of modules has every word: it would be in every search."""
    if app.env.docname == "architecture":
        app.env.metadata["architecture"]["nosearch"] = "true"


def setup(app: Any) -> None:
    app.connect("doctree-read", _unsearched)
    app.add_html_math_renderer("mathml", (_mathml, None), (_mathml, None))
    app.connect("autodoc-process-docstring", _docstring, priority=400)
    app.connect("autodoc-skip-member", _skip)
