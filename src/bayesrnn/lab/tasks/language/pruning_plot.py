"""The pruning curve, and which weights of each LSTM layer are left."""

from collections.abc import Mapping, Sequence
from typing import Any

from bayesrnn.lab.report.plots import COLOURS, canvas, plain, png


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

    matrices = {name: mask for name, mask in kept.items() if name.startswith("rnn.") and "weight_" in name}
    figure = canvas((7.2, 7.2 if matrices else 4), dpi=120)
    grid = figure.add_gridspec(2 if matrices else 1, max(len(matrices), 1))
    axes = figure.add_subplot(grid[0, :])
    lines = {"removed": (rows, "o-", COLOURS[0]), "removed, the rest trained again": (again, "s--", COLOURS[1])}
    for label, (some, style, colour) in lines.items():
        if some:
            axes.plot(*points(some, "valid_perplexity"), style, color=colour, label=label)
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
    for column, (name, mask) in enumerate(matrices.items()):
        cell = figure.add_subplot(grid[1, column])
        cell.imshow(mask.numpy(), aspect="auto", cmap="Greys", vmin=0, vmax=1, interpolation="nearest")
        cell.set_title(name.removeprefix("rnn."), fontsize=9)
        cell.set_xlabel("input unit")
        cell.set_xticks([])
        height = mask.shape[0] // 4
        cell.set_yticks([height * (k + 0.5) for k in range(4)], ["i", "f", "g", "o"] if column == 0 else [""] * 4)
    return png(figure)


def points(rows: Sequence[Mapping[str, float]], key: str, scale: float = 1.0) -> tuple[list[float], list[float]]:
    """Shares removed, and a value at each."""
    return [scale * r["fraction"] for r in rows], [scale * r[key] for r in rows]
