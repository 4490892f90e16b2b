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
    distributed-model   results/RECIPE/*.json                 speeds of links, in docs/build/distributed.py
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
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # docs.build is not installed

from bayesrnn.lab.recipes.tables import rows as published_rows
from bayesrnn.lab.report.tables import Column, markdown_table
from bayesrnn.lab.runs.record import read_folder
from bayesrnn.lab.tasks.language.published import compared
from docs.build import (
    architecture,
    captioning,
    cpu,
    differences,
    digits,
    digits_plots,
    distributed,
    forecast,
    forecast_plots,
    fuzz,
    language,
    penn_treebank,
    quickstart,
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


def _published(table: str, root: Path, page: Path) -> str:
    """Every row of a published table that has a record, the paper's figures beside ours."""
    rows: list[dict[str, Any]] = []
    sources: dict[str, dict[str, None]] = {}
    for name, recipe in published_rows(table).items():
        records = read_folder(root / "results" / name)
        if records:
            rows += [line for line in compared(name, recipe, records) if line["ours"] is not None]
            for r in records:
                sources.setdefault(r.made_on, {})[f"{name}/{r.seed}"] = None
    columns = (
        Column("row", "recipe"), Column("measure", "perplexity, or nats"), Column("paper", "paper", "{:.2f}"),
        Column("ours", "ours"), Column("seeds", "seeds"),
    )  # fmt: skip
    made = "; ".join(f"{', '.join(names)} ({where})" for where, names in sources.items())
    return "\n".join([markdown_table(rows, columns), f"From `results/`, recipe and seed: {made}."])


BLOCKS: dict[str, Callable[[Path, Path], str]] = {
    "tree": lambda root, page: architecture.tree(root),
    "quickstart": quickstart.block,
    "gal2016": partial(_published, "gal2016"),
    "fortunato2017": partial(_published, "fortunato2017"),
    **{
        name: lambda root, page, make=make: make(root / "results")
        for module in (
            cpu,
            language,
            penn_treebank,
            differences,
            digits,
            sentiment,
            captioning,
            forecast,
            fuzz,
            distributed,
            speed,
        )
        for name, make in module.BLOCKS.items()
    },
}


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
        for module in (language, digits_plots, sentiment_plots, captioning, forecast_plots):
            module.write_figures(ROOT / "results", ROOT / "docs/figures")
    stale = [page for page in pages() if generated(page) != page.read_text("utf-8")]
    for page in stale:
        print(f"{page.relative_to(ROOT)}: {'out of date' if check else 'written'}")
        if not check:
            page.write_text(generated(page), "utf-8")
    sys.exit(bool(check and stale))


if __name__ == "__main__":
    main()
