"""Sections of a report about what models do not know: calibration, entropy, signal-to-noise, single words."""

import html
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from bayesrnn.lab.report import figures
from bayesrnn.lab.report import html as pages
from bayesrnn.lab.report.parts import Page, file_name
from bayesrnn.lab.report.tables import Column, html_table
from bayesrnn.lab.report.wording import number, part, spoken
from bayesrnn.lab.runs.collection import SeedGroup
from bayesrnn.lab.runs.record import Record
from bayesrnn.lab.tasks.captioning.gallery import level
from bayesrnn.lab.tasks.language.measured import WORDS, Measured

SURPRISAL_LEVELS = (2.0, 4.0, 6.0, 9.0)
INFORMATION_LEVELS = (0.02, 0.1, 0.3, 0.8)


def _points(values: Any, x: str, y: str) -> list[dict[str, float]]:
    """The entries of a list that have both numbers, of a size that can be drawn."""
    if not isinstance(values, list):
        return []
    return [
        v
        for v in values
        if isinstance(v, dict)
        and all(isinstance(v.get(k), (int, float)) and abs(v[k]) <= figures.LARGEST for k in (x, y))
    ]


def _count(point: Mapping[str, Any]) -> float:
    value = point.get("count")
    known = isinstance(value, (int, float)) and math.isfinite(value) and value >= 0
    return float(value) if known else 1.0  # type: ignore[arg-type]


def reliability(page: Page, groups: Sequence[SeedGroup], measured: Mapping[str, Measured]) -> None:
    found = {g.label: _points(g.first.metrics.get("reliability"), "confidence", "accuracy") for g in groups}
    found = {label: points for label, points in found.items() if points}
    if not found:
        return
    named = {label: [(p["confidence"], p["accuracy"]) for p in points] for label, points in found.items()}
    sizes = {label: [_count(p) for p in points] for label, points in found.items()}
    errors = "; ".join(f"{label}: {_gap(named[label], sizes[label]):.1%}" for label in named)
    png = figures.against_diagonal(
        named,
        order=[g.label for g in groups],
        across="confidence: the model's probability",
        up="share that was right",
        sizes=sizes,
    )
    text = f"Mean distance from the diagonal (expected calibration error): {errors}."
    page.add(
        "reliability",
        "Reliability",
        pages.paragraphs("Of predictions made with 80% confidence, 80% should be right. Points below are too sure."),
        page.figure("reliability", png, alt=f"Share of right predictions against confidence. {text}", caption=text),
    )


def _gap(points: Sequence[tuple[float, float]], sizes: Sequence[float]) -> float:
    total = sum(sizes) or 1.0
    return sum(n * abs(a - b) for (a, b), n in zip(points, sizes, strict=True)) / total


def coverage(page: Page, groups: Sequence[SeedGroup], measured: Mapping[str, Measured]) -> None:
    """Of regressors: how often intervals hold the truth. Two forms of records are known."""
    named: dict[str, list[tuple[float, float]]] = {}
    for group in groups:
        metrics = group.first.metrics
        points = [(p["level"], p["coverage"]) for p in _points(metrics.get("intervals"), "level", "coverage")]
        other = metrics.get("reliability")
        if not points and isinstance(other, dict):
            levels, inside = other.get("levels"), other.get("coverage")
            if isinstance(levels, list) and isinstance(inside, list) and len(levels) == len(inside):
                pairs = [{"level": a, "coverage": b} for a, b in zip(levels, inside, strict=True)]
                points = [(p["level"], p["coverage"]) for p in _points(pairs, "level", "coverage")]
        if points:
            named[group.label] = sorted(points)
    if not named:
        return
    said = "; ".join(
        f"{label}: " + ", ".join(f"{a:.0%} intervals hold {b:.1%}" for a, b in points)
        for label, points in named.items()
    )
    png = figures.against_diagonal(
        named, order=[g.label for g in groups], across="level of the interval", up="share inside", sizes={}
    )
    page.add(
        "coverage",
        "Coverage of intervals",
        page.figure("coverage", png, alt=f"Share of targets inside intervals. {said}.", caption=f"{said}."),
    )


def selective(page: Page, groups: Sequence[SeedGroup], measured: Mapping[str, Measured]) -> None:
    named: dict[str, list[tuple[float, float]]] = {}
    up = "error"
    for group in groups:
        risk = part(part(group.first.metrics, "uncertainty"), "risk")
        key = next((k for k in risk if k != "coverage"), "")
        shares, errors = risk.get("coverage"), risk.get(key)
        if isinstance(shares, list) and isinstance(errors, list) and len(shares) == len(errors):
            pairs = [{"x": a, "y": b} for a, b in zip(shares, errors, strict=True)]
            points = [(p["x"], p["y"]) for p in _points(pairs, "x", "y")]
            if points:
                named[group.label], up = points, key
        elif points := _by_entropy(group.first):
            named[group.label], up = points, "cider"
    if not named:
        return
    said = "; ".join(
        f"{label}: {number(p[0][1])} at {p[0][0]:.0%}, {number(p[-1][1])} at {p[-1][0]:.0%}"
        for label, p in named.items()
    )
    png = figures.lines(
        named, order=[g.label for g in groups], across="share answered, surest first", up=f"{spoken(up)} of those"
    )
    page.add(
        "selective",
        "Answering only where sure",
        page.figure(
            "selective", png, alt=f"{spoken(up)} against the share that is answered. {said}.", caption=f"{said}."
        ),
    )


def _by_entropy(run: Record) -> list[tuple[float, float]]:
    """Of captions: the score of the share that the model is surest of, with draws where it was measured with them."""
    for key in ("selective_mc", "selective"):
        pairs = part(run.metrics, key).get("entropy")
        if isinstance(pairs, list):
            named = [{"x": p[0], "y": p[1]} for p in pairs if isinstance(p, list) and len(p) == 2]
            if points := [(p["x"], p["y"]) for p in _points(named, "x", "y")]:
                return points
    return []


def unfamiliar(page: Page, groups: Sequence[SeedGroup], measured: Mapping[str, Measured]) -> None:
    """Of digits: whether inputs of another kind are told from the test data by the entropy of their predictions."""
    rows: dict[str, dict[str, float]] = {}
    for group in groups:
        for key, end in (("unfamiliar", ""), ("unfamiliar_mc", ", averaged over draws")):
            for point in _points(group.first.metrics.get(key), "entropy_auroc", "entropy_auroc"):
                rows.setdefault(str(point.get("kind", "?"))[:60] + end, {})[group.label] = point["entropy_auroc"]
    if not rows:
        return
    columns = [Column("kind", "kind of input"), *(Column(g.label, g.label, "{:.1%}") for g in groups)]
    records = [{**found, "kind": kind} for kind, found in sorted(rows.items())]
    page.add(
        "unfamiliar",
        "Inputs unlike the training data",
        pages.paragraphs(
            "How often such an input is less certain than one of the test data (AUROC of the prediction's entropy): "
            "100% tells them all apart, 50% is chance."
        ),
        pages.wide(html_table(records, columns)),
    )


def entropy_gap(page: Page, groups: Sequence[SeedGroup], measured: Mapping[str, Measured]) -> None:
    named: dict[str, list[tuple[float, float]]] = {}
    computed = False
    for group in groups:
        metrics, points = group.scalars[0], {}
        for key, draws in (
            ("entropy_gap_mean", 0.0),
            ("entropy_gap_1", 1.0),
            ("entropy_gap", metrics.get("entropy_samples", math.nan)),
        ):
            if abs(draws) <= figures.LARGEST and abs(metrics.get(key, math.nan)) <= figures.LARGEST:
                points[draws] = metrics[key]
        if not points and group.label in measured:
            points = dict(measured[group.label].gaps)
            computed |= bool(points)
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
    png = figures.lines(
        named,
        order=[g.label for g in groups],
        across="draws (0: the posterior mean)",
        up="entropy gap, nats per word",
        levels=levels,
        ticks=ticks,
    )
    where = f" Computed on the first {WORDS:,} words of the test text." if computed else ""
    page.add(
        "entropy-gap",
        "Entropy gap",
        pages.paragraphs(
            "How much less sure the model is of the next word when the test text is read backwards. Higher is better: "
            f"it knows what it does not know.{where}"
        ),
        page.figure("entropy-gap", png, alt=f"Entropy gap against the number of draws. {said}.", caption=f"{said}."),
    )


def signal_to_noise(page: Page, groups: Sequence[SeedGroup], measured: Mapping[str, Measured]) -> None:
    named: dict[str, tuple[list[float], list[float]]] = {}
    said = []
    for label, one in measured.items():
        if one.ratios:
            edges, shares, median = _log_histogram(one)
            named[label] = (edges, shares)
            said.append(f"{label}: median {number(10**median)}")
    if not named:
        return
    png = figures.histogram(
        named, order=[g.label for g in groups], across="log10 of |mean| / sigma", up="share of weights per bin"
    )
    text = f"Signal-to-noise of the weights. {'; '.join(said)}."
    page.add(
        "signal-to-noise",
        "Signal-to-noise",
        pages.paragraphs("A weight far below 1 (0 on this scale) is mostly noise, and can go."),
        page.figure("signal-to-noise", png, alt=f"Histogram. {text}", caption=text),
    )


def _log_histogram(one: Measured) -> tuple[list[float], list[float], float]:
    import torch

    ratios = torch.cat([r.flatten() for r in one.ratios.values()]).clamp(1e-4, 1e4).log10()
    counts = torch.histc(ratios, 48, -4, 4)
    edges = torch.linspace(-4, 4, 49)
    return edges.tolist(), (counts / counts.sum()).tolist(), ratios.median().item()


def pruning(page: Page, groups: Sequence[SeedGroup], measured: Mapping[str, Measured]) -> None:
    named: dict[str, list[tuple[float, float]]] = {}
    rises = []
    up = ""
    for group in groups:
        curve = (group.first.pruning or {}).get("curve")
        if not isinstance(curve, list) or not curve or not isinstance(curve[0], dict):
            continue
        key = next((k for k in curve[0] if k.startswith("valid_")), "")
        points = [(p["fraction"], p[key]) for p in _points(curve, "fraction", key)] if key else []
        if not points:
            continue
        named[group.label], up = sorted(points), key
        whole = named[group.label][0][1]
        free = max((f for f, v in named[group.label] if whole and v / whole <= 1.01), default=0.0)
        rises.append(f"{group.label}: {free:.0%} of the weights can go for a rise of at most 1%")
    if not named:
        return
    png = figures.lines(
        named,
        order=[g.label for g in groups],
        across="share of weights removed, lowest |mean| / sigma first",
        up=spoken(up, groups[0].first.task),
        log_y=True,
    )
    text = "; ".join(rises) + "."
    page.add(
        "pruning",
        "Pruning",
        page.figure(
            "pruning",
            png,
            alt=f"{spoken(up, groups[0].first.task)} against the share of weights removed. {text}",
            caption=text,
        ),
    )


def patterns(page: Page, groups: Sequence[SeedGroup], measured: Mapping[str, Measured]) -> None:
    shown = []
    for group in groups:
        one = measured.get(group.label)
        if one is None or not one.ratios:
            continue
        matrices = {n: r for n, r in one.ratios.items() if r.ndim == 2 and ".weight_" in f".{n}"}
        matrices = matrices or {n: r for n, r in one.ratios.items() if r.ndim == 2}
        if not matrices:
            continue
        share = (group.first.pruning or {}).get("fraction")
        share = float(share) if isinstance(share, (int, float)) and 0 < share < 1 else 0.8
        kept = _kept(one, share)
        gates = {n: _gate_names(group.first, n) for n in matrices}
        some = dict(list({n: kept[n] for n in matrices}.items())[:8])
        short = {n.rpartition(".")[2] if "weight_" in n else n: mask for n, mask in some.items()}
        png = figures.patterns(short, {n.rpartition(".")[2] if "weight_" in n else n: g for n, g in gates.items()})
        left = ", ".join(f"{name} {mask.float().mean().item():.0%}" for name, mask in short.items())
        shown.append(
            page.figure(
                f"patterns-{file_name(group.label)}",
                png,
                alt=f"Which weights of {group.label} are left with {share:.0%} removed: {left}.",
                caption=f"{group.label}, {share:.0%} of all weights removed; what is left is dark.",
            )
        )
    if shown:
        page.add(
            "patterns",
            "Which weights are left",
            pages.paragraphs("A white column is an input unit that nothing listens to."),
            f'<div class="figures">{"".join(shown)}</div>',
        )


def _kept(one: Measured, share: float) -> dict[str, Any]:
    """Which weights stay when this share of all goes, lowest ratios first."""
    import torch

    flat_ratios = torch.cat([r.flatten() for r in one.ratios.values()])
    count = round(share * flat_ratios.numel())
    if count == 0:
        return {n: torch.ones_like(r, dtype=torch.bool) for n, r in one.ratios.items()}
    threshold = flat_ratios.kthvalue(count).values
    return {name: ratio > threshold for name, ratio in one.ratios.items()}


def _gate_names(run: Record, name: str) -> tuple[str, ...]:
    if "weight_" not in name:
        return ()
    cell = str(part(run.settings, "model").get("cell", "lstm"))
    return ("i", "f", "g", "o") if cell == "lstm" else ("r", "z", "n") if cell == "gru" else ()


def words(page: Page, groups: Sequence[SeedGroup], measured: Mapping[str, Measured]) -> None:
    parts = []
    for label, one in measured.items():
        if not one.sentences:
            continue
        lines = "".join(f'<p class="words">{" ".join(map(_word, sentence))}</p>' for sentence in one.sentences)
        rows = "".join(
            f'<tr><th scope="row">{html.escape(w.text)}</th><td>{w.surprisal:.2f}</td><td>{w.entropy:.2f}</td>'
            f"<td>{w.mutual_information:.3f}</td></tr>"
            for sentence in one.sentences
            for w in sentence
        )
        table = (
            '<table><thead><tr><th scope="col">word</th><th scope="col">surprisal</th><th scope="col">entropy</th>'
            f'<th scope="col">mutual information</th></tr></thead><tbody>{rows}</tbody></table>'
        )
        parts.append(
            f"<h3>{html.escape(label)}</h3>{lines}<details><summary>All numbers</summary>{pages.wide(table)}</details>"
        )
    if not parts:
        return
    steps = " ".join(f'<span class="w s{k}">{text}</span>' for k, text in enumerate(_ranges(SURPRISAL_LEVELS)))
    under = " ".join(f'<span class="w i{k}">{text}</span>' for k, text in enumerate(_ranges(INFORMATION_LEVELS)))
    page.add(
        "words",
        "Words and uncertainty",
        pages.paragraphs(
            "Sentences of the test text. A darker word surprised the model more (-log p, nats); the thicker the line "
            "under it, the more draws of the weights disagreed about it (mutual information, nats; 10 draws)."
        ),
        f'<p class="key">Shade: {steps}</p><p class="key">Line: {under}</p>',
        *parts,
    )


def _ranges(levels: Sequence[float]) -> list[str]:
    middle = [f"{a:g} to {b:g}" for a, b in itertools.pairwise(levels)]
    return [f"below {levels[0]:g}", *middle, f"{levels[-1]:g} and more"]


def _word(word: Any) -> str:
    shade, line = level(word.surprisal, SURPRISAL_LEVELS), level(word.mutual_information, INFORMATION_LEVELS)
    title = (
        f"surprisal {word.surprisal:.2f}, entropy {word.entropy:.2f}, mutual information {word.mutual_information:.3f}"
    )
    return f'<span class="w s{shade} i{line}" title="{title}">{html.escape(word.text)}</span>'
