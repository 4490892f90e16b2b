"""Plots of forecasts: bands that show both kinds of uncertainty apart, and whether they hold what they promise."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import NormalDist, fmean, stdev
from typing import TYPE_CHECKING, Any

from bayesrnn.report import figures
from bayesrnn.report.figures import png, short, shown
from bayesrnn.report.plots import COLOURS
from bayesrnn.report.tables import Column, markdown_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BLACK, _FORECAST, _MODEL = "#222222", COLOURS[1], COLOURS[0]
_NARROW = (4.6, 3.9)
_MONTH = re.compile(r"\d{4}-(0[1-9]|1[0-2])")
RECIPES = {"forecast": "variational dropout", "forecast-bbb": "Bayes by Backprop", "forecast-plain": "plain LSTM"}


def _figure(width: float = 7.2, height: float = 3.8) -> "Figure":
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=min(150, figures.DPI), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _plain(axes: "Axes") -> None:
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _shown(rows: Mapping[str, Sequence[float]], keys: Sequence[str]) -> dict[str, list[float]]:
    return {key: [shown(v) for v in rows[key]] for key in keys}


def _ticks(labels: Sequence[str], most: int) -> range:
    """Places of at most so many labels; of months (2020-01) those that divide the year, from its beginning on."""
    step = max(1, math.ceil(len(labels) / most))
    if not all(_MONTH.fullmatch(label) for label in labels):
        return range(0, len(labels), step)
    step = next((months for months in (1, 2, 3, 4, 6) if months >= step), 12 * math.ceil(step / 12))
    first = next((i for i, label in enumerate(labels) if (int(label[-2:]) - 1) % min(step, 12) == 0), 0)
    return range(first, len(labels), step)


def _date_ticks(axes: "Axes", labels: Sequence[str], most: int = 7) -> None:
    at = _ticks(labels, most)
    axes.set_xticks(list(at), [short(labels[i], 20) for i in at])
    axes.set_xlim(-0.01 * len(labels), 1.01 * len(labels))


def _bands(axes: "Axes", x: Sequence[int], rows: Mapping[str, Sequence[float]], level: float) -> None:
    """The whole interval, light, and inside it the part that comes from not knowing the weights, dark."""
    reach = NormalDist().inv_cdf((1 + level) / 2)
    dark_low = [m - reach * e for m, e in zip(rows["mean"], rows["epistemic"], strict=True)]
    dark_high = [m + reach * e for m, e in zip(rows["mean"], rows["epistemic"], strict=True)]
    axes.fill_between(
        x, rows["low"], rows["high"], color=_FORECAST, alpha=0.22, linewidth=0, label=f"{level:.0%} interval"
    )
    if any(e > 0 for e in rows["epistemic"]):
        name = "of this, the model's own doubt (epistemic)"
        axes.fill_between(x, dark_low, dark_high, color=_MODEL, alpha=0.45, linewidth=0, label=short(name))
    axes.plot(x, rows["mean"], color=_FORECAST, linewidth=1.8, label="forecast")


def forecast_plot(
    past: Sequence[float],
    rows: Mapping[str, Any],
    labels: Sequence[str],
    *,
    name: str,
    level: float,
    direct: int,
    narrow: bool = False,
) -> bytes:
    """The end of a series and what is forecast after it. PNG bytes.

    Args:
        past: the last values. rows: columns mean, low, high, epistemic of the steps after them.
        labels: dates of both. direct: after so many steps forecasts are sampled roll-outs, and a line says so.
        narrow: to be read on a phone; the words about that line are the page's.
    """
    figure = _figure(*_NARROW) if narrow else _figure()
    axes = figure.add_subplot()
    past, rows = [shown(v) for v in past], _shown(rows, ("mean", "low", "high", "epistemic"))
    start = len(past)
    ahead = list(range(start, start + len(rows["mean"])))
    _bands(axes, ahead, rows, level)
    axes.plot(range(start), past, color=_BLACK, linewidth=1.6, label=short(name))
    if direct < len(ahead):
        axes.axvline(start + direct - 0.5, color="#888888", linewidth=1, linestyle=":")
        if not narrow:
            axes.annotate(
                "sampled roll-outs", (start + direct - 0.5, 1.0), xycoords=("data", "axes fraction"),
                xytext=(4, -10), textcoords="offset points", fontsize=8, color="#666666",
            )  # fmt: skip
    axes.set_ylabel(short(name))
    _date_ticks(axes, labels, 4 if narrow else 7)
    _plain(axes)
    _legend_above(figure, axes, narrow, columns=4)
    return png(figure)


def walk_plot(record: Mapping[str, Any], *, last: int = 120) -> bytes:
    """Forecasts one step ahead through the test part beside what came, and the two uncertainties below. PNG bytes."""
    walk = record["metrics"]["walk"]
    name, level = record["series"]["columns"][0], record["metrics"]["level"]
    return walked(walk, walk["date"], name=name, level=level, last=last)


def walked(
    columns: Mapping[str, Sequence[float]],
    dates: Sequence[str],
    *,
    name: str,
    level: float,
    last: int,
    narrow: bool = False,
) -> bytes:
    """As :func:`walk_plot`, from columns mean, low, high, aleatoric, epistemic and actual, one value per date."""
    keys = ("mean", "low", "high", "aleatoric", "epistemic", "actual")
    rows = _shown({key: columns[key][-last:] for key in keys}, keys)
    figure = _figure(_NARROW[0], 4.6) if narrow else _figure(height=4.8)
    top, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    x = list(range(len(rows["mean"])))
    _bands(top, x, rows, level)
    inside = [a <= y <= b for a, y, b in zip(rows["low"], rows["actual"], rows["high"], strict=True)]
    top.plot(x, rows["actual"], color=_BLACK, linewidth=0.9, alpha=0.6)
    top.plot([i for i in x if inside[i]], [rows["actual"][i] for i in x if inside[i]], "o", color=_BLACK,
             markersize=3, label="what came, inside")  # fmt: skip
    out = [i for i in x if not inside[i]]
    top.plot(out, [rows["actual"][i] for i in out], "X", color=COLOURS[3], markersize=7, label="outside")
    below.plot(x, rows["aleatoric"], color=_FORECAST, linewidth=1.4, label="noise in the data (aleatoric)")
    below.plot(
        x, rows["epistemic"], color=_MODEL, linewidth=1.4, linestyle=(0, (4, 2)), label="the model's (epistemic)"
    )
    highest = max((v for v in [*rows["aleatoric"], *rows["epistemic"]] if not math.isnan(v)), default=0.0)
    below.set_ylim(0, (2.2 if narrow else 1.5) * highest if highest > 0 else 1)  # room for the legend
    below.set_ylabel("sd" if narrow else "std. deviation")
    below.legend(frameon=False, fontsize=8, ncols=1 if narrow else 2, loc="upper left")
    top.set_ylabel(short(name))
    _date_ticks(below, dates[-last:], 4 if narrow else 7)
    for axes in (top, below):
        _plain(axes)
    _legend_above(figure, top, narrow, columns=3)
    return png(figure)


def _legend_above(figure: "Figure", axes: "Axes", narrow: bool, *, columns: int) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if narrow:
        figure.legend(handles, labels, loc="outside upper left", ncols=1, frameon=False, fontsize=8.5)
    else:
        figure.legend(handles, labels, loc="outside upper center", ncols=columns, frameon=False, fontsize=9)


def pit_plot(records: Mapping[str, Sequence[Mapping[str, Any]]]) -> bytes:
    """A histogram per series of where values fell in their predictive distributions; flat is right. PNG bytes."""
    columns = min(len(records), 4 if len(records) > 6 else 3)
    rows = math.ceil(len(records) / columns)
    figure = _figure(height=0.4 + 2.0 * rows)
    panels = figure.subplots(rows, columns, sharey=True, squeeze=False).flatten()
    for axes in panels[len(records) :]:
        axes.set_visible(False)
    for axes, (name, group) in zip(panels, records.items(), strict=False):
        bars = [fmean(column) for column in zip(*(r["metrics"]["reliability"]["pit"] for r in group), strict=True)]
        width = 1 / len(bars)
        axes.bar([(i + 0.5) * width for i in range(len(bars))], bars, width=0.9 * width, color=_FORECAST)
        axes.axhline(width, color=_BLACK, linewidth=1, linestyle=(0, (4, 2)))
        axes.set_title(name, fontsize=9)
        axes.set_xticks([0, 0.5, 1])
        _plain(axes)
    figure.supxlabel("P(forecast ≤ what came)", fontsize=9)
    figure.supylabel("share", fontsize=9)
    return png(figure)


def ahead_plot(record: Mapping[str, Any]) -> bytes:
    """What a record says comes after the end of its series. PNG bytes."""
    ahead = record["metrics"]["ahead"]
    return forecast_plot(
        ahead["past"],
        ahead,
        ahead["date"],
        name=record["series"]["columns"][0],
        level=record["metrics"]["level"],
        direct=ahead["direct"],
    )


def records_by_series(results: Path) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Records of the forecasting recipes, ``results/RECIPE/SERIES/SEED.json``: by series, then by recipe."""
    import json

    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for recipe in RECIPES:
        for path in sorted((results / recipe).glob("*/*.json")):
            found.setdefault(path.parent.name, {}).setdefault(recipe, []).append(json.loads(path.read_text("utf-8")))
    # the library's own series first, the others by name
    return {name: found[name] for name in sorted(found, key=lambda name: (name != "mauna_loa", name))}


def comparison_table(results: Path) -> str:
    """Markdown: every series and recipe, means over seeds, naive forecasts beside them."""
    rows: list[dict[str, Any]] = []
    for name, recipes in records_by_series(results).items():
        for recipe, records in recipes.items():
            rows.append({"series": name, "model": RECIPES[recipe], "seeds": len(records), **_means(records)})
        one = next(iter(recipes.values()))[0]["metrics"]
        for key, label in (("naive", "last value"), ("seasonal_naive", "last season")):
            if f"{key}_crps" in one:
                scores = {k: f"{one[f'{key}_{k}']:.3g}" for k in ("crps", "width")}
                rows.append({"series": name, "model": label, **scores, "coverage": f"{one[f'{key}_coverage']:.1%}"})
    columns = (
        Column("series", "series"), Column("model", "model"), Column("crps", "CRPS, test"),
        Column("coverage", "95% intervals cover"), Column("width", "mean width"),
        Column("epistemic", "epistemic share", "{:.0%}"), Column("valid", "CRPS, validation"), Column("seeds", "seeds"),
    )  # fmt: skip
    return markdown_table(rows, columns)


def _means(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    def values(key: str) -> list[float]:
        return [record["metrics"][key] for record in records]

    spread = f" ± {stdev(values('test_crps')):.2g}" if len(records) > 1 else ""
    return {
        "crps": f"{fmean(values('test_crps')):.3g}{spread}",
        "coverage": f"{fmean(values('test_coverage')):.1%}",
        "width": f"{fmean(values('test_width')):.3g}",
        "epistemic": fmean(values("epistemic_share")) or None,
        "valid": f"{fmean(values('valid_crps')):.3g}",
    }


def findings(results: Path) -> list[str]:
    """What the table says, in sentences."""
    lines = []
    found = records_by_series(results)
    for recipe in ("forecast", "forecast-bbb"):
        both = {name: group for name, group in found.items() if recipe in group and "forecast-plain" in group}
        lower = [name for name, group in both.items() if _mean(group[recipe]) < _mean(group["forecast-plain"])]
        clear = [name for name in lower if _apart(both[name][recipe], both[name]["forecast-plain"])]
        inside = [name for name, group in both.items() if 0.92 <= _mean(group[recipe], "test_coverage") <= 0.98]
        lines.append(
            f"- {RECIPES[recipe]}: CRPS below the plain LSTM's on {len(lower)} of {len(both)} series "
            f"({', '.join(lower) or 'none'}), by more than the seeds' spread on {len(clear)} "
            f"({', '.join(clear) or 'none'}); 95% intervals cover 92% to 98% on {len(inside)} "
            f"({', '.join(inside) or 'none'})."
        )
    return lines


def _mean(records: Sequence[Mapping[str, Any]], key: str = "test_crps") -> float:
    return fmean(record["metrics"][key] for record in records)


def _apart(some: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]) -> bool:
    """Whether their mean scores differ by more than the standard deviations over seeds of both together."""
    spreads = [stdev(r["metrics"]["test_crps"] for r in group) for group in (some, others) if len(group) > 1]
    return abs(_mean(some) - _mean(others)) > sum(spreads) if len(spreads) == 2 else False


def _block(results: Path) -> str:
    found = records_by_series(results)
    if not found:
        raise SystemExit("results/forecast is missing: make it with `python benchmarks/forecast.py run` and commit it")
    one = next(iter(next(iter(found.values())).values()))[0]
    made = (
        f"Written by `python benchmarks/forecast.py run`: {one['device']}, torch {one['versions']['torch']}, 1 thread."
    )
    return "\n".join([comparison_table(results), *findings(results), "", made])


def _choice(results: Path) -> str:
    """The settings that were tried, by their score before the test parts."""
    import json

    path = results / "forecast-choice.json"
    if not path.is_file():
        raise SystemExit(f"{path} is missing: make it with `python benchmarks/forecast.py choose` and commit it")
    found = json.loads(path.read_text("utf-8"))["recipes"]
    rows = [
        {
            "recipe": recipe,
            "setting": ", ".join(change.split(".", 1)[1] for change in setting["changes"]),
            "score": setting["geometric_mean"],
            "coverage": fmean(setting["coverage"].values()),
            "chosen": "chosen" if setting["changes"] == group["chosen"] else "",
        }
        for recipe, group in ((name, found[name]) for name in RECIPES if name in found)
        for setting in group["settings"]
    ]
    columns = (
        Column("recipe", "recipe"), Column("setting", "setting"),
        Column("score", "CRPS before the test parts, geometric mean", "{:.3f}"),
        Column("coverage", "95% intervals cover, mean", "{:.1%}"), Column("chosen", ""),
    )  # fmt: skip
    return markdown_table(rows, columns)


BLOCKS = {"forecast": _block, "forecast-choice": _choice}


def write_figures(results: Path, folder: Path) -> list[Path]:
    """The pictures of docs/forecasting.md, from records; those without one are left out."""
    found = records_by_series(results)
    makers: dict[str, Any] = {}
    for name, kind, plot in (("mauna_loa", "ahead", ahead_plot), ("elnino", "walk", walk_plot)):
        records = found.get(name, {}).get("forecast")
        if records:
            makers[f"forecast-{kind}-{name}.png"] = lambda plot=plot, record=records[0]: plot(record)
    bayesian = {name: group["forecast"] for name, group in found.items() if "forecast" in group}
    if bayesian:
        makers["forecast-pit.png"] = lambda: pit_plot(bayesian)
    written = []
    for name, make in makers.items():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(make())
        written.append(folder / name)
    return written
