"""Runs that differ in one thing: an ingredient of a recipe, or the path of the recurrent kernel.

    python benchmarks/comparison.py ingredients --data ptb --recipe awd-24m    # writes results/ablation/awd-24m/*.json
    python benchmarks/comparison.py paths --data ptb                           # writes results/same-training/*.json
    python benchmarks/comparison.py paths --data ptb --minutes 25 --epochs 10  # as far as that goes; run it again

All runs have the same epochs, and the recipe's learning rates squeezed into them. `ingredients` trains a recipe, and
again without one ingredient each, or with one more. Averaging begins at the same share of the epochs as in the recipe;
the run without it lowers the learning rate to a hundredth instead. `paths` trains pairs of one seed, all steps of a
layer in one launch and step by step, and writes their paired difference with its 95% interval, in the validation text
(several streams at once, at the best epoch) and, with less chance in it, in the training text (mean of the last
epoch's windows); the test text is not read. A run whose record is there is left alone; one that was stopped continues
from its last epoch. Several processes can train side by side, each with a `--path` or cases of its own; the command
without `--path`, run last, writes the differences.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import statistics
import sys
import time
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from bayesrnn import kernels
from bayesrnn.errors import UserError
from bayesrnn.lab import recipes
from bayesrnn.lab.engine.launch import device_of, launch
from bayesrnn.lab.engine.loop import Diverged
from bayesrnn.lab.engine.provenance import commit, environment
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
CASES = {
    "brnn-200": ("brnn-medium", ["model.hidden=200"], 8),
    "variational-200": ("variational-tied-medium", ["model.hidden=200"], 8),
    "brnn-650": ("brnn-medium", [], 4),
    "variational-650": ("variational-tied-medium", [], 4),
}
PATHS = {"cuda": ("persistent", "cells"), "cpu": ("compiled", "reference")}
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)


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


def trained(recipe: str, name: str, overrides: list[str], seed: int, options: Any, path: str | None = None) -> Record:
    """The record of a run: read, or trained now, from its last epoch on where it was stopped."""
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
    if path:  # of every recurrent layer, which no option of the command asks for
        words = ["python", "benchmarks/comparison.py", "paths", "--data", options.data, "--epochs", str(options.epochs)]
    known: dict[str, Any] = {"overrides": wanted, "seed": seed, "command": shlex.join(words)}
    with kernels.force(path) if path else nullcontext():
        try:
            record = launch(
                recipe, out=folder, reporter=Reporter(f"{name}-{seed}", options.end), data=options.data,
                device=options.device, resume=(folder / "config.json").exists() and not options.force,
                force=options.force, measure=path is None, **known,
            )  # fmt: skip
        except Diverged as error:  # a result too
            kept = folder / "metrics.jsonl"
            lines = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
            curves = {"valid_perplexity": [line["valid_perplexity"] for line in lines]}
            about = {"recipe": recipe, "data": data_name(options.data), "kernel": path, "commit": commit(), **known}
            record = Record(**about, curves=curves, metrics={"diverged": str(error)})
    options.out.mkdir(parents=True, exist_ok=True)
    record.write(file)
    shutil.rmtree(folder)
    return record


def ingredients(options: argparse.Namespace) -> None:
    names = INGREDIENTS[options.recipe]
    for name in options.only or names:
        more = [*squeezed(options.recipe, options.epochs, averaging=name != "no-averaging"), *names[name].split()]
        found = trained(options.recipe, name, more, options.seed, options).metrics
        print(f"{name}: {found.get('valid_perplexity', found.get('diverged'))} validation", flush=True)


def paths(options: argparse.Namespace) -> None:
    """Pairs of every case in turn, so that all cases have some where the time is short."""
    device, cases = device_of(options.device), options.only or list(CASES)
    for path in PATHS[device.type]:
        if not kernels.able(path, kernels.Case("LSTM", device.type)):
            raise UserError(f"The path {path} cannot run on this {device.type}, and would be replaced by another.")
    pairs: dict[str, list[list[Record]]] = {case: [] for case in cases}
    wanted = {case: options.seeds or CASES[case][2] for case in cases}
    for seed in range(1, max(wanted.values()) + 1):
        for case in (case for case in cases if seed <= wanted[case]):
            recipe, overrides, _ = CASES[case]
            more = [*squeezed(recipe, options.epochs), *overrides]
            ways = [options.path] if options.path else PATHS[device.type]
            pair = [trained(recipe, f"{case}-{path}", more, seed, options, path) for path in ways]
            if options.path:
                continue
            pairs[case].append(pair)
            record = difference(case, pairs[case], {**environment(device), "commit": commit()})
            record.write(options.out / f"{case}.json")
            print(f"{case}: {record.metrics}", flush=True)


def difference(case: str, pairs: list[list[Record]], about: dict[str, Any]) -> Record:
    """Perplexities of the first path above those of the second, in percent, with the 95% interval of Student's t."""
    sound = [pair for pair in pairs if not any("diverged" in record.metrics for record in pair)]
    metrics: dict[str, Any] = {"pairs": len(sound), "diverged": len(pairs) - len(sound)}
    for split, ends in (("valid", _valid), ("train", _train)):
        metrics |= interval(split, above([[ends(record) for record in pair] for pair in sound]))
    rows = [above(zip(*(record.curve("valid_perplexity") for record in pair), strict=True)) for pair in sound]
    return Record(
        recipe=pairs[0][0].recipe, data=pairs[0][0].data, overrides=pairs[0][0].overrides, metrics=metrics,
        kernel=" over ".join(record.kernel or "" for record in pairs[0]), note=f"{case}: pairs of runs in this folder",
        curves={"valid_percent": [statistics.fmean(epoch) for epoch in zip(*rows, strict=True)]}, **about,
    )  # fmt: skip


def _valid(record: Record) -> float:
    return float(record.metrics["valid_perplexity"])


def _train(record: Record) -> float:
    return record.curve("train_perplexity")[-1]


def interval(name: str, each: list[float]) -> dict[str, Any]:
    """Differences, and from two on their mean with the 95% interval of Student's t."""
    found: dict[str, Any] = {f"{name}_each": each}
    if free := max(len(each) - 1, 0):
        half, mean = _T[min(free, len(_T)) - 1] * statistics.stdev(each) / len(each) ** 0.5, statistics.fmean(each)
        found |= {f"{name}_percent": mean, f"{name}_low": mean - half, f"{name}_high": mean + half}
    return found


def above(pairs: Iterable[Iterable[float]]) -> list[float]:
    return [100 * (a / b - 1) for a, b in pairs]


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Runs that differ in one thing.")
    parser.add_argument("what", choices=("ingredients", "paths"))
    parser.add_argument("setting", nargs="*", metavar="KEY=VALUE", help="settings of all runs")
    parser.add_argument("--data", required=True, help="folder with train, valid and test text")
    parser.add_argument("--recipe", choices=INGREDIENTS, default="awd-24m", help="of ingredients")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these ingredients or cases alone")
    parser.add_argument("--epochs", type=int, help="of every run, at least 4; default: 30 of ingredients, 20 of paths")
    parser.add_argument("--seed", type=int, default=1, help="of ingredients")
    parser.add_argument("--seeds", type=int, help="pairs of paths; default: 8 at 200 units, 4 at 650")
    parser.add_argument("--path", help="train the runs of this path alone, for several processes side by side")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after the epoch that ends after this")
    parser.add_argument("--device", help="cpu or cuda; default: cuda where there is one")
    parser.add_argument("--force", action="store_true", help="run also what has a record")
    parser.add_argument("--out", type=Path, help="default: results/ablation/RECIPE or results/same-training")
    parser.add_argument("--runs", type=Path, default=Path("runs/comparison"), help="of runs that are not finished")
    options = parser.parse_args(words)
    options.epochs = options.epochs or (30 if options.what == "ingredients" else 20)
    if options.epochs < 4:
        parser.error(f"--epochs is {options.epochs}; averaging needs at least 4")
    known = INGREDIENTS[options.recipe] if options.what == "ingredients" else CASES
    if unknown := set(options.only or ()) - known.keys():
        parser.error(f"--only has no {min(unknown)}; there are {', '.join(known)}")
    if options.path and options.path not in (names := PATHS[device_of(options.device).type]):
        parser.error(f"--path has no {options.path}; there are {', '.join(names)}")
    folder = f"ablation/{options.recipe}" if options.what == "ingredients" else "same-training"
    options.out, options.end = options.out or ROOT / "results" / folder, time.monotonic() + 60 * options.minutes
    return options


def main(words: list[str] | None = None) -> None:
    options = arguments(words)
    try:
        {"ingredients": ingredients, "paths": paths}[options.what](options)
    except OutOfTime:
        print("The time is over; the same command continues.", flush=True)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"comparison: {error}")
