"""Which rounding torch's settings allow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def lowered(device: str) -> bool:
    """Whether autocast is on for a kind of device; some kinds, such as "meta", have no autocast."""
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def tf32(*, products: bool) -> bool:
    """Whether float32 may be rounded to TF32 on a GPU: in matrix products, or in cuDNN's recurrent layers.

    Read by operation: torch's older switches raise an error once one of the newer was used.
    """
    backends: Any = torch.backends
    setting = backends.cuda.matmul if products else backends.cudnn.rnn
    return setting.fp32_precision not in ("ieee", "none")


_SWITCHES = (("cuda", "matmul"), ("cuda", "conv"), ("cuda", "rnn"))


def _legacy() -> tuple[str, bool] | None:
    """torch's older switches: for matrix products, and for cuDNN."""
    try:
        return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    except RuntimeError:  # torch's older and newer switches contradict each other
        return None


def round_float32(rounded: bool) -> None:
    """Let a GPU round float32 to TF32 in products and in cuDNN's layers, or forbid it, from here on."""
    torch.set_float32_matmul_precision("high" if rounded else "highest")
    cudnn: Any = torch.backends.cudnn
    cudnn.allow_tf32 = rounded
    if tf32(products=False) != rounded:  # torch's newer switch for all operations was used before
        cudnn.rnn.fp32_precision = cudnn.conv.fp32_precision = "tf32" if rounded else "ieee"


@contextmanager
def float32_precision(rounded: bool | None = None) -> Iterator[None]:
    """Restore the precision of float32 on a GPU after the block; `rounded` sets it inside, as `round_float32` does."""
    before, legacy = [torch._C._get_fp32_precision_getter(*switch) for switch in _SWITCHES], _legacy()
    try:
        if rounded is not None:
            round_float32(rounded)
        yield
    finally:
        if legacy is not None:
            torch.set_float32_matmul_precision(legacy[0])
            torch.backends.cudnn.allow_tf32 = legacy[1]
        for switch, value in zip(_SWITCHES, before, strict=True):
            if torch._C._get_fp32_precision_getter(*switch) != value:
                torch._C._set_fp32_precision_setter(*switch, value)
