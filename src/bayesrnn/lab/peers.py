"""Training steps of other libraries' Bayesian LSTM layers, for comparison: forward, KL and backward."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from torch import Tensor


def _blitz(hidden: int, x: Tensor) -> Callable[[], None]:
    divergence = import_module("blitz.losses").kl_divergence_from_nn
    layer = import_module("blitz.modules").BayesianLSTM(hidden, hidden).to(x.device)

    def step() -> None:
        layer.zero_grad()
        (layer(x)[0].square().mean() + divergence(layer) / 1e6).backward()

    step()
    return step


def _bayesian_torch(hidden: int, x: Tensor) -> Callable[[], None]:
    layer = import_module("bayesian_torch.layers").LSTMReparameterization(hidden, hidden).to(x.device)

    def step() -> None:
        layer.zero_grad()
        out, _, kl = layer(x)
        (out.square().mean() + kl / 1e6).backward()

    step()
    return step


PEERS = {"blitz": _blitz, "bayesian-torch": _bayesian_torch}
"""By name: `make(hidden, x)` returns a step of one layer on x (batch, steps, hidden); ImportError if not installed."""
