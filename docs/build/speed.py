"""Speed on a GPU, from results/gpu-*.json: whole training steps beside torch.nn, and single layers beside cuDNN."""

import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesrnn.errors import UserError
from bayesrnn.lab.report.plots import COLOURS
from bayesrnn.lab.report.tables import Column, markdown_table
from docs.build import archive
from docs.build.archive import GpuBench, LayerBench
from docs.build.pictures import drawn, tidy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SIZES = ("650x20", "1500x20", "650x128", "650x256", "400-1150-1150-400x20")
RECORDS = tuple(f"gpu-{size}{precision}" for precision in ("", "-bf16") for size in _SIZES)
BASE = "torch.nn with dropout"
WITHOUT = "torch.nn without dropout"
_SHOWN = {"plain": "ours, no noise"}


def records(results: Path) -> list[GpuBench]:
    """Those that exist."""
    paths = [results / f"{name}.json" for name in RECORDS]
    return [archive.load(path, GpuBench) for path in paths if path.is_file()]


def _cell(row: dict[str, Any], base: dict[str, Any] | None) -> str | None:
    """Milliseconds, and the speed as a multiple of the base's.

    Every row took turns with the same plain model, whose time says how fast the machine was meanwhile: the multiple
    is that of the two ratios to it.
    """
    if "milliseconds" not in row:
        return None  # its check was red
    took = f"{row['milliseconds']:.2f} ms"
    return took if base is None or "ratio" not in base else f"{took}, {row['ratio'] / base['ratio']:.2f}x"


def _size(title: str, precision: str) -> str:
    """Without the name: "medium (650 units), batch 20" is "650 units, batch 20, tf32"."""
    size = re.sub(r"^.*?\((.*?)\)", r"\1", title)
    return f"{size}, {precision}"


def _named(row: dict[str, Any]) -> str:
    """The size as `bayesrnn bench` reads it, without words and windows."""
    return f"{'-'.join(map(str, row.get('widths') or [row['hidden']]))}x{row['batch']}"


def _training(found: list[GpuBench]) -> str:
    rows: dict[str, dict[str, Any]] = {}
    columns = [Column("kind", "training step")]
    for record in found:
        for title in dict.fromkeys(row["title"] for row in record.training):
            own = [row for row in record.training if row["title"] == title]
            base = next((row for row in own if row["kind"] == BASE), None)
            key = _size(title, record.precision)
            columns.append(Column(key, key))
            if base is not None and "ratio" in base:  # which took turns with a model without dropout
                own.insert(0, {"kind": WITHOUT, "milliseconds": base["plain_milliseconds"], "ratio": 1.0})
            for row in own:
                kind = _SHOWN.get(row["kind"], row["kind"])
                rows.setdefault(kind, {"kind": kind})[key] = _cell(row, base)
    return markdown_table(list(rows.values()), columns)


def _prediction(row: dict[str, Any], precision: str) -> str:
    return (
        f"- `br.predict` with {row['draws']} draws, {row['kind']}, {row['hidden']} units, one sequence, {precision}: "
        f"{row['milliseconds']:.1f} ms, as long as {row['passes']:.1f} passes with one draw."
    )


def _speeds(found: list[GpuBench]) -> dict[str, list[float]]:
    """Of each kind, in every record that has it: its speed as a multiple of torch.nn with dropout."""
    speeds: dict[str, list[float]] = {}
    for record in found:
        base = {row["title"]: row["ratio"] for row in record.training if row["kind"] == BASE and "ratio" in row}
        for row in record.training:
            if row["kind"] != BASE and "ratio" in row and row["title"] in base:
                speeds.setdefault(row["kind"], []).append(row["ratio"] / base[row["title"]])
    return speeds


def verdict(results: Path) -> str:
    """The answer in one sentence, with the range of every kind over all sizes."""
    speeds = _speeds(records(results))
    names = {
        "variational, tied": "variational dropout with tied masks",
        "variational, untied": "variational dropout with untied masks",
        "Bayes by Backprop": "Bayes by Backprop",
        "sharpened": "posterior sharpening",
    }
    found = {name: speeds[kind] for kind, name in names.items() if kind in speeds}
    if not found:
        return ""
    never = [name for name, values in found.items() if max(values) < 0.95]
    seldom = [name for name, values in found.items() if name not in never and min(values) < 0.95]
    but = f", except at some sizes with {' and '.join(seldom)}" if seldom else ""
    but += f"; with {' and '.join(never)} it is slower at every size" if never else ""
    said = "; ".join(f"{name}, {min(values):.2f}x to {max(values):.2f}x" for name, values in found.items())
    return (
        "**A training step of a Bayesian LSTM is about as fast as one of `torch.nn.LSTM` with dropout, or "
        f"faster{but}.** Speed as a multiple of `torch.nn.LSTM` with dropout: {said}."
    )


def gpu(results: Path) -> str:
    """Milliseconds of training steps, with ratios to torch.nn with dropout, and the time of many draws."""
    found = records(results)
    if not found:
        return ""
    lines = [_training(found), "![Speed of a training step of each model beside torch.nn](figures/speed-gpu.png)", ""]
    said: dict[tuple[Any, ...], str] = {}  # once each: batches of training have nothing to do with it
    for record in found:
        for row in record.prediction:
            said.setdefault((row["kind"], row["hidden"], record.precision), _prediction(row, record.precision))
    lines += said.values()
    lines += _dynamic(results) + _pairs(results)
    eager = {row["kind"] for record in found for row in record.training if not row.get("graph", True)}
    kinds = {row["kind"] for record in found for row in record.training}
    but = f", but for {' and '.join(sorted(eager))}" if eager else ""
    versions = {f"{r.made_on}, bayesrnn {r.versions['bayesrnn']}" for r in found}
    sizes = " ".join(dict.fromkeys(_named(row) for record in found for row in record.training))
    written = f"Written by `bayesrnn bench --out` for the sizes {sizes} ({'; '.join(sorted(versions))})."
    return "\n".join([*lines, "", f"{f'Every step is one CUDA graph{but}. ' if kinds - eager else ''}{written}"])


def _dynamic(results: Path) -> list[str]:
    """benchmarks/dynamic.py: a window of dynamic evaluation as one CUDA graph."""
    found = []
    for record in archive.records(results / "dynamic"):
        m = record.metrics
        text = m["test_words"] / m["window"] / 1000
        found.append(
            f"- Dynamic evaluation with {record.recipe}'s widths, windows of {m['window']} words: "
            f"{m['milliseconds_graph']:.2f} ms a window as one CUDA graph, {m['milliseconds_eager']:.2f} ms eagerly "
            f"({m['times_as_fast']:.1f} times as long). For {record.data}'s test text that is "
            f"{m['milliseconds_graph'] * text:.0f} s and {m['milliseconds_eager'] * text:.0f} s."
        )
    return found


def _pairs(results: Path) -> list[str]:
    """benchmarks/same_training.py: what the launch of a whole layer costs in perplexity."""
    found = []
    for record in archive.records(results / "same-training"):
        m = record.metrics
        if "valid_low" in m:
            case = (record.note or "").partition(":")[0]
            found.append(
                f"- Perplexity after training with a layer in one launch over that step by step, {case}, "
                f"{m['pairs']} pairs of runs: {m['valid_percent']:+.2f}% in validation, 95% interval "
                f"{m['valid_low']:+.2f}% to {m['valid_high']:+.2f}%; {m['train_percent']:+.2f}% in training, "
                f"{m['train_low']:+.2f}% to {m['train_high']:+.2f}%."
            )
    return found


def figures(results: Path) -> dict[str, bytes]:
    found = records(results)
    return {"speed-gpu.png": drawn(lambda figure: _draw(figure, found), (8.0, 3.8))} if found else {}


def _draw(figure: "Figure", found: list[GpuBench]) -> None:
    """Bars of every kind in groups of one size each, as multiples of the speed of torch.nn with dropout."""
    groups: dict[str, dict[str, float]] = {}
    for record in found:
        for row in record.training:
            base = next((r for r in record.training if r["title"] == row["title"] and r["kind"] == BASE), None)
            if base is not None and row["kind"] not in (BASE, "plain") and "ratio" in row and row.get("graph", True):
                parts = _size(row["title"], record.precision).split(", ")
                title = "\n".join(line for part in parts for line in textwrap.wrap(part, 14))
                groups.setdefault(title, {})[row["kind"]] = row["ratio"] / base["ratio"]
    kinds = list(dict.fromkeys(kind for group in groups.values() for kind in group))
    axes, width = figure.add_subplot(), 0.8 / len(kinds)
    for i, kind in enumerate(kinds):
        bars = [(place, group[kind]) for place, group in enumerate(groups.values()) if kind in group]
        places = [place + (i - (len(kinds) - 1) / 2) * width for place, _ in bars]
        axes.bar(places, [height for _, height in bars], 0.9 * width, color=COLOURS[i], label=kind)
    axes.axhline(1, color="#444444", linewidth=1)
    axes.set_xticks(range(len(groups)), list(groups))
    tidy(axes, y="speed, multiples of torch.nn")
    figure.legend(loc="outside upper center", ncols=len(kinds), frameon=False)


def layers(results: Path) -> str:
    """One recurrent layer in one launch and step by step, with and without masks, beside cuDNN's."""
    paths = sorted(results.glob("gpu-layers*.json"), key=lambda path: path.stem)
    found = [archive.load(path, LayerBench) for path in paths]
    if not found:
        return ""
    if len({record.steps for record in found}) > 1:
        raise UserError(f"The records {results}/gpu-layers*.json are of different numbers of steps: no one table.")
    rows: dict[str, dict[str, Any]] = {}
    lines = [line for record in found for line in record.layers]
    for line in lines:
        name = f"{line['cell']}, {line['hidden']} units, batch {line['batch']}"
        row = rows.setdefault(name, {"layer": name, "cudnn": line["cudnn_milliseconds"]})
        row[f"{line['masks']}, {line['path']}"] = line["milliseconds"]
    names = {"none": "no masks", "tied": "tied masks", "untied": "untied masks"}
    title = f"forward and backward, T = {found[0].steps}, ms"
    columns = [Column("layer", title), Column("cudnn", "cuDNN", "{:.2f}")]
    ways = dict.fromkeys((line["masks"], line["path"]) for line in lines)
    columns += [Column(f"{masks}, {way}", f"{names[masks]}, {way}", "{:.2f}") for masks, way in ways]
    sources: dict[str, list[str]] = {}
    for record in found:
        about = f"{record.commit} ({record.made_on}, {record.precision})"
        sources.setdefault(about, []).extend(dict.fromkeys(f"{line['cell']}s" for line in record.layers))
    commits = "; ".join(f"{' and '.join(dict.fromkeys(cells))} at commit {about}" for about, cells in sources.items())
    worst = max(line["error"] for line in lines)
    told = f"Errors against float64 are at most {worst:.0e}. Written by `benchmarks/recurrent.py`: {commits}."
    return "\n".join([markdown_table(list(rows.values()), columns), told])


BLOCKS: dict[str, Callable[[Path], str]] = {"gpu-verdict": verdict, "gpu-speed": gpu, "gpu-layers": layers}
