"""The pruning curve, and which weights of each LSTM layer are left."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

from bayesrnn.report.plots import COLOURS


def picture(rows: Sequence[Mapping[str, float]], kept: Mapping[str, Any]) -> bytes:
    """Perplexity against the share removed; below it, per recurrent weight matrix, what is left (dark). PNG bytes.

    Args:
        rows: with ``fraction`` and ``valid_perplexity``.
        kept: parameter name to a boolean tensor of the parameter's shape.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    matrices = {name: mask for name, mask in kept.items() if name.startswith("rnn.weight")}
    figure = Figure(figsize=(7.2, 7.2 if matrices else 4), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(2 if matrices else 1, max(len(matrices), 1))
    axes = figure.add_subplot(grid[0, :])
    axes.plot([r["fraction"] for r in rows], [r["valid_perplexity"] for r in rows], "o-", color=COLOURS[1])
    axes.set_yscale("log")
    axes.set_xlabel("share of weights removed, lowest |mean| / sigma first")
    axes.set_ylabel("validation perplexity (log scale)")
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)
    for column, (name, mask) in enumerate(matrices.items()):
        cell = figure.add_subplot(grid[1, column])
        cell.imshow(mask.numpy(), aspect="auto", cmap="Greys", vmin=0, vmax=1, interpolation="nearest")
        cell.set_title(name.removeprefix("rnn."), fontsize=9)
        cell.set_xlabel("input unit")
        cell.set_xticks([])
        height = mask.shape[0] // 4
        cell.set_yticks([height * (k + 0.5) for k in range(4)], ["i", "f", "g", "o"] if column == 0 else [""] * 4)
    png = io.BytesIO()
    figure.savefig(png, format="png", metadata={"Software": None})
    return png.getvalue()
