"""Forecasts: each Bayesian model against plain networks, from ``results/RECIPE/SERIES/SEED.json``."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from bayesrnn.lab.report.tables import Column, markdown_table
from bayesrnn.lab.runs.record import Record, once
from docs.build import archive

RECIPES = {
    "forecast": "variational dropout",
    "forecast-mixture": "mixture of four",
    "forecast-bbb": "Bayes by Backprop",
    "forecast-plain": "plain GRU",
}
BAYESIAN, PLAIN = ("forecast", "forecast-mixture", "forecast-bbb"), "forecast-plain"
NO_DIFFERENCE = "no difference"
# Student's t, two-sided 95%, for 2, 3, … pairs; for more than these the last, which is a little strict
_T = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.16, 2.145, 2.131)


def records_by_series(results: Path) -> dict[str, dict[str, list[Record]]]:
    """Records by series, then by recipe; the library's own series first, the others by name."""
    found: dict[str, dict[str, list[Record]]] = {}
    for recipe in RECIPES:
        for folder in sorted((results / recipe).glob("*")):
            found.setdefault(folder.name, {})[recipe] = once(archive.records(folder))
    return {name: found[name] for name in sorted(found, key=lambda name: (name != "mauna_loa", name))}


@dataclass(frozen=True)
class Difference:
    """CRPS of a model less the plain GRU's with the same seed, over the plain GRU's mean: negative is better."""

    mean: float
    error: float
    """Standard error of the mean over pairs of runs."""
    pairs: int

    @property
    def reach(self) -> float:
        """Half of the 95% confidence interval of the mean, by Student's t."""
        return _T[min(self.pairs - 2, len(_T) - 1)] * self.error if self.pairs > 1 else math.inf

    @property
    def verdict(self) -> str:
        """By whether the confidence interval excludes zero."""
        if abs(self.mean) <= self.reach:
            return NO_DIFFERENCE
        return "better" if self.mean < 0 else "worse"

    def __str__(self) -> str:
        return f"{100 * self.mean:+.1f}% ± {100 * self.reach:.1f}, {self.verdict}"


def difference(records: Sequence[Record], plain: Sequence[Record], key: str = "test_crps") -> Difference:
    """Paired by seed; seeds that one of the two lacks do not count."""
    others = {record.seed: record.metrics[key] for record in plain}
    pairs = [(r.metrics[key], others[r.seed]) for r in records if r.seed in others]
    if not pairs:
        return Difference(0.0, math.inf, 0)
    scale = fmean(other for _, other in pairs)
    apart = [(own - other) / scale for own, other in pairs]
    error = stdev(apart) / math.sqrt(len(apart)) if len(apart) > 1 else math.inf
    return Difference(fmean(apart), error, len(apart))


def block(results: Path) -> str:
    """Every series: the plain GRU's CRPS and the difference of each Bayesian model to it."""
    found = records_by_series(results)
    if not found:
        raise SystemExit("results/forecast is missing: make it with `python benchmarks/forecast.py` and commit it")
    rows: list[dict[str, Any]] = []
    counts: set[int] = set()
    for name, group in found.items():
        plain = group.get(PLAIN, [])
        seasonal = plain[0].metric("seasonal_naive_crps") if plain else None
        row: dict[str, Any] = {"series": name, "plain": fmean(r.metrics["test_crps"] for r in plain) if plain else None}
        row["season"] = seasonal
        for recipe in BAYESIAN:
            pair = difference(group.get(recipe, []), plain)
            row[recipe] = str(pair) if pair.pairs else None
            counts |= {pair.pairs} - {0}
        covered = [r.metrics["test_coverage"] for r in group.get("forecast", [])]
        row["covered"] = fmean(covered) if covered else None
        rows.append(row)
    columns = (
        Column("series", "series"), Column("season", "seasonal naive", "{:.3g}"),
        Column("plain", "plain GRU", "{:.4g}"),
        *(Column(recipe, RECIPES[recipe]) for recipe in BAYESIAN),
        Column("covered", "variational: 95% intervals cover", "{:.1%}"),
    )  # fmt: skip
    one = next(iter(next(iter(found.values())).values()))[0]
    made = (
        "CRPS on the test part, lower is better. The models' columns are differences to the plain GRU with the same "
        f"seed, ± half the width of the 95% confidence interval ({_span(counts)} seeds). "
        f"Written by `python benchmarks/forecast.py` ({one.made_on}, 1 thread)."
    )
    return "\n".join([markdown_table(rows, columns), made])


def _span(counts: set[int]) -> str:
    return " to ".join(str(count) for count in sorted({min(counts), max(counts)})) if counts else "no"


BLOCKS: dict[str, Callable[[Path], str]] = {"forecast": block}
