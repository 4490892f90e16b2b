"""Whether the launch of a whole layer costs perplexity: pairs of runs that differ in the recurrent kernel alone.

    python benchmarks/same_training.py --data ptb                          # writes results/same-training/CASE.json
    python benchmarks/same_training.py --data ptb --only brnn-200 --seeds 8 --epochs 8

The runs of a pair begin with the same weights, and see the same text and the same noise. One computes all steps of a
layer in one launch, the other goes step by step. All seeds train side by side; on a GPU one CUDA graph holds a step of
each, and the small kernels of the step-by-step runs overlap in it. The recipe's learning rates are squeezed into the
epochs. A record has the perplexities of every run and the paired difference with its 95% interval (Student's t): in the
validation text after the last epoch, and in the training text of that epoch. Rounding drives the runs of a pair apart,
so that some chance is left. Both are validated by the library's usual path. The test text is not read.
"""

from __future__ import annotations

import argparse
import copy
import math
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from comparison import make_folder, squeezed

from bayesrnn import kernels
from bayesrnn.errors import UserError
from bayesrnn.lab import recipes
from bayesrnn.lab.engine import contract, schedule
from bayesrnn.lab.engine.launch import device_of
from bayesrnn.lab.engine.loop import set_precision
from bayesrnn.lab.engine.provenance import commit, environment
from bayesrnn.lab.engine.step import Step
from bayesrnn.lab.modules import evaluating
from bayesrnn.lab.reading import data_name
from bayesrnn.lab.recipes import Recipe
from bayesrnn.lab.registry import task_class
from bayesrnn.lab.runs.files import check_out
from bayesrnn.lab.runs.record import Record

ROOT = Path(__file__).resolve().parent.parent
CASES = {
    "brnn-200": ("brnn-medium", ["model.hidden=200"], 8),
    "variational-200": ("variational-tied-medium", ["model.hidden=200"], 8),
    "brnn-650": ("brnn-medium", [], 4),
    "variational-650": ("variational-tied-medium", [], 4),
}
PATHS = {"cuda": ("persistent", "cells"), "cpu": ("compiled", "reference")}
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)


class Arm:
    """The runs of one path, a seed each, trained side by side.

    Args:
        task: its text is shared by all runs.
        branches: record the steps of the runs as branches of the graph; else one after the other.
    """

    def __init__(self, task: Any, seeds: Iterable[int], path: str, *, branches: bool) -> None:
        self.path, self.recipe, self.device = path, task.recipe, task.device
        self.steps = [self._step(copy.copy(task), seed) for seed in seeds]
        self.valid: list[list[float]] = [[] for _ in self.steps]
        self.train: list[list[float]] = [[] for _ in self.steps]
        self.seconds: list[float] = []
        torch.manual_seed(0)
        self._noise = self._random_state()
        self._step_all: Callable[[], object] = self._work
        cuda = self.device.type == "cuda"
        self._streams = [torch.cuda.Stream(self.device, priority=-1) for _ in self.steps] if branches and cuda else []
        if cuda:
            with kernels.force(path):
                (graph,) = kernels.record([self._work], self._written, warm_up=self._warm_up, device=self.device)
            self._step_all = graph.replay

    def _step(self, task: Any, seed: int) -> Step:
        torch.manual_seed(seed)
        contract.attach(task, task.build(self.recipe, task.files()))
        return Step(task, self.recipe.train, eta_clip=self.recipe.posterior.eta_clip, graph=False)

    def _work(self) -> None:
        if not self._streams:
            for step in self.steps:
                step()
            return
        here: Any = torch.cuda.current_stream(self.device)
        for step, stream in zip(self.steps, self._streams, strict=True):
            stream.wait_stream(here)
            with torch.cuda.stream(stream):
                step()
        for stream in self._streams:
            here.wait_stream(stream)

    def _warm_up(self) -> None:
        self._work()
        for step in self.steps:
            step.position.zero_()

    def _written(self) -> Iterable[torch.Tensor]:
        for step in self.steps:
            yield from (*step.model.parameters(), *step.model.buffers(), *step.tensors().values())

    def _random_state(self) -> list[torch.Tensor]:
        cuda = [torch.cuda.get_rng_state(self.device)] if self.device.type == "cuda" else []
        return [torch.get_rng_state(), *cuda]

    def epoch(self, epoch: int) -> None:
        """Train all runs for an epoch, with the noise that the other arm has in it, and validate them."""
        torch.set_rng_state(self._noise[0])
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(self._noise[1], self.device)
        for step in self.steps:
            step.lr.fill_(schedule.rate(self.recipe.train, epoch))
            step.start_epoch()
            step.model.train()
        began = time.perf_counter()
        with kernels.force(self.path):
            for _ in range(self.steps[0].task.steps):
                self._step_all()
        totals = [step.task.training(step.read_totals()) for step in self.steps]
        self.seconds.append(time.perf_counter() - began)
        self._noise = self._random_state()
        for k, (step, own) in enumerate(zip(self.steps, totals, strict=True)):
            with evaluating(step.model):
                self.valid[k].append(step.task.validate()["valid_perplexity"])
            self.train[k].append(own["train_perplexity"])


def settings(name: str, overrides: list[str], epochs: int) -> tuple[Recipe, list[str]]:
    """The recipe with its schedule squeezed into the epochs, and other sizes."""
    first = recipes.override(recipes.load(name), squeezed(name, epochs))
    recipe: Recipe = recipes.override(first, overrides)
    before = recipes.flatten(first)
    changed = [key for key, value in recipes.flatten(recipe).items() if value != before[key]]
    for key in changed:
        if not key.startswith(("model.", "data.")) or key in ("data.shift", "data.vary"):
            raise UserError(
                f"{key} is not to be changed here; settings are those of model and data, with fixed windows."
            )
    return recipe, [*squeezed(name, epochs), *overrides]


def compared(case: str, options: argparse.Namespace) -> Record:
    """Train the pairs of a case, and write their record."""
    name, overrides, pairs = CASES[case]
    recipe, overrides = settings(name, [*overrides, *options.setting], options.epochs)
    device = device_of(options.device)
    set_precision(recipe.train.precision, device)
    task = task_class(recipe.task)(recipe, options.data, device)
    for path in PATHS[device.type]:
        if not kernels.able(path, kernels.Case("LSTM", device.type)):
            raise UserError(f"The path {path} cannot run on this {device.type}, and would be replaced by another.")
    seeds = range(1, (options.seeds or pairs) + 1)
    arms = [Arm(task, seeds, path, branches=path == "cells") for path in PATHS[device.type]]
    for epoch in range(1, options.epochs + 1):
        for arm in arms:
            arm.epoch(epoch)
        means = ", ".join(
            f"{arm.path} {statistics.fmean(each[-1] for each in arm.valid):.2f} ({arm.seconds[-1]:.1f} s)"
            for arm in arms
        )
        print(f"{case}: epoch {epoch}/{options.epochs}, validation {means}", flush=True)
    found = differences(arms)
    if not found["pairs"]:
        raise UserError(f"{case}: a run of every pair diverged, so there is nothing to compare; nothing was written.")
    record = Record(
        recipe=name, data=data_name(options.data), overrides=overrides, commit=commit(), **environment(device),
        command=shlex.join(["python", "benchmarks/same_training.py", *options.words]), cuda_graph=device.type == "cuda",
        kernel=" over ".join(arm.path for arm in arms), metrics=found,
        note=f"{case}: perplexities of the first path over those of the second, in percent",
        curves={"valid_percent": _by_epoch(arms, "valid"), "train_percent": _by_epoch(arms, "train")},
        runs={arm.path: {"valid": arm.valid, "train": arm.train, "seconds": arm.seconds} for arm in arms},
    )  # fmt: skip
    record.write(options.out / f"{case}.json")
    return record


def differences(arms: list[Any]) -> dict[str, Any]:
    """The paired differences after the last epoch; pairs with a run that diverged are counted apart."""
    first, second = arms
    sound = [
        k for k in range(len(first.valid)) if all(math.isfinite(arm.valid[k][-1] * arm.train[k][-1]) for arm in arms)
    ]
    metrics: dict[str, Any] = {"pairs": len(sound), "diverged": len(first.valid) - len(sound)}
    for split in ("valid", "train"):
        ends = [(getattr(first, split)[k][-1], getattr(second, split)[k][-1]) for k in sound]
        metrics |= interval(split, above(ends))
    return metrics


def _by_epoch(arms: list[Arm], split: str) -> list[float]:
    """The mean difference after each epoch."""
    first, second = (zip(*getattr(arm, split), strict=True) for arm in arms)
    return [statistics.fmean(above(zip(a, b, strict=True))) for a, b in zip(first, second, strict=True)]


def interval(name: str, each: list[float]) -> dict[str, Any]:
    """Differences, and from two on their mean with the 95% interval of Student's t."""
    found: dict[str, Any] = {f"{name}_each": each}
    if free := max(len(each) - 1, 0):
        half, mean = _quantile(free) * statistics.stdev(each) / len(each) ** 0.5, statistics.fmean(each)
        found |= {f"{name}_percent": mean, f"{name}_low": mean - half, f"{name}_high": mean + half}
    return found


def _quantile(free: int) -> float:
    """The 97.5% quantile of Student's t; beyond the table by its expansion around the normal one."""
    if free <= len(_T):
        return _T[free - 1]
    z = statistics.NormalDist().inv_cdf(0.975)
    return z + (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)


def above(pairs: Iterable[Iterable[float]]) -> list[float]:
    return [100 * (a / b - 1) for a, b in pairs]


def arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Pairs of runs that differ in the recurrent kernel alone.")
    parser.add_argument("setting", nargs="*", metavar="KEY=VALUE", help="settings of all runs")
    parser.add_argument("--data", required=True, help="folder with train, valid and test text")
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), help="these cases alone")
    parser.add_argument("--epochs", type=int, default=10, help="of every run; default: 10")
    parser.add_argument("--seeds", type=int, help="pairs; default: 8 at 200 units, 4 at 650")
    parser.add_argument("--device", help="cpu or cuda; default: cuda where there is one")
    parser.add_argument("--out", type=Path, default=ROOT / "results/same-training", help="folder of the records")
    parser.add_argument("--force", action="store_true", help="replace records")
    options = parser.parse_intermixed_args(words)
    for name in ("epochs", "seeds"):
        if (given := getattr(options, name)) is not None and given < 1:
            parser.error(f"--{name} is {given}; it must be at least 1")
    options.words = words
    return options


@kernels.float32_precision()
def main(words: list[str] | None = None) -> None:
    options = arguments(sys.argv[1:] if words is None else words)
    make_folder(options.out)
    for case in options.only:
        check_out(options.out / f"{case}.json", force=options.force)
        settings(CASES[case][0], [*CASES[case][1], *options.setting], options.epochs)
    for case in options.only:
        found = compared(case, options).metrics
        print(f"{case}: {found}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"same_training: {error}")
