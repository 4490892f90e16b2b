"""Products with one weight matrix that is used many times in a row: packed once, where the CPU library can."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_SMALL = 1 << 14  # below this many weights packing costs more than it saves


def _can_pack(weight: Tensor) -> bool:
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and weight.numel() >= _SMALL
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def times_transposed(weight: Tensor, *, rows: int, repeats: int) -> Callable[[Tensor], Tensor]:
    """A function `x -> x @ weight.T` for `repeats` inputs of up to `rows` rows each.

    oneDNN multiplies a few rows with a packed matrix up to twice as fast as with a plain one; nothing here is
    recorded by autograd.
    """
    if repeats > 3 and _can_pack(weight):
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), rows)
        linear = torch.ops.mkldnn._linear_pointwise.default
        return lambda x: linear(x, packed, None, "none", [], "")
    transposed = weight.t()
    return lambda x: torch.mm(x, transposed)
