"""Sections about weights, for models with a posterior: signal-to-noise, pruning, and which weights are left."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bayesrnn.lab.report import html, plots
from bayesrnn.lab.report.analysis import Analysis
from bayesrnn.lab.report.labels import label, number, part
from bayesrnn.lab.report.parts import Page, file_name
from bayesrnn.lab.report.uncertainty import points
from bayesrnn.lab.runs.collection import SeedGroup


def signal_to_noise(page: Page, groups: Sequence[SeedGroup], analyses: Mapping[str, Analysis]) -> None:
    named: dict[str, tuple[list[float], list[float]]] = {}
    said = []
    for name, one in analyses.items():
        if one.ratios:
            edges, shares, median = log_histogram(one.ratios)
            named[name] = (edges, shares)
            said.append(f"{name}: median {number(10**median)}")
    if not named:
        return
    png = plots.histogram(
        named, order=[g.label for g in groups], across="log10 of |mean| / sigma", up="share of weights per bin"
    )
    text = f"Signal-to-noise of the weights. {'; '.join(said)}."
    about = "A weight far below 1 (0 on this scale) is mostly noise, and can be removed."
    page.add_figure("signal-to-noise", "Signal-to-noise", png, alt=f"Histogram. {text}", caption=text, text=about)


def log_histogram(ratios: Mapping[str, Tensor]) -> tuple[list[float], list[float], float]:
    """Edges of the bins, the share of weights in each, and the median, all of log10(|mean| / sigma)."""
    logs = torch.cat([r.flatten() for r in ratios.values()]).clamp(1e-4, 1e4).log10()
    counts = torch.histc(logs, 48, -4, 4)
    edges = torch.linspace(-4, 4, 49)
    return edges.tolist(), (counts / counts.sum()).tolist(), logs.median().item()


def pruning(page: Page, groups: Sequence[SeedGroup], analyses: Mapping[str, Analysis]) -> None:
    named: dict[str, list[tuple[float, float]]] = {}
    rises = []
    up = ""
    for group in groups:
        curve = (group.first.pruning or {}).get("curve")
        if not isinstance(curve, list) or not curve or not isinstance(curve[0], dict):
            continue
        key = next((k for k in curve[0] if k.startswith("valid_")), "")
        found = [(p["fraction"], p[key]) for p in points(curve, "fraction", key)] if key else []
        if not found:
            continue
        named[group.label], up = sorted(found), key
        whole = named[group.label][0][1]
        free = max((f for f, v in named[group.label] if whole and v / whole <= 1.01), default=0.0)
        rises.append(f"{group.label}: {free:.0%} of the weights can go for a rise of at most 1%")
    if not named:
        return
    up = label(up, groups[0].first.task)
    across = "share of weights removed, lowest |mean| / sigma first"
    png = plots.lines(named, order=[g.label for g in groups], across=across, up=up, log_y=True)
    text = "; ".join(rises) + "."
    page.add_figure("pruning", "Pruning", png, alt=f"{up} against the share of weights removed. {text}", caption=text)


def patterns(page: Page, groups: Sequence[SeedGroup], analyses: Mapping[str, Analysis]) -> None:
    shown = []
    for group in groups:
        one = analyses.get(group.label)
        if one is None or not one.ratios:
            continue
        matrices = matrices_of(one.ratios)
        if not matrices:
            continue
        share = (group.first.pruning or {}).get("fraction")
        share = float(share) if isinstance(share, (int, float)) and 0 < share < 1 else 0.8
        kept = kept_of(one.ratios, share)
        gates = {n: gate_names(group.first.settings, n) for n in matrices}
        short = {n.removeprefix("rnn."): kept[n] for n in list(matrices)[:8]}
        png = plots.patterns(short, {n.removeprefix("rnn."): g for n, g in gates.items()})
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
            html.paragraphs("A white column is an input unit that nothing listens to."),
            html.pictures(shown),
        )


def matrices_of(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The matrices of the recurrent layers; without those, all matrices."""
    matrices = {name: each for name, each in weights.items() if each.ndim == 2}
    return {name: each for name, each in matrices.items() if ".weight_" in f".{name}"} or matrices


def kept_of(ratios: Mapping[str, Tensor], share: float) -> dict[str, Tensor]:
    """Which weights stay when this share of all is removed, lowest ratios first."""
    flat_ratios = torch.cat([r.flatten() for r in ratios.values()])
    count = round(share * flat_ratios.numel())
    if count == 0:
        return {n: torch.ones_like(r, dtype=torch.bool) for n, r in ratios.items()}
    threshold = flat_ratios.kthvalue(count).values
    return {name: ratio > threshold for name, ratio in ratios.items()}


def gate_names(settings: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """The gates whose weights lie one below the other in a matrix of this name; empty: it has none."""
    if "weight_" not in name:
        return ()
    cell = str(part(settings, "model").get("cell", "lstm"))
    return ("i", "f", "g", "o") if cell == "lstm" else ("r", "z", "n") if cell == "gru" else ()
