"""CPU time of this checkout relative to another one of the same library: forward passes, training steps, predictions.

    git worktree add /tmp/before COMMIT
    python benchmarks/before.py /tmp/before --out results/cpu-before.json --force

One process for each checkout, one thread each; they take turns, so that what else the machine does falls on both. A
ratio is the median of those of all turns: above 1 this checkout is slower. Small models are there for the fixed costs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

_TURN = 0.05  # seconds


def cases() -> dict[str, Callable[[], Any]]:
    """What is timed, by name; only public names, so that older checkouts have them too."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    import bayesrnn as br

    torch.set_num_threads(1)
    torch.manual_seed(0)

    class Last(nn.Module):
        def __init__(self, rnn: nn.Module, hidden: int) -> None:
            super().__init__()
            self.rnn, self.head = rnn, nn.Linear(hidden, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.rnn(x)[0][-1])

    def training(model: nn.Module, x: torch.Tensor, kind: str) -> Callable[[], Any]:
        y, elbo = torch.randint(3, (x.shape[1],)), br.ELBO(model, br.Categorical(), num_data=1000)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

        def step() -> None:
            optimizer.zero_grad()
            output = model(x)
            (elbo(output, y).loss if kind == "BBB" else F.cross_entropy(output, y)).backward()
            optimizer.step()

        return step

    made: dict[str, Callable[[], Any]] = {}
    for cell, hidden in itertools.product(("LSTM", "GRU", "RNN"), (16, 200)):
        layer, x = (
            getattr(br, cell)(hidden, hidden, input_dropout=0.3, recurrent_dropout=0.2),
            torch.randn(35, 8, hidden),
        )
        made[f"forward, {cell} of {hidden}"] = partial(layer, x)
    for hidden in (16, 200, 650):
        x, one = torch.randn(35, 8, hidden), torch.randn(35, 1, hidden)
        noisy = Last(br.LSTM(hidden, hidden, input_dropout=0.3, recurrent_dropout=0.2), hidden)
        bbb = br.BayesByBackprop(Last(nn.LSTM(hidden, hidden), hidden), prior=br.Normal(1.0))
        for kind, model in (("variational", noisy), ("BBB", bbb)):
            made[f"training step, {kind} LSTM of {hidden}"] = training(model, x, kind)
            made[f"32 draws, {kind} LSTM of {hidden}"] = partial(br.predict, model, one, samples=32, seed=0)
    small = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))
    x = torch.randn(4, 4)
    for kind, model in (("dropout", small), ("BBB", br.BayesByBackprop(small))):
        made[f"32 draws, {kind} network of 8"] = partial(br.predict, model, x, samples=32, seed=0)
    return made


def serve() -> None:
    """Take turns: for a line `name|count` run the case that often, and answer with the seconds of CPU time."""
    known = cases()
    print(json.dumps(list(known)), flush=True)
    for line in sys.stdin:
        name, count = line.rstrip("\n").rsplit("|", 1)
        start = time.process_time()
        for _ in range(int(count)):
            known[name]()
        print(time.process_time() - start, flush=True)


class Worker:
    """A process that runs the cases of one checkout."""

    def __init__(self, root: Path) -> None:
        found = {"PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, **found},
        )  # fmt: skip
        self.names: list[str] = json.loads(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def seconds(self, name: str, count: int) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{name}|{count}\n")
        self._process.stdin.flush()
        return float(self._answer()) / count

    def close(self) -> None:
        self._process.communicate()


def compare(before: Path, turns: int) -> list[dict[str, Any]]:
    pair, rows = [Worker(before), Worker(Path(__file__).resolve().parents[1])], []
    for name in pair[0].names:
        count = max(1, int(_TURN / max(min(w.seconds(name, 2) for w in pair * 2), 1e-6)))
        times = []
        for k in range(turns):  # each goes first in every other turn
            own = {w: w.seconds(name, count) for w in (pair if k % 2 else pair[::-1])}
            times.append([own[w] for w in pair])
        ratios = statistics.quantiles([now / then for then, now in times], n=4)
        rows.append({"case": name, "ratio": ratios[1], "quartiles": [ratios[0], ratios[2]],
                     "milliseconds": 1000 * statistics.median(now for _, now in times)})  # fmt: skip
        print(f"{name:40} {ratios[1]:.3f} ({ratios[0]:.3f} to {ratios[2]:.3f})", flush=True)
    for worker in pair:
        worker.close()
    return rows


def main() -> None:
    if sys.argv[1:] == ["--serve"]:
        serve()
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path, help="the other checkout")
    parser.add_argument("--turns", type=int, default=21)
    parser.add_argument("--out", type=Path, help="write the record here")
    parser.add_argument("--force", action="store_true", help="replace that file")
    options = parser.parse_args()
    from bayesrnn.lab.engine.provenance import commit
    from bayesrnn.lab.runs.files import check_out, write_file

    if options.out is not None:
        check_out(options.out, force=options.force)
    then = subprocess.run(["git", "rev-parse", "HEAD"], cwd=options.before, capture_output=True, text=True, check=True)
    record = {
        "command": "python benchmarks/before.py BEFORE " + " ".join(sys.argv[2:]),
        "commit": commit(),
        "before": then.stdout.strip(),
        "device": platform.processor() or platform.machine(),
        "versions": {"python": platform.python_version(), "torch": version("torch"), "bayesrnn": version("bayesrnn")},
        "threads": 1,
        "ratios": compare(options.before, options.turns),
    }
    if options.out is not None:
        write_file(options.out, json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
