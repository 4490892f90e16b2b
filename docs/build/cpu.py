"""Tables of speed and memory on the CPU for the documentation, from results/cpu.json."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesrnn.lab.report.plots import COLOURS
from bayesrnn.lab.report.tables import Column, markdown_table
from docs.build import archive
from docs.build.archive import CpuBench
from docs.build.pictures import drawn, tidy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TRAINING = (
    Column("what", "training step, T = 35"),
    Column("plain_words_per_second", "torch.nn, words/s", "{:,.0f}"),
    Column("none", "ours, no noise", "{:.2f}x"),
    Column("tied", "variational, tied", "{:.2f}x"),
    Column("untied", "variational, untied", "{:.2f}x"),
    Column("bbb", "Bayes by Backprop", "{:.2f}x"),
)


def _record(results: Path) -> CpuBench:
    return archive.required(results / "cpu.json", CpuBench, "python benchmarks/cpu.py --peers --out results/cpu.json")


def _rows(record: CpuBench) -> list[dict[str, Any]]:
    return [
        {**row, "what": f"{row['cell']}, {row['model']}, {row['hidden']} units, batch {row['batch']}"}
        for row in record.training
    ]


def _table(record: CpuBench) -> str:
    rows = _rows(record)
    return markdown_table(rows, [c for c in _TRAINING if any(c.key in row for row in rows)])


def _written(record: CpuBench) -> str:
    return f"Written by `{record.command.strip()}` ({archive.environment(record.versions, record.threads)})."


def training(results: Path) -> str:
    record = _record(results)
    return f"{_table(record)}\n{_written(record)}"


def memory(results: Path) -> str:
    found = _record(results).memory
    return (
        "A training step of Bayes by Backprop (a language model of 2 x 650 units, 20M weights, batch 20) peaks "
        f"{found['copies']:.2f} copies of the parameters above the plain model's{_apart(found)}."
    )


def verdict(results: Path) -> str:
    """The answer in one sentence: the range of each column over all sizes."""
    rows = _record(results).training
    names = {
        "tied": "variational dropout with tied masks",
        "untied": "variational dropout with untied masks",
        "bbb": "Bayes by Backprop",
    }
    said = []
    for key, name in names.items():
        values = [row[key] for row in rows if key in row]
        if values:
            said.append(f"{name}, {min(values):.2f}x to {max(values):.2f}x")
    every = [row[key] for row in rows for key in names if key in row]
    faster = sum(round(value, 2) > 1 for value in every)
    return (
        f"**A training step with noise takes at most {max(0.0, 1 / min(every) - 1):.0%} longer than with plain "
        f"`torch.nn` layers, and is faster in {faster} of {len(every)} cases.** "
        "Speed as a multiple of the plain layers': "
        f"{'; '.join(said)}."
    )


def everything(results: Path) -> str:
    record = _record(results)
    lines = [_table(record), "![Speed of a training step of each model beside torch.nn](figures/speed-cpu.png)", ""]
    for row in record.peers:
        lines.append(
            f"- One Bayesian LSTM layer of {row['hidden']} units, batch {row['batch']}, forward, KL and backward: "
            f"{row['ours_over_peer']:.1f}x as fast as {row['peer']}."
        )
    for row in record.prediction:
        lines.append(
            f"- `br.predict` with {row['draws']} draws, {row['model']}, {row['hidden']} units, batch {row['batch']}: "
            f"{row['ratio']:.1f}x the speed of {row['draws']} passes."
        )
    lines += [
        f"- Peak memory of Bayes by Backprop beyond the plain model's: {record.memory['copies']:.2f} copies of the "
        f"parameters{_apart(record.memory)}.",
        "",
        _written(record),
    ]
    return "\n".join(lines)


def figures(results: Path) -> dict[str, bytes]:
    path = results / "cpu.json"
    rows = _rows(archive.load(path, CpuBench)) if path.is_file() else []
    return {"speed-cpu.png": drawn(lambda figure: _draw(figure, rows), (8.0, 1.4 + 0.28 * len(rows)))} if rows else {}


def _draw(figure: "Figure", rows: list[dict[str, Any]]) -> None:
    """One line per size, one mark per model."""
    axes = figure.add_subplot()
    for colour, marker, column in zip(COLOURS, "sDo^", [c for c in _TRAINING if c.pattern == "{:.2f}x"], strict=False):
        marks = [(row[column.key], -place) for place, row in enumerate(rows) if column.key in row]
        axes.plot(*zip(*marks, strict=True), marker, color=colour, markersize=6, linestyle="", label=column.heading)
    axes.axvline(1, color="#444444", linewidth=1)
    axes.set_yticks([-place for place in range(len(rows))], [row["what"] for row in rows])
    tidy(axes, x="speed, multiples of torch.nn", grid="both")
    figure.legend(loc="outside upper center", ncols=4, frameon=False)


def _apart(part: dict[str, Any]) -> str:
    """Says so where a part of a record was not measured in the same run as the rest."""
    return f" ({part['command']})" if "command" in part else ""


BLOCKS: dict[str, Callable[[Path], str]] = {
    "cpu-verdict": verdict,
    "cpu": everything,
    "cpu-training": training,
    "cpu-memory": memory,
}
