r"""`RNN`, `GRU` and `LSTM`: torch.nn's layers with noise that is held for the whole sequence.

The layers compute torch.nn's equations. With sigma the logistic function and * the product of elements:

    RNN    h_t = tanh(W x_t + b + U h_{t-1})          (or ReLU)

    GRU    r, z = sigma(W x_t + b + U h_{t-1})        of gates r and z
           n    = tanh(W_n x_t + b_n + r * (U_n h_{t-1} + c_n))
           h_t  = (1 - z) * n + z * h_{t-1}

    LSTM   i, f, o = sigma(W x_t + b + U h_{t-1})     of gates i, f and o
           g   = tanh(W_g x_t + b_g + U_g h_{t-1})
           c_t = f * c_{t-1} + i * g,   h_t = o * tanh(c_t)

Variational dropout replaces x_t by x_t * z_x and the h_{t-1} of the products by h_{t-1} * z_h, with masks drawn once
per sequence: one for all gates (arXiv 1512.05287, Eq. 7), or one per gate (Eq. 5). DropConnect draws a mask over the
weights U (Wan et al. 2013), and cell dropout sets cells c_t to zero (Moon et al. 2015). `nn/masks.py` makes the masks,
`nn/recurrence.py` runs the steps. With every rate at zero, and in eval mode, the layers give torch.nn's numbers, on a
CPU from torch.nn's kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from bayesrnn import draws
from bayesrnn.checks import check_choice, check_probability, unknown_keyword
from bayesrnn.compilation import uncompiled
from bayesrnn.kernels.explanation import ExplainedLayer
from bayesrnn.nn import masks, recurrence
from bayesrnn.nn.base import NoisyLayer

_NOISE_DOC = """
    All arguments of `torch.nn.{name}`, the same parameters and the same `state_dict`; then, keyword-only:

    Args:
        input_dropout: rate of the noise on each layer's input, one mask per sequence, the same at every step.
        recurrent_dropout: rate of the noise on h_{{t-1}} in the recurrent product.
        weight_dropout: DropConnect rate of the recurrent weights, one weight mask per draw.{cell}
        tied: True: the gates share a mask (arXiv 1512.05287, Eq. 7). False: every gate has its own (Eq. 5).
        noise: "bernoulli", or "gaussian" for multipliers N(1, p / (1 - p)) of the same variance.
        share: "sequence": every sequence of the batch has its own masks. "batch": one set for all, folded
            into the weights, at the speed of the plain layer.

    Shapes: as in torch.nn: input (T, B, F), (B, T, F) with `batch_first`, (T, F) unbatched, or PackedSequence.

    Example::

        layer = br.{name}(10, 20, input_dropout=0.2, recurrent_dropout=0.2)
        output, state = layer(torch.randn(35, 8, 10))       # (35, 8, 20): new masks at every call
        with br.draw(layer, seed=1):
            output, state = layer(torch.randn(35, 8, 10))   # the masks of draw 1 at every call
"""
_CELL_DOC = """
        cell_dropout: LSTM only. Rate of dropping cells: c_t = 0 for the whole sequence (Moon et al. 2015). Kept cells
            keep their state, and their output is scaled by 1 / (1 - p); a factor on c_t would grow with every step.
            Gaussian noise does multiply c_t, and is for short sequences."""


_TORCHS = (
    "input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional", "proj_size",
    "nonlinearity", "device", "dtype",
)  # fmt: skip
"""Keywords of torch.nn's recurrent layers, for suggestions."""

if TYPE_CHECKING:
    _Base = torch.nn.RNNBase
else:
    _Base = object


def _setting(name: str) -> Any:
    """A keyword of the constructor as an attribute: read it, or set it to another value, which is checked alike."""

    def set_it(layer: Any, value: Any) -> None:
        layer._set_rates(**{**asdict(layer.rates), name: value})

    return property(lambda layer: getattr(layer.rates, name), set_it, doc=f"`{name}` of the constructor.")


class NoisyRNN(NoisyLayer, ExplainedLayer, _Base):
    """What the three layers share. A mixin before torch.nn's class."""

    rates: masks.Rates
    input_dropout = _setting("input_dropout")
    recurrent_dropout = _setting("recurrent_dropout")
    weight_dropout = _setting("weight_dropout")
    cell_dropout = _setting("cell_dropout")
    tied = _setting("tied")
    noise = _setting("noise")
    share = _setting("share")

    def __init__(
        self,
        *args: Any,
        input_dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        weight_dropout: float = 0.0,
        cell_dropout: float = 0.0,
        tied: bool = True,
        noise: str = "bernoulli",
        share: str = "sequence",
        **kwargs: Any,
    ) -> None:
        if cell_dropout and not isinstance(self, torch.nn.LSTM):
            raise TypeError(f"{type(self).__name__} has no cell state, and takes no cell_dropout: use br.LSTM")
        try:
            super().__init__(*args, **kwargs)
        except TypeError as error:
            if "unexpected keyword" not in str(error):
                raise
            known = [*masks.Rates.__dataclass_fields__, *_TORCHS]
            wrong = next((name for name in kwargs if name not in known), next(iter(kwargs)))
            raise TypeError(unknown_keyword(type(self).__name__, wrong, known)) from None
        self._set_rates(
            input_dropout=input_dropout, recurrent_dropout=recurrent_dropout, weight_dropout=weight_dropout,
            cell_dropout=cell_dropout, tied=tied, noise=noise, share=share,
        )  # fmt: skip

    def _set_rates(self, **rates: Any) -> None:
        for name in ("input_dropout", "recurrent_dropout", "weight_dropout", "cell_dropout"):
            rates[name] = check_probability(name, rates[name])
        check_choice("noise", rates["noise"], ("bernoulli", "gaussian"))
        check_choice("share", rates["share"], ("sequence", "batch"))
        check_choice("tied", rates["tied"], (True, False))
        if rates["cell_dropout"] and self.mode != "LSTM":
            raise ValueError(f"cell_dropout is an option of br.LSTM: a {masks.cell_of(self)} has no cell state")
        self.rates = masks.Rates(**rates)

    @property
    def noisy(self) -> bool:
        return self.rates.any

    @property
    def draws_weights(self) -> bool:
        return self.rates.weight_dropout > 0

    @property
    def input_batch_dim(self) -> int:
        return 0 if self.batch_first else 1

    def kernel_facts(self) -> tuple[dict[str, Any], str | None]:
        """What the choice of a kernel depends on, and why torch's own could run the layer whole (`kernels.explain`)."""
        rates = self.rates
        if not rates.any:
            return {}, "there is no noise in the recurrence"
        if draws.source(self) is None:
            return {}, f"{'at the posterior mean' if self.training else 'in eval mode'} it runs without noise"
        masked = rates.recurrent_dropout > 0 and not rates.folds_into_weights
        mask = ("tied" if rates.tied else "untied") if masked else None
        why = "the batch shares its noise, which is folded into the weights" if rates.folds_into_weights else None
        return {"recurrent_mask": mask, "cell_mask": rates.cell_dropout > 0}, why

    def forward(self, input: Any, hx: Any = None) -> tuple[Any, Any]:  # type: ignore[override]
        """Noise that the weights can hold leaves the layer to torch's fused kernel; other masks need our steps."""
        recurrence.check_state(self, input, hx)
        source = draws.source(self)
        noise = None if source is None or not self.rates.any else self._sample_noise(input, source)
        in_weights = noise is None or all(one.in_weights for one in noise.values())
        plain = in_weights and not recurrence.forced()
        if not plain or recurrence.beats_torch(self, input):
            return recurrence.run(self, input, hx, source, noise, plain=plain)
        if noise is None:
            result: tuple[Any, Any] = super().forward(input, hx)
            return result
        return self._fused(input, hx, noise)

    @uncompiled
    def _sample_noise(self, input: Any, source: draws.Source) -> dict[str, masks.LayerNoise]:
        order = input.sorted_indices if isinstance(input, PackedSequence) else None
        return masks.sample_noise(self, self.rates, source, recurrence.rows_of(self, input), order)

    @uncompiled
    def _fused(self, input: Any, hx: Any, noise: dict[str, masks.LayerNoise]) -> tuple[Any, Any]:
        return recurrence.fused(self, input, hx, masks.noisy_weights(self, noise))

    def check_hidden_size(
        self, hx: Tensor, expected_hidden_size: Any, msg: str = "Expected hidden size {}, got {}"
    ) -> None:
        if hx.size() != expected_hidden_size:
            raise RuntimeError(
                msg.format(tuple(expected_hidden_size), tuple(hx.size())) + f": {recurrence.STATE_OF_ANOTHER_BATCH}"
            )

    def dropped_weights(self) -> Iterator[tuple[Tensor, float]]:
        """The weight matrices that noise acts on, each with its probability of being kept (for `br.kl`)."""
        rates = self.rates
        keep_hh = (1 - rates.recurrent_dropout) * (1 - rates.weight_dropout)
        for suffix in masks.names(self.num_layers, self.bidirectional):
            for name, keep in (("weight_ih", 1 - rates.input_dropout), ("weight_hh", keep_hh)):
                if keep == 1:
                    continue
                if name + suffix not in self._parameters:  # normalised, pruned or parametrised: the weight it makes
                    yield getattr(self, name + suffix), keep
                elif isinstance(weight := self._parameters[name + suffix], torch.nn.Parameter):
                    yield weight, keep

    def extra_repr(self) -> str:
        plain, rates = super().extra_repr(), self.rates
        shown = [
            f"{n}={getattr(rates, n)}"
            for n in ("input_dropout", "recurrent_dropout", "weight_dropout", "cell_dropout")
            if getattr(rates, n) > 0
        ]
        if rates.any:
            shown += [f"tied={rates.tied}", f"noise={rates.noise!r}", f"share={rates.share!r}"]
        return ", ".join([plain, *shown])


class RNN(NoisyRNN, torch.nn.RNN):
    pass


class GRU(NoisyRNN, torch.nn.GRU):
    pass


class LSTM(NoisyRNN, torch.nn.LSTM):
    pass


RNN.__doc__ = "Elman RNN with noise held for the sequence.\n" + _NOISE_DOC.format(name="RNN", cell="")
GRU.__doc__ = "GRU with noise held for the sequence.\n" + _NOISE_DOC.format(name="GRU", cell="")
LSTM.__doc__ = "LSTM with noise held for the sequence.\n" + _NOISE_DOC.format(name="LSTM", cell=_CELL_DOC)
