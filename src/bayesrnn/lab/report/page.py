"""The report: one page that compares runs. Sections come from every run and from the runs' tasks."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bayesrnn.lab.reading import counted
from bayesrnn.lab.registry import resolve
from bayesrnn.lab.report import html, sections
from bayesrnn.lab.report.analysis import Analysis
from bayesrnn.lab.report.labels import task_of
from bayesrnn.lab.report.parts import Page
from bayesrnn.lab.runs.collection import SeedGroup

GENERATOR = "bayesrnn report"
_TITLE = 60  # two lines on a phone
_FIRST = (sections.summary, sections.curves, sections.measures)
_LAST = (sections.configuration, sections.environment)

Section = Callable[[Page, Sequence[SeedGroup], Mapping[str, Analysis]], None]


def build(
    groups: Sequence[SeedGroup],
    analyses: Mapping[str, Analysis],
    *,
    title: str,
    more: Sequence[Page] = (),
    source: str = "",
) -> tuple[str, dict[str, bytes]]:
    """The page, and its pictures by file name.

    Args:
        groups: what to compare, in order.
        analyses: by the labels of groups, what was computed from weights; may be empty.
        more: further chapters, of models that are not runs.
        source: what :func:`sources` says of them.
    """
    chapters = [*_chapters(groups, analyses), *more]
    runs = sum(len(group.runs) for group in groups) + len(more)
    footer = f"Made by bayesrnn report from {counted(runs, 'model' if more else 'run')}."
    text = html.render("report.html", title=title, chapters=chapters, footer=footer, generator=GENERATOR, source=source)
    return text, {name: png for page in chapters for name, png in page.pictures.items()}


def sources(paths: Sequence[str]) -> str:
    """A digest of what a report is made of, to know its next version by; it does not show the paths."""
    return hashlib.sha256("\n".join(sorted({str(Path(path).resolve()) for path in paths})).encode()).hexdigest()[:16]


def heading(groups: Sequence[SeedGroup]) -> str:
    """A title for the page: the runs' names if they are few and short, else how many there are of which task."""
    names = ", ".join(group.label for group in groups)
    if len(names) <= _TITLE:
        return names
    recipes = ", ".join(dict.fromkeys(group.first.recipe for group in groups))
    if len(recipes) <= _TITLE:
        return f"{recipes}: {len(groups)} settings compared"
    tasks = ", ".join(dict.fromkeys(group.first.task or "other" for group in groups))
    return f"{len(groups)} models compared: {tasks}"[:120]


def _chapters(groups: Sequence[SeedGroup], analyses: Mapping[str, Analysis]) -> list[Page]:
    """One for each task: metrics of different tasks are not compared."""
    tasks = list(dict.fromkeys(group.first.task for group in groups))
    made = []
    for number, task in enumerate(tasks, 1):
        page = Page((task or f"task {number}") if len(tasks) > 1 else "")
        own = [group for group in groups if group.first.task == task]
        known = {group.label: analyses[group.label] for group in own if group.label in analyses}
        found = task_of(task)
        declared: list[Section] = [resolve(section) for section in found.report_sections] if found else []
        for section in (*_FIRST, *declared, *_LAST):
            section(page, own, known)
        made.append(page)
    return made
