"""A plain-loop truth for the recurrent layers, from the papers' equations: one sequence and one gate at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

GATES = {"LSTM": 4, "GRU": 3, "RNN_TANH": 1, "RNN_RELU": 1}


class PlainLoop:
    """Runs a layer's weights over single sequences with the masks of a held draw.

    arXiv 1512.05287: each gate is act(W_g (x_t * z_x^g) + b_g + U_g (h_{t-1} * z_h^g) + c_g), Eq. 5, with the same
    masks for all g where tied, Eq. 7. DropConnect multiplies the recurrent weights; Moon et al. 2015 multiply c_t.
    """

    def __init__(self, module: Any, masks: dict[str, Tensor]) -> None:
        self.module, self.masks = module, masks
        self.directions = 2 if module.bidirectional else 1

    def _mask(self, key: str, row: int, gate: int | None, width: int) -> Tensor:
        mask = self.masks.get(key)
        if mask is None:
            return torch.ones(width, dtype=torch.float64)
        mask = mask.double()
        if self.module.rates.share == "sequence":
            mask = mask[row]
        if gate is not None and not self.module.rates.tied:
            mask = mask[gate]
        assert mask.shape == (width,)
        return mask

    def _direction(self, xs: list[Tensor], h: Tensor, c: Tensor | None, suffix: str, row: int) -> tuple[Any, ...]:
        m, size = self.module, self.module.hidden_size
        w_ih, w_hh = getattr(m, "weight_ih" + suffix), getattr(m, "weight_hh" + suffix)
        if "weight" + suffix in self.masks:
            w_hh = w_hh * self.masks["weight" + suffix].double()
        zero = torch.zeros(GATES[m.mode] * size, dtype=torch.float64)
        b_ih, b_hh = (getattr(m, b + suffix) if m.bias else zero for b in ("bias_ih", "bias_hh"))

        def parts(gate: int, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            at = slice(gate * size, (gate + 1) * size)
            z_x = self._mask("input" + suffix, row, gate, x.shape[0])
            z_h = self._mask("recurrent" + suffix, row, gate, h.shape[0])
            return w_ih[at] @ (x * z_x) + b_ih[at], w_hh[at] @ (h * z_h) + b_hh[at]

        outs = []
        for x in xs[::-1] if suffix.endswith("reverse") else xs:
            if m.mode == "LSTM":
                i, f, g, o = (sum(parts(gate, x, h)) for gate in range(4))
                c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
                z_c, out_scale = self._mask("cell" + suffix, row, None, size), 1.0
                if m.rates.noise == "bernoulli":  # kept cells as they are, and 1 / (1 - p) on what leaves them
                    z_c, out_scale = (z_c != 0).double(), 1 / (1 - m.rates.cell_dropout)
                c = c * z_c
                h = torch.sigmoid(o) * torch.tanh(c) * out_scale
                if m.proj_size:
                    h = getattr(m, "weight_hr" + suffix) @ h
            elif m.mode == "GRU":
                r, z = (torch.sigmoid(sum(parts(gate, x, h))) for gate in range(2))
                from_x, from_h = parts(2, x, h)
                h = (1 - z) * torch.tanh(from_x + r * from_h) + z * h
            else:
                total = sum(parts(0, x, h))
                h = torch.tanh(total) if m.mode == "RNN_TANH" else torch.relu(total)
            outs.append(h)
        return (outs[::-1] if suffix.endswith("reverse") else outs), h, c

    def __call__(self, x: Tensor, state: Any, row: int) -> tuple[Tensor, list[Tensor]]:
        """One sequence x (T, F), row `row` of its batch, from its state (layers * directions, 1, size)."""
        xs = list(x)
        h0, c0 = state if self.module.mode == "LSTM" else (state, None)
        last_h, last_c = [], []
        for layer in range(self.module.num_layers):
            both = []
            for direction in range(self.directions):
                k = layer * self.directions + direction
                suffix = f"_l{layer}" + ("_reverse" if direction else "")
                outs, h, c = self._direction(xs, h0[k], None if c0 is None else c0[k], suffix, row)
                both.append(outs)
                last_h.append(h)
                last_c.append(c)
            xs = [torch.cat(step) for step in zip(*both, strict=True)]  # goes up unmasked
        return torch.stack(xs), [torch.stack(last_h)] + ([] if c0 is None else [torch.stack(last_c)])


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def plain_loop() -> Callable[..., PlainLoop]:
    return PlainLoop


@pytest.fixture(scope="session")
def held_masks() -> Callable[..., dict[str, Tensor]]:
    """The masks of a held draw of one layer, by the layer's own keys ("input_l0", …)."""
    return lambda draw: {key.removeprefix("."): mask for key, mask in draw._held.items()}
