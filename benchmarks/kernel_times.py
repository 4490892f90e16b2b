"""Where the time of a training step goes on a GPU, kernel by kernel.

python benchmarks/kernel_times.py RECIPE [key=value ...] [--data FOLDER] [--words 10000] [--top 15]
                                  [--out FILE.json] [--force]

Replays the step of `bayesrnn train` under torch's profiler. Kernels are named by their functions, without template
arguments; "calls" and milliseconds are per step. "beside others": the time that kernels take while another one runs;
"idle": the time in which none does.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import defaultdict
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from bayesrnn.errors import UserError
from bayesrnn.lab import bench, recipes
from bayesrnn.lab.engine.loop import set_precision
from bayesrnn.lab.engine.provenance import commit, environment
from bayesrnn.lab.engine.step import Step
from bayesrnn.lab.runs.files import check_out, write_file

REPLAYS = 20


def step_of(recipe: Any, data: str | None, words: int) -> Step:
    """The recorded step of a recipe, on a text or on random words."""
    size = bench.Size(recipe.model.hidden, recipe.data.batch_size, words, recipe.data.window)
    with nullcontext(Path(data)) if data else bench.text(size, windows=100) as folder:
        _, step = bench.step_of(recipe, folder, torch.device("cuda"))
    if step.reason:
        raise UserError(f"The step is no CUDA graph: {step.reason}.")
    return step


def short(name: str) -> str:
    """A kernel's function, without namespaces and template arguments, except those that tell elementwise ones apart."""
    inner = re.search(r"(\w+(?:Functor|_kernel_cuda|Ops|Kernel))\b", name.partition("<")[2])
    bare = re.sub(r"<.*", "", name).removeprefix("void ").split("::")[-1].split("(")[0]
    return f"{bare} {inner[1]}" if inner and "elementwise" in bare else bare


def times(step: Step) -> list[dict[str, Any]]:
    """Kernels by their share of a step."""
    step.start_epoch()
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()  # type: ignore[no-untyped-call]
    for _ in range(REPLAYS):
        step()
    end.record()  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    whole = begin.elapsed_time(end) / REPLAYS  # type: ignore[no-untyped-call]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(REPLAYS):
            step()
        torch.cuda.synchronize()
    found: dict[str, list[float]] = defaultdict(list)
    spans = []
    for event in profiler.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            found[short(event.name)].append(event.time_range.elapsed_us() / 1000)
            spans.append((event.time_range.start, event.time_range.end))
    rows = [{"kernel": k, "calls": len(v) / REPLAYS, "milliseconds": sum(v) / REPLAYS} for k, v in found.items()]
    rows.sort(key=lambda row: -float(row["milliseconds"]))
    total, busy = sum(float(row["milliseconds"]) for row in rows), covered(spans) / 1000 / REPLAYS
    return [
        {"kernel": "the step", "calls": 1, "milliseconds": whole},
        *rows,
        {"kernel": "beside others", "calls": 0, "milliseconds": total - busy},
        {"kernel": "idle", "calls": 0, "milliseconds": whole - busy},
    ]


def covered(spans: list[tuple[float, float]]) -> float:
    """The length of the union of some intervals."""
    length, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        length += max(0.0, end - max(start, until))
        until = max(until, end)
    return length


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--data")
    parser.add_argument("--words", type=int, default=10_000)
    parser.add_argument("--top", type=int, default=15)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--force", action="store_true")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this measures on a GPU, and torch sees no CUDA device here")
    try:
        if given.out:
            check_out(given.out, force=given.force)
        recipe = recipes.override(recipes.load(given.recipe), given.overrides)
        set_precision(recipe.train.precision, torch.device("cuda"))
        rows = times(step_of(recipe, given.data, given.words))
    except UserError as error:
        parser.error(str(error))
    print(f"{given.recipe} {' '.join(given.overrides)}")
    for row in [rows[0], *rows[1:-2][: given.top], *rows[-2:]]:
        print(f"{row['milliseconds']:9.4f} ms {row['calls']:7.1f} x  {row['kernel'][:90]}")
    if given.out:
        record = {"command": " ".join(["python", *sys.argv]), "commit": commit(), **environment(torch.device("cuda"))}
        write_file(given.out, json.dumps({**record, "kernels": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
