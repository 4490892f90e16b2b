"""Sections about calibration, for the tasks that measure it: reliability, coverage, answering only where sure."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bayesrnn.lab.report import plots
from bayesrnn.lab.report.analysis import Analysis
from bayesrnn.lab.report.labels import label, number, part
from bayesrnn.lab.report.parts import Page
from bayesrnn.lab.runs.collection import SeedGroup

Points = Sequence[tuple[float, float]]


def points(values: Any, x: str, y: str) -> list[dict[str, float]]:
    """The entries of a record's list that have both numbers, of a size that can be drawn."""
    if not isinstance(values, list):
        return []
    return [
        v
        for v in values
        if isinstance(v, dict)
        and all(isinstance(v.get(k), (int, float)) and abs(v[k]) <= plots.LARGEST for k in (x, y))
    ]


def point_pairs(xs: Any, ys: Any) -> list[tuple[float, float]]:
    """Points from two lists of a record; none if they are not lists of one length."""
    if not isinstance(xs, list) or not isinstance(ys, list) or len(xs) != len(ys):
        return []
    return [(p["x"], p["y"]) for p in points([{"x": a, "y": b} for a, b in zip(xs, ys, strict=True)], "x", "y")]


def _count(point: Mapping[str, Any]) -> float:
    value = point.get("count")
    known = isinstance(value, (int, float)) and math.isfinite(value) and value >= 0
    return float(value) if known else 1.0  # type: ignore[arg-type]


def reliability(page: Page, groups: Sequence[SeedGroup], analyses: Mapping[str, Analysis]) -> None:
    """For classifiers: how often predictions of each confidence are right."""
    found = {g.label: points(g.first.metrics.get("reliability"), "confidence", "accuracy") for g in groups}
    found = {name: each for name, each in found.items() if each}
    if not found:
        return
    named = {name: [(p["confidence"], p["accuracy"]) for p in each] for name, each in found.items()}
    sizes = {name: [_count(p) for p in each] for name, each in found.items()}
    gaps = {n: sum(s * abs(a - b) for (a, b), s in zip(each, sizes[n], strict=True)) for n, each in named.items()}
    errors = "; ".join(f"{name}: {gap / (sum(sizes[name]) or 1.0):.1%}" for name, gap in gaps.items())
    order, across = [g.label for g in groups], "confidence: the model's probability"
    png = plots.against_diagonal(named, order=order, across=across, up="share that was right", sizes=sizes)
    text = f"Mean distance from the diagonal (expected calibration error): {errors}."
    about = "Of predictions made with 80% confidence, 80% should be right. Points below are too sure."
    alt = f"Share of right predictions against confidence. {text}"
    page.add_figure("reliability", "Reliability", png, alt=alt, caption=text, text=about)


def coverage(page: Page, groups: Sequence[SeedGroup], analyses: Mapping[str, Analysis]) -> None:
    """For regressors: how often intervals hold the truth, from ``intervals`` or ``reliability`` of a record."""
    named: dict[str, Points] = {}
    for group in groups:
        metrics = group.first.metrics
        found = [(p["level"], p["coverage"]) for p in points(metrics.get("intervals"), "level", "coverage")]
        other = part(metrics, "reliability")
        found = found or point_pairs(other.get("levels"), other.get("coverage"))
        if found:
            named[group.label] = sorted(found)
    if not named:
        return
    said = "; ".join(
        f"{name}: " + ", ".join(f"{a:.0%} intervals hold {b:.1%}" for a, b in each) for name, each in named.items()
    )
    png = plots.against_diagonal(
        named, order=[g.label for g in groups], across="level of the interval", up="share inside", sizes={}
    )
    alt = f"Share of targets inside intervals. {said}."
    page.add_figure("coverage", "Coverage of intervals", png, alt=alt, caption=f"{said}.")


def selective(page: Page, groups: Sequence[SeedGroup], analyses: Mapping[str, Analysis]) -> None:
    """The error of the predictions that a model is surest of, from ``uncertainty.risk`` of a record."""
    named: dict[str, Points] = {}
    up = "error"
    for group in groups:
        risk = part(part(group.first.metrics, "uncertainty"), "risk")
        key = next((k for k in risk if k != "coverage"), "")
        if found := point_pairs(risk.get("coverage"), risk.get(key)):
            named[group.label], up = found, key
    answers(page, groups, named, up=label(up))


def answers(page: Page, groups: Sequence[SeedGroup], named: Mapping[str, Points], *, up: str) -> None:
    """A score ``up`` against the share of inputs that is answered, surest first."""
    if not named:
        return
    said = "; ".join(
        f"{name}: {number(p[0][1])} at {p[0][0]:.0%}, {number(p[-1][1])} at {p[-1][0]:.0%}" for name, p in named.items()
    )
    png = plots.lines(
        named, order=[g.label for g in groups], across="share answered, surest first", up=f"{up} of those"
    )
    alt = f"{up} against the share that is answered. {said}."
    page.add_figure("selective", "Answering only where sure", png, alt=alt, caption=f"{said}.")
