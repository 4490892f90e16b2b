"""Plots of forecasts: bands that show both kinds of uncertainty apart, and whether they hold what they promise."""

import math
import re
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from bayesrnn.lab.report.plots import COLOURS, canvas, plain, png, short, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLACK, FORECAST, MODEL = "#222222", COLOURS[0], COLOURS[1]
_DPI = 150
_NARROW, _WIDE = (4.6, 3.9), (7.2, 3.8)
_MONTH = re.compile(r"\d{4}-(0[1-9]|1[0-2])")


def columns_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of a record under their present names: older ones call standard deviations aleatoric and epistemic."""
    stds = {f"{key}_std": record[key] for key in ("aleatoric", "epistemic") if key in record}
    return {**stds, **record}


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
    # Hours on a second line: labels of full stamps would overlap.
    axes.set_xticks(list(at), [re.sub(r" (\d\d:\d\d)(:00)?$", r"\n\1", short(labels[i], 20)) for i in at])
    axes.set_xlim(-0.01 * len(labels), 1.01 * len(labels))


def _bands(axes: "Axes", x: Sequence[int], rows: Mapping[str, Sequence[float]], level: float) -> None:
    """The whole interval, light, and inside it the part that comes from not knowing the weights, dark."""
    reach = NormalDist().inv_cdf((1 + level) / 2)
    dark_low = [m - reach * e for m, e in zip(rows["mean"], rows["epistemic_std"], strict=True)]
    dark_high = [m + reach * e for m, e in zip(rows["mean"], rows["epistemic_std"], strict=True)]
    axes.fill_between(
        x, rows["low"], rows["high"], color=FORECAST, alpha=0.22, linewidth=0, label=f"{level:.0%} interval"
    )
    if any(e > 0 for e in rows["epistemic_std"]):
        name = "of this, the model's own doubt (epistemic)"
        axes.fill_between(x, dark_low, dark_high, color=MODEL, alpha=0.45, linewidth=0, label=short(name))
    axes.plot(x, rows["mean"], color=FORECAST, linewidth=1.8, label="forecast")


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
        past: the last values. rows: columns mean, low, high, epistemic_std of the steps after them.
        labels: dates of both. direct: after so many steps forecasts are sampled roll-outs, and a line says so.
        narrow: to be read on a phone; the words about that line are the page's.
    """
    figure = canvas(_NARROW if narrow else _WIDE, dpi=_DPI)
    axes = figure.add_subplot()
    past, rows = [shown(v) for v in past], _shown(rows, ("mean", "low", "high", "epistemic_std"))
    start = len(past)
    ahead = list(range(start, start + len(rows["mean"])))
    _bands(axes, ahead, rows, level)
    axes.plot(range(start), past, color=BLACK, linewidth=1.6, label=short(name))
    if direct < len(ahead):
        axes.axvline(start + direct - 0.5, color="#888888", linewidth=1, linestyle=":")
        if not narrow:
            axes.annotate(
                "sampled roll-outs", (start + direct - 0.5, 1.0), xycoords=("data", "axes fraction"),
                xytext=(4, -10), textcoords="offset points", fontsize=8, color="#666666",
            )  # fmt: skip
    axes.set_ylabel(short(name))
    _date_ticks(axes, labels, 4 if narrow else 7)
    plain(axes, lines="y")
    _legend_above(figure, axes, narrow, columns=4)
    return png(figure)


def walked(
    columns: Mapping[str, Sequence[float]],
    dates: Sequence[str],
    *,
    name: str,
    level: float,
    last: int,
    narrow: bool = False,
) -> bytes:
    """Forecasts one step ahead beside what came; below, both uncertainties. PNG bytes.

    Args:
        columns: mean, low, high, actual, aleatoric_std and epistemic_std, one value per date.
    """
    keys = ("mean", "low", "high", "aleatoric_std", "epistemic_std", "actual")
    rows = _shown({key: columns[key][-last:] for key in keys}, keys)
    figure = canvas((_NARROW[0], 4.6) if narrow else (_WIDE[0], 4.8), dpi=_DPI)
    top, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    x = list(range(len(rows["mean"])))
    _bands(top, x, rows, level)
    inside = [a <= y <= b for a, y, b in zip(rows["low"], rows["actual"], rows["high"], strict=True)]
    top.plot(x, rows["actual"], color=BLACK, linewidth=0.9, alpha=0.6)
    top.plot([i for i in x if inside[i]], [rows["actual"][i] for i in x if inside[i]], "o", color=BLACK,
             markersize=3, label="what came, inside")  # fmt: skip
    out = [i for i in x if not inside[i]]
    top.plot(out, [rows["actual"][i] for i in out], "X", color=COLOURS[3], markersize=7, label="outside")
    below.plot(x, rows["aleatoric_std"], color=FORECAST, linewidth=1.4, label="noise in the data (aleatoric)")
    below.plot(
        x, rows["epistemic_std"], color=MODEL, linewidth=1.4, linestyle=(0, (4, 2)), label="the model's (epistemic)"
    )
    highest = max((v for v in [*rows["aleatoric_std"], *rows["epistemic_std"]] if not math.isnan(v)), default=0.0)
    below.set_ylim(0, (2.2 if narrow else 1.5) * highest if highest > 0 else 1)  # room for the legend
    below.set_ylabel("sd" if narrow else "std. deviation")
    below.legend(frameon=False, fontsize=8, ncols=1 if narrow else 2, loc="upper left")
    top.set_ylabel(short(name))
    _date_ticks(below, dates[-last:], 4 if narrow else 7)
    for axes in (top, below):
        plain(axes, lines="y")
    _legend_above(figure, top, narrow, columns=3)
    return png(figure)


def _legend_above(figure: "Figure", axes: "Axes", narrow: bool, *, columns: int) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if narrow:
        figure.legend(handles, labels, loc="outside upper left", ncols=1, frameon=False, fontsize=8.5)
    else:
        figure.legend(handles, labels, loc="outside upper center", ncols=columns, frameon=False, fontsize=9)
