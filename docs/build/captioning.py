"""Captions for images: scores of each method, from ``results/caption-METHOD/SEED.json``."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bayesrnn.lab import recipes
from bayesrnn.lab.report.plots import COLOURS
from bayesrnn.lab.report.tables import Column, markdown_table
from bayesrnn.lab.runs.record import Record
from docs.build.pictures import NO_RECORD, drawn, tidy
from docs.build.seeds import devices, mean, records_of, values

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = {
    "caption-dropout": "dropout",
    "caption-variational": "variational dropout",
    "caption-bbb": "Bayes by Backprop",
    "caption-bbb-masks": "Bayes by Backprop with masks",
    "caption-dropout-wide": "dropout, 1024 units",
    "caption-variational-wide": "variational dropout, 1024 units",
}
WAYS = {"": "mean", "_mc": "draws"}
"""Captions of the posterior mean, and of the draws' averaged probabilities."""
_SCORES = {"bleu1": "BLEU-1", "bleu4": "BLEU-4", "cider": "CIDEr"}
_COLUMNS = (
    Column("name", "test images"), Column("perplexity", "perplexity"),
    *(Column(key, name) for key, name in _SCORES.items()), Column("seeds", "seeds"),
)  # fmt: skip

Runs = dict[str, list[Record]]


def load(results: Path) -> Runs:
    """Records by recipe, in the order of the table; only those that exist."""
    needs = ("metrics.valid_perplexity", "curves.valid_perplexity", "seed")
    found = {name: records_of(results / name, what="the record of a captioning run", needs=needs) for name in METHODS}
    return {name: records for name, records in found.items() if records}


def block(results: Path) -> str:
    """Test scores of each method with the posterior mean and with draws; a person's below; and the picture."""
    runs = load(results)
    if not runs:
        return NO_RECORD
    rows: list[dict[str, Any]] = []
    for name, records in runs.items():
        for suffix, how in WAYS.items():
            found = {key: values(records, f"test_{key}{suffix}") for key in ("perplexity", *_SCORES)}
            if any(found.values()):
                row = {key: mean(each, "{:.2f}" if key == "perplexity" else "{:.1f}") for key, each in found.items()}
                rows.append({"name": f"{METHODS[name]}, {how}", **row, "seeds": max(map(len, found.values()))})
    every = [record for records in runs.values() for record in records]
    paper = recipes.load("caption-dropout").paper
    rows.append({"name": "published (arXiv 1411.4555)", "bleu1": f"{paper.bleu1:.1f}"})
    human = next((found for record in every if (found := record.metric("human"))), None)
    if human:
        rows.append({"name": "a person, against the others", **{key: f"{human[key]:.1f}" for key in _SCORES}})
    return "\n".join(
        [
            markdown_table(rows, _COLUMNS),
            "![Test perplexity, BLEU-4 and CIDEr of each method and seed](figures/captioning-scores.png)",
            "",
            f"± is the standard deviation over seeds. From `results/` ({devices(every)}).",
        ]
    )


def figures(results: Path) -> dict[str, bytes]:
    runs = load(results)
    return {"captioning-scores.png": drawn(lambda f: _draw(f, runs), (8.4, 1.6 + 0.42 * len(runs)))} if runs else {}


def _draw(figure: "Figure", runs: Runs) -> None:
    """A mark per seed: filled for the posterior mean, open for draws."""
    fills: dict[str, tuple[str, float, Literal["full", "none"]]] = {
        "": ("posterior mean", -0.15, "full"),
        "_mc": ("average over draws", 0.15, "none"),
    }
    colours, marks = dict(zip(METHODS, COLOURS, strict=False)), dict(zip(METHODS, "sD^pvo", strict=True))
    panels = figure.subplots(1, 3, sharey=True)
    keys = {"perplexity": "perplexity (lower is better)", "bleu4": "BLEU-4", "cider": "CIDEr"}
    for axes, (key, title) in zip(panels, keys.items(), strict=True):
        for row, (name, records) in enumerate(runs.items()):
            for suffix, (_, shift, fill) in fills.items():
                found = values(records, f"test_{key}{suffix}")
                axes.plot(found, [row + shift] * len(found), marks[name], color=colours[name], fillstyle=fill, ms=8)
        axes.set_title(title, fontsize=10)
        tidy(axes, grid="x")
    panels[0].set_yticks(range(len(runs)), [METHODS[name] for name in runs])
    panels[0].set_ylim(len(runs) - 0.5, -0.5)
    for label, _, fill in fills.values():
        panels[0].plot([], [], "o", color="#444444", fillstyle=fill, label=label)
    figure.legend(loc="outside upper center", ncols=2, frameon=False, fontsize=8.5)


BLOCKS: dict[str, Callable[[Path], str]] = {"captioning": block}
