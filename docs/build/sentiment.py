"""Ratings from reviews: errors and intervals of each model, from ``results/sentiment-CELL-VARIANT/SEED.json``."""

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bayesrnn.errors import UserError
from bayesrnn.lab.report.plots import COLOURS
from bayesrnn.lab.report.tables import Column, markdown_table
from bayesrnn.lab.runs.record import Record
from docs.build.pictures import NO_RECORD, drawn, tidy
from docs.build.seeds import devices, mean, records_of, values

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CELLS = {"lstm": "LSTM", "gru": "GRU"}
VARIANTS = {"plain": "no dropout", "naive": "naive dropout", "variational": "variational", "bbb": "Bayes by Backprop"}
LEVEL = 0.9
_STYLES = dict(zip(VARIANTS, ("-", (0, (5, 1.5)), "-", (0, (1, 1))), strict=True))
_COLOUR = dict(zip(VARIANTS, (COLOURS[0], COLOURS[4], COLOURS[1], COLOURS[2]), strict=True))
_COLUMNS = (
    Column("name", "test RMSE"), Column("end", "last epoch, one pass"), Column("end_mc", "last epoch, MC"),
    Column("best", "best epoch, one pass"), Column("covered", f"{LEVEL:.0%} intervals cover"), Column("seeds", "seeds"),
)  # fmt: skip

Runs = dict[tuple[str, str], list[Record]]


def load(results: Path) -> Runs:
    """Records by (cell, variant), in the order of the table; only those that exist."""
    found: Runs = {}
    needs = ("metrics.end", "settings.data", "curves.test_rmse", "seed")
    for cell in CELLS:
        for variant in VARIANTS:
            folder = results / f"sentiment-{cell}-{variant}"
            records = records_of(folder, what="the record of a sentiment run", needs=needs)
            if any(record.setting("data.split") != "review" for record in records):
                raise UserError(f"A record in {folder} is not divided by review; it belongs elsewhere.")
            if records:
                found[cell, variant] = records
    return found


def _coverage(records: Sequence[Record]) -> list[float]:
    return [one["coverage"] for r in records for one in r.metric("end.intervals") if one["level"] == LEVEL]


def block(results: Path) -> str:
    """Test errors after the last and at the best epoch, coverage of the intervals; and the curves."""
    runs = load(results)
    if not runs:
        return NO_RECORD
    rows = [
        {
            "name": f"{CELLS[cell]}, {VARIANTS[variant]}",
            "end": mean(values(records, "end.test_rmse"), "{:.4f}"),
            "end_mc": mean(values(records, "end.test_rmse_mc"), "{:.4f}"),
            "best": mean(values(records, "test_rmse"), "{:.4f}"),
            "covered": f"{statistics.fmean(_coverage(records)):.1%}",
            "seeds": len(records),
        }
        for (cell, variant), records in runs.items()
    ]
    every = [record for records in runs.values() for record in records]
    epochs = sorted({len(r.curve("test_rmse")) for r in every})
    samples = sorted({r.metric("samples") for r in every} - {0})
    constants = sorted({f"{r.extra['constant_rmse']:.4f}" for r in every})
    return "\n".join(
        [
            markdown_table(rows, _COLUMNS),
            "![Test RMSE per epoch of all models, mean and range over seeds](figures/sentiment-curves.png)",
            "",
            f"{' or '.join(map(str, epochs))} epochs. MC: {' or '.join(map(str, samples)) or 'no'} draws. ± is the "
            f"standard deviation over seeds. A constant gives {' or '.join(constants)}. From `results/` "
            f"({devices(every)}).",
        ]
    )


def curve_of(record: Record) -> list[float]:
    """Test error per epoch: of the mean of draws, where there are draws."""
    curve: list[float] = record.curve("test_rmse_mc") or record.curve("test_rmse")
    return curve


def figures(results: Path) -> dict[str, bytes]:
    runs = load(results)
    return {"sentiment-curves.png": drawn(lambda figure: _draw(figure, runs), (9.0, 4.2))} if runs else {}


def _draw(figure: "Figure", runs: Runs) -> None:
    """Test error per epoch: mean over seeds and their range; MC where there are draws."""
    cells = [cell for cell in CELLS if any(key[0] == cell for key in runs)]
    panels = dict(zip(cells, figure.subplots(1, len(cells), sharey=True, squeeze=False)[0], strict=True))
    for (cell, variant), records in runs.items():
        columns = list(zip(*map(curve_of, records), strict=False))
        epochs, colour, axes = range(1, len(columns) + 1), _COLOUR[variant], panels[cell]
        label = VARIANTS[variant] + (", MC" if records[0].curve("test_rmse_mc") else "")
        middle = [statistics.fmean(column) for column in columns]
        axes.plot(epochs, middle, color=colour, linestyle=_STYLES[variant], linewidth=2, label=label)
        axes.fill_between(epochs, list(map(min, columns)), list(map(max, columns)), color=colour, alpha=0.2, lw=0)
    constant = next(iter(runs.values()))[0].extra["constant_rmse"]
    for cell, axes in panels.items():
        axes.axhline(constant, color="#666666", linewidth=1, linestyle=":", label="a constant")
        axes.set_title(CELLS[cell], fontsize=11)
        tidy(axes, x="epoch", y="test RMSE" if cell == cells[0] else "", grid="both")
    handles, labels = max((a.get_legend_handles_labels() for a in panels.values()), key=lambda pair: len(pair[1]))
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)


BLOCKS: dict[str, Callable[[Path], str]] = {"sentiment": block}
