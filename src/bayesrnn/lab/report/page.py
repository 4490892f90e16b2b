"""The report: one page that compares runs, each section from what the runs have. ``build`` puts it together."""

import html
from collections.abc import Mapping, Sequence

from bayesrnn.lab.reading import counted
from bayesrnn.lab.report import html as pages
from bayesrnn.lab.report import sections
from bayesrnn.lab.report import uncertainty_sections as uncertain
from bayesrnn.lab.report.parts import Page
from bayesrnn.lab.runs.collection import SeedGroup
from bayesrnn.lab.tasks.captioning.gallery import DARK, INK, LIGHT
from bayesrnn.lab.tasks.forecast import sections as forecasts
from bayesrnn.lab.tasks.language.measured import Measured

GENERATOR = "bayesrnn report"
_LINES = (0, 1, 2, 3, 5)
_TITLE = 60  # two lines on a phone

_STYLE = """
<style>
.chapter { font-size: 1.35rem; border-top: 2px solid var(--line); padding-top: 1.2rem; margin-top: 3rem; }
h3 { margin-top: 2rem; }
nav ul { display: flex; flex-wrap: wrap; gap: .2rem .9rem; padding: 0; list-style: none; }
nav a, nav strong { color: inherit; display: inline-block; padding: .25rem 0; }
a:focus-visible, summary:focus-visible, .wide:focus-visible { outline: 3px solid #0060A8; outline-offset: 2px; }
.figures { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 24rem), 1fr)); }
.figures figure { margin: 0; }
section > figure { max-width: 34rem; }
.wide td { min-width: 4.5rem; }
.wide thead th:first-child, .wide tbody th { position: sticky; left: 0; background: var(--paper); text-align: left;
  min-width: min(15rem, 36vw); max-width: 18rem; white-space: normal; overflow-wrap: break-word; padding-left: 0; }
.text td { min-width: 7.5rem; max-width: 20rem; overflow-wrap: break-word; }
.wide { background:
  linear-gradient(to left, var(--paper) 1.2rem, transparent 2.4rem) calc(100% + 3px) 0 / 2.6rem 100% local,
  linear-gradient(to left, var(--shade), transparent) right / 1rem 100% scroll;
  background-repeat: no-repeat; }
:root { --shade: #0006; } @media (prefers-color-scheme: dark) { :root { --shade: #fff6; } }
@media (max-width: 40rem) {
  .wide table { font-size: .85rem; } .wide thead th { font-size: .8rem; }
  .wide td, .wide th { padding: .3rem .35rem; }
  .wide td, .text td, .wide thead th { min-width: 3.6rem; max-width: 9rem; overflow-wrap: break-word; }
  .wide thead th:first-child, .wide tbody th { min-width: 5.2rem; max-width: 30vw; }
}
.figure { white-space: nowrap; }
.paper { color: var(--soft); font-size: .85rem; }
.best { font-weight: 700; }
details { margin: .8rem 0; } summary { cursor: pointer; padding: .3rem 0; }
li, p, h1, dd, figcaption, summary { overflow-wrap: anywhere; } dd code { font-size: .85rem; }
.words { font-size: 1.05rem; line-height: 2.1; }
.w { padding: .1rem .2rem; border-radius: 3px; white-space: nowrap; color: INK_LIGHT; }
SHADES_LIGHT
LINES
.key .w { margin-right: .4rem; }
@media (prefers-color-scheme: dark) { .w { color: INK_DARK; } SHADES_DARK }
@media print { nav { display: none; } }
</style>
"""


def build(groups: Sequence[SeedGroup], measured: Mapping[str, Measured], *, title: str) -> tuple[str, dict[str, bytes]]:
    """The page, and its pictures by file name.

    Args:
        groups: what to compare, in order.
        measured: by the labels of groups, what was computed from weights; may be empty.
    """
    chapters = _chapters(groups, measured)
    several = len(chapters) > 1
    body = [f'<meta name="generator" content="{GENERATOR}">', _style(), '<nav aria-label="Sections">']
    body += [_links(page) for page in chapters]
    body.append("</nav>")
    for page in chapters:
        if several:
            body.append(f'<h2 class="chapter">{html.escape(page.chapter.capitalize())}</h2>')
        body += [_section(*section, level=3 if several else 2) for section in page.sections]
    count = sum(len(group.runs) for group in groups)
    footer = f"Made by bayesrnn report from {counted(count, 'run')}."
    pictures = {name: png for page in chapters for name, png in page.pictures.items()}
    return pages.page(title, body, footer=footer), pictures


def heading(groups: Sequence[SeedGroup]) -> str:
    """A title for the page: the runs' names where they are few and short, else how many there are of which task."""
    names = ", ".join(group.label for group in groups)
    if len(names) <= _TITLE:
        return names
    recipes = ", ".join(dict.fromkeys(group.first.recipe for group in groups))
    if len(recipes) <= _TITLE:
        return f"{recipes}: {len(groups)} settings compared"
    tasks = ", ".join(dict.fromkeys(group.first.task or "other" for group in groups))
    return f"{len(groups)} models compared: {tasks}"[:120]


_SECTIONS = (
    sections.summary,
    sections.curves,
    sections.measures,
    forecasts.ahead,
    forecasts.walk,
    forecasts.by_step,
    uncertain.reliability,
    uncertain.coverage,
    uncertain.selective,
    uncertain.unfamiliar,
    uncertain.entropy_gap,
    uncertain.signal_to_noise,
    uncertain.pruning,
    uncertain.patterns,
    uncertain.words,
    sections.configuration,
    sections.environment,
)


def _chapters(groups: Sequence[SeedGroup], measured: Mapping[str, Measured]) -> list[Page]:
    """One for each task: figures of different tasks have nothing to say to each other."""
    tasks = list(dict.fromkeys(group.first.task for group in groups))
    made = []
    for number, task in enumerate(tasks, 1):
        page = Page((task or f"task {number}") if len(tasks) > 1 else "")
        own = [group for group in groups if group.first.task == task]
        known = {group.label: measured[group.label] for group in own if group.label in measured}
        for section in _SECTIONS:
            section(page, own, known)
        made.append(page)
    return made


def _links(page: Page) -> str:
    items = "".join(f'<li><a href="#{key}">{html.escape(name)}</a></li>' for key, name, _ in page.sections)
    first = f"<li><strong>{html.escape(page.chapter.capitalize())}</strong></li>" if page.chapter else ""
    return f"<ul>{first}{items}</ul>"


def _section(key: str, name: str, content: str, *, level: int) -> str:
    if level == 3:
        content = content.replace("<h3>", "<h4>").replace("</h3>", "</h4>")
    heading = f'<h{level} id="{key}-title">{html.escape(name)}</h{level}>'
    return f'<section id="{key}" aria-labelledby="{key}-title">{heading}\n{content}\n</section>'


def _style() -> str:
    shades = {"LIGHT": LIGHT, "DARK": DARK}
    style = _STYLE.replace("INK_LIGHT", INK["light"]).replace("INK_DARK", INK["dark"])
    for name, colours in shades.items():
        rules = " ".join(f".s{i} {{ background: {colour}; }}" for i, colour in enumerate(colours))
        style = style.replace(f"SHADES_{name}", rules)
    lines = " ".join(f".i{i} {{ border-bottom: {width}px solid currentColor; }}" for i, width in enumerate(_LINES))
    return style.replace("LINES", lines)
