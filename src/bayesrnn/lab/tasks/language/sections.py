"""Sections of a report about language models: entropy gaps, and single words with their uncertainty."""

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from bayesrnn.lab.report import html, plots
from bayesrnn.lab.report.analysis import Analysis
from bayesrnn.lab.report.parts import Page
from bayesrnn.lab.runs.collection import SeedGroup
from bayesrnn.lab.tasks.language.words import ScoredWord

SURPRISAL_LEVELS = (2.0, 4.0, 6.0, 9.0)
INFORMATION_LEVELS = (0.02, 0.1, 0.3, 0.8)


def entropy_gap(page: Page, groups: Sequence[SeedGroup], analyses: Mapping[str, Analysis]) -> None:
    named: dict[str, list[tuple[float, float]]] = {}
    for group in groups:
        metrics, points = group.scalars[0], {}
        for key, draws in (
            ("entropy_gap_mean", 0.0),
            ("entropy_gap_1", 1.0),
            ("entropy_gap", metrics.get("entropy_samples", math.nan)),
        ):
            if abs(draws) <= plots.LARGEST and abs(metrics.get(key, math.nan)) <= plots.LARGEST:
                points[draws] = metrics[key]
        if points:
            named[group.label] = sorted(points.items())
    if not named:
        return
    levels = {}
    for group in groups:
        for key, name in (("entropy_gap", "with draws"), ("entropy_gap_mean", "mean")):
            value = group.first.paper.get(key)
            if isinstance(value, (int, float)):
                levels[f"paper, {name}"] = float(value)
    said = "; ".join(
        f"{label}: " + ", ".join(f"{value + 0.0:.3f} with {n:g} draw{'s' * (n != 1)}" for n, value in points)
        for label, points in named.items()
    )
    ticks = sorted({n for points in named.values() for n, _ in points})
    order, up = [g.label for g in groups], "entropy gap, nats per word"
    png = plots.lines(named, order=order, across="draws (0: the posterior mean)", up=up, levels=levels, ticks=ticks)
    about = (
        "How much less sure the model is of the next word when the test text is read backwards. Higher is better: it "
        "knows what it does not know."
    )
    alt = f"Entropy gap against the number of draws. {said}."
    page.add_figure("entropy-gap", "Entropy gap", png, alt=alt, caption=f"{said}.", text=about)


def words(page: Page, groups: Sequence[SeedGroup], analyses: Mapping[str, Analysis]) -> None:
    """Sentences of the test text, shaded by surprise and underlined by disagreement."""
    parts = []
    for name, one in analyses.items():
        sentences: list[list[ScoredWord]] = one.own.get("sentences", [])
        if not sentences:
            continue
        rows = [
            [w.text, f"{w.surprisal:.2f}", f"{w.entropy:.2f}", f"{w.mutual_information:.3f}"]
            for sentence in sentences
            for w in sentence
        ]
        table = html.wide(html.table(["word", "surprisal", "entropy", "mutual information"], rows))
        lines = [html.shaded([_shaded(word) for word in sentence]) for sentence in sentences]
        parts += [page.heading(name), *lines, html.details("All numbers", table)]
    if not parts:
        return
    page.add(
        "words",
        "Words and uncertainty",
        html.paragraphs(
            "Sentences of the test text. A darker word surprised the model more (-log p, nats); the thicker the line "
            "under it, the more draws of the weights disagreed about it (mutual information, nats; 10 draws)."
        ),
        html.key("Shade", "s", html.ranges(SURPRISAL_LEVELS)),
        html.key("Line", "i", html.ranges(INFORMATION_LEVELS)),
        *parts,
    )


def _shaded(word: ScoredWord) -> Markup:
    return html.word(
        word.text,
        shade=html.level(word.surprisal, SURPRISAL_LEVELS),
        line=html.level(word.mutual_information, INFORMATION_LEVELS),
        title=f"surprisal {word.surprisal:.2f}, entropy {word.entropy:.2f}, "
        f"mutual information {word.mutual_information:.3f}",
    )
