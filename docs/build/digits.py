"""Digits: errors of every network with one pass and with draws, from ``results/digits-*/SEED.json``."""

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from bayesrnn.lab import recipes
from bayesrnn.lab.report.plots import COLOURS
from bayesrnn.lab.report.tables import Column, markdown_table
from bayesrnn.lab.runs.record import Record
from docs.build.pictures import NO_RECORD, drawn, tidy
from docs.build.seeds import devices, mean, records_of, values

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = {
    "digits-lenet": "LeNet",
    "digits-lenet-ip": "LeNet, dropout after the inner product",
    "digits-lenet-all": "LeNet, dropout everywhere",
    "digits-lenet-all-gaussian": "LeNet, Gaussian noise everywhere",
    "digits-lenet-dropconnect": "LeNet, DropConnect",
    "digits-mlp-plain": "MLP 400",
    "digits-mlp-dropout": "MLP 400, dropout",
    "digits-bbb-400": "Bayes by Backprop, MLP 400",
    "digits-bbb-800": "Bayes by Backprop, MLP 800",
    "digits-bbb-1200": "Bayes by Backprop, MLP 1200",
    "digits-bbb-sharpened-400": "Bayes by Backprop, MLP 400, sharpened",
    "digits-bbb-sharpened-800": "Bayes by Backprop, MLP 800, sharpened",
    "digits-bbb-sharpened-1200": "Bayes by Backprop, MLP 1200, sharpened",
}
_COLUMNS = (
    Column("name", "error, %"), Column("paper", "paper", "{:.2f}"), Column("test", "test, one pass"),
    Column("test_mc", "test, MC"), Column("seeds", "seeds"),
)  # fmt: skip

Runs = dict[str, list[Record]]


def load(results: Path) -> Runs:
    """Records by recipe, in the order of the table; only those that exist."""
    needs = ("metrics.test_error", "curves.test_error", "seed")
    found = {name: records_of(results / name, what="the record of a digits run", needs=needs) for name in NAMES}
    return {name: records for name, records in found.items() if records}


def block(results: Path) -> str:
    """Test errors of the epoch that validation chose, beside the papers'; and the picture."""
    runs = load(results)
    if not runs:
        return NO_RECORD
    rows = [
        {
            "name": NAMES[name],
            "paper": recipes.load(name).paper.test_error,
            "test": mean(values(records, "test_error"), "{:.2f}"),
            "test_mc": mean(values(records, "test_error_mc"), "{:.2f}"),
            "seeds": len(records),
        }
        for name, records in runs.items()
    ]
    every = [r for records in runs.values() for r in records]
    samples = sorted({r.metric("samples") or 0 for r in every} - {0})
    return "\n".join(
        [
            markdown_table(rows, _COLUMNS),
            "![Test error of every network with one pass and with draws](figures/digits-errors.png)",
            "",
            f"Validation chose the epoch. MC: {' or '.join(map(str, samples)) or 'no'} draws. ± is the standard "
            f"deviation over seeds. From `results/` ({devices(every)}).",
        ]
    )


def figures(results: Path) -> dict[str, bytes]:
    runs = load(results)
    return {"digits-errors.png": drawn(lambda f: _draw(f, runs), (8.0, 1.4 + 0.36 * len(runs)))} if runs else {}


def _draw(figure: "Figure", runs: Runs) -> None:
    axes = figure.add_subplot()
    for key, colour, marker, label, shift in (
        ("test_error", COLOURS[0], "o", "one pass", 0.14),
        ("test_error_mc", COLOURS[1], "D", "draws averaged (MC)", -0.14),
    ):
        for row, records in enumerate(reversed(runs.values())):
            found = values(records, key)
            if found:
                y = row + shift
                axes.plot(found, [y] * len(found), marker, color=colour, markersize=4, alpha=0.45, linestyle="")
                axes.plot(statistics.fmean(found), y, marker, color=colour, markersize=8, linestyle="")
        axes.plot([], [], marker, color=colour, linestyle="", label=label)
    axes.set_yticks(range(len(runs)), [NAMES[name] for name in reversed(runs)])
    axes.set_ylim(-0.6, len(runs) - 0.4)
    tidy(axes, x="test error, % (large: mean over seeds)", grid="x")
    figure.legend(loc="outside upper center", ncols=2, frameon=False)


BLOCKS: dict[str, Callable[[Path], str]] = {"digits": block}
