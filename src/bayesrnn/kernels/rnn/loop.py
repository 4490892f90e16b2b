"""The simple recurrence with a hand-written backward: no autograd inside the loop, weight gradients as one GEMM."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from bayesrnn.kernels.dispatch import loop_path
from bayesrnn.kernels.rnn.reference import RNN
from bayesrnn.kernels.shared.recurrent import Layer, Recurrence


def _forward(layer: Layer) -> tuple[Any, ...]:
    outs, product = layer.gx.split(layer.sizes), layer.product()

    def step(t: int, h: Tensor) -> tuple[Tensor]:
        new = outs[t].add_(product(h))
        return (new.tanh_() if layer.kind == "tanh" else new.relu_(),)

    last = layer.run(step)
    return layer.gx.clone(), last, layer.gx, (layer.gx,)


def _backward(layer: Layer, kept: Any, h_prev: Any, d_out: Any, d_states: Any) -> tuple[Any, ...]:
    (out,) = kept
    local = 1 - out * out if layer.kind == "tanh" else (out > 0).to(out.dtype)
    locals_, product = local.split(layer.sizes), layer.product_back()

    def step(t: int, dh: Tensor) -> tuple[Tensor]:
        return (product(locals_[t].mul_(dh)),)

    first = layer.run_back(step, d_out, d_states)
    return local, local, first, None


rnn = Recurrence(RNN, _forward, _backward)
PATHS = (loop_path("RNN", rnn),)
