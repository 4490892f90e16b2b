"""Sections of a report about forecasts: what comes next, what was said one step before, how far ahead it holds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bayesrnn.lab.reading import is_number
from bayesrnn.lab.report import html
from bayesrnn.lab.report import plots as drawing
from bayesrnn.lab.report.analysis import Analysis
from bayesrnn.lab.report.labels import number, part
from bayesrnn.lab.report.parts import Page, file_name
from bayesrnn.lab.runs.collection import SeedGroup
from bayesrnn.lab.runs.record import Record
from bayesrnn.lab.tasks.forecast import plots

_MOST = 2000  # values in a plot; a record has fewer
_BANDS = ("mean", "low", "high", "epistemic_std")


@dataclass(frozen=True)
class _Rows:
    """Columns of a record, all of one length and finite."""

    columns: dict[str, list[float]]
    dates: list[str]
    past: list[float]


def ahead(page: Page, groups: Sequence[SeedGroup], analyses: Mapping[str, Analysis]) -> None:
    shown = []
    for group in groups:
        found = part(group.first.metrics, "ahead")
        rows = _rows(found, _BANDS, past=True)
        if rows is None:
            continue
        direct = found.get("direct")
        steps = len(rows.dates) - len(rows.past)
        name, level = _series(group.first), _level(group.first)
        before = rows.past[-max(12, 2 * steps) :]
        png = plots.forecast_plot(
            before, rows.columns, rows.dates[-len(before) - steps :], name=name, level=level,
            direct=direct if isinstance(direct, int) and 0 < direct < steps else steps, narrow=True,
        )  # fmt: skip
        said = "; ".join(_said(rows, k) for k in dict.fromkeys((0, steps - 1)))
        shown.append(
            page.figure(
                f"ahead-{file_name(group.label)}",
                png,
                alt=f"The end of {name} and {steps} steps that {group.label} forecasts after it. {said}.",
                caption=f"{group.label}. {said}.",
            )
        )
    if shown:
        page.add(
            "ahead",
            "Forecasts",
            html.paragraphs(
                "What comes after the end of the series. Orange: how much of the interval comes from not knowing the "
                "model's weights. After the dotted line a forecast is made of forecasts."
            ),
            html.pictures(shown),
        )


def walk(page: Page, groups: Sequence[SeedGroup], analyses: Mapping[str, Analysis]) -> None:
    shown = []
    for group in groups:
        rows = _rows(part(group.first.metrics, "walk"), (*_BANDS, "aleatoric_std", "actual"), past=False)
        if rows is None:
            continue
        columns, name, level = rows.columns, _series(group.first), _level(group.first)
        inside = [a <= y <= b for a, y, b in zip(columns["low"], columns["actual"], columns["high"], strict=True)]
        said = f"{sum(inside)} of {len(inside)} values are inside the {level:.0%} intervals"
        last = min(60, len(inside))
        shown.append(
            page.figure(
                f"walk-{file_name(group.label)}",
                plots.walked(columns, rows.dates, name=name, level=level, last=last, narrow=True),
                alt=f"Forecasts of {name} one step ahead by {group.label}, and what came. {said}.",
                caption=f"{group.label}. {said}; shown are the last {last}.",
            )
        )
    if shown:
        page.add(
            "walk",
            "One step ahead",
            html.paragraphs("Forecasts of the test part, each made one step before, beside what came."),
            html.pictures(shown),
        )


def by_step(page: Page, groups: Sequence[SeedGroup], analyses: Mapping[str, Analysis]) -> None:
    named: dict[str, list[tuple[float, float]]] = {}
    bars: dict[str, tuple[list[float], list[float]]] = {}
    for group in groups:
        scores = _numbers(part(group.first.metrics, "by_horizon").get("crps"))
        if scores:
            named[group.label] = [(float(step), score) for step, score in enumerate(scores, 1)]
        shares = _numbers(part(group.first.metrics, "reliability").get("pit"))
        if shares:
            bars[group.label] = ([k / len(shares) for k in range(len(shares) + 1)], shares)
    order, parts = [g.label for g in groups], []
    held = {
        group.label: [(float(step), share) for step, share in enumerate(shares, 1)]
        for group in groups
        if (shares := _numbers(part(group.first.metrics, "by_horizon").get("coverage")))
    }
    if named:
        said = "; ".join(
            f"{label}: {number(points[0][1])} one step ahead" +
            (f", {number(points[-1][1])} at step {points[-1][0]:g}" if len(points) > 1 else "")
            for label, points in named.items()
        )  # fmt: skip
        longest = max(len(points) for points in named.values())
        ticks = range(1, longest + 1, math.ceil(longest / 12))
        png = drawing.lines(named, order=order, across="steps ahead", up="test CRPS", ticks=ticks, log_y=True)
        alt = f"Score of the test part (CRPS, lower is better) by steps ahead. {said}."
        parts.append(
            page.figure("by-step", png, alt=alt, caption=f"The score by steps ahead, lower is better. {said}.")
        )
    if held:
        levels = {
            f"{_level(group.first):.0%} intervals": _level(group.first) for group in groups if group.label in held
        }
        said = "; ".join(
            f"{label}: {points[0][1]:.1%} one step ahead, {points[-1][1]:.1%} at step {points[-1][0]:g}"
            for label, points in held.items()
        )
        longest = max(map(len, held.values()))
        ticks = range(1, longest + 1, math.ceil(longest / 12))
        png = drawing.lines(held, order=order, across="steps ahead", up="share inside", ticks=ticks, levels=levels)
        alt = f"Share of values inside their intervals by steps ahead. {said}."
        parts.append(page.figure("coverage-by-step", png, alt=alt, caption=f"Coverage by steps ahead. {said}."))
    if bars:
        png = drawing.histogram(bars, order=order, across="P(forecast ≤ what came)", up="share of values")
        text = "Where values fell in their forecasts: flat is right, a hill is too unsure, a valley is too sure."
        heights = "; ".join(f"{label}: {min(v):.1%} to {max(v):.1%} per bin" for label, (_, v) in bars.items())
        parts.append(page.figure("pit", png, alt=f"{text} {heights}.", caption=text))
    if parts:
        page.add("by-step", "How far it holds", html.pictures(parts))


def _rows(found: Mapping[str, Any], names: Sequence[str], *, past: bool) -> _Rows | None:
    """What a record has to plot; None where it has not all of it, or not as many dates as values."""
    found = plots.columns_of(found)
    columns = {name: _numbers(found.get(name)) for name in names}
    before = _numbers(found.get("past")) if past else []
    dates = found.get("date")
    length = len(columns["mean"])
    if not length or any(len(values) != length for values in columns.values()) or (past and not before):
        return None
    if not isinstance(dates, list) or len(dates) != length + len(before):
        return None
    return _Rows(columns, [str(date)[:20] for date in dates], before)


def _numbers(values: Any) -> list[float]:
    """The list, where it is one of finite numbers of a size that can be drawn; else nothing."""
    if not isinstance(values, list) or len(values) > _MOST:
        return []
    fine = all(is_number(v) and abs(v) <= drawing.LARGEST for v in values)
    return [float(v) for v in values] if fine else []


def _series(run: Record) -> str:
    columns = part(run.extra, "series").get("columns")
    return columns[0][:40] if isinstance(columns, list) and columns and isinstance(columns[0], str) else "value"


def _level(run: Record) -> float:
    level = run.metrics.get("level")
    return level if isinstance(level, float) and 0.01 <= level <= 0.999 else 0.95


def _said(rows: _Rows, step: int) -> str:
    low, mean, high = (number(rows.columns[name][step]) for name in ("low", "mean", "high"))
    return f"{rows.dates[len(rows.past) + step]}: {mean} ({low} to {high})"
