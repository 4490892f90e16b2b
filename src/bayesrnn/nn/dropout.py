"""`SequenceDropout`: the same mask at every step of a sequence."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.utils.rnn import PackedSequence

from bayesrnn import draws
from bayesrnn.kernels.shared.rows import per_row


class SequenceDropout(nn.Module):
    """Dropout with one mask per sequence, the same at every step (arXiv 1512.05287).

    Args:
        p: rate. noise: "bernoulli", or "gaussian" for N(1, p / (1 - p)).
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
        super().__init__()
        self.p = draws.check_probability("p", p)
        self.noise = draws.check_choice("noise", noise, ("bernoulli", "gaussian"))
        self.share = draws.check_choice("share", share, ("sequence", "batch"))
        self.batch_first = batch_first

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
        rows = 1 if one else input.shape[0 if self.batch_first else 1]
        shape = input.shape[1:] if one else input.shape[2:]
        mask = source.units("units", noise, shape, input, rows=rows, shared=shared)
        if mask.ndim > len(shape) and not one:
            mask = mask.unsqueeze(1 if self.batch_first else 0)
        return input * mask

    def extra_repr(self) -> str:
        return f"p={self.p}, noise={self.noise!r}, share={self.share!r}, batch_first={self.batch_first}"
