"""`Dropout` and `SequenceDropout`: multiplicative noise on units, with masks that a draw holds."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from bayesrnn import draws
from bayesrnn.checks import check_choice, check_probability
from bayesrnn.kernels.shared.rows import per_row
from bayesrnn.nn.base import NoisyLayer


class _UnitNoise(NoisyLayer, nn.Module):
    """A rate and a kind of noise."""

    def __init__(self, p: float, noise: str) -> None:
        super().__init__()
        self.p = check_probability("p", p)
        self.noise = check_choice("noise", noise, ("bernoulli", "gaussian"))

    @property
    def noisy(self) -> bool:
        return self.p > 0

    def extra_repr(self) -> str:
        return f"p={self.p}, noise={self.noise!r}"


class Dropout(_UnitNoise):
    """Multiplicative noise on the units of every example: Bernoulli (MC dropout, arXiv 1506.02158) or Gaussian.

    For layers without a time axis: after a `Linear`, a convolution, anything. In train mode every call has new masks,
    in eval mode nothing happens, as with `torch.nn.Dropout`. Inside `br.draw` the masks are those of the draw, the same
    at every call; `torch.nn.Dropout` has new ones. For sequences see `br.SequenceDropout`.

    Args:
        p: rate.
        noise: "bernoulli", or "gaussian" for N(1, p / (1 - p)), which has the same variance (Srivastava et al. 2014).

    Shapes: (B, ...), every entry a unit of its own; the output has the input's shape.
    """

    def __init__(self, p: float = 0.5, *, noise: str = "bernoulli") -> None:
        super().__init__(p, noise)

    def forward(self, input: Tensor) -> Tensor:
        source = draws.source(self)
        if source is None or self.p == 0:
            return input
        if input.dim() < 2:
            raise ValueError(f"Dropout needs a batch of examples, (B, ...), got shape {tuple(input.shape)}")
        noise = draws.Noise(self.p, self.noise)
        return input * source.units("units", noise, input.shape[1:], input, rows=input.shape[0])


class SequenceDropout(_UnitNoise):
    """Dropout with one mask per sequence, the same at every step (arXiv 1512.05287).

    Args:
        p: rate.
        noise: "bernoulli", or "gaussian" for N(1, p / (1 - p)).
        share: "sequence" or "batch", whether sequences of a batch have their own masks.
        batch_first: input is (B, T, ...) instead of (T, B, ...).

    Shapes: (T, B, F), (B, T, F), (T, F) for one sequence, or a PackedSequence; the output has the input's shape.
    """

    def __init__(
        self,
        p: float = 0.5,
        *,
        noise: str = "bernoulli",
        share: str = "sequence",
        batch_first: bool = False,
    ) -> None:
        super().__init__(p, noise)
        self.share = check_choice("share", share, ("sequence", "batch"))
        self.batch_first = batch_first

    @property
    def input_batch_dim(self) -> int:
        return 0 if self.batch_first else 1

    def forward(self, input: Any) -> Any:
        source = draws.source(self)
        if source is None or self.p == 0:
            return input
        noise, shared = draws.Noise(self.p, self.noise), self.share == "batch"
        if isinstance(input, PackedSequence):
            sizes = input.batch_sizes.tolist()
            mask = source.units("units", noise, input.data.shape[1:], input.data, rows=sizes[0], shared=shared)
            if mask.ndim == input.data.ndim:
                order = input.sorted_indices
                mask = per_row(mask if order is None else mask.index_select(0, order), sizes)
            return input._replace(data=input.data * mask)
        if input.dim() < 2:
            raise ValueError(f"SequenceDropout needs (T, B, F) or (T, F), got shape {tuple(input.shape)}")
        one = input.dim() == 2
        rows = 1 if one else input.shape[self.input_batch_dim]
        shape = input.shape[1:] if one else input.shape[2:]
        mask = source.units("units", noise, shape, input, rows=rows, shared=shared)
        if mask.ndim > len(shape) and not one:
            mask = mask.unsqueeze(1 - self.input_batch_dim)
        return input * mask

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, share={self.share!r}, batch_first={self.batch_first}"
