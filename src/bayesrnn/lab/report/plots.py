"""Plots as PNG bytes, drawn without a display."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's palette: distinguishable with any colour vision. Line styles and markers say the same again.
COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


@dataclass(frozen=True)
class Curve:
    """One model's metric per epoch (from 1) on the training and on the validation text."""

    train: Sequence[float]
    valid: Sequence[float]


def _label_ends(axes: "Axes", curves: Mapping[str, Curve]) -> None:
    """The last validation value beside each curve, moved apart where two would overlap."""
    from math import log

    ends = sorted(zip((curve.valid for curve in curves.values()), COLOURS, strict=False), key=lambda end: end[0][-1])
    # In points; the axes are about 260 high. Good enough to keep labels of 11 points apart.
    low = min(min(*curve.train, *curve.valid) for curve in curves.values())
    high = max(max(*curve.train, *curve.valid) for curve in curves.values())
    scale = 240 / max(log(high / low), 1e-9)
    previous = float("-inf")
    for values, colour in ends:
        natural = log(values[-1] / low) * scale
        placed = max(natural, previous + 11)
        previous = placed
        axes.annotate(
            f"{values[-1]:.0f}",
            (len(values), values[-1]),
            xytext=(7, placed - natural),
            textcoords="offset points",
            color=colour,
            va="center",
            fontweight="bold",
        )


def learning_curves(curves: Mapping[str, Curve], *, ylabel: str = "perplexity") -> bytes:
    """Validation (solid) and training (dashed) of each model, log scale, best validation epoch marked. PNG bytes."""
    # The object interface with its own canvas: a user's pyplot state and backend stay as they are.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator, StrMethodFormatter

    figure = Figure(figsize=(7.2, 4.6), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    lowest, highest, longest = float("inf"), 0.0, 1
    for (name, curve), colour in zip(curves.items(), COLOURS, strict=False):
        epochs = range(1, len(curve.valid) + 1)
        axes.plot(epochs, curve.train, color=colour, linestyle=(0, (4, 2)), linewidth=1.3)
        axes.plot(epochs, curve.valid, color=colour, linewidth=2.2, label=name)
        best = min(epochs, key=lambda epoch: curve.valid[epoch - 1])
        axes.plot(best, curve.valid[best - 1], "o", color=colour, markersize=8, markeredgecolor="white", zorder=3)
        lowest = min(lowest, *curve.train, *curve.valid)
        highest = max(highest, *curve.train, *curve.valid)
        longest = max(longest, len(curve.valid))

    axes.set_yscale("log")
    _label_ends(axes, curves)
    ticks = [m * 10**e for e in range(7) for m in (1, 1.5, 2, 3, 5, 7)]
    axes.yaxis.set_major_locator(FixedLocator([t for t in ticks if lowest / 1.2 <= t <= highest * 1.2]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlim(0.5, longest * 1.06 + 0.5)
    axes.set_xlabel("epoch")
    axes.set_ylabel(f"{ylabel} (log scale)")
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    names, _ = axes.get_legend_handles_labels()
    styles = [
        Line2D([], [], color="#444444", linewidth=2.2, label="validation"),
        Line2D([], [], color="#444444", linewidth=1.3, linestyle=(0, (4, 2)), label="training"),
        Line2D([], [], color="#444444", marker="o", linestyle="", label="best epoch"),
    ]
    figure.legend(handles=[*names, *styles], loc="outside upper center", ncols=3, frameon=False)
    png = io.BytesIO()
    figure.savefig(png, format="png", metadata={"Software": None})
    return png.getvalue()
