"""Speed of several processes that train one model, as ratios to one process measured in the same run.

    python benchmarks/distributed.py                                  # 1, 2 and 4 processes on this machine's CPUs
    python benchmarks/distributed.py --ranks 1 2 --device cuda        # on GPUs
    python benchmarks/distributed.py --out results/distributed.json   # and writes the record

Bayes by Backprop, two layers, on made-up text. Every number of processes is measured several times, in turn, so that
what else the machine does falls on all; ratios are of medians. "share": the batch of one process is shared out; "grow":
each process has as many rows as the one. The ratio of one process is 1. Before any figure is printed, one step of
several processes with one draw is compared with that of one process.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from bayesrnn.errors import UserError
from bayesrnn.lab import recipes
from bayesrnn.lab.engine import provenance
from bayesrnn.lab.engine.provenance import commit
from bayesrnn.lab.engine.ranks import join, seed_of
from bayesrnn.lab.engine.step import Step
from bayesrnn.lab.runs.files import check_out, write_file
from bayesrnn.lab.tasks.language.task import Language

WORDS, WINDOW = 2000, 35


def text(folder: Path) -> None:
    """Words in no order: what is learnt does not matter here."""
    ids = torch.randint(WORDS, (120_000,), generator=torch.Generator().manual_seed(0)).tolist()
    for split, size in (("train", 120_000), ("valid", 2_000), ("test", 2_000)):
        (folder / f"{split}.txt").write_text(" ".join(f"w{i}" for i in ids[:size]))


def made(data: str, options: argparse.Namespace, rows: int, shared: bool) -> Step:
    ranks = options.group
    overrides = [f"hidden={options.hidden}", f"batch_size={rows}", f"window={WINDOW}", f"shared_draw={shared}"]
    recipe = recipes.override(recipes.load("brnn-medium"), overrides)
    task = Language(recipe, data, torch.device(ranks.device or "cpu"))
    if ranks.several:
        task.split(ranks.rows(task.batch_size))
    torch.manual_seed(1)
    task.attach(task.build(recipe, task.files()).to(task.device).train())
    if not shared:
        torch.manual_seed(seed_of(1, ranks.rank))
    step = Step(task, recipe.train, ranks=ranks)
    step.lr.fill_(0.1)
    return step


def seconds(step: Step, count: int) -> tuple[float, float]:
    """Of one step, and of the exchange in it."""
    for _ in range(3):
        step()
    _wait(step)
    before = time.perf_counter()
    for _ in range(count):
        step()
    _wait(step)
    whole = (time.perf_counter() - before) / count
    exchange = 0.0
    if step.ranks.several:
        before = time.perf_counter()
        for _ in range(count):
            step._exchange()
        _wait(step)
        exchange = (time.perf_counter() - before) / count
    return whole, exchange


def _wait(step: Step) -> None:
    if step.on_cuda:
        torch.cuda.synchronize(step.device)


def worker(options: argparse.Namespace) -> None:
    """One of the processes; rank 0 writes what it measured."""
    torch.set_num_threads(1)
    options.group = ranks = join(options.device)
    check = made(options.data, options, options.rows, shared=True)
    check()
    weights = torch.cat([p.detach().flatten() for p in check.params]).cpu()
    found: dict[str, Any] = {}
    for kind, rows in (("share", options.rows), ("grow", options.rows * ranks.count)):
        step = made(options.data, options, rows, shared=False)
        whole, exchange = seconds(step, options.steps)
        found[kind] = {
            "words_per_second": rows * WINDOW / whole,
            "exchange_share": exchange / whole,
            "parameters": sum(p.numel() for p in step.params),
        }
    if ranks.first:
        torch.save(weights, f"{options.worker}.pt")
        Path(options.worker).write_text(json.dumps(found))
    ranks.leave()


def run(count: int, options: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], torch.Tensor]:
    out = folder / f"{count}.json"
    own = [__file__, "--worker", str(out), "--data", str(folder), "--device", options.device]
    own += ["--hidden", str(options.hidden), "--rows", str(options.rows), "--steps", str(options.steps)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    subprocess.run([*torchrun, *own], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return json.loads(out.read_text()), torch.load(f"{out}.pt")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--hidden", type=int, default=100)
    parser.add_argument("--rows", type=int, default=20, help="of the batch of one process")
    parser.add_argument("--steps", type=int, default=15, help="per measurement")
    parser.add_argument("--times", type=int, default=3, help="measurements of each number of processes")
    parser.add_argument("--out", type=Path, help="the record to write")
    parser.add_argument("--force", action="store_true", help="replace that file")
    parser.add_argument("--data", help=argparse.SUPPRESS)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options)
        return
    if options.out is not None:
        try:
            check_out(options.out, force=options.force)
        except UserError as error:
            parser.error(str(error))
    counts = sorted({1, *options.ranks})
    measured: dict[int, list[dict[str, Any]]] = {count: [] for count in counts}
    steps = {}
    with tempfile.TemporaryDirectory() as name:
        text(Path(name))
        for _ in range(options.times):
            for count in counts:
                found, steps[count] = run(count, options, Path(name))
                measured[count].append(found)
    rows = []
    for count in counts:
        torch.testing.assert_close(steps[count], steps[1], rtol=1e-5, atol=1e-6)
        row: dict[str, Any] = {"processes": count, "parameters": measured[count][0]["share"]["parameters"]}
        for kind in ("share", "grow"):
            speed, one = (statistics.median(f[kind]["words_per_second"] for f in measured[n]) for n in (count, 1))
            row[f"{kind}_words_per_second"], row[f"{kind}_ratio"] = speed, speed / one
            row[f"{kind}_exchange"] = statistics.median(f[kind]["exchange_share"] for f in measured[count])
        rows.append(row)
        print(
            f"{count} processes: {row['share_ratio']:.2f}x with {options.rows} rows in all, {row['grow_ratio']:.2f}x "
            f"with {options.rows} each; exchange {row['share_exchange']:.0%} and {row['grow_exchange']:.0%} of a step"
        )
    if options.out:
        record = {
            "program": "bayesrnn",
            "command": " ".join(["python", "benchmarks/distributed.py", *sys.argv[1:]]),
            "commit": commit(),
            **provenance.environment(torch.device(options.device)),
            "cores": os.cpu_count(),
            "load": os.getloadavg()[0],
            "hidden": options.hidden,
            "rows": options.rows,
            "window": WINDOW,
            "table": rows,
        }
        write_file(options.out, json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
