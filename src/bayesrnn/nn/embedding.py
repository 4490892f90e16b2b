"""`Embedding` with word-type dropout (arXiv 1512.05287, section 4.2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from bayesrnn import draws


class Embedding(torch.nn.Embedding):
    """`torch.nn.Embedding` that drops word *types*: whole rows of the matrix, anew for every sequence.

    Within one sequence every occurrence of a word shares its fate: "the dog and the cat" may become
    "- dog and - cat", never "- dog and the cat". Kept rows are scaled by 1 / (1 - p).

    Args:
        word_dropout: probability of dropping a word type. All other arguments are torch's.
        batch_first: tokens are (B, T) instead of (T, B).

    Shapes: tokens (T, B), (B, T) with `batch_first`, or (T,) for one sequence -> (*tokens.shape, embedding_dim).
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *args: Any,
        word_dropout: float = 0.0,
        batch_first: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_embeddings, embedding_dim, *args, **kwargs)
        self.word_dropout = draws.check_probability("word_dropout", word_dropout)
        self.batch_first = batch_first

    def forward(self, input: Tensor) -> Tensor:
        out = super().forward(input)
        source = draws.source(self)
        if source is None or self.word_dropout == 0:
            return out
        if input.dim() not in (1, 2):
            raise ValueError(
                f"word dropout needs tokens of shape (T, B), or (B, T) with batch_first=True, got {tuple(input.shape)}"
            )
        tokens = input.unsqueeze(1) if input.dim() == 1 else input.t() if self.batch_first else input
        rows = tokens.shape[1]
        types = (self.num_embeddings,)
        keep = source.units("words", draws.Noise(self.word_dropout), types, out, rows=rows)  # (B, V)
        kept = keep.gather(1, tokens.t())  # (B, T)
        if input.dim() == 1:
            kept = kept[0]
        elif not self.batch_first:
            kept = kept.t()
        return out * kept.unsqueeze(-1)

    def dropped_weights(self) -> Iterator[tuple[torch.nn.Parameter, float]]:
        """The matrix, with the probability of keeping a row (for `bayesrnn.kl`)."""
        weight = self._parameters["weight"]
        if self.word_dropout > 0 and isinstance(weight, torch.nn.Parameter):
            yield weight, 1 - self.word_dropout

    def extra_repr(self) -> str:
        return super().extra_repr() + (f", word_dropout={self.word_dropout}" if self.word_dropout else "")
