"""The tables of speed on a GPU for the documentation, from records in results/; and whether paths train alike."""

import math
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bayesrnn.errors import UserError
from bayesrnn.lab.metrics import mean
from bayesrnn.lab.report.tables import Column, markdown_table
from bayesrnn.lab.runs.record import Record, read
from docs.build import archive
from docs.build.archive import GpuBench, Gradients, LayerBench

RECORDS = tuple(
    f"gpu-{size}{precision}" for precision in ("", "-bf16") for size in ("650x20", "1500x20", "650x128", "650x256")
)
BASE = "torch.nn with dropout"


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


def _training(found: list[GpuBench]) -> str:
    rows: dict[str, dict[str, Any]] = {}
    columns = [Column("kind", "training step, T = 35")]
    for record in found:
        for title in dict.fromkeys(row["title"] for row in record.training):
            own = [row for row in record.training if row["title"] == title]
            base = next((row for row in own if row["kind"] == BASE), None)
            key = f"{title}, {record.precision}"
            columns.append(Column(key, key))
            for row in own:
                rows.setdefault(row["kind"], {"kind": row["kind"]})[key] = _cell(row, base)
    return markdown_table(list(rows.values()), columns)


def _prediction(row: dict[str, Any], precision: str) -> str:
    return (
        f"- `br.predict` with {row['draws']} draws, {row['kind']}, {row['hidden']} units, one sequence, {precision}: "
        f"{row['milliseconds']:.1f} ms, as long as {row['passes']:.1f} passes with one draw."
    )


def gpu(results: Path) -> str:
    """Milliseconds of training steps, with ratios to torch.nn with dropout, and the time of many draws."""
    found = records(results)
    if not found:
        return ""
    lines = [_training(found)]
    drawn: dict[tuple[Any, ...], str] = {}  # once each: batches of training have nothing to do with it
    for record in found:
        for row in record.prediction:
            drawn.setdefault((row["kind"], row["hidden"], record.precision), _prediction(row, record.precision))
    lines += drawn.values()
    graphs = all(row.get("graph", True) for record in found for row in record.training)
    versions = {f"{r.made_on}, bayesrnn {r.versions['bayesrnn']}" for r in found}
    sizes = " ".join(dict.fromkeys(f"{row['hidden']}x{row['batch']}" for r in found for row in r.training))
    written = f"Written by `bayesrnn bench --out` for the sizes {sizes} ({'; '.join(sorted(versions))})."
    return "\n".join([*lines, "", f"{'Every step is one CUDA graph. ' if graphs else ''}{written}"])


Pair = tuple[Record, Record]
_MASKS = ("input_dropout", "recurrent_dropout", "cell_dropout", "weight_dropout")
_FIGURES = (
    Column("train_perplexity", "train, last epoch"), Column("valid_perplexity", "valid"),
    Column("test_perplexity", "test"), Column("valid_perplexity_mc", "valid, MC"),
    Column("test_perplexity_mc", "test, MC"),
)  # fmt: skip
_ALIKE = (Column("run", "run"), Column("seed", "seed"), Column("way", "recurrence"), *_FIGURES)


_OTHERS = {"step-by-step": "step by step", "cudnn": "cuDNN"}  # in a record's name: what ran in place of one launch


def alike(results: Path) -> str:
    """Runs with the recurrence in one launch beside those on another path: every pair, means, differences."""
    pairs: dict[tuple[str, str], list[Pair]] = {}
    for path in sorted((results / "same-training").glob("*.json")):
        other = next((name for name in _OTHERS if f"-{name}-" in path.stem), None)
        if other is None:
            continue
        pair = _pair(results, path, other)
        epochs = len(pair[0].curve("train_perplexity"))
        pairs.setdefault((f"{pair[0].recipe}, {epochs} epochs", _OTHERS[other]), []).append(pair)
    rows = [{"run": run, **row} for (run, way), same in pairs.items() for row in _compared(same, way)]
    return markdown_table(rows, _ALIKE)


def _pair(results: Path, path: Path, other: str) -> Pair:
    """The run in one launch, which is the default and may be a row of a published table, and the one on `other`."""
    recipe, seed = path.stem.split(f"-{other}-")
    own = path.with_name(f"{recipe}-one-launch-{seed}.json")
    fast = own if own.is_file() else results / recipe / f"{seed}.json"
    first, second = read(fast), read(path)
    if (first.recipe, first.seed, first.overrides) != (second.recipe, second.seed, second.overrides):
        raise UserError(f"{fast} and {path} differ in recipe, seed or settings: they are no pair.")
    return first, second


def _figures(record: Record) -> dict[str, float]:
    """The metrics that the run has."""
    found = {column.key: record.metric(column.key) for column in _FIGURES}
    found["train_perplexity"] = record.curve("train_perplexity")[-1]
    return {key: value for key, value in found.items() if value is not None}


def _compared(pairs: list[Pair], other: str) -> Iterator[dict[str, Any]]:
    """The runs; each way's mean and standard deviation; how far the pairs are apart."""
    ways = ("one launch", other)
    for pair in pairs:
        for way, record in zip(ways, pair, strict=True):
            shown = {key: f"{value:.2f}" for key, value in _figures(record).items()}
            yield {"seed": record.seed, "way": way, **shown}
    runs = [[_figures(record) for record in records] for records in zip(*pairs, strict=True)]
    keys = [column.key for column in _FIGURES if all(column.key in run for way in runs for run in way)]
    if len(pairs) == 1:
        return
    for way, own in zip(ways, runs, strict=True):
        yield {"seed": "mean ± sd", "way": way, **{key: mean([run[key] for run in own], "{:.2f}") for key in keys}}
    between = {key: [(a[key], b[key]) for a, b in zip(*runs, strict=True)] for key in keys}
    for name, text in (("mean ± standard error", _difference), ("least to most", _range)):
        differences = {key: text(values) for key, values in between.items()}
        yield {"seed": name, "way": f"one launch minus {ways[1]}", **differences}


def _difference(values: list[tuple[float, float]]) -> str:
    apart = [a - b for a, b in values]
    return f"{statistics.fmean(apart):+.2f} ± {statistics.stdev(apart) / math.sqrt(len(apart)):.2f}"


def _range(values: list[tuple[float, float]]) -> str:
    apart = [a / b - 1 for a, b in values]
    return f"{min(apart):+.1%} to {max(apart):+.1%}"


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


_CHANCE = (
    Column("run", "run"), Column("seed", "seed"), Column("way", "recurrence"), Column("lr", "first rate"),
    Column("train_perplexity", "train, last epoch", "{:.2f}"),
    Column("valid_perplexity", "valid, last epoch", "{:.2f}"),
)  # fmt: skip


def _other(kernel: str, plain: bool) -> str:
    """The path of an LSTM layer with this `BAYESRNN_KERNEL`; only `cells` changes layers without noise."""
    return "cuDNN" if plain and kernel != "cells" else "step by step"


def chance(results: Path) -> str:
    """Runs of one seed whose first rate differs in its seventh digit, with the run of the recipe's own rate."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for path in sorted((results / "chance").glob("*.json")):
        record = read(path)
        recipe, seed, epochs = record.recipe, record.seed, len(record.curve("train_perplexity"))
        whole = results / recipe / f"{seed}.json"
        for own in (read(whole), record) if whole.is_file() else (record,):
            plain = not any(own.setting(f"model.{rate}") for rate in _MASKS)
            way = "one launch" if own.kernel is None else _other(own.kernel, plain)
            lr = f"{own.setting('train.lr'):.6f}"
            row = {"run": f"{recipe}, {epochs} epochs", "seed": seed, "way": way, "lr": lr}
            curves = {key: own.curve(key)[epochs - 1] for key in ("train_perplexity", "valid_perplexity")}
            rows.setdefault(tuple(row.values()), row | curves)
    order = sorted(rows.values(), key=lambda row: (row["run"], row["way"] != "one launch", row["lr"]))
    return markdown_table(order, list(_CHANCE)) if order else ""


_ERRORS = (
    Column("run", "model, weights after"), Column("path", "recurrence"), Column("one_window", "one window", "{:.1e}"),
    Column("summed", "sum of all windows", "{:.1e}"), Column("along", "along the sum", "{:+.1e}"),
    Column("valid", "validation perplexity", "{:.4f}"),
)  # fmt: skip


def gradients(results: Path) -> str:
    """Errors of gradients on each path, at the same weights: of one window, and of the sum over many."""
    rows: list[dict[str, Any]] = []
    for record in archive.load_all(results / "gradients", "*.json", Gradients).values():
        run = f"{record.recipe}, {record.epochs} epochs, {record.windows} windows"
        valid = record.valid_perplexity
        rows.append({"run": run, "path": "exact", "valid": valid["exact"]})
        rows += [{"run": run, "path": way, "valid": valid[way], **line} for way, line in record.paths.items()]
        recurrent = record.recurrent.items()
        rows += [{"run": f"{run}, recurrent weights alone", "path": way, **line} for way, line in recurrent]
    once: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:  # records of one model share some
        once.setdefault((row["run"], row["path"]), row)
    return markdown_table(list(once.values()), _ERRORS) if rows else ""


BLOCKS: dict[str, Callable[[Path], str]] = {
    "gpu-speed": gpu, "gpu-layers": layers, "alike": alike, "chance": chance, "gradients": gradients
}  # fmt: skip
