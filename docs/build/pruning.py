"""Pruning curves of ``bayesrnn prune`` as a table and a picture for the documentation."""

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesrnn.lab.report.plots import look
from bayesrnn.lab.report.tables import Column, markdown_table
from bayesrnn.lab.tasks.language.pruning_plot import points as points_of
from bayesrnn.lab.tasks.language.published import other_text
from docs.build import archive
from docs.build.archive import Pruning
from docs.build.pictures import drawn

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


def load(results: Path) -> list[tuple[str, Pruning]]:
    """The prune.json files that were kept, with names that say what their runs were; not those of other texts.

    Records of one name are of one run if their curves are the same: its weights were trained again in several ways.
    """
    read = archive.load_all(results / "pruning", "*.json", Pruning)
    found = [(stem, _with_settings(record, results)) for stem, record in read.items() if not other_text(record)]
    curves: dict[str, list[Any]] = {}
    for _, record in found:
        curves.setdefault(_name(record), []).append(record.points)
    alike = {name: all(curve == own[0] for curve in own) for name, own in curves.items()}
    return [(name if alike[name := _name(record)] else f"{name}, {stem}", record) for stem, record in found]


def _with_settings(record: Pruning, results: Path) -> Pruning:
    """A record without settings gets those of the run whose validation perplexity it begins with."""
    if record.settings:
        return record
    for run in archive.records(results / record.recipe):
        found, whole = run.number("valid_perplexity") or math.inf, record.points[0]["valid_perplexity"]
        if run.seed == record.seed and math.isclose(found, whole, rel_tol=1e-6):
            return record.model_copy(update={"settings": run.settings})
    return record


def _name(record: Pruning) -> str:
    changed = ", ".join(record.changed_settings())
    return f"{record.recipe}{f' ({changed})' if changed else ''}, seed {record.seed}"


def curves(results: Path, *, earlier: bool = True) -> dict[str, list[dict[str, float]]]:
    """The curve of every record, and where the rest was trained again that one too; rises are over the whole model.

    ``earlier``: also where it was trained in a way that the program no longer has, with sigmas that are not held.
    """
    found = {}
    for name, record in load(results):
        found[name] = record.points
        if (again := record.retrained) and (earlier or "sigma" in again):
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
        points = points_of([p for p in curve if p["fraction"] <= _SHARES[-1]], "rise", 100)
        lowest = min(lowest, *points[1])
        axes.plot(*points, markersize=4, label=name, **look(name, named, None))
    axes.axhline(100 * _FLAT, color="0.4", linewidth=1, linestyle="--")
    axes.annotate(f"{_FLAT:+.0%}", (0, 100 * _FLAT), xytext=(2, 3), textcoords="offset points", fontsize=8.5)
    axes.set_xlabel("weights removed, lowest |mean| / sigma first, %")
    axes.set_ylabel("rise of validation perplexity, % (shown up to 25)")
    axes.set_ylim(lowest - 0.5, 25)
    axes.grid(alpha=0.25)
    figure.legend(loc="outside upper left", frameon=False, fontsize=8.5, handlelength=4)
