"""Which rounding torch's settings allow."""

from __future__ import annotations

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
