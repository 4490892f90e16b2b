"""Training and prediction speed on a CPU, as ratios to plain torch.nn layers measured in the same run.

    python benchmarks/cpu.py                                # the table
    python benchmarks/cpu.py --peers                        # also installs the peers into a throw-away folder
    python benchmarks/cpu.py --out results/cpu.json --force # and writes the record in place of the one that is there
    python benchmarks/cpu.py --cells GRU --hidden 650       # these rows alone, of two layers
    BAYESRNN_COMPILE=0 python benchmarks/cpu.py             # without the compiled kernels

Every model of a row takes its steps in turn with the plain one, so that what else the machine does falls on both; a
ratio is that of the two medians, with --best that of the two shortest times. A row is printed only after its model has
passed a correctness check on the path that is measured.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from peers import PEERS
from torch import nn

import bayesrnn as br
from bayesrnn.errors import UserError
from bayesrnn.lab.engine.provenance import commit
from bayesrnn.lab.runs.files import check_out, write_file

VOCABULARY, STEPS = 10_000, 35
CELLS = ("LSTM", "GRU", "RNN")
LABELS = {"none": "no noise", "tied": "tied", "untied": "untied", "bbb": "BBB"}
PEER_PACKAGES = ("blitz-bayesian-pytorch==0.2.8", "bayesian-torch==0.5.0")


class Stack(nn.Module):
    """The recurrent layers alone."""

    def __init__(self, rnn: nn.Module) -> None:
        super().__init__()
        self.rnn = rnn

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rnn(x)[0]


class LanguageModel(nn.Module):
    """Embedding, recurrent layers and a softmax over 10,000 words."""

    def __init__(self, rnn: nn.Module, hidden: int) -> None:
        super().__init__()
        self.embed, self.rnn, self.head = nn.Embedding(VOCABULARY, hidden), rnn, nn.Linear(hidden, VOCABULARY)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(self.embed(x))[0])


def rnn(kind: str, hidden: int, cell: str = "LSTM") -> nn.Module:
    if kind in ("plain", "bbb"):
        return getattr(nn, cell)(hidden, hidden, 2)
    if kind == "none":
        return getattr(br, cell)(hidden, hidden, 2)
    noise = {"input_dropout": 0.35, "recurrent_dropout": 0.2, "tied": kind == "tied"}
    return getattr(br, cell)(hidden, hidden, 2, **noise)


def kinds(cell: str, whole: bool) -> tuple[str, ...]:
    """What is measured beside the plain layers: all of it for LSTMs, one mask per sequence and none for the others."""
    if cell != "LSTM":
        return ("none", "tied")
    return ("tied", "untied", "bbb") if whole else ("none", "tied", "untied", "bbb")


def training_step(kind: str, whole: bool, hidden: int, batch: int, cell: str) -> Callable[[], None]:
    torch.manual_seed(0)
    layers = rnn(kind, hidden, cell)
    model: nn.Module = LanguageModel(layers, hidden) if whole else Stack(layers)
    if kind == "bbb":
        prior = br.ScaleMixture(0.25, math.exp(-1), math.exp(-7))
        model = br.BayesByBackprop(model, prior=prior, exclude="head.bias" if whole else None)
    elbo = br.ELBO(model, br.Categorical() if whole else br.Gaussian(learn=False), num_data=929_589)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randint(VOCABULARY, (STEPS, batch)) if whole else torch.randn(STEPS, batch, hidden, requires_grad=True)
    y = torch.randint(VOCABULARY, (STEPS, batch)) if whole else torch.randn(STEPS, batch, hidden)

    def step() -> None:
        optimiser.zero_grad()
        output = model(x)
        loss = elbo(output, y).loss if kind == "bbb" else elbo.likelihood.nll(output, y) / y.numel()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimiser.step()

    return step


def check(kind: str, hidden: int, batch: int, cell: str) -> None:
    """The fast path gives the reference's outputs and gradients; without noise it gives torch.nn's."""
    torch.manual_seed(1)
    x = torch.randn(5, batch, hidden)
    layer = rnn(kind, hidden, cell)
    if kind == "none":
        plain = rnn("plain", hidden, cell)
        plain.load_state_dict(layer.state_dict())
        results = []
        for each in (layer, plain):
            out = each(x)[0]
            results.append([out, *torch.autograd.grad(out.square().sum(), list(each.parameters()))])
        torch.testing.assert_close(*results, rtol=1e-3, atol=1e-3)
    if kind in ("tied", "untied"):
        plain = getattr(nn, cell)(hidden, hidden, 2)
        plain.load_state_dict(layer.state_dict())
        torch.testing.assert_close(layer.eval()(x)[0], plain(x)[0])
        results = []
        for path in (br.kernels.path(name=cell), "reference"):
            with br.draw(layer, seed=0), br.kernels.force(path):
                out = layer(x)[0]
                out.square().sum().backward()
                results.append([out.detach()] + [p.grad.clone() for p in layer.parameters()])
                layer.zero_grad()
        torch.testing.assert_close(*results, rtol=1e-3, atol=1e-3)
    if kind == "bbb":
        q = br.BayesByBackprop(layer, init_sigma=1e-9)
        torch.testing.assert_close(q(x)[0], layer(x)[0])
        q = br.BayesByBackprop(layer, prior=br.ScaleMixture(0.25, math.exp(-1), math.exp(-7)))
        results = []
        for path in (br.kernels.path(name="gaussian"), "reference"):
            with br.draw(q, seed=0), br.kernels.force(path):
                out = q(x)[0]
                kl = br.kl(q)
                (out.square().sum() + kl / 1e3).backward()
                results.append([out.detach(), kl.detach()] + [p.grad.clone() for p in q.parameters()])
                q.zero_grad()
        torch.testing.assert_close(*results, rtol=1e-3, atol=1e-3)


typical: Callable[[list[float]], float] = statistics.median


def interleaved(steps: dict[str, Callable[[], None]], seconds: float) -> dict[str, float]:
    """The typical seconds of each step; the steps take turns."""
    for step in steps.values():
        step()
        step()
    times: dict[str, list[float]] = {name: [] for name in steps}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(next(iter(times.values()))) < 5:
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - start)
    return {name: typical(values) for name, values in times.items()}


def training(seconds: float, cells: list[str], widths: list[int], batches: list[int]) -> Iterator[dict[str, Any]]:
    """Two layers of each cell, and language models of LSTMs."""
    for cell in cells:
        for whole, hidden, batch in itertools.product((False, True) if cell == "LSTM" else (False,), widths, batches):
            for kind in kinds(cell, whole):
                check(kind, hidden, batch, cell)
            steps = {k: training_step(k, whole, hidden, batch, cell) for k in ("plain", *kinds(cell, whole))}
            took = interleaved(steps, seconds)
            row = {
                "cell": cell,
                "model": "language model" if whole else "layers",
                "hidden": hidden,
                "batch": batch,
                "plain_words_per_second": STEPS * batch / took["plain"],
                **{kind: took["plain"] / took[kind] for kind in kinds(cell, whole)},
            }
            print(
                f"{cell:5} {row['model']:15} H={hidden:<4} B={batch:<4}"
                f" plain {row['plain_words_per_second']:8,.0f} words/s"
                + "".join(f"   {LABELS[kind]} {row[kind]:.2f}x" for kind in kinds(cell, whole)),
                flush=True,
            )
            yield row


def prediction(seconds: float) -> list[dict[str, Any]]:
    """32 draws for one sequence: `br.predict` against 32 passes, one draw each."""
    rows = []
    x = torch.randn(STEPS, 1, 200)
    for name, model in (
        ("variational", Stack(rnn("tied", 200))),
        ("BBB", br.BayesByBackprop(Stack(rnn("bbb", 200)), prior=br.Normal(0.1))),
    ):
        model.eval()

        def sequential(model: nn.Module = model) -> None:
            with torch.no_grad():
                for seed in range(32):
                    with br.draw(model, seed=seed):
                        model(x)

        def predicted(model: nn.Module = model) -> None:
            br.predict(model, x, samples=32, seed=0)

        took = interleaved({"sequential": sequential, "predict": predicted}, seconds)
        rows.append(
            {"model": name, "hidden": 200, "batch": 1, "draws": 32, "ratio": took["sequential"] / took["predict"]}
        )
        print(f"predict, 32 draws, {name:12} H=200 B=1: {rows[-1]['ratio']:.2f}x the speed of 32 passes", flush=True)
    return rows


def peers(seconds: float) -> list[dict[str, Any]]:
    """One Bayesian LSTM layer of each peer against ours: forward, KL and backward, T=35."""
    folder = tempfile.mkdtemp(prefix="bayesrnn-peers-")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder, *PEER_PACKAGES]
    subprocess.run(install, check=True)
    sys.path.insert(0, folder)
    rows = []
    for hidden in (200, 650):
        x = torch.randn(STEPS, 20, hidden)
        first = x.transpose(0, 1).contiguous()
        ours = br.BayesByBackprop(nn.LSTM(hidden, hidden), prior=br.ScaleMixture(0.5, 1.0, 0.002, group="weight"))

        def our_step(q: nn.Module = ours, x: torch.Tensor = x) -> None:
            q.zero_grad()
            (q(x)[0].square().mean() + br.kl(q) / 1e6).backward()

        steps: dict[str, Callable[[], None]] = {"bayesrnn": our_step}
        for name, make in PEERS.items():
            try:
                steps[name] = make(hidden, first)
            except Exception as error:
                print(f"{name}: could not be run here ({type(error).__name__}: {error})")
        took = interleaved(steps, seconds)
        for name in steps:
            if name != "bayesrnn":
                row = {"peer": name, "hidden": hidden, "batch": 20, "ours_over_peer": took[name] / took["bayesrnn"]}
                rows.append(row)
                print(
                    f"one Bayesian LSTM layer, H={hidden} B=20: ours is {row['ours_over_peer']:.1f}x as fast as {name}"
                )
    return rows


def memory() -> dict[str, float]:
    """Peak memory of a BBB training step beyond the plain one's, in copies of the Bayesian parameters."""
    peaks = {}
    for kind in ("plain", "bbb"):
        # not ru_maxrss: a child starts with its parent's peak
        code = (
            f"import sys; sys.path.insert(0, {str(Path(__file__).resolve().parent)!r}); import torch, cpu; "
            f"torch.set_num_threads({torch.get_num_threads()}); "
            f"step = cpu.training_step({kind!r}, True, 650, 20, 'LSTM'); [step() for _ in range(4)]; "
            "print(next(int(line.split()[1]) for line in open('/proc/self/status') if 'VmHWM' in line) * 1024)"
        )
        command = [sys.executable, "-c", code]
        found = [subprocess.run(command, check=True, capture_output=True, text=True).stdout for _ in range(5)]
        peaks[kind] = statistics.median(float(text.split()[-1]) for text in found)  # the allocator's luck varies
    weights = 4 * sum(p.numel() for p in LanguageModel(nn.LSTM(650, 650, 2), 650).parameters())
    row = {
        "plain_bytes": peaks["plain"],
        "bbb_bytes": peaks["bbb"],
        "copies": (peaks["bbb"] - peaks["plain"]) / weights,
    }
    print(f"peak memory of BBB training beyond the plain model's: {row['copies']:.2f} copies of the parameters")
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="time per row; five steps of each model at least")
    parser.add_argument("--cells", nargs="+", default=list(CELLS), choices=CELLS)
    parser.add_argument("--hidden", nargs="+", type=int, default=[200, 650], help="units of the rows of training")
    parser.add_argument("--batch", nargs="+", type=int, default=[20, 128], help="sequences of these rows")
    parser.add_argument("--peers", action="store_true", help="install and run the peers too")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    parser.add_argument("--best", action="store_true", help="shortest times instead of medians, on a busy machine")
    parser.add_argument("--out", type=Path, help="write the record here")
    parser.add_argument("--force", action="store_true", help="replace that file")
    options = parser.parse_args()
    if min(*options.hidden, *options.batch, options.threads) < 1:
        parser.error("--hidden, --batch and --threads must be at least 1")
    if options.out is not None:
        try:
            check_out(options.out, force=options.force)
        except UserError as error:
            parser.error(str(error))
    torch.set_num_threads(options.threads)
    global typical
    typical = min if options.best else statistics.median
    kernels = {name: br.kernels.path(name=name) for name in (*options.cells, "gaussian")}
    print("kernels: " + ", ".join(f"{name} {path}" for name, path in kernels.items()), flush=True)
    started = time.perf_counter()
    record: dict[str, Any] = {
        "command": "python benchmarks/cpu.py " + " ".join(sys.argv[1:]),
        "commit": commit(),
        "device": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "times": "shortest" if options.best else "median",
        "kernels": kernels,
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "bayesrnn": br.__version__},
        "training": list(training(options.seconds, options.cells, options.hidden, options.batch)),
        "prediction": prediction(options.seconds),
        "memory": memory(),
    }
    if options.peers:
        record["peers"] = peers(options.seconds)
    print(f"{time.perf_counter() - started:.0f} seconds in all")
    if options.out is not None:
        write_file(options.out, json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
