"""`Embedding` with word-type dropout (arXiv 1512.05287, section 4.2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from bayesrnn import draws
from bayesrnn.checks import check_probability
from bayesrnn.nn.base import NoisyLayer

_MANY = 1 << 14  # word types: above this, a mask over all of them costs more than the tokens that occur
_STEP = 0x9E3779B97F4A7C15 - 2**64  # 2^64 over the golden ratio, as a signed number


def _hash(x: Tensor) -> Tensor:
    """53 random bits for every 64-bit number: the last steps of SplitMix64 (Steele et al. 2014)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64), (31, 1)):
        x = (x ^ ((x >> shift) & ((1 << (64 - shift)) - 1))) * factor  # signed numbers: bits that move in are cleared
    return (x >> 11) & ((1 << 53) - 1)


class Embedding(NoisyLayer, torch.nn.Embedding):
    """`torch.nn.Embedding` that drops word types: whole rows of the matrix, anew for every sequence.

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
        self.word_dropout = check_probability("word_dropout", word_dropout)
        self.batch_first = batch_first

    @property
    def noisy(self) -> bool:
        return self.word_dropout > 0

    @property
    def input_batch_dim(self) -> int:
        return 0 if self.batch_first else 1

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
        kept = self._kept(tokens, out, source).t()  # (B, T)
        if input.dim() == 1:
            kept = kept[0]
        elif not self.batch_first:
            kept = kept.t()
        return out * kept.unsqueeze(-1)

    def _kept(self, tokens: Tensor, like: Tensor, source: draws.Source) -> Tensor:
        """The multipliers (T, B) of tokens (T, B)."""
        rows, p = tokens.shape[1], self.word_dropout
        if self.num_embeddings < _MANY:
            keep = source.units("words", draws.Noise(p), (self.num_embeddings,), like, rows=rows)  # (B, V)
            return keep.gather(1, tokens.t().long()).t()
        # Two normal numbers are a row's seed, and the fate of a type is a hash of it and the type.
        plain = torch.empty(0, device=like.device, dtype=torch.float32)  # 64 bits a pair, in any default dtype
        seeds = source.units("words", draws.Noise(0.5, "gaussian"), (2,), plain, rows=rows).view(torch.int64)[:, 0]
        kept = _hash(tokens.long() * _STEP + seeds) < round((1 - p) * 2**53)
        return kept.to(like.dtype) / (1 - p)

    def dropped_weights(self) -> Iterator[tuple[Tensor, float]]:
        """The matrix, with the probability of keeping a row (for `br.kl`)."""
        drawn = "weight" in self._parameters and not isinstance(self._parameters["weight"], torch.nn.Parameter)
        if self.word_dropout > 0 and not drawn:
            yield self.weight, 1 - self.word_dropout

    def extra_repr(self) -> str:
        return super().extra_repr() + (f", word_dropout={self.word_dropout}" if self.word_dropout else "")
