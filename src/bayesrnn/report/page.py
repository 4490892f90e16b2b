"""The report: one page that compares runs, each section from what the runs have. ``build`` puts it together."""

import html
from collections.abc import Mapping, Sequence

from bayesrnn.report import html as pages
from bayesrnn.report import sections
from bayesrnn.report import uncertainty_sections as uncertain
from bayesrnn.report.collect import Group
from bayesrnn.report.gallery import DARK, INK, LIGHT
from bayesrnn.report.measured import Measured
from bayesrnn.report.parts import Page

GENERATOR = "bayesrnn report"
_LINES = (0, 1, 2, 3, 5)

_STYLE = """
<style>
nav ul { display: flex; flex-wrap: wrap; gap: .2rem .9rem; padding: 0; list-style: none; }
nav a { color: inherit; display: inline-block; padding: .25rem 0; }
a:focus-visible, summary:focus-visible, .wide:focus-visible { outline: 3px solid #0060A8; outline-offset: 2px; }
.figures { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 24rem), 1fr)); }
.figures figure { margin: 0; }
section > figure { max-width: 34rem; }
.wide td { min-width: 4.5rem; }
.wide thead th:first-child, .wide tbody th { position: sticky; left: 0; background: var(--paper); text-align: left;
  min-width: 8.5rem; max-width: 18rem; white-space: normal; overflow-wrap: break-word; padding-left: 0; }
.text td { max-width: 20rem; overflow-wrap: anywhere; }
.figure { white-space: nowrap; }
.paper { color: var(--soft); font-size: .85rem; white-space: nowrap; }
.best { font-weight: 700; }
details { margin: .8rem 0; } summary { cursor: pointer; padding: .3rem 0; }
dd { overflow-wrap: anywhere; } dd code { font-size: .85rem; }
.words { font-size: 1.05rem; line-height: 2.1; }
.w { padding: .1rem .2rem; border-radius: 3px; white-space: nowrap; color: INK_LIGHT; }
SHADES_LIGHT
LINES
.key .w { margin-right: .4rem; }
@media (prefers-color-scheme: dark) { .w { color: INK_DARK; } SHADES_DARK }
@media print { nav { display: none; } }
</style>
"""


def build(groups: Sequence[Group], measured: Mapping[str, Measured], *, title: str) -> tuple[str, dict[str, bytes]]:
    """The page, and its pictures by file name.

    Args:
        groups: what to compare, in order.
        measured: by the labels of groups, what was computed from weights; may be empty.
    """
    page = Page()
    for section in (
        sections.summary,
        sections.curves,
        sections.measures,
        uncertain.reliability,
        uncertain.coverage,
        uncertain.selective,
        uncertain.entropy_gap,
        uncertain.signal_to_noise,
        uncertain.pruning,
        uncertain.patterns,
        uncertain.words,
        sections.configuration,
        sections.environment,
    ):
        section(page, groups, measured)
    links = "".join(f'<li><a href="#{key}">{html.escape(name)}</a></li>' for key, name, _ in page.sections)
    body = [
        f'<meta name="generator" content="{GENERATOR}">',
        _style(),
        f'<nav aria-label="Sections"><ul>{links}</ul></nav>',
        *(
            f'<section id="{key}" aria-labelledby="{key}-title"><h2 id="{key}-title">{html.escape(name)}</h2>\n'
            f"{content}\n</section>"
            for key, name, content in page.sections
        ),
    ]
    count = sum(len(group.runs) for group in groups)
    footer = f"Made by bayesrnn report from {count} run{'s' if count > 1 else ''}."
    return pages.page(title, body, footer=footer), page.pictures


def _style() -> str:
    shades = {"LIGHT": LIGHT, "DARK": DARK}
    style = _STYLE.replace("INK_LIGHT", INK["light"]).replace("INK_DARK", INK["dark"])
    for name, colours in shades.items():
        rules = " ".join(f".s{i} {{ background: {colour}; }}" for i, colour in enumerate(colours))
        style = style.replace(f"SHADES_{name}", rules)
    lines = " ".join(f".i{i} {{ border-bottom: {width}px solid currentColor; }}" for i, width in enumerate(_LINES))
    return style.replace("LINES", lines)
