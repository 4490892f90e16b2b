"""The pruning curve, and which weights of each LSTM layer are left; for the documentation, all curves there are."""

import io
import json
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesrnn.lab.report.changes import changed_settings, other_text
from bayesrnn.lab.report.figures import drawn, look
from bayesrnn.lab.report.plots import COLOURS
from bayesrnn.lab.report.tables import Column, markdown_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHARES = (0.5, 0.7, 0.8, 0.9)
_LABEL = 80  # letters of a line beside the picture
_FLAT = 0.01  # a rise of perplexity that counts as none
_COLUMNS = (
    Column("run", "run"), Column("whole", "valid, whole", "{:.2f}"),
    *(Column(f"{share:.0%}", f"{share:.0%} removed", "{:+.1%}") for share in _SHARES),
    Column("flat", f"up to {_FLAT:+.0%}", "{:.0%} removed"),
)  # fmt: skip


def picture(
    rows: Sequence[Mapping[str, float]], kept: Mapping[str, Any], again: Sequence[Mapping[str, float]] = ()
) -> bytes:
    """Perplexity against the share removed; below it, per recurrent weight matrix, what is left (dark). PNG bytes.

    Args:
        rows: with ``fraction`` and ``valid_perplexity``.
        kept: parameter name to a boolean tensor of the parameter's shape.
        again: as ``rows``, where what is left was trained again.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, StrMethodFormatter

    matrices = {name: mask for name, mask in kept.items() if name.startswith("rnn.weight")}
    figure = Figure(figsize=(7.2, 7.2 if matrices else 4), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(2 if matrices else 1, max(len(matrices), 1))
    axes = figure.add_subplot(grid[0, :])
    lines = {"removed": (rows, "o-", COLOURS[1]), "removed, the rest trained again": (again, "s--", COLOURS[0])}
    for label, (points, style, colour) in lines.items():
        if points:
            axes.plot(*_points(points, "valid_perplexity"), style, color=colour, label=label)
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


def _points(rows: Sequence[Mapping[str, float]], key: str, scale: float = 1.0) -> tuple[list[float], list[float]]:
    return [scale * r["fraction"] for r in rows], [scale * r[key] for r in rows]


def load(results: Path) -> list[tuple[str, dict[str, Any]]]:
    """The prune.json files that were kept, with names that say what their runs were; not those of other texts.

    Records of one name are of one run where their curves are the same: its weights were trained again in several ways.
    """
    read = {path: json.loads(path.read_text("utf-8")) for path in sorted((results / "pruning").glob("*.json"))}
    found = [(path.stem, _with_settings(record, results)) for path, record in read.items() if not other_text(record)]
    curves: dict[str, list[Any]] = {}
    for _, record in found:
        curves.setdefault(_name(record), []).append(record["curve"])
    alike = {name: all(curve == own[0] for curve in own) for name, own in curves.items()}
    return [(name if alike[name := _name(record)] else f"{name}, {stem}", record) for stem, record in found]


def _with_settings(record: dict[str, Any], results: Path) -> dict[str, Any]:
    """A record without settings gets those of the run whose validation perplexity it begins with."""
    if "settings" in record:
        return record
    for path in sorted((results / record["recipe"]).glob("*.json")):
        run = json.loads(path.read_text("utf-8"))
        found, whole = run.get("metrics", {}).get("valid_perplexity", math.inf), record["curve"][0]["valid_perplexity"]
        if run.get("seed") == record["seed"] and math.isclose(found, whole, rel_tol=1e-6):
            return {**record, "settings": run["settings"]}
    return record


def _name(record: Mapping[str, Any]) -> str:
    changed = ", ".join(changed_settings(record))
    return f"{record['recipe']}{f' ({changed})' if changed else ''}, seed {record['seed']}"


def curves(results: Path, *, earlier: bool = True) -> dict[str, list[dict[str, float]]]:
    """The curve of every record, and where the rest was trained again that one too; rises are over the whole model.

    ``earlier``: also where it was trained in a way that the program no longer has, with sigmas that are not held.
    """
    found = {}
    for name, record in load(results):
        found[name] = record["curve"]
        if (again := record.get("retrained")) and (earlier or "sigma" in again):
            found[f"{name}, {_way(again)}"] = again["curve"]
    return found


def _way(again: Mapping[str, Any]) -> str:
    """How the rest was trained; earlier records, and few epochs, had all weights removed at once."""
    steps, lr = again.get("steps", 1), again.get("lr")
    rate = "" if lr is None else f" from rate {lr:g}"
    removed = f", removed in {steps} steps" if steps > 1 else ""
    sigma = again.get("sigma")  # of what is gone, as a part of what it was; None: it went on being learnt
    noise = "" if sigma is None else f", sigma held, {sigma:.0%} of it on what is gone"
    return f"trained again for {again['epochs']} epochs{rate}{removed}{noise}"


def table(results: Path) -> str:
    """The rise of validation perplexity at some shares removed, a line for every curve."""
    rows = []
    for name, curve in curves(results).items():
        whole = next((p["valid_perplexity"] for p in curve if p["fraction"] == 0), None)
        row: dict[str, Any] = {"run": name, "whole": whole}
        for share in _SHARES:  # by number: other shares may read the same
            row[f"{share:.0%}"] = next((p["rise"] for p in curve if math.isclose(p["fraction"], share)), None)
        row["flat"] = max((p["fraction"] for p in curve if p["rise"] <= _FLAT), default=None)
        rows.append(row)
    return markdown_table(rows, _COLUMNS)


BLOCKS: dict[str, Callable[[Path], str]] = {"pruning": table}


def figures(results: Path) -> dict[str, bytes]:
    """The curves of all records as one PNG file, by name; nothing without records."""
    found = {textwrap.fill(name, _LABEL): curve for name, curve in curves(results, earlier=False).items()}
    lines = sum(name.count("\n") + 1 for name in found)
    return {"ptb-pruning.png": drawn(lambda f: _draw(f, found), (6.4, 3.8 + 0.2 * lines))} if found else {}


def _draw(figure: "Figure", named: Mapping[str, Sequence[Mapping[str, float]]]) -> None:
    axes = figure.add_subplot()
    lowest = 0.0
    for name, curve in named.items():
        points = _points([p for p in curve if p["fraction"] <= _SHARES[-1]], "rise", 100)
        lowest = min(lowest, *points[1])
        axes.plot(*points, markersize=4, label=name, **look(name, named, None))
    axes.axhline(100 * _FLAT, color="0.4", linewidth=1, linestyle="--")
    axes.annotate(f"{_FLAT:+.0%}", (0, 100 * _FLAT), xytext=(2, 3), textcoords="offset points", fontsize=8.5)
    axes.set_xlabel("weights removed, lowest |mean| / sigma first, %")
    axes.set_ylabel("rise of validation perplexity, % (shown up to 25)")
    axes.set_ylim(lowest - 0.5, 25)
    axes.grid(alpha=0.25)
    figure.legend(loc="outside upper left", frameon=False, fontsize=8.5, handlelength=4)
