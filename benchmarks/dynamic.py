"""How long a window of dynamic evaluation takes as one CUDA graph and eagerly, and whether both give the same numbers.

    python benchmarks/dynamic.py awd-24m --data ptb --out results/dynamic/awd-24m.json

The model has a recipe's widths, and the weights it starts with: times do not depend on them. The first windows of the
test text are scored by both ways in turn, from the same weights; the shortest time of each counts.
"""

from __future__ import annotations

import argparse
import math
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import torch

from bayesrnn import dynamic, kernels
from bayesrnn.errors import UserError
from bayesrnn.lab import recipes
from bayesrnn.lab.engine import contract
from bayesrnn.lab.engine.launch import device_of
from bayesrnn.lab.engine.loop import set_precision
from bayesrnn.lab.engine.provenance import commit, environment
from bayesrnn.lab.reading import data_name
from bayesrnn.lab.registry import task_class
from bayesrnn.lab.runs.files import check_out
from bayesrnn.lab.runs.record import Record

RATE, DECAY, REPEATS = 2e-4, 1e-3, 2
_RECORDED = 100  # windows of the first call, which compiles and takes memory


@kernels.float32_precision()
def measure(options: argparse.Namespace) -> Record:
    recipe = recipes.override(recipes.load(options.recipe), options.setting)
    device = device_of(options.device)
    set_precision(recipe.train.precision, device)
    task: Any = task_class(recipe.task)(recipe, options.data, device)
    torch.manual_seed(1)
    contract.attach(task, task.build(recipe, task.files()))
    window = recipe.evaluate.dynamic_window
    stream = task.streams.test[: options.windows * window + 1]
    if len(stream) <= options.windows * window:
        raise UserError(f"The test text has no {options.windows} windows of {window}; choose fewer with --windows.")
    few = task.streams.train[: _RECORDED * window + 1, :1]
    scale = dynamic.mean_squared_gradients(task.model, few[:-1], few[1:], window=window)

    def score(part: torch.Tensor, graph: bool) -> tuple[float, float]:
        began = time.perf_counter()
        found = dynamic.dynamic_evaluation(
            task.model, part[:-1], part[1:], lr=RATE, decay=DECAY, window=window, rule="rms", gradient_scale=scale,
            graph=graph,
        )  # fmt: skip
        return time.perf_counter() - began, found.perplexity

    ways = {"graph": True, "eager": False}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    perplexity = {}
    for graph in ways.values():
        score(stream[: min(_RECORDED, options.windows) * window + 1], graph)
    for _ in range(REPEATS):
        for name, graph in ways.items():
            took, perplexity[name] = score(stream, graph)
            seconds[name].append(took)
    if not all(map(math.isfinite, perplexity.values())):
        raise UserError(f"Learning diverged (perplexities {perplexity}), so its time says nothing.")
    each = {f"milliseconds_{name}": 1000 * min(took) / options.windows for name, took in seconds.items()}
    metrics = {
        **each, "times_as_fast": each["milliseconds_eager"] / each["milliseconds_graph"], "windows": options.windows,
        "window": window, **{f"perplexity_{name}": value for name, value in perplexity.items()},
        "test_words": len(task.streams.test) - 1,
    }  # fmt: skip
    return Record(
        recipe=options.recipe, data=data_name(options.data), overrides=options.setting, commit=commit(),
        **environment(device), command=shlex.join(["python", "benchmarks/dynamic.py", *options.words]), metrics=metrics,
    )  # fmt: skip


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Times of dynamic evaluation as CUDA graphs and eagerly.")
    parser.add_argument("recipe", help="a recipe of a language model")
    parser.add_argument("setting", nargs="*", metavar="KEY=VALUE", help="settings")
    parser.add_argument("--data", required=True, help="folder with train, valid and test text")
    parser.add_argument("--windows", type=int, default=2000, help="windows to score; default: 2000")
    parser.add_argument("--device", help="cpu or cuda; default: cuda where there is one")
    parser.add_argument("--out", type=Path, help="write the record here")
    parser.add_argument("--force", action="store_true", help="replace that file")
    options = parser.parse_intermixed_args(words)
    options.words = sys.argv[1:] if words is None else words
    if options.windows < 1:
        parser.error(f"--windows is {options.windows}; it must be at least 1")
    if options.out is not None:
        check_out(options.out, force=options.force)
    found = measure(options)
    print(found.metrics)
    if options.out is not None:
        found.write(options.out)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"dynamic: {error}")
