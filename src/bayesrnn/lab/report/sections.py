"""Sections of a report about how runs went: summary, curves, measures, settings, environment.

A section takes the page, the groups of runs and what was measured of their weights, and adds itself where it has
something to show. ``uncertainty_sections.py`` has the others.
"""

import html
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from bayesrnn.lab.reading import counted
from bayesrnn.lab.report import figures
from bayesrnn.lab.report import html as pages
from bayesrnn.lab.report.parts import Page, file_name
from bayesrnn.lab.report.wording import figure, mean, metric_of, number, paper_of, spoken
from bayesrnn.lab.runs.collection import SeedGroup, completed
from bayesrnn.lab.tasks.language.measured import Measured

_ENDS = ("", "_mc", "_bound", "_tempered", "_dynamic", "_dynamic_rms", "_dynamic_bound", "_dynamic_rms_bound")
_ROWS = 500  # of a table
_CURVES = 12  # pictures of them
_LAST = ("epistemic_share", "parameters", "train_seconds")
# How figures were measured, which are no figures of the model.
_HOW = ("level", "samples", "decode_samples", "beam", "length_penalty", "beam_mc", "length_penalty_mc",
        "entropy_samples", "samples_words", "entropy_samples_words", "draws_seed", "draws_seed_words",
        "entropy_draws_seed", "entropy_draws_seed_words", "ahead.direct")  # fmt: skip


def summary(page: Page, groups: Sequence[SeedGroup], measured: Mapping[str, Measured]) -> None:
    said = []
    for group in groups:
        run, metric = group.first, metric_of(group.first)
        text = [f"{group.label}:"]
        figures_said = []
        for split in ("valid", "test"):
            key = f"{split}_{metric}"
            values = group.values(key)
            if values:
                paper = paper_of(run).get(key)
                beside = f" (paper {number(paper)})" if paper is not None else ""
                figures_said.append(f"{spoken(key, run.task)} {mean(values)}{beside}")
        epochs = len(next(iter(run.curves.values()), []))
        best = group.values("best_epoch")
        if best and len(group.runs) == 1:
            figures_said.append(f"best epoch {best[0]:g} of {epochs}")
        elif best:
            figures_said.append(f"best epochs {', '.join(f'{epoch:g}' for epoch in best)}")
        if not run.finished:
            figures_said.append(f"not finished, {counted(epochs, 'epoch')} so far")
        if len(group.runs) > 1:
            figures_said.append(f"{len(group.runs)} seeds")
        if run.overrides and not group.label.endswith(")"):
            figures_said.append(f"changed from the recipe: {', '.join(run.overrides)}")
        said.append(" ".join(text) + " " + "; ".join(figures_said or ["no figures yet"]) + ".")
    notes = [f"{label}: {note}" for label, one in measured.items() for note in one.notes]
    page.add("summary", "Summary", pages.bullets(said), *([pages.bullets(notes)] if notes else []))


def curves(page: Page, groups: Sequence[SeedGroup], measured: Mapping[str, Measured]) -> None:
    shown = []
    metric = metric_of(groups[0].first)
    wanted = [f"valid_{metric}", f"train_{metric}"]
    rest = [k for g in groups for r in g.runs for k in r.curves if k.startswith(("kl", "test_"))]
    others = [f"valid_{metric_of(g.first)}" for g in groups]
    keys = list(dict.fromkeys([*wanted, *others, *rest]))
    for key in keys[:_CURVES]:
        named = {g.label: [r.curves[key] for r in g.runs if key in r.curves] for g in groups}
        # A line of zeros is a run without such a thing.
        named = {label: each for label, each in named.items() if any(math.isfinite(v) and v for e in each for v in e)}
        if not named:
            continue
        best, name = "the lowest" if key.startswith("valid_") else "", spoken(key, groups[0].first.task)
        ends = "; ".join(f"{label} {number(lines[0][0])} to {number(lines[0][-1])}" for label, lines in named.items())
        shown.append(
            page.figure(
                f"curve-{file_name(key)}",
                figures.curves(named, label=name, best=best, order=[g.label for g in groups]),
                alt=f"{name} per epoch, from the first to the last: {ends}.",
                caption=f"{name} per epoch",
            )
        )
    if shown:
        page.add(
            "curves", "Learning curves", f'<div class="figures">{"".join(shown)}</div>', _left_out(len(keys) - _CURVES)
        )


def measures(page: Page, groups: Sequence[SeedGroup], measured: Mapping[str, Measured]) -> None:
    """The figures that runs are compared by, the paper's beside them; below, folded, all others."""
    papers = [paper_of(g.first) for g in groups]
    metric = metric_of(groups[0].first)
    first = [f"{split}_{metric}{end}" for end in _ENDS for split in ("valid", "test")]
    keys = [k for g in groups for one in g.scalars for k in one] + [k for paper in papers for k in paper]
    keys = [k for k in dict.fromkeys(keys) if any(g.values(k) for g in groups) or any(k in p for p in papers)]
    keys.sort(key=lambda key: _place(key, first))
    same_data = len({str(g.first.environment.get("data")) for g in groups}) == 1
    lowest = _lowest(groups, [k for k in first if k in keys]) if same_data else {}
    main = [k for k in keys if _is_main(k, first) or any(k in p for p in papers)]
    if not keys:
        return
    note = "Of several seeds: mean ± standard deviation." if any(len(g.runs) > 1 for g in groups) else ""
    if lowest:
        note += " Bold: the lowest of the row, where lower is better."
    parts = [_figures_table(groups, papers, main or keys, lowest), *([pages.paragraphs(note.strip())] if note else [])]
    compared = set(main)
    for title, rest in (
        ("More figures", [k for k in keys if main and k not in compared and k not in _HOW]),
        ("How they were measured", [k for k in keys if main and k in _HOW]),
    ):
        if rest:
            parts.append(f"<details><summary>{title}</summary>{_figures_table(groups, papers, rest, {})}</details>")
    page.add("measures", "Measures", *parts)


def _place(key: str, first: Sequence[str]) -> tuple[int, int]:
    if key in first:
        return 0, first.index(key)
    if key in _LAST or key.endswith("_per_second"):
        return 4, 0
    if "." in key:
        return 3, 0
    return (1 if key.startswith(("valid_", "test_")) else 2), 0


def _is_main(key: str, first: Sequence[str]) -> bool:
    if key in first or key in _LAST or key.endswith(("_per_second", "naive_crps")):
        return True
    return key.startswith("test_") and not key.endswith(("_raw", "_all_words", "_mc_words", "_information_words"))


def _lowest(groups: Sequence[SeedGroup], keys: Sequence[str]) -> dict[str, int]:
    """Which group has the lowest mean, for figures that more than one has."""
    found = {}
    for key in keys:
        means = [statistics.fmean(g.values(key)) if g.values(key) else math.inf for g in groups]
        if sum(math.isfinite(m) for m in means) > 1:
            found[key] = means.index(min(means))
    return found


def _figures_table(
    groups: Sequence[SeedGroup], papers: Sequence[Mapping[str, float]], keys: Sequence[str], lowest: Mapping[str, int]
) -> str:
    rows = []
    for key in keys[:_ROWS]:
        cells = []
        for index, (group, paper) in enumerate(zip(groups, papers, strict=True)):
            values = group.values(key)
            text = f'<span class="figure">{html.escape(figure(key, values))}</span>' if values else "–"
            if lowest.get(key) == index:
                text = f'<span class="best">{text}</span>'
            if key in paper:
                text += f'<br><span class="paper">paper {number(paper[key])}</span>'
            cells.append(f"<td>{text}</td>")
        rows.append(f'<tr><th scope="row">{html.escape(spoken(key, groups[0].first.task))}</th>{"".join(cells)}</tr>')
    head = "".join(f'<th scope="col">{pages.breakable(g.label)}</th>' for g in groups)
    return pages.wide(
        f'<table><thead><tr><th scope="col">measure</th>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    ) + _left_out(len(keys) - _ROWS)


def _left_out(count: int) -> str:
    return pages.paragraphs(f"{count:,} more are left out; the record has them.") if count > 0 else ""


def configuration(page: Page, groups: Sequence[SeedGroup], measured: Mapping[str, Measured]) -> None:
    settings = [completed(g.first.settings) for g in groups]
    keys = list(dict.fromkeys(k for one in settings for k in one))
    differing = [k for k in keys if k != "description" and len({repr(one.get(k)) for one in settings}) > 1]
    described = [f"{g.label}: {text}" for g in groups if isinstance(text := g.first.settings.get("description"), str)]
    parts = [pages.bullets(described)] if described else []
    if len(groups) > 1:
        parts.append(pages.paragraphs("What differs:" if differing else "All settings are the same."))
    else:
        changed = groups[0].first.overrides
        text = f"Changed from the recipe: {', '.join(changed)}." if changed else "As the recipe says."
        parts.append(pages.paragraphs(text))
    if differing and len(groups) > 1:
        parts += [pages.wide(_settings_table(groups, settings, differing)), _left_out(len(differing) - _ROWS)]
    whole = pages.wide(_settings_table(groups, settings, keys)) + _left_out(len(keys) - _ROWS)
    parts.append(f"<details><summary>All settings</summary>{whole}</details>")
    page.add("configuration", "Configuration", *parts)


def _settings_table(groups: Sequence[SeedGroup], settings: Sequence[dict[str, Any]], keys: Sequence[str]) -> str:
    head = "".join(f'<th scope="col">{pages.breakable(g.label)}</th>' for g in groups)
    rows = "".join(
        f'<tr><th scope="row">{pages.breakable(key)}</th>'
        + "".join(f"<td>{pages.breakable(_setting(one.get(key)))}</td>" for one in settings)
        + "</tr>"
        for key in keys[:_ROWS]
    )
    return (
        f'<table class="text"><thead><tr><th scope="col">setting</th>{head}</tr></thead><tbody>{rows}</tbody></table>'
    )


def _setting(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def environment(page: Page, groups: Sequence[SeedGroup], measured: Mapping[str, Measured]) -> None:
    parts = []
    for group in groups:
        for run in group.runs:
            about = run.environment
            versions = about.get("versions")
            if isinstance(versions, dict):
                about = {**about, "versions": ", ".join(f"{k} {v}" for k, v in versions.items())}
            if not about:
                continue
            seed = "" if run.seed is None else f", seed {run.seed}"
            terms = "".join(
                f"<dt>{html.escape(key.replace('_', ' '))}</dt><dd><code>{html.escape(str(value))}</code></dd>"
                for key, value in about.items()
            )
            parts.append(f"<details{' open' if len(groups) == 1 and len(group.runs) == 1 else ''}><summary>"
                         f"{html.escape(group.label)}{seed}</summary><dl>{terms}</dl></details>")  # fmt: skip
    if parts:
        page.add("environment", "Environment", *parts)
