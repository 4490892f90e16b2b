"""The plots of a report, as PNG bytes: narrow enough to be read on a phone, lines told apart by more than colour."""

import io
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Darker than Okabe and Ito's: at least 3:1 against white, and apart for every kind of colour vision.
COLOURS = ("#0060A8", "#C04A00", "#00795C", "#8E3E7C", "#000000", "#7A5C00")
STYLES = ("-", (0, (5, 1.5)), (0, (1.5, 1.5)), (0, (6, 1.5, 1.5, 1.5)), (0, (3, 1, 1, 1, 1, 1)), (0, (9, 2)))
MARKERS = ("o", "s", "^", "D", "v", "P")
_SIZE = (4.6, 3.3)


def look(name: str, named: Mapping[str, Any], order: Sequence[str] | None) -> dict[str, Any]:
    """Colour, line and marker of a name: by its place in ``order``, so that it looks the same in every plot.

    A colour that comes again, with the seventh name, comes with another line and another marker.
    """
    index = list(order if order is not None and name in order else named).index(name)
    again = index // len(COLOURS)
    return {
        "color": COLOURS[index % len(COLOURS)],
        "linestyle": STYLES[(index + again) % len(STYLES)],
        "marker": MARKERS[(index + 2 * again) % len(MARKERS)],
    }


def figure(size: tuple[float, float] = _SIZE) -> tuple["Figure", "Axes"]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(figsize=size, dpi=200, layout="constrained")
    FigureCanvasAgg(made)
    axes = made.add_subplot()
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)
    return made, axes


def png(made: "Figure") -> bytes:
    """The figure as it is: a dollar sign in a name from a file begins no formula."""
    from matplotlib import rc_context
    from matplotlib.text import Text

    out = io.BytesIO()
    text: Any
    for text in made.findobj(Text):
        text.set_parse_math(False)
    with rc_context({"text.parse_math": False}), warnings.catch_warnings():  # ticks are made while it is drawn
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # a name of another script has boxes
        made.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


def drawn(draw: Callable[["Figure"], None], size: tuple[float, float]) -> bytes:
    """A picture of the documentation: what ``draw`` makes of an empty figure."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(figsize=size, dpi=130, layout="constrained")
    FigureCanvasAgg(made)
    draw(made)
    return png(made)


def write(pictures: Mapping[str, bytes], folder: Path) -> list[Path]:
    """Write pictures by name into a folder; returns their paths."""
    if pictures:
        folder.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures.items():
        (folder / name).write_bytes(picture)
    return [folder / name for name in pictures]


def _legend(made: "Figure", axes: "Axes") -> None:
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        short = [label if len(label) <= 46 else label[:45] + "…" for label in labels]
        width, height = made.get_size_inches()
        made.set_size_inches(width, height + 0.18 * max(0, len(short) - 3))  # the plot keeps its room
        made.legend(handles, short, loc="outside upper left", ncols=1, frameon=False, fontsize=8.5, handlelength=3)


def _log_ticks(axes: "Axes", low: float, high: float) -> None:
    """A log scale with plain numbers on it, where the values span more than a factor of 1.5."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if low <= 0 or high / low < 1.5:
        return
    axes.set_yscale("log")
    if high / low < 300:
        fine = (1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9)
        axes.yaxis.set_major_locator(LogLocator(base=10, subs=fine if high / low < 4 else (1, 1.5, 2, 3, 5, 7)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}" if 1000 <= x < 1e9 else f"{x:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(low / 1.06, high * 1.06)


def curves(
    named: Mapping[str, Sequence[Sequence[float]]], *, label: str, best: str = "", order: Sequence[str] | None = None
) -> bytes:
    """A figure per epoch: for each name one line per seed, the first with marks; the lowest of it where ``best`` says.

    A value that is no number leaves a gap.
    """
    from matplotlib.ticker import MaxNLocator

    made, axes = figure()
    finite = [v for lines in named.values() for line in lines for v in line if math.isfinite(v)]
    for name, lines in named.items():
        style = look(name, named, order)
        for k, line in enumerate(lines):
            epochs = range(1, len(line) + 1)
            every = max(1, len(line) // 8)
            values = [v if math.isfinite(v) else math.nan for v in line]
            axes.plot(
                epochs, values, **style, linewidth=1.8 if k == 0 else 0.8, alpha=1 if k == 0 else 0.6, markersize=4.5,
                markevery=every, label=name if k == 0 else None,
            )  # fmt: skip
            known = [e for e in epochs if math.isfinite(line[e - 1])]
            if best and k == 0 and known:
                lowest = min(known, key=lambda e: line[e - 1])
                axes.plot(lowest, line[lowest - 1], "o", markersize=10, markeredgewidth=1.6, fillstyle="none",
                          color=style["color"])  # fmt: skip
    if finite:
        _log_ticks(axes, min(finite), max(finite))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    longest = max((len(line) for lines in named.values() for line in lines), default=1)
    axes.set_xlim(1 - 0.04 * longest - 0.1, longest + 0.04 * longest + 0.1)
    axes.set_xlabel("epoch" + (f"; a ring: {best}" if best else ""), fontsize=9)
    axes.set_ylabel(label, fontsize=9)
    _legend(made, axes)
    return png(made)


def against_diagonal(
    named: Mapping[str, Sequence[tuple[float, float]]],
    *,
    across: str,
    up: str,
    sizes: Mapping[str, Sequence[float]],
    order: Sequence[str] | None = None,
) -> bytes:
    """Points (said, found) in [0, 1] against the diagonal, marks larger where there is more behind them."""
    made, axes = figure((4.6, 4.2))
    axes.plot([0, 1], [0, 1], color="#595959", linewidth=1, label="as it should be")
    for name, points in named.items():
        style = look(name, named, order)
        weights = sizes.get(name)
        xs, ys = zip(*points, strict=True)
        axes.plot(xs, ys, color=style["color"], linestyle=style["linestyle"], linewidth=1.2)
        top = max(weights) if weights else 1.0
        areas = [20 + 130 * math.sqrt(w / top) for w in weights] if weights and top > 0 else 45
        axes.scatter(
            xs, ys, s=areas, marker=style["marker"], color=style["color"], alpha=0.8,
            edgecolors="white", linewidths=0.6, label=name,
        )  # fmt: skip
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlabel(across, fontsize=9)
    axes.set_ylabel(up, fontsize=9)
    _legend(made, axes)
    return png(made)


def lines(
    named: Mapping[str, Sequence[tuple[float, float]]],
    *,
    across: str,
    up: str,
    levels: Mapping[str, float] | None = None,
    ticks: Sequence[float] | None = None,
    log_y: bool = False,
    order: Sequence[str] | None = None,
) -> bytes:
    """Any figure against any other; ``levels`` are published values, drawn across."""
    made, axes = figure()
    for name, points in named.items():
        axes.plot(*zip(*points, strict=True), **look(name, named, order), linewidth=1.6, markersize=4.5, label=name)
    for place, (name, value) in enumerate(sorted((levels or {}).items(), key=lambda item: -item[1])):
        axes.axhline(value, color="#595959", linewidth=1, linestyle=(0, (2, 2)))
        axes.annotate(
            f"{name} {value:g}",
            (0.99, value),
            xycoords=("axes fraction", "data"),
            xytext=(0, 2 if place == 0 else -2),  # the highest above its line, others below
            textcoords="offset points",
            ha="right",
            va="bottom" if place == 0 else "top",
            fontsize=8.5,
            color="#404040",
        )
    ys = [y for points in named.values() for _, y in points]
    if log_y and ys:
        _log_ticks(axes, min(ys), max(ys))
    if ticks is not None:
        axes.set_xticks(list(ticks), [f"{t:g}" for t in ticks])
    axes.set_xlabel(across, fontsize=9)
    axes.set_ylabel(up, fontsize=9)
    _legend(made, axes)
    return png(made)


def histogram(
    named: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    *,
    across: str,
    up: str,
    order: Sequence[str] | None = None,
) -> bytes:
    """Shares per bin as steps: for each name (edges, shares), one edge more than shares."""
    made, axes = figure()
    for name, (edges, shares) in named.items():
        style = look(name, named, order)
        axes.stairs(shares, edges, color=style["color"], linestyle=style["linestyle"], linewidth=1.8, label=name)
    axes.set_xlabel(across, fontsize=9)
    axes.set_ylabel(up, fontsize=9)
    axes.set_ylim(bottom=0)
    _legend(made, axes)
    return png(made)


def patterns(kept: Mapping[str, Any], gates: Mapping[str, Sequence[str]]) -> bytes:
    """For each weight matrix what is left (dark) and what is gone (white).

    Args:
        kept: names to boolean tensors (rows, columns).
        gates: names to the labels of equal parts of the rows, from above.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(2, len(kept))
    rows = math.ceil(len(kept) / columns)
    made = Figure(figsize=(4.6, 2.1 * rows + 0.3), dpi=200, layout="constrained")
    FigureCanvasAgg(made)
    for index, (name, mask) in enumerate(kept.items()):
        axes = made.add_subplot(rows, columns, index + 1)
        axes.imshow(mask.numpy(), aspect="auto", cmap="Greys", vmin=0, vmax=1, interpolation="nearest")
        axes.set_title(f"{name}: {mask.float().mean().item():.0%} left", fontsize=8.5)
        axes.set_xticks([])
        axes.set_xlabel("input unit", fontsize=8)
        labels = gates.get(name, ())
        height = mask.shape[0] / max(len(labels), 1)
        axes.set_yticks([height * (k + 0.5) - 0.5 for k in range(len(labels))], labels, fontsize=8)
    return png(made)
