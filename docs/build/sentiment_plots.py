"""Pictures of sentiment runs for the documentation, from the records that :mod:`docs.build.sentiment` reads."""

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from bayesrnn.lab.report.plots import COLOURS
from docs.build.pictures import drawn, write
from docs.build.sentiment import (
    CELLS,
    VARIANTS,
    Runs,
    any_spread,
    curve_of,
    levels_of,
    load,
    with_lengths,
)
from docs.build.sentiment_grid import grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_STYLES = dict(zip(VARIANTS, ("-", (0, (5, 1.5)), "-", (0, (1, 1))), strict=True))
_COLOUR = dict(zip(VARIANTS, (COLOURS[0], COLOURS[4], COLOURS[1], COLOURS[2]), strict=True))
_MARK = dict(zip(VARIANTS, "osD^", strict=True))


def figures(results: Path) -> dict[str, bytes]:
    """PNG files by name, of whatever records there are."""
    runs, (_, points), (_, last) = load(results), grid(results), grid(results, last=True)
    made = {}
    if runs:
        made["sentiment-curves.png"] = drawn(lambda f: _draw_curves(f, runs), (9.0, 4.2))
        made["sentiment-intervals.png"] = drawn(lambda f: _draw_coverage(f, runs), (9.0, 4.2))
    if any_spread(runs):
        made["sentiment-uncertainty.png"] = drawn(lambda f: _draw_uncertainty(f, runs), (9.0, 4.2))
    for name, label, values in (("", "lowest", points), ("-last", "last", last)):
        if values:
            made[f"sentiment-grid{name}.png"] = _grid_picture(values, f"{label} validation RMSE")
    return made


def write_figures(results: Path, folder: Path) -> list[Path]:
    """Write the pictures into the folder; returns their paths."""
    return write(figures(results), folder)


def _tidy(axes: "Axes", title: str, x: str, y: str | None) -> None:
    axes.set_title(title, fontsize=11)
    axes.set_xlabel(x)
    if y is not None:
        axes.set_ylabel(y)
    axes.grid(color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _panels(figure: "Figure", runs: Runs, *, sharey: bool = True) -> dict[str, "Axes"]:
    cells = [cell for cell in CELLS if any(key[0] == cell for key in runs)]
    made = figure.subplots(1, len(cells), sharey=sharey, squeeze=False)[0]
    return dict(zip(cells, made, strict=True))


def _legend(figure: "Figure", axes: "Axes") -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)


def _draw_curves(figure: "Figure", runs: Runs) -> None:
    """Test error per epoch: mean over seeds and their range; MC where there are draws."""
    panels = _panels(figure, runs)
    for (cell, variant), records in runs.items():
        curves = [curve_of(record) for record in records]
        length = min(map(len, curves))
        columns = [[curve[i] for curve in curves] for i in range(length)]
        epochs = list(range(1, length + 1))
        axes, colour = panels[cell], _COLOUR[variant]
        label = VARIANTS[variant] + (", MC" if records[0].curve("test_rmse_mc") else "")
        axes.plot(
            epochs,
            [statistics.fmean(c) for c in columns],
            color=colour,
            linestyle=_STYLES[variant],
            linewidth=2,
            label=label,
        )
        axes.fill_between(epochs, [min(c) for c in columns], [max(c) for c in columns], color=colour, alpha=0.2, lw=0)
    constant = next(iter(runs.values()))[0].extra["constant_rmse"]
    for i, (cell, axes) in enumerate(panels.items()):
        axes.axhline(constant, color="#666666", linewidth=1, linestyle=":", label="a constant")
        _tidy(axes, CELLS[cell], "epoch", None if i else "test RMSE")
    _legend(figure, max(panels.values(), key=lambda a: len(a.get_legend_handles_labels()[1])))


def _draw_coverage(figure: "Figure", runs: Runs) -> None:
    """Share of test ratings inside their interval, less the interval's level."""
    panels = _panels(figure, runs)
    for (cell, variant), records in runs.items():
        levels = levels_of(records)
        off = (list(VARIANTS).index(variant) - 1.5) * 0.15
        for number, record in enumerate(records):
            inside = [i["coverage"] - i["level"] for i in record.metric("end.intervals")]
            panels[cell].plot(
                [at + off for at in range(len(levels))],
                inside,
                _MARK[variant],
                color=_COLOUR[variant],
                markersize=6,
                alpha=0.8,
                label=None if number else VARIANTS[variant],
            )
    for i, (cell, axes) in enumerate(panels.items()):
        axes.axhline(0, color="#666666", linewidth=1)
        axes.axhspan(-0.05, 0.05, color="#eeeeee", zorder=0)
        axes.set_xticks(range(len(levels)), [f"{level:.0%}" for level in levels])
        low, high = axes.get_ylim()
        axes.set_ylim(min(low, -0.08), max(high, 0.08))
        _tidy(axes, CELLS[cell], "level of the interval", None if i else "share inside, less the level")
    _legend(figure, max(panels.values(), key=lambda a: len(a.get_legend_handles_labels()[1])))


def _draw_uncertainty(figure: "Figure", runs: Runs) -> None:
    """Left: error of the most certain part. Right: error against predicted spread. LSTM where there is one."""
    cell = next(iter(runs))[0]
    left, right = figure.subplots(1, 2)
    for (of, variant), records in runs.items():
        found = [r.metric("end.uncertainty") for r in records]
        if of != cell or not all(found):
            continue
        style = {"color": _COLOUR[variant], "marker": _MARK[variant], "markersize": 5, "label": VARIANTS[variant]}
        coverage = found[0]["risk"]["coverage"]
        mean = [statistics.fmean(column) for column in zip(*(f["risk"]["rmse"] for f in found), strict=True)]
        left.plot(coverage, mean, linewidth=2, **style)
        totals = [r.metric("end.uncertainty_with_noise")["risk"]["rmse"] for r in with_lengths(records)]
        if totals and variant == "variational":
            mean = [statistics.fmean(column) for column in zip(*totals, strict=True)]
            label = f"{VARIANTS[variant]}, with a noise by length"
            left.plot(coverage, mean, linewidth=2, linestyle=(0, (1, 1)), color=COLOURS[3], label=label)
        spread, error = (
            [statistics.fmean(column) for column in zip(*(f["bins"][k] for f in found), strict=True)]
            for k in ("spread", "rmse")
        )
        right.plot(spread, error, linestyle="", **style)
    _tidy(left, f"{CELLS[cell]}: keep the most certain", "share of the predictions kept", "test RMSE of those")
    _tidy(right, f"{CELLS[cell]}: ten groups by spread", "standard deviation of the draws", "test RMSE of the group")
    right.set_xlim(left=0)
    _legend(figure, left)


def _grid_picture(values: Mapping[tuple[float, float], float], label: str) -> bytes:
    from bayesrnn.lab.report.sweep import heat_map

    keys = ("p_U, recurrent inputs", "p_E, word types")
    rows = [{"settings": dict(zip(keys, at, strict=True)), "value": value} for at, value in values.items()]
    down, across = (sorted({at[i] for at in values}) for i in (0, 1))
    return heat_map(rows, keys=keys, values=(down, across), label=label)
