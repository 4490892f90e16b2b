"""One recurrent layer on a GPU, in one launch and step by step: milliseconds of forward and backward beside cuDNN's.

python benchmarks/recurrent.py [--cells GRU] [--hidden 650] [--masks none tied untied] [--batch 20 128 256]
                               [--steps 35] [--out results/gpu-layers.json] [--force]

All include the input products and the weight gradients, run as CUDA graphs and in TF32; "alone" is the recurrence
without them, forward and backward. The error is that of all outputs and gradients together against float64; where it
is not small no time is printed. One launch is measured for every batch, those that the library gives to single steps
among them: that choice (`MAX_TURNS` in kernels/persistent.py) is made from these times.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from gaussian import milliseconds
from torch import Tensor

import bayesrnn as br
from bayesrnn import kernels
from bayesrnn.errors import UserError
from bayesrnn.lab.engine.provenance import commit
from bayesrnn.lab.runs.files import check_out, write_file

GATES = {"LSTM": 4, "GRU": 3}
PATHS = {
    "one launch": {"LSTM": "persistent", "GRU": "persistent"},
    "step by step": {"LSTM": "cells", "GRU": "loop"},
}


class Layer:
    """A layer's numbers, the same for every way to compute it."""

    def __init__(self, cell: str, hidden: int, batch: int, steps: int) -> None:
        self.cell, self.hidden, self.sizes = cell, hidden, [batch] * steps
        self.x = torch.randn(steps, batch, hidden, device="cuda", requires_grad=True)
        self.cotangent = torch.randn(steps, batch, hidden, device="cuda")
        self.module = getattr(torch.nn, cell)(hidden, hidden, device="cuda")
        self.masks = {
            "none": None,
            "tied": (torch.rand(batch, hidden, device="cuda") < 0.75) / 0.75,
            "untied": (torch.rand(batch, GATES[cell], hidden, device="cuda") < 0.75) / 0.75,
        }

    def theirs(self) -> list[Tensor]:
        out, _ = self.module(self.x)
        return [out, *torch.autograd.grad(out, [self.x, *self.module.parameters()], self.cotangent)]

    def ours(self, recurrence: Any, masks: str, dtype: torch.dtype = torch.float32) -> list[Tensor]:
        """As `theirs`, from the pieces that a layer with noise per sequence is made of."""
        leaves = [self.x, *self.module.parameters()]
        if dtype != torch.float32:
            leaves = [t.detach().to(dtype).requires_grad_() for t in leaves]
        x, w_ih, w_hh, b_ih, b_hh = leaves
        mask = self.masks[masks]
        mask = mask if mask is None else mask.to(dtype)
        h = x.new_zeros(x.shape[1], self.hidden)
        inside = []
        bias = b_ih + b_hh
        if self.cell == "GRU":
            size = 2 * self.hidden
            bias = b_ih + torch.cat([b_hh[:size], torch.zeros_like(b_hh[size:])])
            inside = [b_hh[size:]]
        gx = kernels.kernel("input", "cuda")(x.flatten(0, 1), w_ih, bias, None, self.sizes)
        out = self._steps(recurrence, gx, h, w_hh, inside, mask).view(x.shape)
        return [out, *torch.autograd.grad(out, leaves, self.cotangent.to(dtype))]

    def _steps(self, recurrence: Any, gx: Tensor, h: Tensor, w_hh: Tensor, inside: list[Any], mask: Any) -> Tensor:
        if self.cell == "LSTM":
            out: Tensor = recurrence(gx, h, h, w_hh, None, mask, None, batch_sizes=self.sizes)[0]
        else:
            out = recurrence(gx, h, w_hh, *inside, mask, batch_sizes=self.sizes)[0]
        return out

    def alone(self, recurrence: Any, masks: str) -> Tensor:
        """The steps forward and backward, without the products over all of them: of the input, and for the weights."""
        gates, rows = GATES[self.cell] * self.hidden, self.x.shape[0] * self.x.shape[1]
        gx = torch.zeros(rows, gates, device=self.x.device, requires_grad=True)
        h, w_hh = self.x.new_zeros(self.x.shape[1], self.hidden), self.module.weight_hh_l0.detach()
        inside = [self.module.bias_hh_l0.detach()[2 * self.hidden :]] if self.cell == "GRU" else []
        out = self._steps(recurrence, gx.clone(), h, w_hh, inside, self.masks[masks])
        (found,) = torch.autograd.grad(out, [gx], self.cotangent.flatten(0, 1))
        return found


def error(found: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    pairs = [(a.detach().double(), b.detach()) for a, b in zip(found, exact, strict=True)]
    return float(sum((a - b).square().sum() for a, b in pairs) / sum(b.square().sum() for _, b in pairs)) ** 0.5


def measure(layer: Layer, masks: Sequence[str]) -> list[dict[str, Any]]:
    """Times of a layer on each path; a line for each kind of masks and path that gives the right numbers."""
    cell, (_, batch, hidden) = layer.cell, layer.x.shape
    plain = kernels.implementation(cell, "reference")
    theirs = milliseconds(layer.theirs)
    print(f"{cell} H={hidden}, batch {batch}: cuDNN {theirs:.3f} ms", flush=True)
    lines: list[dict[str, Any]] = []
    for kind in masks:
        exact = layer.ours(plain, kind, torch.float64)
        for name, places in PATHS.items():
            path = kernels.implementation(cell, places[cell])
            off = error(layer.ours(path, kind), exact)
            if not off < 3e-3:
                print(f"  {name}, masks {kind}: WRONG, error {off:.1e}", flush=True)
                continue
            took = milliseconds(functools.partial(layer.ours, path, kind))
            alone = milliseconds(functools.partial(layer.alone, path, kind))
            print(f"  {name}, masks {kind}: {took:.3f} ms, alone {alone:.3f}, error {off:.1e}", flush=True)
            lines.append(
                {"cell": cell, "hidden": hidden, "batch": batch, "masks": kind, "path": name, "milliseconds": took,
                 "alone": alone, "error": off, "cudnn_milliseconds": theirs}
            )  # fmt: skip
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", nargs="+", default=["LSTM", "GRU"], choices=["LSTM", "GRU"])
    parser.add_argument("--hidden", type=int, nargs="+", default=[200, 650, 1500])
    parser.add_argument("--masks", nargs="+", default=["none", "tied", "untied"], choices=["none", "tied", "untied"])
    parser.add_argument("--batch", type=int, nargs="+", default=[20])
    parser.add_argument("--steps", type=int, default=35)
    parser.add_argument("--out", type=Path, help="write the record here")
    parser.add_argument("--force", action="store_true", help="replace that file")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this measures on a GPU, and torch sees no CUDA device here")
    if options.out is not None:
        try:
            check_out(options.out, force=options.force)
        except UserError as error:
            parser.error(str(error))
    torch.set_float32_matmul_precision("high")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {options.steps} steps")
    lines: list[dict[str, Any]] = []
    for cell, hidden, batch in itertools.product(options.cells, options.hidden, options.batch):
        lines += measure(Layer(cell, hidden, batch, options.steps), options.masks)
        if options.out is not None:  # after every layer, for those who do not wait for the last
            write_file(options.out, json.dumps(record(lines, options.steps), indent=1) + "\n")


def record(lines: list[dict[str, Any]], steps: int) -> dict[str, Any]:
    return {
        "command": " ".join(["python", *sys.argv]), "commit": commit(), "device": torch.cuda.get_device_name(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "bayesrnn": br.__version__},
        "precision": "tf32", "steps": steps, "layers": lines,
    }  # fmt: skip


if __name__ == "__main__":
    main()
