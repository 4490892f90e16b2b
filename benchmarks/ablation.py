"""What each ingredient of best-medium gives: the recipe with fewer epochs, and again without one of them.

    python benchmarks/ablation.py --data ptb                             # runs all; writes results/ablation/*.json
    python benchmarks/ablation.py --data ptb --only all no-averaging     # these alone
    python benchmarks/ablation.py --data ptb --print                     # the commands instead; copy each record.json

All runs have the same epochs. Averaging begins at the same share of them as in the recipe; the run without it lowers
the learning rate instead, from that epoch on, to a hundredth. A run whose record is there is left alone.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bayesrnn.errors import UserError
from bayesrnn.lab import recipes
from bayesrnn.lab.engine.launch import launch
from bayesrnn.lab.reading import data_name
from bayesrnn.lab.runs.record import read

ROOT = Path(__file__).resolve().parent.parent
RECIPE, EPOCHS, LAST_RATE = "best-medium", 30, 0.01
# Untied embeddings are many more weights: once at the recipe's width, once in the width that has as many weights as it.
WITHOUT = {
    "all": [],
    "no-tying": ["model.tied=false"],
    "no-tying-narrow": ["model.tied=false", "model.hidden=720"],
    "no-word-dropout": ["model.word_dropout=0"],
    "no-input-dropout": ["model.input_dropout=0"],
    "no-output-dropout": ["model.output_dropout=0"],
    "no-weight-dropout": ["model.weight_dropout=0"],
    "no-averaging": [],
    "no-l2": ["train.l2=0"],
}


def overrides_of(name: str, epochs: int) -> list[str]:
    """Settings of a run, as they are given to ``bayesrnn train``."""
    train = recipes.load(RECIPE).train
    first = max(2, round(train.average_from * epochs / train.epochs))
    if name == "no-averaging":
        decay = LAST_RATE ** (1 / (epochs - first + 1))
        rates = ["train.average_from=null", f"train.decay={decay:.4g}", f"train.decay_after={first - 1}"]
    else:
        rates = [f"train.average_from={first}"]
    return [f"train.epochs={epochs}", *rates, *WITHOUT[name]]


def command(name: str, options: argparse.Namespace) -> list[str]:
    """The run as a command; its folder is named after it."""
    words = ["bayesrnn", "train", RECIPE, *overrides_of(name, options.epochs), *options.setting]
    words += ["--data", options.data, "--seed", str(options.seed), "--out", f"runs/ablation/{name}-{options.seed}"]
    return words + (["--device", options.device] if options.device else [])


def check_same(path: Path, name: str, options: argparse.Namespace) -> None:
    """Refuse a record of other settings or another text where one would be left alone."""
    record, wanted = read(path), [*overrides_of(name, options.epochs), *options.setting]
    if sorted(record.overrides) != sorted(wanted) or record.data != data_name(options.data):
        there = " ".join(record.overrides)
        raise UserError(f"{path} is of other settings or another text ({there}, {record.data}); use --out or --force.")


class Reporter:
    """A line per epoch."""

    def __init__(self, name: str) -> None:
        self.name = name

    def say(self, text: str) -> None:
        print(f"{self.name}: {text}", flush=True)

    def step(self, progress: Any) -> None: ...

    def epoch(self, line: dict[str, Any], epochs: int) -> None:
        self.say(f"epoch {line['epoch']}/{epochs}, validation {line['valid_perplexity']:.2f}, {line['seconds']:.1f} s")


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=f"Train {RECIPE} without one of its ingredients at a time.")
    parser.add_argument("setting", nargs="*", metavar="KEY=VALUE", help="settings of all runs")
    parser.add_argument("--data", required=True, help="folder with train, valid and test text")
    parser.add_argument("--only", nargs="+", choices=WITHOUT, default=list(WITHOUT), metavar="NAME")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="of every run, at least 4")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", help="cpu or cuda; default: cuda where there is one")
    parser.add_argument("--print", action="store_true", help="print the commands and leave")
    parser.add_argument("--force", action="store_true", help="run also what has a record")
    parser.add_argument("--out", type=Path, default=ROOT / "results/ablation")
    options = parser.parse_args(words)
    if options.epochs < 4:
        parser.error(f"--epochs is {options.epochs}; averaging needs at least 4")
    return options


def main(words: list[str] | None = None) -> None:
    options = arguments(words)
    for name in options.only:
        words = command(name, options)
        path = options.out / f"{name}-{options.seed}.json"
        if options.print:
            print(shlex.join(words))
            continue
        if path.exists() and not options.force:
            check_same(path, name, options)
            print(f"{name}: {path} is there already", flush=True)
            continue
        started = time.time()
        with tempfile.TemporaryDirectory() as folder:
            record = launch(
                RECIPE,
                out=Path(folder) / name,
                reporter=Reporter(name),
                data=options.data,
                overrides=[*overrides_of(name, options.epochs), *options.setting],
                seed=options.seed,
                device=options.device,
                command=shlex.join(words),
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        record.write(path)
        print(
            f"{name}: {record.metric('valid_perplexity'):.2f} validation, {record.metric('test_perplexity'):.2f} test, "
            f"{time.time() - started:.0f} s; {path}",
            flush=True,
        )


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"ablation: {error}")
