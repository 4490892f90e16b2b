"""Whether a fast path has a bias that single windows do not show: gradients of many windows, and the noise itself.

python benchmarks/gradients.py --data PTB [--only brnn-200 ...] [--epochs 2] [--seeds 4] [--windows 200]
                               [--device cuda] [--out results/gradients] [--force]

Each model is trained for some epochs on the fastest path. From these weights one more epoch is trained on each path, at
a tenth of the learning rate, for some seeds. Runs of one seed then stay close to each other, so that a small difference
shows: `continued` has that of perplexities to step by step, in percent, with its 95% interval.

Then the gradients of -log p of consecutive windows are computed with the same noise and the same carried state on each
path, and exactly (float32 products, no TF32); on a GPU each as a CUDA graph, as in training. Once more after 95% of the
recurrent weights were made 100 times smaller, with standard deviations of 0.001, as a narrow prior makes them. For all
weights and for groups of them:

    one_window      error of a window's gradient over the gradient: root of the mean square
    worst_window    the largest of these: a rare fault, such as a number read too early, would show here
    shrink          mean over windows of <g, exact> / <exact, exact> - 1, and its standard error: a path that makes all
                    gradients 1% too small has -0.01
    small, small_shrink  error and shrink among the smaller half of the gradient's numbers
    summed, along   error of the sum of all gradients, over that sum; and its part along it

Noise is drawn as training draws it, one seed per step. Each statistic is divided by its standard error, so that sound
noise has numbers of size 1. So are the rates of masks.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from same_training import CASES, above, interval
from torch import Tensor

import bayesrnn as br
from bayesrnn import draws, kernels
from bayesrnn.errors import UserError
from bayesrnn.kernels.gaussian.plan import DrawSpec, KernelPrior
from bayesrnn.kernels.gaussian.sampling import Seeded
from bayesrnn.lab.engine.launch import device_of
from bayesrnn.lab.engine.provenance import commit
from bayesrnn.lab.engine.step import Step
from bayesrnn.lab.recipes import load, override
from bayesrnn.lab.runs.files import check_out, write_file
from bayesrnn.lab.tasks.language.task import Language

EXACT, BASE, CUDNN = "exact", "step by step", "cuDNN"
PATHS = {EXACT: "loop", "one launch": "persistent", "step by step": "cells", CUDNN: "triton"}
RUNS = {"one launch": ("path 'persistent'",), "step by step": ("path 'cells'", "path 'loop'"), CUDNN: ("cuDNN",)}
GROUPS = {"paths": "", "recurrent": "rnn", "weight_hh": "weight_hh", "weight_ih": "weight_ih", "bias": "rnn.bias"}
NARROW, KEPT, SIGMA = 0.01, 0.05, 1e-3
SLOW = 0.1  # of the learning rate, where training goes on


@contextlib.contextmanager
def on(name: str) -> Iterator[None]:
    """Inside the block every layer runs on this path, or the next that can; products in TF32 unless exact."""
    with kernels.float32_precision(name != EXACT), contextlib.ExitStack() as stack:
        if name == CUDNN:  # `force` rules out torch's own kernels; a path that no recurrence has leaves them
            before = os.environ.get("BAYESRNN_KERNEL")
            os.environ["BAYESRNN_KERNEL"] = PATHS[name]
            stack.callback(_restore, before)
        else:
            stack.enter_context(kernels.force(PATHS[name]))
        yield


def _restore(before: str | None) -> None:
    if before is None:
        del os.environ["BAYESRNN_KERNEL"]
    else:
        os.environ["BAYESRNN_KERNEL"] = before


def made(recipe: Any, data: str, device: torch.device) -> Language:
    task = Language(recipe, data, device)
    torch.manual_seed(0)
    task.attach(task.build(recipe, task.files()).to(device).train())
    return task


def names_of(task: Language) -> list[str]:
    """The paths that this model has: cuDNN knows no masks."""
    masked = task.recipe.posterior.kind == "none"
    return [name for name in RUNS if name != CUDNN or not masked]


def explained(task: Language) -> dict[str, str]:
    """What runs under each name, in words; refused where that is not what the name says, as on a CPU."""
    found = {}
    for name in names_of(task):
        with on(name):
            text = kernels.explain(task.model, batch=task.batch_size, steps=task.recipe.data.window)
        layers = [part for part in text.split("\n") if "(LSTM)" in part]
        if not layers or not all(any(words in layer for words in RUNS[name]) for layer in layers):
            raise UserError(f"{name!r} is not what runs on {task.device} under this name: {' '.join(text.split())}")
        found[name] = text
    return found


def train(task: Language, step: Step, epochs: int, rate: float) -> float:
    """The perplexity of the last epoch's windows."""
    found = math.nan
    step.lr.fill_(rate * task.recipe.train.lr)
    for _ in range(epochs):
        step.start_epoch()
        for k in range(task.steps):
            task.fetch(k)
            step()
        found = task.training(step.read_totals())["train_perplexity"]
    return found


def continued(task: Language, seeds: int) -> dict[str, dict[str, Any]]:
    """By path: how much one more epoch's perplexities are above those of training step by step, in percent."""
    params, steps, ends = list(task.model.parameters()), {}, {}
    start = [p.detach().clone() for p in params]

    def restore() -> None:
        with torch.no_grad():
            torch._foreach_copy_(params, start)

    for name in names_of(task):
        with on(name):
            steps[name] = Step(task, task.recipe.train)
    for seed in range(1, seeds + 1):
        for name, step in steps.items():
            restore()
            torch.manual_seed(seed)
            with on(name):
                trained = train(task, step, 1, SLOW)
            ends[name, seed] = {"train": trained, "valid": perplexities(task, ["one launch"])["one launch"]}
    restore()
    found: dict[str, dict[str, Any]] = {}
    for name in steps:
        for split in ("train", "valid") if name != BASE else ():
            each = above((ends[name, seed][split], ends[BASE, seed][split]) for seed in range(1, seeds + 1))
            found.setdefault(name, {}).update(interval(split, each))
    return found


@torch.no_grad()
def narrow(task: Language) -> None:
    """Make the recurrent weights what a narrow prior makes of them: few large ones, and little noise."""
    for name, p in task.model.named_parameters():
        if "rnn.weight" not in name:
            continue
        if "rho" in name:
            p.fill_(math.log(math.expm1(SIGMA)))
        else:
            least = p.abs().flatten().kthvalue(max(1, round((1 - KEPT) * p.numel()))).values
            p.mul_(torch.where(p.abs() > least, 1.0, NARROW))


class Gradient:
    """The gradient of one window on a path, as one vector; on a GPU a CUDA graph that is replayed."""

    def __init__(self, task: Language, name: str) -> None:
        self.task, self.name = task, name
        self.params = [p for p in task.model.parameters() if p.requires_grad]
        self.position = torch.zeros((), dtype=torch.long, device=task.device)
        self.state, self.after = task.state(), task.state()
        self.flat = torch.zeros(sum(p.numel() for p in self.params), device=task.device)
        self.run: Callable[[], object] = self.work
        if task.device.type == "cuda":
            written = [self.flat, *self.after]
            (graph,) = kernels.record([self.work], lambda: written, warm_up=self.work, device=task.device)
            self.run = graph.replay

    def work(self) -> None:
        with on(self.name):
            batch = self.task.batch(self.position)
            _, terms, after = self.task.objective(batch, self.state)
            # without the KL, which is the same on all paths and would hide their errors
            found = torch.autograd.grad(terms.nll / self.task.batch_size, self.params, materialize_grads=True)
        with torch.no_grad():
            torch.cat([g.flatten() for g in found], out=self.flat)
            for own, new in zip(self.after, after, strict=True):
                own.copy_(new)

    def __call__(self, window: int, state: Any) -> Tensor:
        """The noise is that of the window's number."""
        self.position.fill_(window)
        for own, new in zip(self.state, state, strict=True):
            own.copy_(new)
        torch.manual_seed(1000 + window)
        self.run()
        return self.flat


def ratios(exact: Tensor, found: Tensor) -> tuple[Tensor, Tensor]:
    """The squared error over the squared gradient, and the part of the error along the gradient."""
    error, size = found - exact, exact @ exact
    return (error @ error) / size, (error @ exact) / size


def smaller(exact: Tensor) -> Tensor:
    """Which numbers are in the smaller half of those that are not 0, by the median of some of them."""
    some = exact[:: max(1, len(exact) // 100_000)].abs()
    return exact.abs() <= some[some > 0].median()


class Sums:
    """Of the windows so far, in one group of weights on one path."""

    def __init__(self) -> None:
        self.whole: Any = 0.0
        self.off: Any = 0.0
        self.each: list[Tensor] = []

    def add(self, exact: Tensor, found: Tensor, small: Tensor) -> None:
        exact, found = exact.double(), found.double()
        self.whole, self.off = self.whole + exact, self.off + (found - exact)
        self.each.append(torch.stack([*ratios(exact, found), *ratios(exact * small, found * small)]))

    def figures(self) -> dict[str, float]:
        error, shrink, small, small_shrink = torch.stack(self.each).unbind(1)
        size, count = float(self.whole.norm()), len(self.each)
        figures = {"one_window": error.mean().sqrt(), "worst_window": error.max().sqrt()}
        figures |= {"shrink": shrink.mean(), "small": small.mean().sqrt(), "small_shrink": small_shrink.mean()}
        if count > 1:
            figures["shrink_error"] = shrink.std() / count**0.5
            figures["small_shrink_error"] = small_shrink.std() / count**0.5
        figures |= {"summed": self.off.norm() / size, "along": self.off @ self.whole / size**2}
        return {key: float(value) for key, value in figures.items()}


def compare(task: Language, windows: int) -> dict[str, dict[str, dict[str, float]]]:
    """By group of weights and path: the figures of these windows, which hand on the exact state."""
    named = [(name, p.numel()) for name, p in task.model.named_parameters() if p.requires_grad]
    parts: dict[str, Any] = {}
    for group, words in GROUPS.items():
        inside = torch.cat([torch.full((size,), words in name) for name, size in named])
        assert inside.any(), group
        parts[group] = slice(None) if inside.all() else inside.nonzero().squeeze(1).to(task.device)
    ways = {name: Gradient(task, name) for name in (EXACT, *names_of(task))}
    sums = {group: {name: Sums() for name in names_of(task)} for group in parts}
    state: Any = task.state()
    for window in range(windows):
        exact = ways[EXACT](window, state)
        for name in names_of(task):
            found = ways[name](window, state)
            for group, places in parts.items():
                own = exact[places]
                sums[group][name].add(own, found[places], smaller(own))
        state = [own.clone() for own in ways[EXACT].after]
    return {group: {name: one.figures() for name, one in own.items()} for group, own in sums.items()}


def perplexities(task: Language, names: list[str]) -> dict[str, float]:
    found = {}
    task.model.eval()
    for name in names:
        with on(name):
            found[name] = float(task.validate()["valid_perplexity"])
    task.model.train()
    return found


def drawn(device: torch.device, rows: int = 10_000, columns: int = 1_000) -> Callable[[], list[Tensor]]:
    """A function that draws the noise of two tensors as a step of training does, on the device's own path."""
    shapes = ((rows, columns), (rows // 4, columns))
    spec = DrawSpec(
        ("embedding", "weight"), shapes, (None, None), (None, None), torch.float32, device, KernelPrior("none")
    )
    path = "triton" if device.type == "cuda" else "compiled"
    return lambda: Seeded(device, path=path).tensors(spec)


def noise_figures(draw: Callable[[], list[Tensor]], count: int) -> dict[str, float]:
    """Statistics of `count` draws of two tensors, in units of their standard errors."""
    sums: dict[str, float] = {}
    before: Tensor | None = None
    numbers = 0
    distance = largest = 0.0

    def add(key: str, values: Tensor, variance: float = 1.0) -> None:
        """A sum of independent numbers of mean 0 and this variance."""
        unit = float(values.double().sum()) / (variance * values.numel() * count) ** 0.5
        sums[key] = sums.get(key, 0.0) + unit

    for _ in range(count):
        first, second = (part.flatten() for part in draw())
        numbers += first.numel() + second.numel()
        squares = first.double().square()
        add("mean", first)
        add("variance", squares - 1, 2)
        add("third_moment", first.double() * squares, 15)
        add("fourth_moment", squares.square() - 3, 96)
        for lag in (1, 2, 3, 4, 128):
            add(f"lag_{lag}", first[lag:] * first[:-lag])
            add(f"squares_lag_{lag}", (squares[lag:] - 1) * (squares[:-lag] - 1), 4)
        add("between_tensors", first[: len(second)] * second)
        if before is not None:
            add("between_steps", first * before)
        before = first
        ordered = first.double().sort().values
        steps = torch.arange(1, len(ordered) + 1, device=ordered.device, dtype=torch.float64) / len(ordered)
        below = torch.special.ndtr(ordered)
        off = torch.maximum((steps - below).abs(), (below - steps + 1 / len(ordered)).abs()).max()
        distance = max(distance, float(off) * len(ordered) ** 0.5)
        largest = max(largest, float(first.abs().max()))
    return {**sums, "kolmogorov_largest": distance, "largest": largest, "numbers": numbers}


def mask_figures(device: torch.device, rates: tuple[float, ...] = (0.2, 0.35, 0.5), count: int = 10**8) -> Any:
    """By rate: how many standard errors the share of zeros is from it, and the mean of the mask from 1."""
    found = {}
    for p in rates:
        mask = draws.Noise(p).sample((count,), torch.empty(0, device=device))
        dropped = float((mask == 0).double().mean())
        off = (dropped - p) / (p * (1 - p) / count) ** 0.5
        found[str(p)] = {"rate": off, "mean": float(mask.double().mean() - 1) / (p / (1 - p) / count) ** 0.5}
    return found


def show(case: str, found: dict[str, dict[str, dict[str, float]]]) -> None:
    for group, ways in found.items():
        for name, line in ways.items():
            figures = ", ".join(f"{key} {value:.1e}" for key, value in line.items())
            print(f"{case}, {'all weights' if group == 'paths' else group}, {name}: {figures}", flush=True)


def arguments() -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="overrides of all recipes")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=4, help="of the epoch on each path")
    parser.add_argument("--windows", type=int, default=200)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, help="a folder for the records")
    parser.add_argument("--force", action="store_true", help="replace records")
    options = parser.parse_args()
    if min(options.windows, options.seeds) < 1 or options.epochs < 0:
        parser.error("--windows and --seeds must be at least 1, and --epochs at least 0")
    return parser, options


def main() -> None:
    parser, options = arguments()
    files = {name: options.out / f"{name}.json" for name in options.only if options.out is not None}
    try:
        for file in files.values():
            check_out(file, force=options.force)
        device = device_of(options.device)
        tasks = {}
        for case in options.only:
            recipe, overrides, _ = CASES[case]
            tasks[case] = made(override(load(recipe), [*overrides, *options.set]), options.data, device)
        ran = {case: explained(task) for case, task in tasks.items()}
    except UserError as error:
        parser.error(str(error))
    about = {
        "command": " ".join(["python", *sys.argv]), "commit": commit(),
        "device": torch.cuda.get_device_name() if device.type == "cuda" else options.device,
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "bayesrnn": br.__version__},
        "noise": noise_figures(drawn(device), 8), "masks": mask_figures(device),
    }  # fmt: skip
    print(f"noise: {about['noise']}\nmasks: {about['masks']}", flush=True)
    for case, task in tasks.items():
        began, windows = time.monotonic(), min(options.windows, task.steps)
        with on("one launch"):
            train(task, Step(task, task.recipe.train), options.epochs, 1.0)
        more = continued(task, options.seeds)
        print(f"{case}, continued: {more}", flush=True)
        found, valid = compare(task, windows), perplexities(task, [EXACT, *names_of(task)])
        show(case, found)
        print(f"{case}, validation: " + ", ".join(f"{name} {value:.4f}" for name, value in valid.items()))
        narrow(task)
        narrowed = compare(task, windows)
        show(f"{case}, narrow", narrowed)
        record = {"recipe": CASES[case][0], "epochs": options.epochs, "windows": windows, **found, "narrow": narrowed}
        record |= {"continued": more, "valid_perplexity": valid, "ran": ran[case]}
        if case in files:
            write_file(files[case], json.dumps({**about, **record}, indent=1) + "\n")
        print(f"{case}: {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
