"""Forecasts of M4, ETTh1 and other series beside peers, from ``results/forecasting/TASK/METHOD/SEED.json``."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from bayesrnn.lab.report.plots import look
from bayesrnn.lab.report.tables import Column, markdown_table
from bayesrnn.lab.runs.record import Record
from docs.build import archive
from docs.build.pictures import drawn, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OURS, BASELINE = "bayesrnn", "seasonal-quantiles"
TASKS = {
    "m4-hourly": "M4 hourly, 414 series, 48 steps",
    "m4-weekly": "M4 weekly, 359 series, 13 steps",
    "etth1-24": "ETTh1 oil temperature, 24 steps",
    "etth1-168": "ETTh1 oil temperature, 168 steps",
}
METHODS = {
    OURS: "**bayesrnn**",
    "auto-ets": "AutoETS (statsforecast)",
    "auto-theta": "AutoTheta (statsforecast)",
    "mstl": "MSTL (statsforecast)",
    "seasonal-naive": "seasonal naive (statsforecast)",
    BASELINE: "seasonal naive, empirical quantiles",
    "deepar": "DeepAR (NeuralForecast)",
    "darts-rnn": "RNNModel (darts)",
    "lightgbm": "LightGBM quantiles",
}
_COVERAGE, _LEVELS = "forecasting-coverage.png", (80, 90, 95)
_BLOCKS = 20  # of origins
_METRICS = ("smape", "mase", "msis", "coverage_80", "coverage_90", "coverage_95")


def records_of(results: Path, task: str) -> dict[str, list[Record]]:
    """Records of one task by method, in the order of the table."""
    found = {method: archive.records(results / "forecasting" / task / method) for method in METHODS}
    return {method: records for method, records in found.items() if records}


def _crps(task: str) -> str:
    """M4's series have units of their own: their CRPS is divided by the scale of MASE."""
    return "scaled_crps" if task.startswith("m4") else "crps"


def _mean(records: Sequence[Record], key: str) -> float:
    return fmean(record.metrics[key] for record in records)


def _note(records: Sequence[Record]) -> str | None:
    """How much a method that ran out of time forecast; or over how many seeds the row is a mean."""
    done = records[0].extra.get("origins_done")
    if done is not None:
        return f"{len(done)} origins"
    return f"{len(records)} seeds" if len(records) > 1 else None


def _table(results: Path, task: str) -> list[str]:
    found, key = records_of(results, task), _crps(task)
    rows: list[dict[str, Any]] = []
    for method, records in found.items():
        row: dict[str, Any] = {name: _mean(records, name) for name in _METRICS}
        row |= {"method": METHODS[method], "crps": _mean(records, key), "note": _note(records)}
        row["seconds"] = _mean(records, "train_seconds") + _mean(records, "predict_seconds")
        rows.append(row)
    columns = (
        Column("method", TASKS[task]), Column("smape", "sMAPE", "{:.2f}"), Column("mase", "MASE", "{:.3f}"),
        Column("msis", "MSIS 95%", "{:.2f}"), Column("crps", "CRPS", "{:.3f}"),
        Column("coverage_80", "80% covers", "{:.1%}"), Column("coverage_90", "90%", "{:.1%}"),
        Column("coverage_95", "95%", "{:.1%}"), Column("seconds", "CPU s", "{:.0f}"), Column("note", "of"),
    )  # fmt: skip
    limits = [f"{METHODS[m]}: {r[0].note}" for m, r in found.items() if r[0].note and "origins_done" not in r[0].extra]
    return [markdown_table(rows, columns), _verdict(found, key) + ". ".join([*limits, ""]).strip(), ""]


def _verdict(found: dict[str, list[Record]], key: str) -> str:
    """Where another method is better, and in CRPS by how much."""
    if OURS not in found:
        return ""
    said = []
    for label, name in {"sMAPE": "smape", "MASE": "mase", "MSIS": "msis"}.items():
        own = _mean(found[OURS], name)
        better = [METHODS[m] for m, records in found.items() if m != OURS and _mean(records, name) < own]
        said += [f"{label}: {', '.join(better)}"] if better else []
    others = {METHODS[m]: _lower_crps(found[OURS], records) for m, records in found.items() if m != OURS}
    better = [f"{name} ({less:.1%} ± {half:.1%})" for name, (less, half) in others.items() if less > 0]
    said += [f"CRPS: {', '.join(better)}"] if better else []
    return f"Better than bayesrnn in {'; '.join(said)}. " if said else "No other method is better. "


def _lower_crps(ours: Sequence[Record], theirs: Sequence[Record]) -> tuple[float, float]:
    """By which part of our CRPS theirs is lower, on the origins that they forecast, and half its 95% interval: origins
    in a row are alike, so that means of blocks of them are compared."""
    done = theirs[0].extra.get("origins_done", range(len(ours[0].metrics["scaled_crps_by_origin"])))
    own, other = (
        [fmean(values) for values in zip(*(r.metrics["scaled_crps_by_origin"] for r in records), strict=True)]
        for records in (ours, theirs)
    )
    own = [own[i] for i in done]
    less = [(a - b) / fmean(own) for a, b in zip(own, other, strict=True)]
    count = min(_BLOCKS, len(less))
    cuts = [len(less) * k // count for k in range(count + 1)]
    blocks = [fmean(less[i:j]) for i, j in pairwise(cuts)]
    return fmean(less), 1.96 * stdev(blocks) / count**0.5 if count > 1 else float("nan")


def _others(results: Path) -> list[str]:
    """Series on which nothing was chosen: the defaults against seasonal naive with empirical quantiles."""
    rows = []
    for folder in sorted((results / "forecasting").glob("*")):
        ours, base = archive.records(folder / OURS), archive.records(folder / BASELINE)
        if folder.name in TASKS or not ours or not base:
            continue
        row = {"series": folder.name, "crps": _mean(ours, "crps"), "base": _mean(base, "crps")}
        rows.append(row | {"covered": _mean(ours, "coverage_90"), "seconds": _mean(ours, "train_seconds")})
    columns = (
        Column("series", "other series, defaults"), Column("crps", "CRPS", "{:.4g}"),
        Column("base", "seasonal naive, empirical quantiles", "{:.4g}"), Column("covered", "90% covers", "{:.1%}"),
        Column("seconds", "CPU s", "{:.0f}"),
    )  # fmt: skip
    return [markdown_table(rows, columns)] if rows else []


def _scale(results: Path) -> list[str]:
    """Time to a first answer, and what a stream of many series costs."""
    rows = []
    for record in archive.records(results / "forecasting/scale"):
        first = record.metrics["first_answer"]
        rows.append({"what": f"fit {first['rows']:,} hourly rows and predict", "seconds": first["seconds"]})
        for part in record.metrics["stream"]:
            each = {"each": part["milliseconds_per_series"], "memory": part["peak_mib"], "seconds": part["seconds"]}
            rows.append({"what": f"stream {part['series']:,} series of {part['rows']} rows", **each})
    columns = (
        Column("what", "cost, one thread"), Column("seconds", "CPU s", "{:.0f}"),
        Column("each", "ms per series", "{:.2f}"), Column("memory", "peak memory, MiB", "{:.0f}"),
    )  # fmt: skip
    return [markdown_table(rows, columns)] if rows else []


def figures(results: Path) -> dict[str, bytes]:
    """Coverage of intervals at each step ahead."""
    found = {task: records for task in TASKS if (records := records_of(results, task))}
    return {_COVERAGE: drawn(lambda figure: _draw(figure, found), (9.0, 6.5))} if found else {}


def _draw(figure: "Figure", found: dict[str, dict[str, list[Record]]]) -> None:
    """A column of panels per task, a row per level."""
    panels = figure.subplots(len(_LEVELS), len(found), sharex="col", squeeze=False)
    for (task, methods), column in zip(found.items(), panels.T, strict=True):
        column[0].set_title(TASKS[task].replace(", ", "\n", 1), fontsize=9)
        for level, axes in zip(_LEVELS, column, strict=True):
            _coverage(axes, methods, level)
        column[-1].set_xlabel("step ahead")
    for level, axes in zip(_LEVELS, panels[:, 0], strict=True):
        axes.set_ylabel(f"{level}% intervals cover")
    shown = {line.get_label(): line for axes in panels.flat for line in axes.lines}
    names = [name.strip("*") for name in METHODS.values() if name.strip("*") in shown]
    figure.legend([shown[name] for name in names], names, loc="outside lower center", ncols=3, frameon=False)


def _coverage(axes: "Axes", methods: dict[str, list[Record]], level: int) -> None:
    for name, records in methods.items():
        steps = [
            fmean(values) for values in zip(*(r.metrics[f"coverage_{level}_by_step"] for r in records), strict=True)
        ]
        style = {**look(name, METHODS, None), "marker": ""}
        width = {"linewidth": 2.4, "zorder": 3, "linestyle": "-"} if name == OURS else {"linewidth": 1.0}
        axes.plot(range(1, len(steps) + 1), steps, label=METHODS[name].strip("*"), **{**style, **width})
    tidy(axes)
    axes.axhline(level / 100, color="#444444", linewidth=1, linestyle="--", label="_nominal")
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")


def block(results: Path) -> str:
    """One table per task, coverage by step, and a table of other series."""
    found = [records for task in TASKS if (records := records_of(results, task))]
    if not found:
        raise SystemExit(
            "results/forecasting is missing: make it with `python benchmarks/forecasting.py` and commit it"
        )
    lines = [line for task in TASKS if records_of(results, task) for line in _table(results, task)]
    lines += [f"![Coverage of 80, 90 and 95% intervals at each step ahead, by method](figures/{_COVERAGE})", ""]
    one = next(iter(found[0].values()))[0]
    made = (
        f"One thread ({one.made_on}). CRPS of M4 is divided by the mean seasonal difference. Methods that ran out "
        "of time show how many origins, drawn at random, they forecast. ± is half the 95% interval of a difference in "
        "CRPS. Written by `python benchmarks/forecasting.py`."
    )
    return "\n".join([*lines, *_others(results), *_scale(results), made])


BLOCKS: dict[str, Callable[[Path], str]] = {"m4": block}
