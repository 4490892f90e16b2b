"""Training steps of other libraries' Bayesian LSTM layers, for comparison: forward, KL and backward."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from torch import Tensor


def layer_step(layer: Any, x: Tensor, kl: Callable[[Any, Any], Tensor]) -> Callable[[], None]:
    """A step of one layer on x: the mean square of its output plus `kl(layer, output)`, and backward."""

    def step() -> None:
        layer.zero_grad()
        out = layer(x)
        (out[0].square().mean() + kl(layer, out) / 1e6).backward()

    step()
    return step


def _blitz(hidden: int, x: Tensor) -> Callable[[], None]:
    divergence = import_module("blitz.losses").kl_divergence_from_nn
    layer = import_module("blitz.modules").BayesianLSTM(hidden, hidden).to(x.device)
    return layer_step(layer, x, lambda layer, out: divergence(layer))


def _bayesian_torch(hidden: int, x: Tensor) -> Callable[[], None]:
    layer = import_module("bayesian_torch.layers").LSTMReparameterization(hidden, hidden).to(x.device)
    return layer_step(layer, x, lambda layer, out: out[2])


PEERS = {"blitz": _blitz, "bayesian-torch": _bayesian_torch}
"""By name: `make(hidden, x)` returns a step of one layer on x (batch, steps, hidden); ImportError if not installed."""
