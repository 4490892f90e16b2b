"""`RNN`, `GRU` and `LSTM`: torch.nn's layers with noise that is held for the whole sequence.

Variational dropout (arXiv 1512.05287), DropConnect on the recurrent weights (Wan et al. 2013), and dropout of
the LSTM's cell state (Moon et al. 2015). With every rate at zero, and in eval mode, the layers give torch.nn's
numbers, on a CPU from torch.nn's kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from bayesrnn import draws, kernels
from bayesrnn.nn import recurrence as layered

_NOISE_DOC = """
    All arguments of `torch.nn.{name}`, the same parameters and the same `state_dict`; then, keyword-only:

    Args:
        input_dropout: rate of the noise on each layer's input, one mask per sequence, the same at every step.
        recurrent_dropout: rate of the noise on h_{{t-1}} in the recurrent product (arXiv 1512.05287, Eq. 7).
        weight_dropout: DropConnect rate of the recurrent weights W_hh, one weight mask per draw.{cell}
        tied: True: the gates share a mask (Eq. 7). False: every gate has its own (Eq. 5).
        noise: "bernoulli", or "gaussian" for multipliers N(1, p / (1 - p)) of the same variance.
        share: "sequence": every sequence of the batch has its own masks. "batch": one set for all, folded
            into the weights, at the speed of the plain layer.

    Shapes: as in torch.nn: input (T, B, F), (B, T, F) with `batch_first`, (T, F) unbatched, or PackedSequence.
"""
_CELL_DOC = """
        cell_dropout: rate of dropping cells: c_t = 0 for the whole sequence (Moon et al. 2015). Kept cells keep
            their state, and 1 / (1 - p) goes on what leaves them, not on c_t, where it would grow with every step;
            Gaussian noise does multiply c_t, and is for short sequences."""


if TYPE_CHECKING:
    _Base = torch.nn.RNNBase
else:
    _Base = object


def _setting(name: str) -> Any:
    """A keyword of the constructor as an attribute: it can be read, and set to another value that is checked alike."""

    def set_it(layer: Any, value: Any) -> None:
        layer._set_rates(**{**asdict(layer.rates), name: value})

    return property(lambda layer: getattr(layer.rates, name), set_it, doc=f"`{name}` of the constructor.")


class _Noisy(_Base):
    """What the three layers share. A mixin before torch.nn's class."""

    rates: layered.Rates
    input_dropout = _setting("input_dropout")
    recurrent_dropout = _setting("recurrent_dropout")
    weight_dropout = _setting("weight_dropout")
    cell_dropout = _setting("cell_dropout")
    tied = _setting("tied")
    noise = _setting("noise")
    share = _setting("share")

    def _set_rates(self, *, cell_dropout: float = 0.0, **rates: Any) -> None:
        for name in ("input_dropout", "recurrent_dropout", "weight_dropout"):
            rates[name] = draws.check_probability(name, rates[name])
        draws.check_choice("noise", rates["noise"], ("bernoulli", "gaussian"))
        draws.check_choice("share", rates["share"], ("sequence", "batch"))
        draws.check_choice("tied", rates["tied"], (True, False))
        rates["cell_dropout"] = draws.check_probability("cell_dropout", cell_dropout)
        if cell_dropout and self.mode != "LSTM":
            raise ValueError(f"cell_dropout is of br.LSTM: a {layered.cell_of(self)} has no cell state")
        self.rates = layered.Rates(**rates)

    def forward(self, input: Any, hx: Any = None) -> tuple[Any, Any]:  # type: ignore[override]
        if hx is not None:
            layered.check_kind_of_state(self, hx)
            if isinstance(input, PackedSequence):  # torch would sort the state's rows before it counts them
                self.check_forward_args(input.data, hx, input.batch_sizes)
        source = draws.source(self)
        noisy = source is not None and (self.rates.any or (self.dropout > 0 and source is not draws.FRESH))
        if not torch.compiler.is_dynamo_compiling() and kernels.forced():
            return layered.run(self, self.rates, input, hx, source)
        if (source is None or not noisy or self.rates.folds_into_weights) and layered.beats_torch(self, input):
            return layered.run(self, self.rates, input, hx, source, plain=True)
        if source is None or not noisy:
            return self._fused(input, hx, None, quiet=source is None)
        plain_dropout = self.dropout == 0 or source is draws.FRESH
        stacked = isinstance(getattr(source, "source", None), draws.Stacked)
        if self.rates.folds_into_weights and plain_dropout and not (stacked and self.rates.units):
            return self._fused(input, hx, layered.flat_weights(self, self.rates, source, self._rows(input)))
        return layered.run(self, self.rates, input, hx, source)

    def _rows(self, input: Any) -> int:
        if isinstance(input, PackedSequence):
            return int(input.batch_sizes[0])
        return 1 if input.dim() < 3 else int(input.shape[0 if self.batch_first else 1])

    def _fused(self, input: Any, hx: Any, weights: list[Tensor] | None, *, quiet: bool = False) -> tuple[Any, Any]:
        """torch's own forward, on `weights` where given; quiet: without dropout between layers, in train mode too."""
        kept, dropout = self._flat_weights, self.dropout
        self.dropout = 0.0 if quiet else dropout
        try:
            if weights is not None:
                self._flat_weights = list(weights)
                if weights[0].is_cuda:
                    # into the one piece that cuDNN wants; the parameters themselves stay where they are
                    self._flat_weights = [w.clone() if isinstance(w, torch.nn.Parameter) else w for w in weights]
                    self.flatten_parameters()
            result: tuple[Any, Any] = super().forward(input, hx)
        finally:
            self._flat_weights, self.dropout = kept, dropout
        return result

    def check_hidden_size(
        self, hx: Tensor, expected_hidden_size: Any, msg: str = "Expected hidden size {}, got {}"
    ) -> None:
        if hx.size() != expected_hidden_size:
            raise RuntimeError(
                msg.format(tuple(expected_hidden_size), tuple(hx.size())) + f": {layered.STATE_OF_ANOTHER_BATCH}"
            )

    def dropped_weights(self) -> Iterator[tuple[torch.nn.Parameter, float]]:
        """The weight matrices that noise acts on, each with its probability of being kept (for `bayesrnn.kl`)."""
        rates = self.rates
        keep_hh = (1 - rates.recurrent_dropout) * (1 - rates.weight_dropout)
        for suffix in layered.names(self):
            for name, keep in (("weight_ih", 1 - rates.input_dropout), ("weight_hh", keep_hh)):
                weight = self._parameters[name + suffix]
                if keep < 1 and isinstance(weight, torch.nn.Parameter):
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


class RNN(_Noisy, torch.nn.RNN):
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        input_dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        weight_dropout: float = 0.0,
        tied: bool = True,
        noise: str = "bernoulli",
        share: str = "sequence",
    ) -> None:
        torch.nn.RNN.__init__(
            self, input_size, hidden_size, num_layers, nonlinearity, bias, batch_first, dropout, bidirectional,
            device=device, dtype=dtype,
        )  # fmt: skip
        self._set_rates(
            input_dropout=input_dropout, recurrent_dropout=recurrent_dropout, weight_dropout=weight_dropout,
            tied=tied, noise=noise, share=share,
        )  # fmt: skip


class GRU(_Noisy, torch.nn.GRU):
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        input_dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        weight_dropout: float = 0.0,
        tied: bool = True,
        noise: str = "bernoulli",
        share: str = "sequence",
    ) -> None:
        torch.nn.GRU.__init__(
            self, input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional,
            device=device, dtype=dtype,
        )  # fmt: skip
        self._set_rates(
            input_dropout=input_dropout, recurrent_dropout=recurrent_dropout, weight_dropout=weight_dropout,
            tied=tied, noise=noise, share=share,
        )  # fmt: skip


class LSTM(_Noisy, torch.nn.LSTM):
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: Any = None,
        *,
        input_dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        weight_dropout: float = 0.0,
        cell_dropout: float = 0.0,
        tied: bool = True,
        noise: str = "bernoulli",
        share: str = "sequence",
    ) -> None:
        torch.nn.LSTM.__init__(
            self, input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size,
            device=device, dtype=dtype,
        )  # fmt: skip
        self._set_rates(
            input_dropout=input_dropout, recurrent_dropout=recurrent_dropout, weight_dropout=weight_dropout,
            cell_dropout=cell_dropout, tied=tied, noise=noise, share=share,
        )  # fmt: skip


RNN.__doc__ = "Elman RNN with noise held for the sequence.\n" + _NOISE_DOC.format(name="RNN", cell="")
GRU.__doc__ = "GRU with noise held for the sequence.\n" + _NOISE_DOC.format(name="GRU", cell="")
LSTM.__doc__ = "LSTM with noise held for the sequence.\n" + _NOISE_DOC.format(name="LSTM", cell=_CELL_DOC)
