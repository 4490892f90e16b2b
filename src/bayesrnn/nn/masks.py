r"""Which noise acts where in a recurrent layer, and the weights and masks it makes.

With z_x and z_h the masks of a sequence, the same at every step, and W_g, U_g the input and recurrent weights of
gate g, a step computes from x_t and h_{t-1} the values of its gates (arXiv 1512.05287)

    tied,   Eq. 7:   W_g (x_t z_x)   + U_g (h_{t-1} z_h)   + b_g      one mask for all gates
    untied, Eq. 5:   W_g (x_t z_x^g) + U_g (h_{t-1} z_h^g) + b_g      one mask per gate

Masks are multipliers of mean 1 (`draws.Noise`). One set of masks for the whole batch is a set of weights:
W_g (x z) = (W_g diag(z)) x. So is DropConnect, U_g * M with a mask M over single weights (Wan et al. 2013).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from bayesrnn.draws import Noise, Source
from bayesrnn.kernels.shared import beside

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_noise = cache(Noise)


@dataclass(frozen=True)
class Rates:
    """The noise settings of a recurrent layer, as in the constructor of `br.LSTM`; all zero for torch's own layers."""

    input_dropout: float = 0.0
    recurrent_dropout: float = 0.0
    weight_dropout: float = 0.0
    cell_dropout: float = 0.0
    tied: bool = True
    noise: str = "bernoulli"
    share: str = "sequence"

    @property
    def any(self) -> bool:
        return max(self.input_dropout, self.recurrent_dropout, self.weight_dropout, self.cell_dropout) > 0

    @property
    def folds_into_weights(self) -> bool:
        """Whether one set of weights serves the whole batch, so that torch's fused kernel can run the layer."""
        units = max(self.input_dropout, self.recurrent_dropout) > 0
        return self.cell_dropout == 0 and (self.share == "batch" or not units)


def cell_of(module: nn.RNNBase) -> str:
    """ "LSTM", "GRU" or "RNN"."""
    return "RNN" if module.mode.startswith("RNN") else module.mode


@cache
def names(num_layers: int, bidirectional: bool) -> tuple[str, ...]:
    """The suffixes of the parameters' names, layer by layer: `_l0`, `_l0_reverse`, `_l1`, …"""
    directions = ("", "_reverse") if bidirectional else ("",)
    return tuple(f"_l{layer}{suffix}" for layer in range(num_layers) for suffix in directions)


def weights_of(module: nn.RNNBase) -> dict[str, Tensor]:
    """The weights by name, in torch's order, as attributes: parametrised, pruned or drawn ones are the current ones."""
    own = module._parameters
    return {n: getattr(module, n) if own.get(n) is None else own[n] for n in module._flat_weights_names}  # type: ignore[misc]


@dataclass
class LayerNoise:
    """The noise of one direction of one layer, and the weights it leaves."""

    w_ih: Tensor
    w_hh: Tensor
    z_x: Tensor | None = None
    """(B, F), untied (B, gates, F)."""
    z_h: Tensor | None = None
    """(B, H), untied (B, gates, H)."""
    z_c: Tensor | None = None
    """(B, H): cells that are kept."""
    cell_scale: float = 1.0
    """The factor on the output of kept cells."""

    @property
    def in_weights(self) -> bool:
        """Whether the weights hold all of it, so that torch's fused kernel can run the layer."""
        return self.z_x is None and self.z_h is None and self.z_c is None


def sample_noise(
    module: nn.RNNBase, rates: Rates, source: Source, rows: int, order: Tensor | None = None
) -> dict[str, LayerNoise]:
    """The noise of every direction of every layer, by suffix; `order` sorts the sequences of a packed batch."""
    weights = weights_of(module)
    suffixes = names(module.num_layers, module.bidirectional)
    return {s: _direction_noise(module, weights, rates, s, source, rows, order) for s in suffixes}


def noisy_weights(module: nn.RNNBase, noise: Mapping[str, LayerNoise]) -> list[Tensor]:
    """The layer's weights in torch's order, with the noise that the whole batch shares folded in."""
    weights = weights_of(module)
    for suffix, one in noise.items():
        weights[f"weight_ih{suffix}"], weights[f"weight_hh{suffix}"] = one.w_ih, one.w_hh
    return list(weights.values())


def _direction_noise(
    module: nn.RNNBase,
    weights: Mapping[str, Tensor],
    rates: Rates,
    suffix: str,
    source: Source,
    rows: int,
    order: Tensor | None,
) -> LayerNoise:
    out = LayerNoise(weights[f"weight_ih{suffix}"], weights[f"weight_hh{suffix}"])
    gates = () if rates.tied else (GATES[cell_of(module)],)

    def units(key: str, p: float, shape: tuple[int, ...]) -> tuple[Tensor, bool]:
        """Masks, and whether every sequence has its own."""
        shared = rates.share == "batch"
        z = source.units(key + suffix, _noise(p, rates.noise), shape, out.w_hh, rows=rows, shared=shared)
        if z.ndim == len(shape):
            return z, False
        return z if order is None else z.index_select(0, order), True

    if rates.weight_dropout > 0:
        w_hh, noise = out.w_hh, Noise(rates.weight_dropout, rates.noise)
        single = torch.empty(0, device=w_hh.device, dtype=torch.float32)  # the same draw in any dtype
        mask = source.weights(f"weight{suffix}", lambda g: noise.sample(w_hh.shape, single, g), w_hh.device)
        out.w_hh = beside.run(torch.mul, w_hh, mask.to(w_hh), like=[w_hh])
    if rates.input_dropout > 0:
        z, own = units("input", rates.input_dropout, (*gates, out.w_ih.shape[1]))
        out.z_x, out.w_ih = (z, out.w_ih) if own else (None, _scaled(out.w_ih, z))
    if rates.recurrent_dropout > 0:
        z, own = units("recurrent", rates.recurrent_dropout, (*gates, out.w_hh.shape[1]))
        out.z_h, out.w_hh = (z, out.w_hh) if own else (None, _scaled(out.w_hh, z))
    if rates.cell_dropout > 0:
        z, own = units("cell", rates.cell_dropout, (module.hidden_size,))
        out.z_c = z if own else z.expand(rows, -1)
        if rates.noise == "bernoulli":
            # c_t * z / (1 - p) would grow by that factor at every step. Kept cells stay as they are, and 1 / (1 - p)
            # goes on their output, h = o * tanh(c) / (1 - p), so that the mean network is the plain one.
            out.cell_scale = 1 / (1 - rates.cell_dropout)
            out.z_c = (out.z_c != 0).to(out.z_c.dtype)
    return out


def _scaled(weight: Tensor, mask: Tensor) -> Tensor:
    """W diag(z) for z of shape (F,), or for every gate its own, (gates, F)."""
    if mask.ndim == 1:
        return weight * mask
    scaled = weight.reshape(mask.shape[0], -1, weight.shape[1]) * mask.unsqueeze(1)
    return scaled.reshape(weight.shape)
