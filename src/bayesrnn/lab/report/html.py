"""One HTML page with everything inside: it can be mailed, and opened without a network."""

import base64
import html
import re
from collections.abc import Sequence

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1b; --paper: #fff; --soft: #595959; --line: #d5d5d5; }
@media (prefers-color-scheme: dark) { :root { --ink: #ececec; --paper: #161616; --soft: #b0b0b0; --line: #444; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 60rem; padding: 1.2rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.25; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .7rem; border-bottom: 1px solid var(--line); text-align: right; vertical-align: bottom; }
th:first-child { text-align: left; } thead th { color: var(--soft); font-weight: 600; font-size: .85rem; }
tbody th { font-weight: 600; white-space: nowrap; }
img { max-width: 100%; height: auto; background: #fff; border-radius: 4px; }
figure { margin: 1rem 0; } figcaption, footer { color: var(--soft); font-size: .88rem; }
pre { overflow-x: auto; padding: .7rem; border: 1px solid var(--line); border-radius: 4px; font-size: .85rem; }
dt { font-weight: 600; } dd { margin: 0 0 .5rem; }
"""


def page(title: str, sections: Sequence[str], *, footer: str = "") -> str:
    """A whole page. ``title`` and ``footer`` are text; ``sections`` are HTML from the functions below."""
    title = html.escape(title)
    body = "\n".join(sections)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n{body}\n</main>\n"
        f"<footer>{html.escape(footer)}</footer>\n</body>\n</html>\n"
    )


def paragraphs(*texts: str) -> str:
    return "\n".join(f"<p>{html.escape(text)}</p>" for text in texts)


def bullets(texts: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{html.escape(text)}</li>" for text in texts) + "</ul>"


def heading(text: str) -> str:
    return f"<h2>{html.escape(text)}</h2>"


def breakable(name: str) -> str:
    """A name that may go on in the next line after a dot or the like, not in a number: it has no spaces."""
    return re.sub(r"([_=]|\.(?!\d))", r"\1<wbr>", html.escape(name))


def wide(inner: str) -> str:
    """HTML that scrolls sideways on a narrow screen instead of widening the page."""
    return f'<div class="wide" tabindex="0">{inner}</div>'


def image(png: bytes, *, alt: str, caption: str = "") -> str:
    """A PNG inside the page."""
    data = base64.b64encode(png).decode("ascii")
    below = f"<figcaption>{html.escape(caption)}</figcaption>" if caption else ""
    return f'<figure><img src="data:image/png;base64,{data}" alt="{html.escape(alt)}">{below}</figure>'


def definitions(items: Sequence[tuple[str, str]]) -> str:
    rows = "".join(f"<dt>{html.escape(term)}</dt><dd>{html.escape(text)}</dd>" for term, text in items)
    return f"<dl>{rows}</dl>"


def preformatted(text: str) -> str:
    return f"<pre>{html.escape(text)}</pre>"
