"""Training and prediction speed on a CPU, as ratios to plain torch.nn.LSTM measured in the same run.

    python benchmarks/cpu.py                        # the table
    python benchmarks/cpu.py --peers                # also installs the peers into a throw-away folder and runs them
    python benchmarks/cpu.py --out results/cpu.json # and writes the record
    BAYESRNN_COMPILE=0 python benchmarks/cpu.py     # without the compiled kernels

Every model of a row takes its steps in turn with the plain one, so that what else the machine does falls on both; a
ratio is that of the two medians, with --best that of the two shortest times. A row is printed only after its model has
passed a correctness check on the path that is measured.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import bayesrnn as br
from bayesrnn.train.launch import commit

VOCABULARY, STEPS = 10_000, 35
PEERS = ("blitz-bayesian-pytorch==0.2.8", "bayesian-torch==0.5.0")


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
    noise = {"input_dropout": 0.35, "recurrent_dropout": 0.2, "tied": kind == "tied"}
    return getattr(br, cell)(hidden, hidden, 2, **noise)


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
    """The fast path gives the reference's outputs and gradients; without noise it gives torch.nn's outputs."""
    torch.manual_seed(1)
    x = torch.randn(5, batch, hidden)
    layer = rnn(kind, hidden, cell)
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


def training(seconds: float, cells: list[str]) -> list[dict[str, Any]]:
    rows = []
    for cell in cells:
        for whole in (False, True):
            for hidden in (200, 650):
                for batch in (20, 128):
                    kinds = ("plain", "tied", "untied", "bbb")
                    for kind in kinds[1:]:
                        check(kind, hidden, batch, cell)
                    steps = {kind: training_step(kind, whole, hidden, batch, cell) for kind in kinds}
                    took = interleaved(steps, seconds * (4 if hidden * batch > 40_000 else 1))
                    row = {
                        "cell": cell,
                        "model": "language model" if whole else "layers",
                        "hidden": hidden,
                        "batch": batch,
                        "plain_words_per_second": STEPS * batch / took["plain"],
                        **{kind: took["plain"] / took[kind] for kind in kinds[1:]},
                    }
                    rows.append(row)
                    print(
                        f"{cell:5} {row['model']:15} H={hidden:<4} B={batch:<4}"
                        f" plain {row['plain_words_per_second']:8,.0f} words/s"
                        f"   tied {row['tied']:.2f}x   untied {row['untied']:.2f}x   BBB {row['bbb']:.2f}x",
                        flush=True,
                    )
    return rows


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
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder, *PEERS]
    subprocess.run(install, check=True)
    sys.path.insert(0, folder)
    rows = []
    for hidden in (200, 650):
        x = torch.randn(STEPS, 20, hidden)
        first = x.transpose(0, 1).contiguous()
        ours = br.BayesByBackprop(nn.LSTM(hidden, hidden), prior=br.ScaleMixture(0.5, 1.0, 0.002, group="weight"))
        steps: dict[str, Callable[[], None]] = {"plain": _plain_layer(hidden, x)}

        def our_step(q: nn.Module = ours, x: torch.Tensor = x) -> None:
            q.zero_grad()
            (q(x)[0].square().mean() + br.kl(q) / 1e6).backward()

        steps["bayesrnn"] = our_step
        for name, make in (("blitz", _blitz), ("bayesian-torch", _bayesian_torch)):
            try:
                steps[name] = make(hidden, first)
            except Exception as error:
                print(f"{name}: could not be run here ({type(error).__name__}: {error})")
        took = interleaved(steps, seconds)
        for name in steps:
            if name not in ("plain", "bayesrnn"):
                row = {"peer": name, "hidden": hidden, "batch": 20, "ours_over_peer": took[name] / took["bayesrnn"]}
                rows.append(row)
                print(
                    f"one Bayesian LSTM layer, H={hidden} B=20: ours is {row['ours_over_peer']:.1f}x as fast as {name}"
                )
    return rows


def _plain_layer(hidden: int, x: torch.Tensor) -> Callable[[], None]:
    layer = nn.LSTM(hidden, hidden)

    def step() -> None:
        layer.zero_grad()
        layer(x)[0].square().mean().backward()

    return step


def _blitz(hidden: int, x: torch.Tensor) -> Callable[[], None]:
    from blitz.losses import kl_divergence_from_nn
    from blitz.modules import BayesianLSTM

    layer = BayesianLSTM(hidden, hidden)

    def step() -> None:
        layer.zero_grad()
        (layer(x)[0].square().mean() + kl_divergence_from_nn(layer) / 1e6).backward()

    step()
    return step


def _bayesian_torch(hidden: int, x: torch.Tensor) -> Callable[[], None]:
    from bayesian_torch.layers import LSTMReparameterization

    layer = LSTMReparameterization(hidden, hidden)

    def step() -> None:
        layer.zero_grad()
        out, _, kl = layer(x)
        (out.square().mean() + kl / 1e6).backward()

    step()
    return step


def memory() -> dict[str, float]:
    """Peak memory of a BBB training step beyond the plain one's, in copies of the Bayesian parameters."""
    peaks = {}
    for kind in ("plain", "bbb"):
        # not ru_maxrss: a child starts with its parent's peak
        code = (
            "import sys; sys.path.insert(0, 'benchmarks'); import torch, cpu; torch.set_num_threads(2); "
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
    parser.add_argument("--seconds", type=float, default=6.0, help="time per row")
    parser.add_argument("--cells", nargs="+", default=["LSTM"], choices=["LSTM", "GRU", "RNN"])
    parser.add_argument("--peers", action="store_true", help="install and run the peers too")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    parser.add_argument("--best", action="store_true", help="shortest times instead of medians, on a busy machine")
    parser.add_argument("--out", type=Path, help="write the record here")
    options = parser.parse_args()
    if options.out is not None and not options.out.parent.is_dir():
        parser.error(f"{options.out.parent} is no folder; make it first, or choose another --out")
    torch.set_num_threads(options.threads)
    global typical
    typical = min if options.best else statistics.median
    kernels = {name: br.kernels.path(name=name) for name in (*options.cells, "gaussian")}
    print("kernels: " + ", ".join(f"{name} {path}" for name, path in kernels.items()), flush=True)
    record: dict[str, Any] = {
        "command": "python benchmarks/cpu.py " + " ".join(sys.argv[1:]),
        "commit": commit(),
        "device": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "times": "shortest" if options.best else "median",
        "kernels": kernels,
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "bayesrnn": br.__version__},
        "training": training(options.seconds, options.cells),
        "prediction": prediction(options.seconds),
        "memory": memory(),
    }
    if options.peers:
        record["peers"] = peers(options.seconds)
    if options.out is not None:
        options.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
