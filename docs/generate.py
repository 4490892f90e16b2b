"""Write the tables of README.md, docs/ and the kernels' READMEs from the records of real runs.

    python docs/generate.py            # rewrite the blocks
    python docs/generate.py --check    # exit with status 1 if a block is not what its record says

A block lies between `<!-- results:NAME -->` and `<!-- /results -->`. Its record is written by a program:

    headlines, quickstart   results/quickstart/record.json    bayesrnn quickstart --out results/quickstart --force
    penn-treebank, overfitting   results/RECIPE/SEED.json     bayesrnn train, then evaluate
    digits       results/digits-*/SEED.json                   bayesrnn train, then evaluate, of each recipe of digits
    sentiment    results/sentiment-*/SEED.json                bayesrnn train of each recipe of sentiment
    captioning   results/caption-*/SEED.json                  bayesrnn train, then evaluate, of each captioning recipe
    forecast     results/forecast*/SERIES/SEED.json           python benchmarks/forecast.py
    m4           results/forecasting/TASK/METHOD/SEED.json     python benchmarks/forecasting.py ours|peers TASK
    cpu*         results/cpu.json                             python benchmarks/cpu.py --peers --out results/cpu.json
    gpu-speed    results/gpu-SIZE.json, gpu-SIZE-bf16.json    bayesrnn bench --device cuda --size SIZE --out RECORD
    fuzz         results/fuzz.json                            python tests/fuzz/run.py --inputs 100000 all
    torture      results/torture.json                         python -m tests.torture.run
    distributed  results/distributed.json                     python benchmarks/distributed.py --out RECORD
    tree         the docstrings of src/bayesrnn

Nothing between the markers is written by hand.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # docs.build is not installed

from docs.build import (
    architecture,
    captioning,
    cpu,
    digits,
    distributed,
    forecast,
    fuzz,
    headlines,
    m4,
    penn_treebank,
    quickstart,
    sentiment,
    speed,
)
from docs.build.pictures import NO_RECORD, write

ROOT = Path(__file__).resolve().parent.parent
_EMPTY = re.compile(r"^\|.*\|\n\|(?:-+:?\|)+\n(?!\|)", re.MULTILINE)  # a table's head without rows
_BLOCK = re.compile(r"(<!-- results:([\w-]+) -->\n).*?(<!-- /results -->)", re.DOTALL)


def pages(root: Path = ROOT) -> list[Path]:
    """The files that may hold blocks."""
    kernels = sorted((root / "src/bayesrnn/kernels").glob("*/README.md"))
    return [root / "README.md", *sorted((root / "docs").rglob("*.md")), *kernels]


_MODULES = (captioning, cpu, digits, distributed, forecast, fuzz, m4, penn_treebank, sentiment, speed)
_DRAWN = (captioning, cpu, digits, m4, penn_treebank, sentiment, speed)
BLOCKS: dict[str, Callable[[Path, Path], str]] = {
    "tree": lambda root, page: architecture.tree(root),
    "headlines": headlines.block,
    "quickstart": quickstart.block,
    **{
        name: lambda root, page, make=make: make(root / "results")
        for module in _MODULES
        for name, make in module.BLOCKS.items()
    },
}


def generated(page: Path, root: Path = ROOT) -> str:
    """The page's text with every block made anew from its record."""

    def block(match: re.Match[str]) -> str:
        opening, name, closing = match.groups()
        if name not in BLOCKS:
            raise SystemExit(f"{page.name} asks for results:{name}; there are only {', '.join(BLOCKS)}")
        figures = os.path.relpath(root / "docs/figures", page.parent).replace(os.sep, "/")
        made = _without_empty_tables(BLOCKS[name](root, page)).replace("](figures/", f"]({figures}/")
        return f"{opening}{made}\n{closing}"

    return _BLOCK.sub(block, page.read_text("utf-8"))


def _without_empty_tables(text: str) -> str:
    """A block as it is shown: a table without rows says so in words."""
    made = _EMPTY.sub(f"{NO_RECORD}\n", f"{text}\n").removesuffix("\n")
    return NO_RECORD if made.strip() in ("", NO_RECORD) else made


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the tables of README.md and docs/ from records.")
    parser.add_argument("--check", action="store_true", help="change nothing; status 1 if a block is out of date")
    check = parser.parse_args().check
    if not check:
        for module in _DRAWN:
            write(module.figures(ROOT / "results"), ROOT / "docs/figures")
    stale = [page for page in pages() if generated(page) != page.read_text("utf-8")]
    for page in stale:
        print(f"{page.relative_to(ROOT)}: {'out of date' if check else 'written'}")
        if not check:
            page.write_text(generated(page), "utf-8")
    sys.exit(bool(check and stale))


if __name__ == "__main__":
    main()
