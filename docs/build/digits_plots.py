"""Pictures of digit runs for the documentation, from the records that :mod:`docs.build.digits` reads."""

import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bayesrnn.lab.report.plots import COLOURS
from bayesrnn.lab.runs.record import Record
from bayesrnn.lab.runs.record import values as values_of
from docs.build.digits import (
    NAMES,
    PAIRS,
    PLAIN,
    SHARPENED,
    TURNED,
    Runs,
    levels_reached,
    load,
    pictures,
    sharpening_finding,
)
from docs.build.pictures import drawn, write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def figures(results: Path) -> dict[str, bytes]:
    """PNG files by name, of whatever records there are."""
    runs = load(results)
    draws: dict[str, tuple[Callable[[Figure, Runs], None], tuple[float, float]]] = {
        "digits-errors.png": (_draw_errors, (8.0, 1.4 + 0.36 * len(runs))),
        "digits-pruning.png": (_draw_pruning, (7.2, 4.2)),
        "digits-turning.png": (_draw_turning, (9.0, 6.0)),
    }
    made = {name: drawn(_of(draws[name][0], runs), draws[name][1]) for name in pictures(runs)}
    for name in PAIRS:
        pair = load(results / name)
        if sharpening_finding(pair) is not None:
            made[f"{name}.png"] = drawn(_of(_draw_sharpening, pair), (9.0, 4.0))
    return made


def _of(draw: Callable[["Figure", Runs], None], runs: Runs) -> Callable[["Figure"], None]:
    return lambda figure: draw(figure, runs)


def write_figures(results: Path, folder: Path) -> list[Path]:
    """Write the pictures into the folder; returns their paths."""
    return write(figures(results), folder)


def _tidy(axes: "Axes", x: str, y: str, *, grid: str = "y") -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(axis=grid, color="#dddddd", linewidth=0.8)  # type: ignore[arg-type]
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_errors(figure: "Figure", runs: Runs) -> None:
    axes = figure.add_subplot()
    for key, colour, marker, label, shift in (
        ("test_error", COLOURS[0], "o", "one standard pass", 0.14),
        ("test_error_mc", COLOURS[1], "D", "draws averaged (MC)", -0.14),
    ):
        seen = False
        for row, records in enumerate(reversed(runs.values())):
            values = values_of(records, key)
            if values:
                y = row + shift
                axes.plot(values, [y] * len(values), marker, color=colour, markersize=4, alpha=0.45, linestyle="")
                axes.plot(
                    statistics.fmean(values), y, marker, color=colour, markersize=8, linestyle="",
                    label=None if seen else label,
                )  # fmt: skip
                seen = True
    axes.set_yticks(range(len(runs)), [NAMES[name] for name in reversed(runs)])
    axes.set_ylim(-0.6, len(runs) - 0.4)
    _tidy(axes, "test error, % (large: mean over seeds)", "", grid="x")
    figure.legend(loc="outside upper center", ncols=2, frameon=False)


def _mean_curve(records: Sequence[Record]) -> list[float]:
    curves = [r.curve("test_error") for r in records]
    return [statistics.fmean(values) for values in zip(*curves, strict=False)]


def _draw_sharpening(figure: "Figure", runs: Runs) -> None:
    left, right = figure.subplots(1, 2)
    kinds = ((PLAIN, COLOURS[0], "o", "plain"), (SHARPENED, COLOURS[1], "D", "sharpened"))
    for name, colour, _, label in kinds:
        for record in runs[name]:
            curve = record.curve("test_error")
            left.plot(range(1, len(curve) + 1), curve, color=colour, linewidth=0.7, alpha=0.35)
        curve = _mean_curve(runs[name])
        style = "-" if name == PLAIN else (0, (5, 1.5))
        left.plot(range(1, len(curve) + 1), curve, color=colour, linewidth=2, linestyle=style, label=label)
    left.set_xscale("log")
    left.xaxis.set_major_formatter("{x:g}")
    left.set_yscale("log")
    _plain_ticks(left, [1, 1.2, 1.4, 1.7, 2, 2.5, 3, 4, 5, 7, 10, 15, 20, 30, 50, 90])
    _tidy(left, "epoch (log scale)", "test error, % (log scale)")
    left.legend(frameon=False)
    rows = levels_reached(runs)
    for name, colour, marker, label in kinds:
        right.plot(
            [row["level"] for row in rows], [row[name] for row in rows], marker=marker, color=colour, label=label,
            linewidth=1.3, markersize=6,
        )  # fmt: skip
    right.invert_xaxis()
    if rows and rows[0]["level"] / rows[-1]["level"] > 5:
        right.set_xscale("log")
        right.set_xticks([row["level"] for row in rows], [f"{row['level']:g}" for row in rows], fontsize=8)
        right.minorticks_off()
    if rows:
        right.set_yscale("log")
        _plain_ticks(right, [m * 10**e for e in range(3) for m in (1, 2, 3, 5)])
    _tidy(right, "test error reached, %", "first epoch, mean over seeds (log scale)")


def _plain_ticks(axes: "Axes", ticks: Sequence[float]) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(FixedLocator([t for t in ticks if low <= t <= high]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))


def _draw_pruning(figure: "Figure", runs: Runs) -> None:
    axes = figure.add_subplot()
    pruned = {name: [r for r in records if r.metric("pruning")] for name, records in runs.items()}
    styles = zip(COLOURS, "oDs^vP", ("-", (0, (5, 1.5)), (0, (1, 1)), "-.", "-", (0, (5, 1.5))), strict=False)
    for (name, records), (colour, marker, style) in zip([i for i in pruned.items() if i[1]], styles, strict=False):
        rows = records[0].metric("pruning")
        mean = [statistics.fmean(r.metric("pruning")[k]["test_error"] for r in records) for k in range(len(rows))]
        kept = [100 * (1 - row["fraction"]) for row in rows]
        axes.plot(kept, mean, marker=marker, linestyle=style, color=colour, label=NAMES[name], markersize=5)
    axes.set_xscale("log")
    axes.invert_xaxis()
    axes.set_yscale("log")
    _plain_ticks(axes, [1, 1.2, 1.5, 2, 3, 5, 10, 20, 50, 90])
    ticks = [100, 50, 25, 10, 5, 2, 1]
    axes.set_xticks(ticks, [f"{t}%" for t in ticks])
    axes.minorticks_off()
    _tidy(axes, "weights left, highest |mean| / sigma kept (log scale)", "test error, % (log scale)")
    axes.legend(frameon=False, fontsize=9)


def _draw_turning(figure: "Figure", runs: Runs) -> None:
    """Every draw a short line, as wide as the angle allows; classes side by side within an angle."""
    rows = next(r.metric("turning") for r in runs[TURNED] if r.metric("turning"))
    outputs = [[_softmax(draw) for draw in row["logits"]] for row in rows]
    means = [[statistics.fmean(draw[c] for draw in draws) for c in range(10)] for draws in outputs]
    shown = sorted(sorted(range(10), key=lambda c: -max(m[c] for m in means))[:4])
    top, bottom = figure.subplots(2, 1, sharex=True)
    step = rows[1]["angle"] - rows[0]["angle"]
    width = 0.8 * step / len(shown)
    for at, c in enumerate(shown):
        shift = (at - (len(shown) - 1) / 2) * width
        for axes, values in (
            (top, [[draw[c] for draw in row["logits"]] for row in rows]),
            (bottom, [[draw[c] for draw in draws] for draws in outputs]),
        ):
            for row, of_draws in zip(rows, values, strict=True):
                axes.plot(
                    [row["angle"] + shift] * len(of_draws), of_draws, linestyle="", marker="_", markersize=7,
                    color=COLOURS[at], alpha=0.5, markeredgewidth=1.2,
                )  # fmt: skip
            middle = [statistics.median(v) for v in values]
            angles = [row["angle"] + shift for row in rows]
            axes.plot(
                angles, middle, color=COLOURS[at], linewidth=1, marker="osD^"[at], markersize=3.5, label=f"class {c}"
            )
    _tidy(top, "", "softmax input")
    _tidy(bottom, "degrees that a test image of a 1 is turned by", "softmax output")
    bottom.set_xticks([row["angle"] for row in rows])
    handles, labels = top.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(shown), frameon=False)


def _softmax(logits: Sequence[float]) -> list[float]:
    top = max(logits)
    powers = [math.exp(v - top) for v in logits]
    return [p / sum(powers) for p in powers]
