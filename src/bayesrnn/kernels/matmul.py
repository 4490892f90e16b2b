"""Matrix products by the faster of the CPU's two libraries, and packed once where a matrix is used many times.

Nothing here is recorded by autograd: these are the pieces of hand-written forwards and backwards.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

_SMALL = 1 << 14  # below this many weights oneDNN's set-up is not worth it; chosen, not measured
_WORTH_PADDING = 1 << 26
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


def _short_of_16_bytes(size: int, like: Tensor, flops: int) -> int:
    """Columns that are missing until a CUDA matrix's rows begin on 16 bytes, where large products are far faster."""
    worth_it = like.device.type == "cuda" and like.dtype == torch.float32 and flops >= _WORTH_PADDING
    return -size % 4 if worth_it else 0


def product_transposed(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias, for many rows at once. The result may be a view of a wider matrix."""
    if x.numel() and _onednn(weight, weight.numel()):
        return _linear(x, weight, bias)
    flops = x.shape[0] * weight.numel()
    if missing := _short_of_16_bytes(x.shape[1], x, flops):
        x, weight = F.pad(x, (0, missing)), F.pad(weight, (0, missing))
    if bias is None and (missing := _short_of_16_bytes(weight.shape[0], x, flops)):
        return F.linear(x, F.pad(weight.t(), (0, missing)).t())[:, : weight.shape[0]]
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
    if missing := _short_of_16_bytes(x.shape[1], x, d.numel() * x.shape[1]):
        return (d.t() @ F.pad(x, (0, missing)))[:, : x.shape[1]].contiguous()
    return d.t() @ x
