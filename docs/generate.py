"""Write the tables of README.md, docs/*.md and the kernels' READMEs from the records of real runs.

    python docs/generate.py            # rewrite the blocks
    python docs/generate.py --check    # exit with status 1 if a block is not what its record says

A block lies between `<!-- results:NAME -->` and `<!-- /results -->`. Its record is written by a program:

    quickstart   results/quickstart/record.json, calibration.png   bayesrnn quickstart --out results/quickstart --force
    cpu*         results/cpu.json                             python benchmarks/cpu.py --peers --out results/cpu.json
    gal2016, fortunato2017   results/RECIPE/SEED.json         bayesrnn reproduce TABLE --data ptb
    beyond, glance, further   results/RECIPE/SEED.json        bayesrnn train, then evaluate
    overfitting  results/small-*/SEED.json                    bayesrnn train of each small recipe
    pruning      results/pruning/NAME.json                    bayesrnn prune RUN: its prune.json
    grid         results/grid/NAME.json                       bayesrnn sweep RECIPE --grid … --grid …: its sweep.json
    ablation     results/ablation/*.json                      python benchmarks/ablation.py --data ptb
    differences  results/differences/*.json                   python benchmarks/differences.py --data ptb
    first-fall   results/zaremba-medium/*.json                bayesrnn train zaremba-medium [train.decay_after=6]
    digits*      results/digits-*/SEED.json                   bayesrnn train, then evaluate, of each recipe of digits
    sentiment*   results/sentiment-*/SEED.json                bayesrnn train of each recipe of sentiment
    captioning*  results/caption-*/SEED.json                  bayesrnn train, then evaluate, of each captioning recipe
    forecast*    results/forecast*/SERIES/SEED.json           python benchmarks/forecast.py run; forecast-choice: choose
    fuzz         results/fuzz.json                            python tests/fuzz/run.py --inputs 100000 all
    distributed  results/distributed.json                     python benchmarks/distributed.py --out RECORD
    distributed-model   results/RECIPE/*.json                 speeds of links, in report/distributed.py
    gpu-speed    results/gpu-SIZE.json, gpu-SIZE-bf16.json    bayesrnn bench --device cuda --size SIZE --out RECORD
    gpu-layers   results/gpu-layers*.json                     python benchmarks/recurrent.py --batch 20 128 …
    alike        results/same-training/*.json                 bayesrnn train, and again with BAYESRNN_KERNEL
    chance       results/chance/*.json                        bayesrnn train RECIPE train.lr=1.000001
    gradients    results/gradients/RECIPE.json                python benchmarks/gradients.py --recipe RECIPE …
    torture      results/torture.json                         python -m tests.torture.run

Nothing between the markers is written by hand.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # docs.build is not installed

from bayesrnn.lab.cli.reproduce import compared, records_of
from bayesrnn.lab.quickstart import COLUMNS, Quickstart
from bayesrnn.lab.recipes.tables import rows as published_rows
from bayesrnn.lab.report.tables import Column, markdown_table
from bayesrnn.lab.tasks.forecast import plots as forecast
from docs.build import (
    architecture,
    captioning,
    differences,
    digits,
    digits_plots,
    distributed,
    fuzz,
    language,
    penn_treebank,
    sentiment,
    sentiment_plots,
    speed,
)

ROOT = Path(__file__).resolve().parent.parent
NO_RECORD = "No run is recorded yet."
_EMPTY = re.compile(r"^\|.*\|\n\|(?:-+:?\|)+\n(?!\|)", re.MULTILINE)  # a table's head without rows
_BLOCK = re.compile(r"(<!-- results:([\w-]+) -->\n).*?(<!-- /results -->)", re.DOTALL)


def pages(root: Path = ROOT) -> list[Path]:
    """The files that may hold blocks."""
    kernels = sorted((root / "src/bayesrnn/kernels").glob("*/README.md"))
    return [root / "README.md", *sorted((root / "docs").glob("*.md")), *kernels]


def _environment(versions: dict[str, Any], threads: int) -> str:
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    return f"{named}, {threads} CPU thread{'s' * (threads != 1)}"


def _quickstart(root: Path, page: Path) -> str:
    content = _read(root / "results/quickstart/record.json", "bayesrnn quickstart --out results/quickstart --force")
    record = Quickstart.model_validate(content)
    if record.fast:
        raise SystemExit("results/quickstart/record.json is of a --fast run, which compares nothing: run it in full")
    picture = root / "results/quickstart/calibration.png"
    if not picture.is_file():
        raise SystemExit(f"{picture.relative_to(root)} is missing: it is written with the record, commit both")
    address = os.path.relpath(picture, page.parent).replace(os.sep, "/")
    return "\n".join(
        [
            markdown_table([row.model_dump() for row in record.table], COLUMNS),
            *(f"- {sentence}" for sentence in record.findings),
            "",
            f"![How often each model is right, against how sure it is]({address})",
            "",
            f"Written by `{record.command}` in {record.cpu_seconds:.0f} CPU seconds "
            f"({_environment(record.versions, 1)} per model).",
        ]
    )


_TRAINING = (
    Column("what", "training step, T = 35"),
    Column("plain_words_per_second", "plain, words/s", "{:,.0f}"),
    Column("none", "ours, no noise", "{:.2f}x"),
    Column("tied", "variational, tied", "{:.2f}x"),
    Column("untied", "variational, untied", "{:.2f}x"),
    Column("bbb", "Bayes by Backprop", "{:.2f}x"),
)


def _cpu_record(root: Path) -> dict[str, Any]:
    return _read(root / "results/cpu.json", "python benchmarks/cpu.py --peers --out results/cpu.json")


def _cpu_table(record: dict[str, Any]) -> str:
    rows = [
        {**row, "what": f"{row['cell']}, {row['model']}, {row['hidden']} units, batch {row['batch']}"}
        for row in record["training"]
    ]
    return markdown_table(rows, [c for c in _TRAINING if any(c.key in row for row in rows)])


def _cpu_written(record: dict[str, Any]) -> str:
    return f"Written by `{record['command'].strip()}` ({_environment(record['versions'], record['threads'])})."


def _cpu_training(root: Path, page: Path) -> str:
    record = _cpu_record(root)
    return f"{_cpu_table(record)}\n{_cpu_written(record)}"


def _cpu_memory(root: Path, page: Path) -> str:
    memory = _cpu_record(root)["memory"]
    return (
        "A training step of Bayes by Backprop (a language model of 2 x 650 units, 20M weights, batch 20) peaks "
        f"{memory['copies']:.2f} copies of the parameters above the plain model's{_apart(memory)}."
    )


def _cpu(root: Path, page: Path) -> str:
    record = _cpu_record(root)
    lines = [_cpu_table(record)]
    for row in record.get("peers", []):
        lines.append(
            f"- One Bayesian LSTM layer of {row['hidden']} units, batch {row['batch']}, forward, KL and backward: "
            f"{row['ours_over_peer']:.1f}x as fast as {row['peer']}."
        )
    for row in record["prediction"]:
        lines.append(
            f"- `br.predict` with {row['draws']} draws, {row['model']}, {row['hidden']} units, batch {row['batch']}: "
            f"{row['ratio']:.1f}x the speed of {row['draws']} passes."
        )
    lines += [
        f"- Peak memory of Bayes by Backprop beyond the plain model's: {record['memory']['copies']:.2f} copies of the "
        f"parameters{_apart(record['memory'])}.",
        "",
        _cpu_written(record),
    ]
    return "\n".join(lines)


def _published(table: str, root: Path, page: Path) -> str:
    """Every row of a published table that has a record, the paper's figures beside ours."""
    rows: list[dict[str, Any]] = []
    sources: dict[str, dict[str, None]] = {}
    for name, recipe in published_rows(table).items():
        records = records_of(root / "results" / name)
        if records:
            rows += [line for line in compared(name, recipe, records) if line["ours"] is not None]
            for r in records:
                sources.setdefault(f"{r['device']}, torch {r['versions']['torch']}", {})[f"{name}/{r['seed']}"] = None
    columns = (
        Column("row", "recipe"), Column("measure", "perplexity, or nats"), Column("paper", "paper", "{:.2f}"),
        Column("ours", "ours"), Column("seeds", "seeds"),
    )  # fmt: skip
    made = "; ".join(f"{', '.join(names)} ({where})" for where, names in sources.items())
    return "\n".join([markdown_table(rows, columns), f"From `results/`, recipe and seed: {made}."])


def _apart(part: dict[str, Any]) -> str:
    """Says so where a part of a record was not measured in the same run as the rest."""
    return f" ({part['command']})" if "command" in part else ""


BLOCKS: dict[str, Callable[[Path, Path], str]] = {
    "tree": lambda root, page: architecture.tree(root),
    "quickstart": _quickstart,
    "cpu": _cpu,
    "cpu-training": _cpu_training,
    "cpu-memory": _cpu_memory,
    "gal2016": partial(_published, "gal2016"),
    "fortunato2017": partial(_published, "fortunato2017"),
    **{name: lambda root, page, make=make: make(root / "results") for name, make in language.BLOCKS.items()},
    **{name: lambda root, page, make=make: make(root / "results") for name, make in penn_treebank.BLOCKS.items()},
    **{name: lambda root, page, make=make: make(root / "results") for name, make in differences.BLOCKS.items()},
    **{name: lambda root, page, make=make: make(root / "results") for name, make in digits.BLOCKS.items()},
    **{name: lambda root, page, make=make: make(root / "results") for name, make in sentiment.BLOCKS.items()},
    **{name: lambda root, page, make=make: make(root / "results") for name, make in captioning.BLOCKS.items()},
    **{name: lambda root, page, make=make: make(root / "results") for name, make in forecast.BLOCKS.items()},
    **{name: lambda root, page, make=make: make(root / "results") for name, make in fuzz.BLOCKS.items()},
    **{name: lambda root, page, make=make: make(root / "results") for name, make in distributed.BLOCKS.items()},
    **{name: lambda root, page, make=make: make(root / "results") for name, make in speed.BLOCKS.items()},
}


def _read(path: Path, command: str) -> dict[str, Any]:
    if not path.is_file():
        raise SystemExit(f"{path} is missing: make it with `{command}` and commit it")
    record: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return record


def generated(page: Path, root: Path = ROOT) -> str:
    """The page's text with every block made anew from its record."""

    def block(match: re.Match[str]) -> str:
        opening, name, closing = match.groups()
        if name not in BLOCKS:
            raise SystemExit(f"{page.name} asks for results:{name}; there are only {', '.join(BLOCKS)}")
        return f"{opening}{_without_empty_tables(BLOCKS[name](root, page))}\n{closing}"

    return _BLOCK.sub(block, page.read_text("utf-8"))


def _without_empty_tables(text: str) -> str:
    """A block as it is shown: a table without rows says so in words."""
    made = _EMPTY.sub(f"{NO_RECORD}\n", f"{text}\n").removesuffix("\n")
    return NO_RECORD if made.strip() in ("", NO_RECORD) else made


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the tables of README.md and docs/*.md from records.")
    parser.add_argument("--check", action="store_true", help="change nothing; status 1 if a block is out of date")
    check = parser.parse_args().check
    if not check:
        language.write_figures(ROOT / "results", ROOT / "docs/figures")
        digits_plots.write_figures(ROOT / "results", ROOT / "docs/figures")
        sentiment_plots.write_figures(ROOT / "results", ROOT / "docs/figures")
        captioning.write_figures(ROOT / "results", ROOT / "docs/figures")
        forecast.write_figures(ROOT / "results", ROOT / "docs/figures")
    stale = [page for page in pages() if generated(page) != page.read_text("utf-8")]
    for page in stale:
        print(f"{page.relative_to(ROOT)}: {'out of date' if check else 'written'}")
        if not check:
            page.write_text(generated(page), "utf-8")
    sys.exit(bool(check and stale))


if __name__ == "__main__":
    main()
