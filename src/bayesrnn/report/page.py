"""The report: one page that compares runs, each section from what the runs have. ``build`` puts it together."""

import html
import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bayesrnn.report import figures
from bayesrnn.report import html as pages
from bayesrnn.report.collect import Group, Run, flat, scalars
from bayesrnn.report.gallery import DARK, INK, LIGHT, level
from bayesrnn.report.measured import WORDS, Measured

GENERATOR = "bayesrnn report"
SURPRISAL_LEVELS = (2.0, 4.0, 6.0, 9.0)
INFORMATION_LEVELS = (0.02, 0.1, 0.3, 0.8)
_LINES = (0, 1, 2, 3, 5)
_ENDS = ("", "_mc", "_bound", "_dynamic")
_OTHER_LAST = ("parameters", "train_seconds")

_STYLE = """
<style>
nav ul { display: flex; flex-wrap: wrap; gap: .2rem .9rem; padding: 0; list-style: none; }
nav a { color: inherit; display: inline-block; padding: .25rem 0; }
a:focus-visible, summary:focus-visible, .wide:focus-visible { outline: 3px solid #0060A8; outline-offset: 2px; }
.figures { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); }
.figures figure { margin: 0; }
td, tbody th { max-width: 22rem; overflow-wrap: anywhere; }
.wide thead th:first-child, .wide tbody th { position: sticky; left: 0; background: var(--paper); max-width: 10rem;
  white-space: normal; }
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


@dataclass
class Page:
    """The page as it grows: sections with their pictures."""

    sections: list[tuple[str, str, str]] = field(default_factory=list)
    """Id, title, HTML."""
    pictures: dict[str, bytes] = field(default_factory=dict)

    def add(self, key: str, title: str, *parts: str) -> None:
        self.sections.append((key, title, "\n".join(parts)))

    def figure(self, name: str, png: bytes, *, alt: str, caption: str = "") -> str:
        self.pictures[f"{name}.png"] = png
        return pages.image(png, alt=alt, caption=caption)


def build(groups: Sequence[Group], measured: Mapping[str, Measured], *, title: str) -> tuple[str, dict[str, bytes]]:
    """The page, and its pictures by file name.

    Args:
        groups: what to compare, in order.
        measured: by the labels of groups, what was computed from weights; may be empty.
    """
    page = Page()
    for section in (
        _summary, _curves, _measures, _reliability, _coverage, _selective, _entropy_gap, _signal_to_noise, _pruning,
        _patterns, _words, _configuration, _environment,
    ):  # fmt: skip
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


# Names and numbers


def metric_of(run: Run) -> str:
    """The figure that training looked at, without its split: such as ``perplexity``."""
    from bayesrnn.errors import UserError
    from bayesrnn.tasks.base import task_class

    try:
        key = task_class(run.task).metric
    except (UserError, ImportError, AttributeError):
        key = next((k for k in run.curves if k.startswith("valid_")), "")
    return key.removeprefix("valid_")


def paper_of(run: Run) -> dict[str, float]:
    """Published figures by the metric that each is to be compared with."""
    from bayesrnn.errors import UserError
    from bayesrnn.tasks.base import task_class

    try:
        known = task_class(run.task).paper_figures
    except (UserError, ImportError, AttributeError):
        known = {}
    sharpened = _part(run.settings, "posterior").get("kind") == "sharpened"
    found = {}
    for key, value in run.paper.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool) and key in known:
            name = known[key]
            found[f"{name}_bound" if sharpened and key in ("valid", "test") else name] = float(value)
    return found


def _part(settings: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = settings.get(key)
    return value if isinstance(value, dict) else {}


def spoken(key: str) -> str:
    """A metric's name in words: ``test_perplexity_mc`` is "test perplexity, averaged over draws"."""
    ends = {
        "_mc": ", averaged over draws",
        "_dynamic": ", dynamic evaluation",
        "_bound": ", sharpened bound",
        "_raw": ", before correction",
    }
    head, _, leaf = key.rpartition(".")
    text = leaf
    suffix = next((e for e in ends if text.endswith(e)), "")
    text = text.removesuffix(suffix).replace("valid_", "validation ", 1) if suffix else text.replace(
        "valid_", "validation ", 1
    )  # fmt: skip
    return f"{head + ': ' if head else ''}{text.replace('_', ' ')}{ends.get(suffix, '')}"


def number(value: float) -> str:
    """Four significant digits; thousands in groups."""
    if not math.isfinite(value):
        return str(value)
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{value:,.0f}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) >= 10 else f"{value:.4g}"


def _mean(values: Sequence[float]) -> str:
    if len(values) == 1:
        return number(values[0])
    return f"{number(statistics.fmean(values))} ± {number(statistics.stdev(values))}"


# Sections


def _summary(page: Page, groups: Sequence[Group], measured: Mapping[str, Measured]) -> None:
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
                figures_said.append(f"{spoken(key)} {_mean(values)}{beside}")
        epochs = len(next(iter(run.curves.values()), []))
        best = run.metrics.get("best_epoch")
        if isinstance(best, int):
            figures_said.append(f"best epoch {best} of {epochs}")
        if not run.finished:
            figures_said.append(f"not finished, {epochs} epochs so far")
        if len(group.runs) > 1:
            figures_said.append(f"{len(group.runs)} seeds")
        said.append(" ".join(text) + " " + "; ".join(figures_said or ["no figures yet"]) + ".")
    notes = [f"{label}: {note}" for label, one in measured.items() for note in one.notes]
    page.add("summary", "Summary", pages.bullets(said), *([pages.bullets(notes)] if notes else []))


def _curves(page: Page, groups: Sequence[Group], measured: Mapping[str, Measured]) -> None:
    shown = []
    metric = metric_of(groups[0].first)
    wanted = [f"valid_{metric}", f"train_{metric}"]
    rest = [k for g in groups for r in g.runs for k in r.curves if k.startswith(("kl", "test_"))]
    others = [f"valid_{metric_of(g.first)}" for g in groups]
    for key in dict.fromkeys([*wanted, *others, *rest]):
        named = {g.label: [r.curves[key] for r in g.runs if key in r.curves] for g in groups}
        named = {label: each for label, each in named.items() if each}
        values = [v for lines in named.values() for line in lines for v in line]
        if not any(math.isfinite(v) and v != 0 for v in values):
            continue
        best = "the lowest" if key.startswith("valid_") else ""
        ends = "; ".join(f"{label} {number(lines[0][0])} to {number(lines[0][-1])}" for label, lines in named.items())
        shown.append(
            page.figure(
                f"curve-{_file(key)}",
                figures.curves(named, label=spoken(key), best=best),
                alt=f"{spoken(key)} per epoch, from the first to the last: {ends}.",
                caption=spoken(key) + " per epoch",
            )
        )
    if shown:
        page.add("curves", "Learning curves", f'<div class="figures">{"".join(shown)}</div>')


def _file(key: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in key)


def _measures(page: Page, groups: Sequence[Group], measured: Mapping[str, Measured]) -> None:
    keys = list(dict.fromkeys(k for g in groups for r in g.runs for k in scalars(r.metrics)))
    papers = [paper_of(g.first) for g in groups]
    keys += [k for paper in papers for k in paper if k not in keys]
    keys = [k for k in dict.fromkeys(keys) if any(g.values(k) for g in groups) or any(k in p for p in papers)]
    metric = metric_of(groups[0].first)
    first = [f"{split}_{metric}{end}" for end in _ENDS for split in ("valid", "test")]

    def place(key: str) -> tuple[int, int]:
        if key in first:
            return 0, first.index(key)
        if key in _OTHER_LAST or key.endswith("_per_second"):
            return 3, 0
        return (1 if key.startswith(("valid_", "test_")) else 2), 0

    keys.sort(key=place)
    lowest = {}
    for key in (k for k in first if k in keys):
        means = [statistics.fmean(g.values(key)) if g.values(key) else math.inf for g in groups]
        if sum(math.isfinite(m) for m in means) > 1:
            lowest[key] = means.index(min(means))
    rows = []
    for key in keys:
        cells = []
        for index, (group, paper) in enumerate(zip(groups, papers, strict=True)):
            values = group.values(key)
            text = html.escape(_mean(values)) if values else "–"
            if lowest.get(key) == index:
                text = f'<span class="best">{text}</span>'
            if key in paper:
                text += f'<br><span class="paper">paper {number(paper[key])}</span>'
            cells.append(f"<td>{text}</td>")
        rows.append(f'<tr><th scope="row">{html.escape(spoken(key))}</th>{"".join(cells)}</tr>')
    if not rows:
        return
    head = "".join(f'<th scope="col">{html.escape(g.label)}</th>' for g in groups)
    table = f'<table><thead><tr><th scope="col">measure</th>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    note = "Of several seeds: mean ± standard deviation. Bold: the lowest of the row, where lower is better."
    page.add("measures", "Measures", pages.wide(table), pages.paragraphs(note))


def _points(values: Any, x: str, y: str) -> list[dict[str, float]]:
    """The entries of a list that have both numbers."""
    if not isinstance(values, list):
        return []
    return [
        v for v in values
        if isinstance(v, dict) and all(isinstance(v.get(k), (int, float)) and math.isfinite(v[k]) for k in (x, y))
    ]  # fmt: skip


def _reliability(page: Page, groups: Sequence[Group], measured: Mapping[str, Measured]) -> None:
    found = {g.label: _points(g.first.metrics.get("reliability"), "confidence", "accuracy") for g in groups}
    found = {label: points for label, points in found.items() if points}
    if not found:
        return
    named = {label: [(p["confidence"], p["accuracy"]) for p in points] for label, points in found.items()}
    sizes = {label: [max(float(p.get("count", 1)), 0.0) for p in points] for label, points in found.items()}
    errors = "; ".join(f"{label}: {_gap(named[label], sizes[label]):.1%}" for label in named)
    png = figures.against_diagonal(named, across="confidence: the model's probability", up="share that was right",
                                   sizes=sizes)  # fmt: skip
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


def _coverage(page: Page, groups: Sequence[Group], measured: Mapping[str, Measured]) -> None:
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
    png = figures.against_diagonal(named, across="level of the interval", up="share inside", sizes={})
    page.add(
        "coverage",
        "Coverage of intervals",
        page.figure("coverage", png, alt=f"Share of targets inside intervals. {said}.", caption=f"{said}."),
    )


def _selective(page: Page, groups: Sequence[Group], measured: Mapping[str, Measured]) -> None:
    named: dict[str, list[tuple[float, float]]] = {}
    up = "error"
    for group in groups:
        risk = _part(_part(group.first.metrics, "uncertainty"), "risk")
        key = next((k for k in risk if k != "coverage"), "")
        shares, errors = risk.get("coverage"), risk.get(key)
        if isinstance(shares, list) and isinstance(errors, list) and len(shares) == len(errors):
            pairs = [{"x": a, "y": b} for a, b in zip(shares, errors, strict=True)]
            points = [(p["x"], p["y"]) for p in _points(pairs, "x", "y")]
            if points:
                named[group.label], up = points, key
    if not named:
        return
    said = "; ".join(f"{label}: {number(p[0][1])} at {p[0][0]:.0%}, {number(p[-1][1])} at {p[-1][0]:.0%}"
                     for label, p in named.items())  # fmt: skip
    png = figures.lines(named, across="share answered, surest first", up=f"{spoken(up)} of those")
    page.add(
        "selective",
        "Answering only where sure",
        page.figure("selective", png, alt=f"{spoken(up)} against the share that is answered. {said}.",
                    caption=f"{said}."),
    )  # fmt: skip


def _entropy_gap(page: Page, groups: Sequence[Group], measured: Mapping[str, Measured]) -> None:
    named: dict[str, list[tuple[float, float]]] = {}
    computed = False
    for group in groups:
        metrics, points = scalars(group.first.metrics), {}
        for key, draws in (("entropy_gap_mean", 0.0), ("entropy_gap_1", 1.0),
                           ("entropy_gap", metrics.get("entropy_samples", math.nan))):  # fmt: skip
            if key in metrics and math.isfinite(draws) and math.isfinite(metrics[key]):
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
        f"{label}: " + ", ".join(f"{value:.3f} with {n:g} draws" for n, value in points)
        for label, points in named.items()
    )
    ticks = sorted({n for points in named.values() for n, _ in points})
    png = figures.lines(named, across="draws (0: the posterior mean)", up="entropy gap, nats per word", levels=levels,
                        ticks=ticks)  # fmt: skip
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


def _signal_to_noise(page: Page, groups: Sequence[Group], measured: Mapping[str, Measured]) -> None:
    named: dict[str, tuple[list[float], list[float]]] = {}
    said = []
    for label, one in measured.items():
        if one.ratios:
            edges, shares, median = _log_histogram(one)
            named[label] = (edges, shares)
            said.append(f"{label}: median {number(10**median)}")
    if not named:
        return
    png = figures.histogram(named, across="log10 of |mean| / sigma", up="share of weights per bin")
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


def _pruning(page: Page, groups: Sequence[Group], measured: Mapping[str, Measured]) -> None:
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
    png = figures.lines(named, across="share of weights removed, lowest |mean| / sigma first", up=spoken(up),
                        log_y=True)  # fmt: skip
    text = "; ".join(rises) + "."
    page.add("pruning", "Pruning", page.figure("pruning", png, alt=f"{spoken(up)} against the share of weights "
             f"removed. {text}", caption=text))  # fmt: skip


def _patterns(page: Page, groups: Sequence[Group], measured: Mapping[str, Measured]) -> None:
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
                f"patterns-{_file(group.label)}",
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


def _gate_names(run: Run, name: str) -> tuple[str, ...]:
    if "weight_" not in name:
        return ()
    cell = str(_part(run.settings, "model").get("cell", "lstm"))
    return ("i", "f", "g", "o") if cell == "lstm" else ("r", "z", "n") if cell == "gru" else ()


def _words(page: Page, groups: Sequence[Group], measured: Mapping[str, Measured]) -> None:
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
        parts.append(f"<h3>{html.escape(label)}</h3>{lines}<details><summary>All numbers</summary>"
                     f"{pages.wide(table)}</details>")  # fmt: skip
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


def _configuration(page: Page, groups: Sequence[Group], measured: Mapping[str, Measured]) -> None:
    settings = [flat(g.first.settings) for g in groups]
    keys = list(dict.fromkeys(k for one in settings for k in one))
    differing = [k for k in keys if len({repr(one.get(k)) for one in settings}) > 1]
    parts = []
    if len(groups) > 1:
        parts.append(pages.paragraphs("What differs:" if differing else "All settings are the same."))
    else:
        changed = groups[0].first.overrides
        text = f"Changed from the recipe: {', '.join(changed)}." if changed else "As the recipe says."
        parts.append(pages.paragraphs(text))
    if differing and len(groups) > 1:
        parts.append(pages.wide(_settings_table(groups, settings, differing)))
    whole = pages.wide(_settings_table(groups, settings, keys))
    parts.append(f"<details><summary>All settings</summary>{whole}</details>")
    page.add("configuration", "Configuration", *parts)


def _settings_table(groups: Sequence[Group], settings: Sequence[dict[str, Any]], keys: Sequence[str]) -> str:
    head = "".join(f'<th scope="col">{html.escape(g.label)}</th>' for g in groups)
    rows = "".join(
        f'<tr><th scope="row">{html.escape(key)}</th>'
        + "".join(f"<td>{html.escape(_setting(one.get(key)))}</td>" for one in settings)
        + "</tr>"
        for key in keys
    )
    return f'<table><thead><tr><th scope="col">setting</th>{head}</tr></thead><tbody>{rows}</tbody></table>'


def _setting(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _environment(page: Page, groups: Sequence[Group], measured: Mapping[str, Measured]) -> None:
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


Section = Callable[[Page, Sequence[Group], Mapping[str, Measured]], None]
