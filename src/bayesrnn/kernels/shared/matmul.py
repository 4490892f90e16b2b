"""Matrix products by the faster of the CPU's two libraries, and packed once where a matrix is used many times.

Nothing here is recorded by autograd: these are the pieces of hand-written forwards and backwards.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

_SMALL = 1 << 14  # below this many weights oneDNN's set-up is not worth it; chosen, not measured
_LARGE = 1 << 20  # from here on it is also faster for weight gradients


def _onednn(weight: Tensor, size: int, at_least: int = _SMALL) -> bool:
    return (
        size >= at_least
        and weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, weight, bias, "none", [], "")
    return out


def product_transposed(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias, for many rows at once."""
    if x.numel() and _onednn(weight, weight.numel()):
        return _linear(x, weight, bias)
    return F.linear(x, weight, bias)


def repeated_product(weight: Tensor, *, rows: int, repeats: int) -> Callable[[Tensor], Tensor]:
    """A function `x -> x @ weight.T` for `repeats` inputs of up to `rows` rows each.

    oneDNN multiplies a few rows with a packed matrix up to twice as fast as MKL does with a plain one.
    """
    if repeats > 3 and rows and _onednn(weight, weight.numel()):
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), rows)
        return lambda x: _linear(x, packed)
    transposed = weight.t()
    return lambda x: torch.mm(x, transposed)


def weight_gradient(d: Tensor, x: Tensor) -> Tensor:
    """d.T @ x: the gradient of W in x @ W.T, from that of the product."""
    if d.numel() and _onednn(x, d.shape[1] * x.shape[1], _LARGE):
        return _linear(d.t(), x.t())
    return d.t() @ x
