"""The table of speed on a GPU for the documentation, from the records of `bayesrnn bench` in results/."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bayesrnn.report.tables import Column, markdown_table

RECORDS = ("gpu-650x20", "gpu-1500x20", "gpu-650x128", "gpu-650x20-bf16", "gpu-1500x20-bf16", "gpu-650x128-bf16")
BASE = "torch.nn with dropout"


def records(results: Path) -> list[dict[str, Any]]:
    """Those that are there."""
    paths = [results / f"{name}.json" for name in RECORDS]
    return [json.loads(path.read_text("utf-8")) for path in paths if path.is_file()]


def _cell(row: dict[str, Any], base: dict[str, Any] | None) -> str | None:
    """Milliseconds, and the speed as a multiple of the base's.

    Every row took turns with the same plain model, whose time says how fast the machine was meanwhile: the multiple
    is that of the two ratios to it.
    """
    if "milliseconds" not in row:
        return None  # its check was red
    took = f"{row['milliseconds']:.2f} ms"
    return took if base is None or "ratio" not in base else f"{took}, {row['ratio'] / base['ratio']:.2f}x"


def _training(found: list[dict[str, Any]]) -> str:
    rows: dict[str, dict[str, Any]] = {}
    columns = [Column("kind", "training step, T = 35")]
    for record in found:
        for title in dict.fromkeys(row["title"] for row in record["training"]):
            own = [row for row in record["training"] if row["title"] == title]
            base = next((row for row in own if row["kind"] == BASE), None)
            key = f"{title}, {record['precision']}"
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
    lines += [_prediction(row, record["precision"]) for record in found for row in record["prediction"]]
    graphs = all(row.get("graph", True) for record in found for row in record["training"])
    versions = {f"{r['device']}, torch {r['versions']['torch']}, bayesrnn {r['versions']['bayesrnn']}" for r in found}
    sizes = " ".join(dict.fromkeys(f"{row['hidden']}x{row['batch']}" for r in found for row in r["training"]))
    written = f"Written by `bayesrnn bench --out` for the sizes {sizes} ({'; '.join(sorted(versions))})."
    return "\n".join([*lines, "", f"{'Every step is one CUDA graph. ' if graphs else ''}{written}"])


_ALIKE = (
    ("same-training/brnn-medium-one-launch", "same-training/brnn-medium-step-by-step"),
    ("variational-tied-medium/1", "variational-tied-medium/step-by-step-1"),
)
_ALIKE_COLUMNS = (
    Column("what", "run, seed, epochs"), Column("path", "recurrence"),
    Column("train_perplexity", "train, last epoch", "{:.2f}"), Column("valid_perplexity", "valid", "{:.2f}"),
    Column("test_perplexity", "test", "{:.2f}"), Column("test_perplexity_mc", "test, MC", "{:.2f}"),
)  # fmt: skip


def alike(results: Path) -> str:
    """Runs that were trained with the recurrence in one launch, and step by step."""
    rows = []
    for pair in _ALIKE:
        for path, name in zip(("one launch", "step by step"), pair, strict=True):
            if not (results / f"{name}.json").is_file():
                continue
            record = json.loads((results / f"{name}.json").read_text("utf-8"))
            train = record["curves"]["train_perplexity"]
            figures = {column.key: record["metrics"].get(column.key) for column in _ALIKE_COLUMNS}
            what = f"{record['recipe']}, seed {record['seed']}, {len(train)} epochs"
            rows.append({**figures, "what": what, "path": path, "train_perplexity": train[-1]})
    return markdown_table(rows, _ALIKE_COLUMNS)


BLOCKS: dict[str, Callable[[Path], str]] = {"gpu-speed": gpu, "alike": alike}
