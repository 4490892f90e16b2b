"""The input products in plain torch operations."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesrnn.kernels.dispatch import reference_path
from bayesrnn.kernels.shared.rows import per_row, times_rows


def project(x: Tensor, weight: Tensor, bias: Tensor | None, mask: Tensor | None, batch_sizes: Sequence[int]) -> Tensor:
    """Gate pre-activations (N, G*H) of time-major rows `x` (N, F).

    Args:
        weight: (G*H, F), the gates' matrices one under the other.
        mask: None, (B, F) shared by the gates, or (B, G, F) with one mask per gate (arXiv 1512.05287, Eq. 5).
    """
    if mask is None:
        return F.linear(x, weight, bias)
    if mask.ndim == 2:
        return F.linear(times_rows(x, mask, batch_sizes), weight, bias)
    rows = per_row(mask, batch_sizes)
    parts = [F.linear(x * rows[:, k], w) for k, w in enumerate(weight.chunk(mask.shape[1]))]
    out = torch.cat(parts, dim=-1)
    return out if bias is None else out + bias


PATHS = (reference_path("input", project),)
