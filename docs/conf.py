"""Sphinx: the site of the documentation. Build it with `make docs`."""

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from docutils import nodes
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
autodoc_preserve_defaults = True
napoleon_use_rtype = False
napoleon_custom_sections = [("Shapes", "notes_style")]

html_math_renderer = "mathml"  # in the page itself: no script, no network
html_theme = "furo"
html_title = f"bayesrnn {__version__}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
pygments_dark_style = "a11y-dark"
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


_COLON = "\ue000"  # stands for a colon that napoleon would read as "type: description"


def _docstring(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Escape the prose of our docstrings; code and equations, the blocks after "::", stay as they are."""
    block: int | None = None
    returns = False
    for i, line in enumerate(lines):
        if what in ("attribute", "property") or returns:
            lines[i] = line = re.sub(r":(?=\s)", _COLON, line)
        returns = line.strip() == "Returns:" or (returns and line.startswith(" "))
        indent = len(line) - len(line.lstrip())
        if block is not None and line.strip() and indent <= block:
            block = None
        if block is None and line.strip():
            if "::" in line:
                block = indent
            else:
                lines[i] = _plain(line)


def _colons(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = [line.replace(_COLON, ":") for line in lines]


def _signature(app: Any, what: str, name: str, obj: Any, options: Any, given: str | None, returned: Any) -> Any:
    """Classes without an `__init__` of their own inherit one that takes anything."""
    if given == "(*args, **kwargs)" and what == "class":
        return ("" if getattr(obj, "__abstractmethods__", None) or obj.__module__.endswith(".base") else "()"), None
    return None


_ARXIV = re.compile(r"\b[012]\d[01]\d\.\d{4,5}\b")
_NAME = re.compile(r"(?:br|bayesrnn)\.([A-Za-z_][\w.]*)|(Forecaster(?:\.\w+)?)")


def _free(node: Any) -> bool:
    """Not part of a link, a heading or code."""
    outer = node.parent
    while outer is not None:
        if isinstance(outer, nodes.reference | nodes.title | nodes.literal | nodes.literal_block | nodes.Inline) and (
            not isinstance(outer, nodes.emphasis | nodes.strong)
        ):
            return False
        outer = outer.parent
    return True


def _link_papers(doctree: Any) -> None:
    for text in [t for t in doctree.findall(nodes.Text) if _ARXIV.search(t) and _free(t)]:
        parts, end = [], 0
        for found in _ARXIV.finditer(text):
            parts.append(nodes.Text(text[end : found.start()]))
            parts.append(nodes.reference("", found[0], refuri=f"https://arxiv.org/abs/{found[0]}"))
            end = found.end()
        text.parent.replace(text, [*parts, nodes.Text(text[end:])])


def _link_names(app: Any, doctree: Any, page: str) -> None:
    """Code such as `br.predict(x)` leads to the reference, where it is first named on a page."""
    objects = app.env.get_domain("py").objects
    seen: set[str] = set()
    for literal in [node for node in doctree.findall(nodes.literal) if _free(node)]:
        match = _NAME.match(literal.astext())
        if match is None:
            continue
        name = f"bayesrnn.{match[1]}" if match[1] else f"bayesrnn.forecasting.{match[2]}"
        while name not in objects and name.count(".") > 1:
            name = name.rpartition(".")[0]
        entry = objects.get(name)
        if entry is None or name in seen or (page == entry.docname and _inside(literal, name)):
            continue
        if page != entry.docname:
            seen.add(name)
        address = app.builder.get_relative_uri(page, entry.docname) + f"#{entry.node_id}"
        link = nodes.reference("", "", internal=True, refuri=address, reftitle=name)
        literal.replace_self(link)
        link += literal


def _inside(node: Any, name: str) -> bool:
    """Whether the node is part of the description of this name."""
    while node is not None:
        ids = node[0].get("ids", []) if node.tagname == "desc" else []
        if name in ids:
            return True
        node = node.parent
    return False


def _keep_together(doctree: Any) -> None:
    """A value and its deviation stay on one line."""
    for text in [t for t in doctree.findall(nodes.Text) if " ± " in t]:
        text.parent.replace(text, nodes.Text(text.replace(" ± ", "\u00a0±\u00a0")))


def _links(app: Any, doctree: Any, page: str) -> None:
    _keep_together(doctree)
    _link_papers(doctree)
    _link_names(app, doctree, page)


def _mathml(translator: Any, node: Any) -> None:
    """Parentheses fit what they enclose: MathML has no fixed sizes."""
    tex = re.sub(r"\\[bB]ig([(\[])", r"\\left\1", node.astext())
    tex = re.sub(r"\\[bB]ig([)\]])", r"\\right\1", tex).replace(r"\dots", r"\ldots")
    translator.body.append(tex2mathml(tex, as_block=node.tagname == "math_block"))
    raise SkipNode


def _unsearched(app: Any, doctree: Any) -> None:
    """The tree of modules and the changelog have every word: they would be in every search."""
    if app.env.docname in ("architecture", "development/changelog"):
        app.env.metadata[app.env.docname]["nosearch"] = "true"


def setup(app: Any) -> None:
    app.connect("doctree-read", _unsearched)
    app.add_html_math_renderer("mathml", (_mathml, None), (_mathml, None))
    app.connect("autodoc-process-docstring", _docstring, priority=400)
    app.connect("autodoc-process-docstring", _colons, priority=600)
    app.connect("autodoc-process-signature", _signature)
    app.connect("doctree-resolved", _links)
