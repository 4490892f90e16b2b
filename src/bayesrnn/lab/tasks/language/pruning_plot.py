"""The pruning curve, and which weights of each LSTM layer are left."""

from collections.abc import Mapping, Sequence
from typing import Any

from bayesrnn.lab.report.plots import COLOURS, canvas, draw_pattern, plain, png


def picture(
    rows: Sequence[Mapping[str, float]], kept: Mapping[str, Any], again: Sequence[Mapping[str, float]] = ()
) -> bytes:
    """Perplexity against the share removed; below it, per recurrent weight matrix, what is left (dark). PNG bytes.

    Args:
        rows: with ``fraction`` and ``valid_perplexity``.
        kept: parameter name to a boolean tensor of the parameter's shape.
        again: as ``rows``, where what is left was trained again.
    """
    from matplotlib.ticker import LogLocator, StrMethodFormatter

    matrices = {n.removeprefix("rnn."): m for n, m in kept.items() if n.startswith("rnn.") and "weight_" in n}
    columns = min(4, max(len(matrices), 1))
    below = -(-len(matrices) // columns)
    figure = canvas((7.2, 4 + 3.2 * below), dpi=120)
    grid = figure.add_gridspec(1 + below, columns)
    axes = figure.add_subplot(grid[0, :])
    lines = {"removed": (rows, "o-", COLOURS[0]), "removed, the rest trained again": (again, "s--", COLOURS[1])}
    for label, (some, style, colour) in lines.items():
        if some:
            xs, ys = [r["fraction"] for r in some], [r["valid_perplexity"] for r in some]
            axes.plot(xs, ys, style, color=colour, label=label)
    if again:
        axes.legend(frameon=False)
    values = [r["valid_perplexity"] for r in (*rows, *again)]
    wide = max(values) > 2 * min(values)
    if wide:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.minorticks_off()
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axes.set_xlabel("share of weights removed, lowest |mean| / sigma first")
    axes.set_ylabel(f"validation perplexity{' (log scale)' * wide}")
    plain(axes, lines="y")
    for place, (name, mask) in enumerate(matrices.items()):
        draw_pattern(figure.add_subplot(grid[1 + place // columns, place % columns]), name, mask, ("i", "f", "g", "o"))
    return png(figure)
