"""Whether a fast path has a bias: errors of the gradient of many training windows, each and in their sum.

python benchmarks/gradients.py --data PTB [--recipe variational-tied-medium] [--epochs 2] [--windows 200]
                               [--device cuda] [--out results/gradients/variational-tied-medium.json] [--force]

A model is trained for some epochs on the fastest path. Then, at these weights, the gradient of each window is computed
with the same noise on each path, and once exactly (float32 products, no TF32). Rounding makes an error in each window;
where it has no direction, the errors of many windows cancel, and that of their summed gradient is far smaller. What is
left of it along the summed gradient is printed as `along`: a path that made all steps too long by 1% would have 0.01.
Of all weights together, in which those of words weigh most, and of those of the recurrent layers alone. The perplexity
of the validation text, under the posterior mean, is printed for each path too. The paths are a GPU's.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import bayesrnn as br
from bayesrnn import kernels
from bayesrnn.errors import UserError
from bayesrnn.lab.engine.launch import device_of
from bayesrnn.lab.engine.provenance import commit
from bayesrnn.lab.engine.step import Step
from bayesrnn.lab.recipes import load, override
from bayesrnn.lab.runs.files import check_out, write_file
from bayesrnn.lab.tasks.language.task import Language

EXACT = "exact"
PATHS = {EXACT: "loop", "one launch": "persistent", "step by step": "cells"}
RUNS = {"one launch": ("persistent",), "step by step": ("cells", "loop")}  # what may run under these names


@contextlib.contextmanager
def on(name: str) -> Iterator[None]:
    """Inside the block every layer runs on this path, or the next that can; products in TF32 unless exact."""
    with kernels.float32_precision(name != EXACT), kernels.force(PATHS[name]):
        yield


def made(recipe: Any, data: str, device: torch.device) -> Language:
    task = Language(recipe, data, device)
    torch.manual_seed(0)
    task.attach(task.build(recipe, task.files()).to(device).train())
    return task


def explained(task: Language) -> dict[str, str]:
    """What runs under each name, in words; refused where that is not what the name says, as on a CPU."""
    found = {}
    for name, rows in RUNS.items():
        with on(name):
            text = kernels.explain(task.model, batch=task.batch_size, steps=task.recipe.data.window)
        layers = [part for part in text.split("\n") if "(LSTM)" in part]
        if not layers or not all(any(f"path {row!r}" in layer for row in rows) for layer in layers):
            raise UserError(f"{name!r} is not what runs on {task.device} under this name: {' '.join(text.split())}")
        found[name] = text
    return found


def train(task: Language, recipe: Any, epochs: int) -> None:
    with on("one launch"):
        step = Step(task, recipe.train)
        step.lr.fill_(recipe.train.lr)
        for epoch in range(epochs):
            step.start_epoch()
            for k in range(task.steps):
                task.fetch(k)
                step()
            print(f"epoch {epoch + 1}: {task.training(step.read_totals())['train_perplexity']:.1f}", flush=True)


def gradient(task: Language, window: int) -> Tensor:
    """Of one window from a zero state, as one vector in float64; the noise is that of the window's number."""
    torch.manual_seed(1000 + window)
    batch = task.batch(torch.tensor(window, device=task.device))
    loss = task.objective(batch, ())[0]
    params = [p for p in task.model.parameters() if p.requires_grad]
    found = torch.autograd.grad(loss, params, materialize_grads=True)
    return torch.cat([g.detach().flatten() for g in found]).double()


class Sums:
    """Of the windows so far: gradients, errors on a path, and squares of the errors' ratios to the gradients."""

    def __init__(self) -> None:
        self.whole: Any = 0.0
        self.off: Any = 0.0
        self.ratios, self.windows = 0.0, 0

    def add(self, exact: Tensor, found: Tensor) -> None:
        error = found - exact
        self.whole, self.off = self.whole + exact, self.off + error
        self.ratios += float(error.square().sum() / exact.square().sum())
        self.windows += 1

    def figures(self) -> dict[str, float]:
        size = float(self.whole.norm())
        return {
            "one_window": (self.ratios / self.windows) ** 0.5,
            "summed": float(self.off.norm()) / size,
            "along": float(self.off @ self.whole) / size**2,
        }


def compare(task: Language, windows: int) -> dict[str, dict[str, dict[str, float]]]:
    """By path: the error of one window's gradient (root of the mean square), of the sum's, and along the sum.

    Of all weights ("paths") and of the recurrent layers' ("recurrent").
    """
    names = [name for name in PATHS if name != EXACT]
    named = [(name, p.numel()) for name, p in task.model.named_parameters() if p.requires_grad]
    inside = torch.cat([torch.full((size,), "rnn" in name) for name, size in named]).to(task.device)
    assert inside.any()
    assert not inside.all()
    parts = {"paths": torch.ones_like(inside), "recurrent": inside}
    sums = {part: {name: Sums() for name in names} for part in parts}
    for window in range(0, task.steps, max(1, task.steps // windows))[:windows]:
        with on(EXACT):
            exact = gradient(task, window)
        for name in names:
            with on(name):
                found = gradient(task, window)
            for part, mask in parts.items():
                sums[part][name].add(exact[mask], found[mask])
    return {part: {name: one.figures() for name, one in ways.items()} for part, ways in sums.items()}


def perplexities(task: Language) -> dict[str, float]:
    found = {}
    task.model.eval()
    for name in PATHS:
        with on(name):
            found[name] = float(task.validate()["valid_perplexity"])
    task.model.train()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--recipe", default="variational-tied-medium")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="overrides of the recipe")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--windows", type=int, default=200)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, help="write the record here")
    parser.add_argument("--force", action="store_true", help="replace that file")
    options = parser.parse_args()
    if options.windows < 1 or options.epochs < 0:
        parser.error("--windows must be at least 1, and --epochs at least 0")
    try:
        if options.out is not None:
            check_out(options.out, force=options.force)
        device, recipe = device_of(options.device), override(load(options.recipe), options.set)
        task = made(recipe, options.data, device)
        ran = explained(task)
    except UserError as error:
        parser.error(str(error))
    train(task, recipe, options.epochs)
    windows = min(options.windows, task.steps)
    found, valid = compare(task, windows), perplexities(task)
    for part, ways in found.items():
        for name, line in ways.items():
            figures = ", ".join(f"{key} {value:.2e}" for key, value in line.items())
            print(f"{options.recipe}, {'all weights' if part == 'paths' else part}, {name}: {figures}")
    print("validation perplexity: " + ", ".join(f"{name} {value:.4f}" for name, value in valid.items()))
    if options.out is not None:
        record = {
            "command": " ".join(["python", *sys.argv]), "commit": commit(), "recipe": options.recipe,
            "device": torch.cuda.get_device_name() if device.type == "cuda" else options.device,
            "versions": {"python": platform.python_version(), "torch": torch.__version__, "bayesrnn": br.__version__},
            "epochs": options.epochs, "windows": windows, **found, "valid_perplexity": valid, "ran": ran,
        }  # fmt: skip
        write_file(options.out, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
