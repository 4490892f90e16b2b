"""Sections that a report of any runs has: summary, curves, metrics, settings, environment.

A section is a function of the page, the groups of runs (each with seeds of one setting) and, by the labels of groups,
what was computed from their weights. It adds itself to the page if it has something to show. A task declares its own
sections in ``Task.report_sections``.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from bayesrnn.lab.metrics import Metric
from bayesrnn.lab.reading import counted
from bayesrnn.lab.report import html, plots
from bayesrnn.lab.report.analysis import Analysis
from bayesrnn.lab.report.labels import declared, label, mean, metric_of, number, paper_of, task_of, value
from bayesrnn.lab.report.parts import Page, file_name
from bayesrnn.lab.runs.collection import SeedGroup, with_defaults
from bayesrnn.lab.runs.record import Record

_ROWS = 500  # of a table
_CURVES = 12  # pictures of them
_LAST = ("parameters", "train_seconds")


def summary(page: Page, groups: Sequence[SeedGroup], analyses: Mapping[str, Analysis]) -> None:
    said = [f"{group.label}: {'; '.join(_said(group) or ['no metrics yet'])}." for group in groups]
    notes = [f"{name}: {note}" for name, one in analyses.items() for note in one.notes]
    page.add("summary", "Summary", html.bullets(said), *([html.bullets(notes)] if notes else []))


def _said(group: SeedGroup) -> list[str]:
    """What the summary says of a group, one phrase each."""
    run, found = group.first, []
    for split in ("valid", "test"):
        key = f"{split}_{metric_of(run)}"
        if values := group.values(key):
            paper = paper_of(run).get(key)
            beside = f" (paper {number(paper)})" if paper is not None else ""
            found.append(f"{label(key, run.task)} {mean(values)}{beside}")
    epochs, best = len(next(iter(run.curves.values()), [])), group.values("best_epoch")
    if best and len(group.runs) == 1:
        found.append(f"best epoch {best[0]:g} of {epochs}")
    elif best:
        found.append(f"best epochs {', '.join(f'{epoch:g}' for epoch in best)}")
    if not run.finished:
        found.append(f"not finished, {counted(epochs, 'epoch')} so far")
    if len(group.runs) > 1:
        found.append(f"{len(group.runs)} seeds")
    if run.overrides and not group.label.endswith(")"):
        found.append(f"changed from the recipe: {', '.join(run.overrides)}")
    return found


def curves(page: Page, groups: Sequence[SeedGroup], analyses: Mapping[str, Analysis]) -> None:
    shown = []
    metric = metric_of(groups[0].first)
    rest = [k for g in groups for r in g.runs for k in r.curves if k.startswith(("kl", "test_"))]
    others = [f"valid_{metric_of(g.first)}" for g in groups]
    keys = list(dict.fromkeys([f"valid_{metric}", f"train_{metric}", *others, *rest]))
    for key in keys[:_CURVES]:
        named = {g.label: [r.curves[key] for r in g.runs if key in r.curves] for g in groups}
        # A curve of zeros means that the run lacks this metric.
        named = {name: each for name, each in named.items() if any(math.isfinite(v) and v for e in each for v in e)}
        if not named:
            continue
        best, name = "best" if key.startswith("valid_") else "", label(key, groups[0].first.task)
        ends = "; ".join(f"{one} {number(lines[0][0])} to {number(lines[0][-1])}" for one, lines in named.items())
        shown.append(
            page.figure(
                f"curve-{file_name(key)}",
                plots.curves(named, label=name, best=best, order=[g.label for g in groups]),
                alt=f"{name} per epoch, from the first to the last: {ends}.",
                caption=f"{name} per epoch",
            )
        )
    if shown:
        page.add("curves", "Learning curves", html.pictures(shown), _left_out(len(keys) - _CURVES))


def measures(page: Page, groups: Sequence[SeedGroup], analyses: Mapping[str, Analysis]) -> None:
    """The metrics that runs are compared by, the paper's values beside them; below, folded, all others."""
    task = task_of(groups[0].first.task)
    papers = [paper_of(g.first) for g in groups]
    order = [metric.key for metric in task.metrics] if task else []
    conditions = task.conditions if task else ()
    keys = [k for g in groups for one in g.scalars for k in one] + [k for paper in papers for k in paper]
    keys = [k for k in dict.fromkeys(keys) if any(g.values(k) for g in groups) or any(k in p for p in papers)]
    if not keys:
        return
    keys.sort(key=lambda key: _place(key, order))
    folded = {metric.key for metric in task.details} if task else set()
    main = [k for k in keys if _is_main(k, order, {*folded, *conditions}) or any(k in p for p in papers)]
    same_data = len({str(g.first.environment.get("data")) for g in groups}) == 1
    best = _best(groups, task.metrics if task else ()) if same_data else {}
    note = "Several seeds: mean ± standard deviation." if any(len(g.runs) > 1 for g in groups) else ""
    if best:
        note += " Bold: the best of the row."
    parts = [_table(groups, papers, main or keys, best), *([html.paragraphs(note.strip())] if note else [])]
    rest = [k for k in keys if main and k not in set(main)]
    for title, some in (
        ("More metrics", [k for k in rest if k not in conditions]),
        ("How they were measured", [k for k in rest if k in conditions]),
    ):
        if some:
            parts.append(html.details(title, _table(groups, papers, some, {})))
    page.add("measures", "Metrics", *parts)


def _place(key: str, order: Sequence[str]) -> tuple[int, int]:
    if key in order:
        return 0, order.index(key)
    if key in _LAST or key.endswith("_per_second"):
        return 4, 0
    if "." in key:
        return 3, 0
    return (1 if key.startswith(("valid_", "test_")) else 2), 0


def _is_main(key: str, order: Sequence[str], folded: set[str]) -> bool:
    if key in order or key in _LAST or key.endswith("_per_second"):
        return True
    return key.startswith("test_") and key not in folded


def _best(groups: Sequence[SeedGroup], metrics: Sequence[Metric]) -> dict[str, int]:
    """Which group has the best mean, for metrics that more than one has."""
    found = {}
    for metric in metrics:
        means = {k: statistics.fmean(g.values(metric.key)) for k, g in enumerate(groups) if g.values(metric.key)}
        if len(means) > 1 and metric.lower_is_better is not None:
            choose = min if metric.lower_is_better else max
            found[metric.key] = choose(means, key=lambda k: means[k])
    return found


def _table(
    groups: Sequence[SeedGroup], papers: Sequence[Mapping[str, float]], keys: Sequence[str], best: Mapping[str, int]
) -> Markup:
    task = groups[0].first.task
    names = declared(task)
    rows: list[list[Any]] = []
    for key in keys[:_ROWS]:
        cells = [
            html.value(
                value(key, values) if (values := group.values(key)) else "",
                best=best.get(key) == index,
                paper=number(paper[key]) if key in paper else "",
            )
            for index, (group, paper) in enumerate(zip(groups, papers, strict=True))
        ]
        rows.append([names[key].label if key in names else label(key), *cells])
    return html.wide(html.table(["metric", *_names(groups)], rows)) + _left_out(len(keys) - _ROWS)


def _names(groups: Sequence[SeedGroup]) -> list[Markup]:
    return [html.breakable(group.label) for group in groups]


def _left_out(count: int) -> Markup:
    return html.paragraphs(*[f"{count:,} more are left out; the record has them."] * (count > 0))


def configuration(page: Page, groups: Sequence[SeedGroup], analyses: Mapping[str, Analysis]) -> None:
    settings = [with_defaults(g.first.settings) for g in groups]
    keys = list(dict.fromkeys(k for one in settings for k in one))
    differing = [k for k in keys if k != "description" and len({repr(one.get(k)) for one in settings}) > 1]
    described = [f"{g.label}: {text}" for g in groups if isinstance(text := g.first.settings.get("description"), str)]
    parts = [html.bullets(described)] if described else []
    if len(groups) > 1:
        parts.append(html.paragraphs("What differs:" if differing else "All settings are the same."))
    else:
        changed = groups[0].first.overrides
        text = f"Changed from the recipe: {', '.join(changed)}." if changed else "As the recipe says."
        parts.append(html.paragraphs(text))
    if differing and len(groups) > 1:
        parts.append(_settings_table(groups, settings, differing))
    parts.append(html.details("All settings", _settings_table(groups, settings, keys)))
    page.add("configuration", "Configuration", *parts)


def _settings_table(groups: Sequence[SeedGroup], settings: Sequence[dict[str, Any]], keys: Sequence[str]) -> Markup:
    rows = [
        [html.breakable(key), *(html.breakable(_setting(one.get(key))) for one in settings)] for key in keys[:_ROWS]
    ]
    table = html.wide(html.table(["setting", *_names(groups)], rows, text=True))
    return table + _left_out(len(keys) - _ROWS)


def _setting(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def environment(page: Page, groups: Sequence[SeedGroup], analyses: Mapping[str, Analysis]) -> None:
    alone = len(groups) == 1 and len(groups[0].runs) == 1
    parts = [
        html.details(
            group.label + ("" if run.seed is None else f", seed {run.seed}"),
            html.definitions(_about(run), code=True),
            is_open=alone,
        )
        for group in groups
        for run in group.runs
        if run.environment
    ]
    if parts:
        page.add("environment", "Environment", *parts)


def _about(run: Record) -> list[tuple[str, str]]:
    about, versions = run.environment, run.environment.get("versions")
    if isinstance(versions, dict):
        about = {**about, "versions": ", ".join(f"{k} {v}" for k, v in versions.items())}
    return [(key.replace("_", " "), str(value)) for key, value in about.items()]
