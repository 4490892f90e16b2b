"""Time-major rows: how a batch of sequences of any lengths lies in one matrix.

Row blocks follow each other in time; step t has `batch_sizes[t]` rows, the sequences still running (longest
first, as in `torch.nn.utils.rnn.PackedSequence`). A batch of equal lengths is the special case of T equal sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor


def offsets(batch_sizes: Sequence[int]) -> list[int]:
    return list(accumulate(batch_sizes, initial=0))


def is_rectangular(batch_sizes: Sequence[int]) -> bool:
    return not batch_sizes or batch_sizes[0] == batch_sizes[-1]


def per_row(mask: Tensor, batch_sizes: Sequence[int]) -> Tensor:
    """One row of `mask` (B, ...) for every time-major row: (N, ...)."""
    if is_rectangular(batch_sizes):
        return mask.expand(len(batch_sizes), *mask.shape).reshape(-1, *mask.shape[1:])
    return torch.cat([mask[:n] for n in batch_sizes])


def times_rows(x: Tensor, mask: Tensor, batch_sizes: Sequence[int], *, in_place: bool = False) -> Tensor:
    """`x` (N, F) times one row of `mask` (B, F) per sequence, the same at every step."""
    if is_rectangular(batch_sizes):
        steps = x.view(len(batch_sizes), batch_sizes[0], x.shape[-1])
        return (steps.mul_(mask) if in_place else steps * mask).view(x.shape)
    rows = per_row(mask, batch_sizes)
    return x.mul_(rows) if in_place else x * rows


def previous_rows(out: Tensor, first: Tensor, batch_sizes: Sequence[int], *, reverse: bool) -> Tensor:
    """What each time-major row of `out` (N, H) saw as its previous state, given the initial one (B, H)."""
    if is_rectangular(batch_sizes):
        b = batch_sizes[0]
        return torch.cat([out[b:], first] if reverse else [first, out[: out.shape[0] - b]])
    at = offsets(batch_sizes)
    parts = []
    for t, n in enumerate(batch_sizes):
        if reverse:
            later = batch_sizes[t + 1] if t + 1 < len(batch_sizes) else 0
            parts += [out[at[t + 1] : at[t + 1] + later], first[later:n]]
        else:
            parts.append(out[at[t - 1] : at[t - 1] + n] if t else first[:n])
    return torch.cat(parts)


def order(batch_sizes: Sequence[int], *, reverse: bool) -> list[tuple[int, int]]:
    """(first row, rows) of every step in the order in which the recurrence visits them."""
    at = offsets(batch_sizes)
    steps = list(zip(at, batch_sizes, strict=False))
    return steps[::-1] if reverse else steps
