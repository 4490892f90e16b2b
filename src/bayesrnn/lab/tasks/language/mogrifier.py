"""The Mogrifier LSTM (arXiv 1909.01792)."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bayesrnn as br
from bayesrnn import draws
from bayesrnn.kernels.explanation import OnePath
from bayesrnn.nn.masks import LayerNoise, weights_of


class MogrifierLSTM(OnePath, br.LSTM):
    """An LSTM layer whose input and state gate each other before every step.

    With x_t and h_{t-1} as x^{-1} and h^0, and as x and h of the LSTM's equations after r rounds (Eq. 1 and 2):

        x^i = 2 sigma(Q^i h^{i-1}) * x^{i-2}    for odd i
        h^i = 2 sigma(R^i x^{i-1}) * h^{i-2}    for even i

    Masks of inputs and state act before the first round, so that Q and R too see what is kept. Steps run in torch
    operations, on every device.

    Args:
        rounds: r.
        rank: Q^i and R^i are products of two matrices with this inner size; None: whole matrices.
        rates: dropout rates of `br.LSTM`.

    Shape:
        As `br.LSTM` with one layer: (T, B, F), and the state (h, c), each (1, B, H).
    """

    own_path = "torch operations, step by step"

    def __init__(self, inputs: int, units: int, *, rounds: int, rank: int | None = None, **rates: Any) -> None:
        super().__init__(inputs, units, **rates)
        self.rounds = nn.ModuleList()
        for k in range(rounds):
            sizes = (units, inputs) if k % 2 == 0 else (inputs, units)
            inner = sizes if rank is None else (sizes[0], rank, sizes[1])
            self.rounds.append(nn.Sequential(*(nn.Linear(a, b, bias=False) for a, b in pairwise(inner))))
        for weight in self.rounds.parameters():
            nn.init.uniform_(weight, -1 / math.sqrt(units), 1 / math.sqrt(units))

    def forward(self, input: Tensor, hx: Any = None) -> tuple[Tensor, Any]:  # type: ignore[override]
        source, weights = draws.source(self), weights_of(self)
        noise = LayerNoise(weights["weight_ih_l0"], weights["weight_hh_l0"])
        if source is not None and self.rates.any:
            noise = self._sample_noise(input, source)["_l0"]
        zeros = input.new_zeros(1, input.shape[1], self.hidden_size)
        h, c = (state[0] for state in ((zeros, zeros) if hx is None else hx))
        rounds: Any = [[part.weight for part in parts.children()] for parts in self.rounds]
        outputs, h, c = run_steps(input, h, c, weights["bias_ih_l0"] + weights["bias_hh_l0"], rounds, noise)
        return outputs, (h.unsqueeze(0), c.unsqueeze(0))


def run_steps(
    inputs: Tensor, h: Tensor, c: Tensor, bias: Tensor, rounds: Sequence[Sequence[Tensor]], noise: LayerNoise
) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs (T, B, F) and the state to outputs (T, B, H) and the next state; `torch.compile` takes it whole.

    A round is the matrices whose product, from the last to the first, is its Q or R.
    """
    outputs = []
    for x in inputs if noise.z_x is None else inputs * noise.z_x:
        h = h if noise.z_h is None else h * noise.z_h
        for k, matrices in enumerate(rounds):
            gate = x if k % 2 else h
            for matrix in matrices:
                gate = F.linear(gate, matrix)
            if k % 2:
                h = 2 * gate.sigmoid() * h
            else:
                x = 2 * gate.sigmoid() * x
        i, f, g, o = (F.linear(x, noise.w_ih, bias) + F.linear(h, noise.w_hh)).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        c = c if noise.z_c is None else c * noise.z_c
        h = o.sigmoid() * c.tanh() * noise.cell_scale
        outputs.append(h)
    return torch.stack(outputs), h, c
