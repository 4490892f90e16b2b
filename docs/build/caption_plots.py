"""Pictures of captioning runs for the documentation, from the records that :mod:`docs.build.captioning` reads."""

import statistics
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from bayesrnn.lab.report.plots import COLOURS, png
from bayesrnn.lab.runs.record import values as values_of
from docs.build.captioning import METHODS, SIGNS, Runs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOUR = dict(zip(METHODS, COLOURS, strict=False))
_STYLE = dict(zip(METHODS, ((0, (5, 1.5)), "-", "-", "-", (0, (5, 1.5)), "-"), strict=True))
_FILLS: dict[str, tuple[str, float, Literal["full", "none", "left"]]] = {
    "": ("posterior mean", -0.2, "full"),
    "_mc": ("average over draws", 0.0, "none"),
    "_consensus": ("consensus of draws", 0.2, "left"),
}
_LEGEND = 8.5  # six names of methods in three columns
_MARK = dict(zip(METHODS, "sD^pvo", strict=True))


def _new(width: float, height: float) -> "Figure":
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _plain(axes: "Axes", grid: Literal["x", "y"] = "y") -> None:
    axes.grid(axis=grid, color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def curves(runs: Runs) -> bytes:
    """Validation (and training) perplexity per epoch; one line per seed."""
    figure = _new(7.2, 4.2)
    axes = figure.add_subplot()
    ends = []
    for name, records in runs.items():
        for k, record in enumerate(records):
            for key, style, width in (("train_perplexity", (0, (1, 1)), 1.0), ("valid_perplexity", _STYLE[name], 2.0)):
                values = record.curve(key)
                label = METHODS[name] if k == 0 and key == "valid_perplexity" else None
                axes.plot(range(1, len(values) + 1), values, color=_COLOUR[name], ls=style, lw=width, label=label)
            best = record.metric("best_epoch")
            value = record.curve("valid_perplexity")[best - 1]
            axes.plot(best, value, _MARK[name], color=_COLOUR[name], ms=8, markeredgecolor="white", zorder=3)
            ends.append(value)
    axes.set_yscale("log")
    low = min(min(record.curve("train_perplexity")) for records in runs.values() for record in records)
    axes.set_ylim(0.95 * min(low, *ends), 4 * max(ends))
    ticks = [t for t in (3, 4, 5, 7, 10, 15, 20, 30, 50, 70, 100) if axes.get_ylim()[0] <= t <= axes.get_ylim()[1]]
    axes.set_yticks(ticks, [str(t) for t in ticks])
    axes.set_yticks([], minor=True)
    axes.set_xlabel("epoch")
    axes.set_ylabel("perplexity per word (log scale)")
    axes.plot([], [], color="#444444", ls=(0, (1, 1)), lw=1.0, label="training, with noise")
    _plain(axes)
    figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=_LEGEND)
    return png(figure)


def scores(runs: Runs) -> bytes:
    """Perplexity, BLEU-4 and CIDEr on test images: a mark per seed, filled, open or half for mean, draws, consensus."""
    figure = _new(8.4, 1.6 + 0.42 * len(runs))
    keys = {"perplexity": "perplexity (lower is better)", "bleu4": "BLEU-4", "cider": "CIDEr"}
    shared: Any = None
    for column, (key, title) in enumerate(keys.items(), 1):
        axes = figure.add_subplot(1, 3, column, sharey=shared)
        for row, (name, records) in enumerate(runs.items()):
            for suffix, (_, shift, fill) in _FILLS.items():
                values = values_of(records, f"test_{key}{suffix}")
                axes.plot(
                    values, [row + shift] * len(values), _MARK[name], color=_COLOUR[name], fillstyle=fill, ms=8,
                    markerfacecoloralt="white",
                )  # fmt: skip
        axes.set_title(title, fontsize=10)
        _plain(axes, grid="x")
        if shared is None:
            shared = axes
            axes.set_yticks(range(len(runs)), [METHODS[name] for name in runs])
            axes.set_ylim(len(runs) - 0.5, -0.5)
        else:
            axes.tick_params(labelleft=False)
    every = [record for records in runs.values() for record in records]
    for suffix, (label, _, fill) in _FILLS.items():
        if values_of(every, f"test_bleu4{suffix}"):
            axes.plot([], [], "o", color="#444444", fillstyle=fill, markerfacecoloralt="white", label=label)
    figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=_LEGEND)
    return png(figure)


def lengths(runs: Runs) -> bytes:
    """Validation CIDEr and words per caption against the length penalty, for each beam; the first seed, the mean."""
    figure = _new(7.2, 3.4)
    left, right = figure.add_subplot(1, 2, 1), figure.add_subplot(1, 2, 2)
    widest = 0
    for name, records in runs.items():
        rows = records[0].metric("decoding") or []
        beams = sorted({row["beam"] for row in rows})
        for k, beam in enumerate(beams):
            own = sorted((row for row in rows if row["beam"] == beam), key=lambda row: row["length_penalty"])
            x = [row["length_penalty"] for row in own]
            strength = (k + 1) / len(beams)
            look: dict[str, Any] = {"color": _COLOUR[name], "marker": _MARK[name], "ms": 5}
            look |= {"alpha": 0.4 + 0.6 * strength, "lw": 0.5 + 2 * strength}
            label = METHODS[name] if beam == beams[-1] else None
            widest = max(widest, len(beams))
            left.plot(x, [row["cider"] for row in own], label=label, **look)
            right.plot(x, [row["words"] for row in own], **look)
    for axes, title in ((left, "CIDEr, validation"), (right, "words per caption")):
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("length penalty; thicker: wider beam" if widest > 1 else "length penalty")
        _plain(axes)
    figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=_LEGEND)
    return png(figure)


def doubt(runs: Runs) -> bytes:
    """CIDEr of the captions kept, against the share kept, for each sign of doubt."""
    figure = _new(7.2, 3.2)
    shared: Any = None
    for column, (sign, title) in enumerate(SIGNS.items(), 1):
        shared = axes = figure.add_subplot(1, 3, column, sharey=shared)
        for name, records in runs.items():
            found = values_of(records, f"selective.{sign}")
            if found:
                x = [share for share, _ in found[0]]
                y = [statistics.fmean(value for _, value in points) for points in zip(*found, strict=True)]
                label = METHODS[name] if column == 1 else None
                axes.plot(x, y, color=_COLOUR[name], ls=_STYLE[name], marker=_MARK[name], ms=5, label=label)
        axes.set_title(f"kept by {title}", fontsize=10)
        axes.set_xlabel("share of captions kept")
        if column == 1:
            axes.set_ylabel("CIDEr")
        _plain(axes)
    figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=_LEGEND)
    return png(figure)


DRAWN: dict[str, Callable[[Runs], bytes]] = {
    "captioning-curves.png": curves,
    "captioning-scores.png": scores,
    "captioning-lengths.png": lengths,
    "captioning-doubt.png": doubt,
}
