"""Records of forecasts as the tables and sentences of the documentation; what is a difference, and what is noise."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from bayesrnn.lab.report.tables import Column, markdown_table
from bayesrnn.lab.runs.record import Record, once
from bayesrnn.lab.runs.record import values as values_of
from docs.build import archive
from docs.build.archive import ForecastChoice

RECIPES = {
    "forecast": "variational dropout",
    "forecast-mixture": "mixture of four",
    "forecast-bbb": "Bayes by Backprop",
    "forecast-plain": "plain LSTM",
}
BAYESIAN, PLAIN = ("forecast", "forecast-mixture", "forecast-bbb"), "forecast-plain"
PRIOR, FOUR = "forecast-plain-prior", "forecast-plain-mixture"
_SCORES = {"test_crps_raw": "raw", "test_crps": "recalibrated"}
NO_DIFFERENCE = "no difference within noise"
# Student's t, two-sided 95%, for 2, 3, … pairs; for more than these the last, which is a little strict
_T = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.16, 2.145, 2.131)


def records_by_series(results: Path) -> dict[str, dict[str, list[Record]]]:
    """Records of the forecasting recipes, ``results/RECIPE/SERIES/SEED.json``: by series, then by recipe."""
    found: dict[str, dict[str, list[Record]]] = {}
    for recipe in RECIPES:
        for folder in sorted((results / recipe).glob("*")):
            found.setdefault(folder.name, {})[recipe] = _records(folder)
    # the library's own series first, the others by name
    return {name: found[name] for name in sorted(found, key=lambda name: (name != "mauna_loa", name))}


def _records(folder: Path) -> list[Record]:
    return once(archive.records(folder))


def comparison_table(results: Path) -> str:
    """Markdown: every series and recipe over seeds, as the model says and recalibrated; naive forecasts beside them."""
    rows: list[dict[str, Any]] = []
    for name, recipes in records_by_series(results).items():
        for recipe, records in recipes.items():
            rows.append({"series": name, "model": RECIPES[recipe], "seeds": len(records), **_means(records)})
        one = next(iter(recipes.values()))[0]
        for key, label in (("naive", "last value"), ("seasonal_naive", "last season")):
            if one.metric(f"{key}_crps") is not None:
                scores = {k: f"{one.metric(f'{key}_{k}'):.3g}" for k in ("crps", "width")}
                coverage = f"{one.metric(f'{key}_coverage'):.1%}"
                rows.append({"series": name, "model": label, **scores, "coverage": coverage})
    columns = (
        Column("series", "series"), Column("model", "model"), Column("crps_raw", "CRPS, raw"),
        Column("crps", "CRPS, recalibrated"), Column("coverage_raw", "95% intervals cover, raw"),
        Column("coverage", "recalibrated (seeds)"), Column("width", "mean width"),
        Column("epistemic", "epistemic share", "{:.0%}"), Column("valid", "CRPS, validation"), Column("seeds", "seeds"),
    )  # fmt: skip
    return markdown_table(rows, columns)


def _values(records: Sequence[Record], key: str) -> list[float]:
    return values_of(records, key)


def _means(records: Sequence[Record]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in ("crps_raw", "crps"):
        values = _values(records, f"test_{key}")
        found[key] = f"{fmean(values):.4g}" + (f" ± {stdev(values):.1g}" if len(values) > 1 else "")
    coverage = _values(records, "test_coverage")
    return {
        **found,
        "coverage_raw": f"{fmean(_values(records, 'test_coverage_raw')):.1%}",
        "coverage": f"{fmean(coverage):.1%} ({100 * min(coverage):.1f} to {100 * max(coverage):.1f})",
        "width": f"{fmean(_values(records, 'test_width')):.3g}",
        "epistemic": fmean(_values(records, "epistemic_share")) or None,
        "valid": f"{fmean(_values(records, 'valid_crps')):.3g}",
    }


@dataclass(frozen=True)
class Difference:
    """CRPS of a model less the plain LSTM's with the same seed, over the plain LSTM's mean: negative is better."""

    mean: float
    error: float
    """Standard error of the mean over pairs of runs."""
    pairs: int

    @property
    def verdict(self) -> str:
        """By whether the 95% confidence interval of the mean, by Student's t, excludes zero."""
        if self.pairs < 2 or abs(self.mean) <= _T[min(self.pairs - 2, len(_T) - 1)] * self.error:
            return NO_DIFFERENCE
        return "better" if self.mean < 0 else "worse"

    def __str__(self) -> str:
        return f"{100 * self.mean:+.1f}% ± {100 * self.error:.1f}"


def difference(records: Sequence[Record], plain: Sequence[Record], key: str) -> Difference:
    """Paired by seed; seeds that one of the two lacks do not count."""
    others = {record.seed: record.metrics[key] for record in plain}
    pairs = [(r.metrics[key], others[r.seed]) for r in records if r.seed in others]
    if not pairs:
        return Difference(0.0, 0.0, 0)
    scale = fmean(other for _, other in pairs)
    apart = [(own - other) / scale for own, other in pairs]
    error = stdev(apart) / math.sqrt(len(apart)) if len(apart) > 1 else math.inf
    return Difference(fmean(apart), error, len(apart))


def _differences(results: Path, recipe: str) -> dict[str, dict[str, Difference]]:
    """By series, then by key, for series with records of both models."""
    found = records_by_series(results)
    both = {name: group for name, group in found.items() if recipe in group and PLAIN in group}
    return {
        name: {key: difference(group[recipe], group[PLAIN], key) for key in _SCORES} for name, group in both.items()
    }


def difference_table(results: Path) -> str:
    """Markdown: each Bayesian recipe against the plain LSTM on each series, and the verdict."""
    rows = [
        {"series": name, "model": RECIPES[recipe], "seeds": found["test_crps"].pairs,
         **{key: str(found[key]) for key in _SCORES}, **{f"{key} verdict": found[key].verdict for key in _SCORES}}
        for recipe in BAYESIAN for name, found in _differences(results, recipe).items()
    ]  # fmt: skip
    columns = [Column("model", "against the plain LSTM"), Column("series", "series")]
    for key, label in _SCORES.items():
        columns += [Column(key, f"CRPS, {label}"), Column(f"{key} verdict", f"verdict, {label}")]
    return markdown_table(rows, [*columns, Column("seeds", "pairs")])


def findings(results: Path) -> list[str]:
    """What the tables say, in sentences, by the rule of :class:`Difference`."""
    return [line for recipe in BAYESIAN for line in _findings(results, recipe)]


def _findings(results: Path, recipe: str) -> list[str]:
    found = _differences(results, recipe)
    if not found:
        return []

    def having(verdict: str, *keys: str) -> list[str]:
        return [name for name, by in found.items() if all(by[key].verdict == verdict for key in keys)]

    lines = [
        f"- {RECIPES[recipe]}, CRPS {label}, against the plain LSTM on {len(found)} series: "
        + "; ".join(f"{verdict} on {_named(having(verdict, key))}" for verdict in ("better", "worse", NO_DIFFERENCE))
        + "."
        for key, label in _SCORES.items()
    ]
    groups = records_by_series(results)
    coverage = {name: _values(groups[name][recipe], "test_coverage") for name in found}
    mean = [name for name, values in coverage.items() if _holds(fmean(values))]
    clear = [
        name
        for name in having("better", *_SCORES)
        if all(
            by.verdict == "better"
            for other in (PRIOR, FOUR)
            if (results / other / name).is_dir()
            for by in _against(results, recipe, other, name).values()
        )
    ]
    every = [name for name, values in coverage.items() if all(map(_holds, values))]
    return [
        *lines,
        f"- {RECIPES[recipe]}: better both raw and recalibrated than every plain LSTM that was run on it, "
        f"on {_named(clear)}. 95% intervals, recalibrated, cover 92% to 98% in the mean of seeds on {_named(mean)}, "
        f"with every seed on {_named(every)}.",
    ]


def _named(names: Sequence[str]) -> str:
    return f"{len(names)} ({', '.join(names)})" if names else "0"


def _holds(coverage: float) -> bool:
    return 0.92 <= coverage <= 0.98


def _block(results: Path) -> str:
    found = records_by_series(results)
    if not found:
        raise SystemExit("results/forecast is missing: make it with `python benchmarks/forecast.py run` and commit it")
    one = next(iter(next(iter(found.values())).values()))[0]
    made = f"Written by `python benchmarks/forecast.py run`: {one.made_on}, 1 thread."
    return "\n".join([difference_table(results), *findings(results), "", comparison_table(results), made])


def _choice(results: Path) -> str:
    """The settings that were tried, by their score before the test parts."""
    first = _choices(results, "", "choose")
    rows = [
        {
            **_tried(recipe, setting, group["chosen"]),
            "score": setting["geometric_mean"],
            "coverage": fmean(setting["coverage"].values()),
        }
        for recipe, group in _chosen(first)
        for setting in group["settings"]
    ]
    columns = (
        Column("recipe", "recipe"), Column("setting", "setting"),
        Column("score", "CRPS before the test parts, geometric mean", "{:.3f}"),
        Column("coverage", "95% intervals cover, mean", "{:.1%}"), Column("chosen", ""),
    )  # fmt: skip
    return markdown_table(rows, columns)


def _second_choice(results: Path) -> str:
    """The second round: raw and recalibrated scores, the best two of each recipe with more seeds."""
    rows = [
        {
            **_tried(recipe, setting, group["chosen"]),
            "seeds": len(setting["seeds"]),
            **{key: _geometric(setting[key]) for key in ("crps_raw", "crps")},
            **{key: fmean(map(fmean, setting[key].values())) for key in ("coverage_raw", "coverage")},
        }
        for recipe, group in _chosen(_choices(results, "-second", "choose"))
        for setting in group["settings"]
    ]
    columns = (
        Column("recipe", "recipe"), Column("setting", "setting"),
        Column("crps_raw", "CRPS, raw", "{:.3f}"), Column("crps", "recalibrated", "{:.3f}"),
        Column("coverage_raw", "95% intervals cover, raw", "{:.1%}"), Column("coverage", "recalibrated", "{:.1%}"),
        Column("seeds", "seeds"), Column("chosen", ""),
    )  # fmt: skip
    return markdown_table(rows, columns)


def _average(results: Path) -> str:
    """Even mixtures of several runs before the test parts, against one run of the plain LSTM: means over series."""
    mixtures = _choices(results, "-average", "average").mixtures
    one = mixtures[PLAIN]["1"]

    def against(by_series: Mapping[str, Any], key: str) -> str:
        apart = [fmean(by_series[name][key]) / fmean(one[name][key]) - 1 for name in one]
        low, high = min(apart), max(apart)
        return f"{100 * fmean(apart):+.1f}% ({100 * low:+.1f} to {100 * high:+.1f})"

    rows = [
        {"model": RECIPES[recipe], "runs": int(size), "series": len(one),
         **{key: against(by_series, key) for key in ("crps_raw", "crps")}}
        for recipe, by_size in mixtures.items() for size, by_series in by_size.items()
    ]  # fmt: skip
    columns = (
        Column("model", "model"), Column("runs", "runs in the mixture"),
        Column("crps_raw", "CRPS against one plain LSTM, raw (series)"), Column("crps", "recalibrated (series)"),
        Column("series", "series"),
    )  # fmt: skip
    return markdown_table(rows, columns)


def _against(results: Path, recipe: str, other: str, name: str) -> dict[str, Difference]:
    own, plain = (_records(results / kind / name) for kind in (recipe, other))
    return {key: difference(own, plain, key) for key in _SCORES}


def _long(results: Path) -> str:
    """Variational dropout against a plain LSTM with a prior, on the series that took no part in choosing."""
    rows = []
    for folder in sorted((results / PRIOR).glob("*")):
        plain, found = _records(folder), _against(results, "forecast", PRIOR, folder.name)
        rows.append({
            "series": folder.name, "plain": _means(plain)["crps"], "pairs": found["test_crps"].pairs,
            **{key: f"{found[key]}: {found[key].verdict}" for key in _SCORES},
        })  # fmt: skip
    columns = [Column("series", "series"), Column("plain", "CRPS of the plain LSTM with a prior, recalibrated")]
    columns += [Column(key, f"variational dropout against it, {label}") for key, label in _SCORES.items()]
    return markdown_table(rows, [*columns, Column("pairs", "pairs")])


def _four(results: Path) -> str:
    """What a mixture of four gains without masks, and what masks add to it."""
    pairs = {"four plain LSTMs against one": (FOUR, PLAIN), "mixture of four against them": ("forecast-mixture", FOUR)}
    rows: list[dict[str, Any]] = []
    for name in sorted((f.name for f in (results / FOUR).glob("*")), key=lambda name: (name != "mauna_loa", name)):
        rows.append({"series": name})
        for label, pair in pairs.items():
            for key, found in _against(results, *pair, name).items():
                rows[-1] |= {f"{label}, {_SCORES[key]}": f"{found}: {found.verdict}", "pairs": found.pairs}
    labels = [f"{label}, {how}" for label in pairs for how in _SCORES.values()]
    return markdown_table(rows, [Column(label, label) for label in ("series", *labels, "pairs")])


def _choices(results: Path, which: str, command: str) -> ForecastChoice:
    path = results / f"forecast-choice{which}.json"
    return archive.required(path, ForecastChoice, f"python benchmarks/forecast.py {command}")


def _chosen(record: ForecastChoice) -> list[tuple[str, Mapping[str, Any]]]:
    return [(name, record.recipes[name]) for name in RECIPES if name in record.recipes]


def _tried(recipe: str, setting: Mapping[str, Any], chosen: Sequence[str]) -> dict[str, Any]:
    changes = [change.split(".", 1)[1] for change in setting["changes"] if not change.endswith("=null")]
    return {
        "recipe": recipe, "setting": ", ".join(changes), "chosen": "chosen" if setting["changes"] == chosen else ""
    }  # fmt: skip


def _geometric(by_series: Mapping[str, Sequence[float]]) -> float:
    return math.exp(fmean(math.log(fmean(values)) for values in by_series.values()))


BLOCKS = {
    "forecast": _block,
    "forecast-long": _long,
    "forecast-four": _four,
    "forecast-choice": _choice,
    "forecast-choice-second": _second_choice,
    "forecast-choice-average": _average,
}
