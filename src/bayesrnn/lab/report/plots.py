"""Plots as PNG bytes, drawn without a display: readable on a phone, lines told apart by more than colour."""

import io
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from bayesrnn.lab.reading import printable

# Darker than Okabe and Ito's: at least 3:1 against white, and apart for every kind of colour vision.
COLOURS = ("#0060A8", "#C04A00", "#00795C", "#8E3E7C", "#000000", "#7A5C00")
STYLES = ("-", (0, (5, 1.5)), (0, (1.5, 1.5)), (0, (6, 1.5, 1.5, 1.5)), (0, (3, 1, 1, 1, 1, 1)), (0, (9, 2)))
MARKERS = ("o", "s", "^", "D", "v", "P")
LARGEST, SMALLEST = 1e30, 1e-30
_SIZE = (4.6, 3.3)
DPI = 200
_POINTS = 5000  # of a line; a picture has fewer columns of pixels
_NAMES = 24  # in a legend, beside the plot's own


def shown(value: float) -> float:
    """A number as a plot can show it; NaN, which leaves a gap, where none can.

    Axes are computed in floating point: ranges and ratios of what is beyond these sizes are not finite.
    """
    if not abs(value) <= LARGEST:
        return math.nan
    return float(value) if abs(value) >= SMALLEST else 0.0


def _known(values: Iterable[float]) -> list[float]:
    return [v for v in map(shown, values) if not math.isnan(v)]


def _pairs(points: Iterable[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Points as x and y: without a finite x they are left out, without a finite y they are gaps."""
    found = [(shown(x), shown(y)) for x, y in points]
    return [x for x, _ in found if not math.isnan(x)], [y for x, y in found if not math.isnan(x)]


def _on_unit(value: float) -> bool:
    return -0.01 <= value <= 1.01


def short(text: str, most: int = 46) -> str:
    """One line of at most so many characters; a character that the font lacks becomes a box."""
    line = printable(text)
    return line if len(line) <= most else line[: most - 1] + "…"


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


def canvas(size: tuple[float, float] = _SIZE, *, dpi: int | None = None) -> Figure:
    """An empty figure with a canvas of its own: a user's pyplot state and backend stay as they are."""
    made = Figure(figsize=size, dpi=min(dpi or DPI, DPI), layout="constrained")
    FigureCanvasAgg(made)
    return made


def plain(axes: Axes, *, lines: str = "both") -> None:
    """Grid lines behind the curves, and no frame."""
    axes.grid(axis=lines, color="#dddddd", linewidth=0.6)  # type: ignore[arg-type]
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)


def figure(size: tuple[float, float] = _SIZE) -> tuple[Figure, Axes]:
    """A figure with one plot."""
    made = canvas(size)
    axes = made.add_subplot()
    plain(axes)
    return made, axes


def png(made: Figure) -> bytes:
    """The picture; a dollar sign in a name does not start a formula."""
    out = io.BytesIO()
    text: Any
    for text in made.findobj(Text):
        text.set_parse_math(False)
    with rc_context({"text.parse_math": False}), warnings.catch_warnings():  # ticks are made while it is drawn
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # a name of another script has boxes
        made.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


def _labelled(made: Figure, axes: Axes, across: str, up: str) -> bytes:
    """The picture with names of its axes and a legend."""
    axes.set_xlabel(short(across, 60), fontsize=9)
    axes.set_ylabel(short(up, 60), fontsize=9)
    _legend(made, axes)
    return png(made)


def _legend(made: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        names = [short(label) for label in labels[:_NAMES]]
        width, height = made.get_size_inches()
        made.set_size_inches(width, height + 0.18 * max(0, len(names) - 3))  # the plot keeps its room
        title = f"{_NAMES} of {len(labels)} are named" if len(labels) > _NAMES else None
        made.legend(handles[:_NAMES], names, loc="outside upper left", ncols=1, frameon=False, fontsize=8.5,
                    handlelength=3, title=title, title_fontsize=8.5, alignment="left")  # fmt: skip


def _log_ticks(axes: Axes, low: float, high: float) -> None:
    """A log scale with plain numbers on it, where the values span more than a factor of 1.5."""
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
    """A metric per epoch: for each name one line per seed, the first with marks; ``best`` names a ring at its lowest.

    What cannot be shown leaves a gap. Long curves are subsampled.
    """
    made, axes = figure()
    longest = max((len(line) for lines in named.values() for line in lines), default=1)
    step = math.ceil(longest / _POINTS)
    finite: list[float] = []
    for name, lines in named.items():
        style = look(name, named, order)
        for k, line in enumerate(lines):
            epochs = range(1, len(line) + 1, step)
            values = [shown(v) for v in line[::step]]
            finite += _known(values)
            axes.plot(
                epochs, values, **style, linewidth=1.8 if k == 0 else 0.8, alpha=1 if k == 0 else 0.6, markersize=4.5,
                markevery=max(1, len(values) // 8), label=name if k == 0 else None,
            )  # fmt: skip
            known = [(v, e) for e, v in zip(epochs, values, strict=True) if not math.isnan(v)]
            if best and k == 0 and known:
                lowest, epoch = min(known)
                axes.plot(epoch, lowest, "o", markersize=10, markeredgewidth=1.6, fillstyle="none",
                          color=style["color"])  # fmt: skip
    if finite:
        _log_ticks(axes, min(finite), max(finite))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlim(1 - 0.04 * longest - 0.1, longest + 0.04 * longest + 0.1)
    return _labelled(made, axes, f"epoch (ring: {best})" if best else "epoch", label)


def against_diagonal(
    named: Mapping[str, Sequence[tuple[float, float]]],
    *,
    across: str,
    up: str,
    sizes: Mapping[str, Sequence[float]],
    order: Sequence[str] | None = None,
) -> bytes:
    """Points (said, found) in [0, 1] against the diagonal; marker size shows the number of predictions."""
    made, axes = figure((4.6, 4.2))
    axes.plot([0, 1], [0, 1], color="#595959", linewidth=1, label="ideal")
    for name, points in named.items():
        style = look(name, named, order)
        xs, ys = _pairs((a, b) if _on_unit(a) and _on_unit(b) else (a, math.nan) for a, b in points)
        weights = [min(max(w, 0.0), LARGEST) for w in sizes.get(name, ())]
        weights = weights if len(weights) == len(xs) else []
        axes.plot(xs, ys, color=style["color"], linestyle=style["linestyle"], linewidth=1.2)
        top = max(weights, default=0.0)
        areas = [20 + 130 * math.sqrt(w / top) for w in weights] if top > 0 else 45
        axes.scatter(
            xs, ys, s=areas, marker=style["marker"], color=style["color"], alpha=0.8,
            edgecolors="white", linewidths=0.6, label=name,
        )  # fmt: skip
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.02, 1.02)
    return _labelled(made, axes, across, up)


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
    """One metric against another; ``levels`` are published values, drawn across."""
    made, axes = figure()
    for name, points in named.items():
        axes.plot(*_pairs(points), **look(name, named, order), linewidth=1.6, markersize=4.5, label=name)
    published = [(name, value) for name, value in (levels or {}).items() if _known([value])]
    for place, (name, value) in enumerate(sorted(published, key=lambda item: -item[1])):
        axes.axhline(value, color="#595959", linewidth=1, linestyle=(0, (2, 2)))
        said = axes.annotate(
            f"{short(name)} {value:g}",
            (0.99, value),
            xycoords=("axes fraction", "data"),
            xytext=(0, 2 if place == 0 else -2),  # the highest above its line, others below
            textcoords="offset points",
            ha="right",
            va="bottom" if place == 0 else "top",
            fontsize=8.5,
            color="#404040",
            annotation_clip=True,
        )
        said.set_in_layout(False)
    ys = _known(y for points in named.values() for y in _pairs(points)[1])
    ys += [value for _, value in published if ys]
    if log_y and ys:
        _log_ticks(axes, min(ys), max(ys))
    if ticks is not None:
        axes.set_xticks(_known(ticks), [f"{t:g}" for t in _known(ticks)])
    return _labelled(made, axes, across, up)


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
        axes.stairs(
            [shown(share) for share in shares],
            edges,
            color=style["color"],
            linestyle=style["linestyle"],
            linewidth=1.8,
            label=name,
        )
    highest = max(_known(share for _, shares in named.values() for share in shares), default=0.0)
    axes.set_ylim(0, 1.05 * highest if highest > 0 else 1)
    return _labelled(made, axes, across, up)


def patterns(kept: Mapping[str, Any], gates: Mapping[str, Sequence[str]]) -> bytes:
    """For each weight matrix what is left (dark) and what is gone (white).

    Args:
        kept: names to boolean tensors (rows, columns).
        gates: names to the labels of equal parts of the rows, from above.
    """
    columns = min(2, len(kept))
    rows = math.ceil(len(kept) / columns)
    made = canvas((4.6, 2.1 * rows + 0.3))
    for index, (name, mask) in enumerate(kept.items()):
        axes, parts = made.add_subplot(rows, columns, index + 1), gates.get(name, ())
        axes.imshow(mask.numpy(), aspect="auto", cmap="Greys", vmin=0, vmax=1, interpolation="nearest")
        axes.set_title(f"{name}: {mask.float().mean().item():.0%} left", fontsize=8.5)
        axes.set_xticks([])
        axes.set_xlabel("input unit", fontsize=8)
        height = mask.shape[0] / max(len(parts), 1)
        axes.set_yticks([height * (k + 0.5) - 0.5 for k in range(len(parts))], parts, fontsize=8)
    return png(made)
