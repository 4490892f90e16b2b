"""What each ingredient of a recipe is worth: runs that differ in one.

    python benchmarks/comparison.py --data ptb --recipe awd-24m    # writes results/ablation/awd-24m/*.json
    python benchmarks/comparison.py --data ptb --minutes 25        # as far as that goes; run it again

A recipe is trained, and again without one ingredient each, or with one more. All runs have the same epochs, and the
recipe's learning rates squeezed into them. Averaging begins at the same share of the epochs as in the recipe; the run
without it lowers the learning rate to a hundredth instead. A run whose record is there is left alone; one that was
stopped continues from its last epoch.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from bayesrnn.errors import UserError
from bayesrnn.lab import recipes
from bayesrnn.lab.engine.launch import launch
from bayesrnn.lab.engine.loop import Diverged
from bayesrnn.lab.engine.provenance import commit
from bayesrnn.lab.reading import data_name
from bayesrnn.lab.runs.record import Record, read

ROOT = Path(__file__).resolve().parent.parent
LAST_RATE = 0.01  # of the first one, without averaging
_NO = {f"no-{name}-dropout": f"model.{name}_dropout=0" for name in ("word", "input", "output", "weight")}
_MIXTURE = "model.embedding=300 model.units=[1010,1010,660] model.softmaxes=15 model.latent_dropout=0.29"
# Untied embeddings are many more weights: once at the recipe's width, once in the width that has as many weights as it.
INGREDIENTS = {
    "best-medium": {
        "all": "",
        "no-tying": "model.tied=false",
        "no-tying-narrow": "model.tied=false model.hidden=720",
        **_NO,
        "no-averaging": "",
        "no-l2": "train.l2=0",
    },
    "awd-24m": {
        "all": "",
        "equal-widths": "model.embedding=null model.hidden=818",
        **_NO,
        "no-between-dropout": "model.between_dropout=0",
        "no-averaging": "",
        "no-penalties": "model.activation=0 model.activation_change=0",
        "no-decay": "train.weight_decay=0",
        "no-shift": "data.shift=false",
        "masks": "model.hidden=1136 model.recurrent_dropout=0.25 model.weight_dropout=0.1",
        "mixture": _MIXTURE,
        "mogrifier": "model.hidden=1100 model.mogrifier=5 model.mogrifier_rank=40",
    },
}


class OutOfTime(Exception):
    """The minutes are over; what was trained is kept."""


class Reporter:
    """A line per epoch, until the time is over."""

    def __init__(self, name: str, end: float) -> None:
        self.name, self.end = name, end

    def say(self, text: str) -> None:
        print(f"{self.name}: {text}", flush=True)

    def step(self, progress: Any) -> None: ...

    def epoch(self, line: dict[str, Any], epochs: int) -> None:
        self.say(f"epoch {line['epoch']}/{epochs}, validation {line['valid_perplexity']:.2f}, {line['seconds']:.1f} s")
        if time.monotonic() > self.end and line["epoch"] < epochs:
            raise OutOfTime


def squeezed(recipe: str, epochs: int, *, averaging: bool = True) -> list[str]:
    """The recipe's schedule in so many epochs."""
    train = recipes.load(recipe).train
    share, settings = epochs / train.epochs, [f"train.epochs={epochs}"]
    if not train.averages:
        decay, later = train.decay ** (1 / share), round(train.decay_after * share)
        return [*settings, f"train.decay={decay:.6g}", f"train.decay_after={later}"]
    first = max(2, round((train.average_from or train.average_restarts[0]) * share))
    settings += [f"train.{key}=null" for key in ("average_from", "average_stall") if getattr(train, key)]
    settings += ["train.average_restarts=[]"] if train.average_restarts else []
    if averaging:
        return [*(s for s in settings if not s.startswith("train.average_from")), f"train.average_from={first}"]
    decay = LAST_RATE ** (1 / (epochs - first + 1))
    return [*settings, f"train.decay={decay:.4g}", f"train.decay_after={first - 1}"]


def trained(recipe: str, name: str, overrides: list[str], options: Any) -> Record:
    """The record of a run: read, or trained now, from its last epoch on where it was stopped."""
    seed = options.seed
    file, folder = options.out / f"{name}-{seed}.json", options.runs / f"{name}-{seed}"
    wanted = [*overrides, *options.setting]
    if file.exists() and not options.force:
        record = read(file)
        if sorted(record.overrides) != sorted(wanted) or record.data != data_name(options.data):
            there = " ".join(record.overrides)
            raise UserError(
                f"{file} has other settings or another text ({there}, {record.data}); use --out or --force."
            )
        return record
    if time.monotonic() > options.end:
        raise OutOfTime
    words = ["bayesrnn", "train", recipe, *wanted, "--data", options.data, "--seed", str(seed)]
    known: dict[str, Any] = {"overrides": wanted, "seed": seed, "command": shlex.join(words)}
    try:
        record = launch(
            recipe, out=folder, reporter=Reporter(f"{name}-{seed}", options.end), data=options.data,
            device=options.device, resume=(folder / "config.json").exists() and not options.force,
            force=options.force, **known,
        )  # fmt: skip
    except Diverged as error:  # a result too
        kept = folder / "metrics.jsonl"
        lines = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
        curves = {"valid_perplexity": [line["valid_perplexity"] for line in lines]}
        about = {"recipe": recipe, "data": data_name(options.data), "commit": commit(), **known}
        record = Record(**about, curves=curves, metrics={"diverged": str(error)})
    record.write(file)
    shutil.rmtree(folder)
    return record


def make_folder(path: Path) -> None:
    """Make a folder for records, before the work that they are about."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path} cannot be made ({error.strerror}); choose another --out.") from None


def ingredients(options: argparse.Namespace) -> None:
    names = INGREDIENTS[options.recipe]
    make_folder(options.out)
    for name in options.only or names:
        more = [*squeezed(options.recipe, options.epochs, averaging=name != "no-averaging"), *names[name].split()]
        found = trained(options.recipe, name, more, options).metrics
        print(f"{name}: {found.get('valid_perplexity', found.get('diverged'))} validation", flush=True)


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What each ingredient of a recipe is worth.")
    parser.add_argument("setting", nargs="*", metavar="KEY=VALUE", help="settings of all runs")
    parser.add_argument("--data", required=True, help="folder with train, valid and test text")
    parser.add_argument("--recipe", choices=INGREDIENTS, default="awd-24m", help="default: awd-24m")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these runs alone")
    parser.add_argument("--epochs", type=int, default=30, help="of every run, at least 4; default: 30")
    parser.add_argument("--seed", type=int, default=1, help="of every run; default: 1")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after the epoch that ends after this")
    parser.add_argument("--device", help="cpu or cuda; default: cuda where there is one")
    parser.add_argument("--force", action="store_true", help="run also what has a record")
    parser.add_argument("--out", type=Path, help="default: results/ablation/RECIPE")
    parser.add_argument("--runs", type=Path, default=Path("runs/comparison"), help="of runs that are not finished")
    options = parser.parse_intermixed_args(words)
    if options.epochs < 4:
        parser.error(f"--epochs is {options.epochs}; averaging needs at least 4")
    if not options.minutes >= 0 or options.seed < 0:
        parser.error("--minutes and --seed must be numbers of at least 0")
    if unknown := set(options.only or ()) - INGREDIENTS[options.recipe].keys():
        parser.error(f"--only has no {min(unknown)}; there are {', '.join(INGREDIENTS[options.recipe])}")
    options.out = options.out or ROOT / "results/ablation" / options.recipe
    options.end = time.monotonic() + 60 * options.minutes
    return options


def main(words: list[str] | None = None) -> None:
    options = arguments(words)
    try:
        ingredients(options)
    except OutOfTime:
        print("The time is over; the same command continues.", flush=True)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"comparison: {error}")
