"""A grid over two settings as a picture."""

from collections.abc import Mapping, Sequence
from typing import Any

from bayesrnn.lab.report.plots import COLOURS, canvas, png


def heat_map(
    rows: Sequence[Mapping[str, Any]], *, keys: tuple[str, str], values: tuple[Sequence[Any], Sequence[Any]], label: str
) -> bytes:
    """The value of every pair of settings as a heat map, lower is darker; the best is framed. PNG bytes.

    Args:
        rows: with ``settings``, by key, and ``value``; None where a run failed.
        keys, values: the two settings and the values tried of each: the first downwards, the second to the right.
        label: what the values are.
    """
    from matplotlib.patches import Rectangle

    table = [[float("nan")] * len(values[1]) for _ in values[0]]
    for row in rows:
        if row["value"] is not None and set(keys) <= row["settings"].keys():
            place = [list(values[i]).index(row["settings"][keys[i]]) for i in (0, 1)]
            table[place[0]][place[1]] = row["value"]
    height, width = len(values[0]), len(values[1])
    figure = canvas((2.6 + 0.9 * width, 1.8 + 0.6 * height), dpi=150)
    axes = figure.add_subplot()
    known = sorted(v for line in table for v in line if v == v)
    # The scale ends at four fifths of the runs, so that one that diverged does not take all the shades.
    top = known[int(0.8 * (len(known) - 1))] if known else 1.0
    low = known[0] if known else 0.0
    image = axes.imshow(table, cmap="viridis", aspect="auto", vmin=low, vmax=max(top, low + 1e-12))
    for i, line in enumerate(table):
        for j, value in enumerate(line):
            text = "–" if value != value else f"{value:#.4g}".rstrip(".")
            dark = value == value and (value - low) / max(top - low, 1e-12) < 0.55
            axes.text(j, i, text, ha="center", va="center", color="white" if dark else "black", fontsize=9)
            if known and value == low:
                axes.add_patch(
                    Rectangle((j - 0.48, i - 0.46), 0.96, 0.92, fill=False, edgecolor=COLOURS[1], linewidth=2.5)
                )
    for ticks, tried in ((axes.set_xticks, values[1]), (axes.set_yticks, values[0])):
        ticks(range(len(tried)), [f"{v:g}" if isinstance(v, float) else str(v) for v in tried])
    axes.set_xlabel(keys[1])
    axes.set_ylabel(keys[0])
    axes.spines[:].set_visible(False)
    figure.colorbar(image, ax=axes, label=label, extend="max" if known and known[-1] > top else "neither")
    return png(figure)
