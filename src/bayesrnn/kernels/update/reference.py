"""Clipping by the global norm and a step of SGD in torch's operations over lists of tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bayesrnn.kernels.dispatch import reference_path


def clipped_step(
    params: Sequence[Tensor], gradients: Sequence[Tensor], *, rate: Tensor, clip: float | None, decay: float = 0.0
) -> Tensor:
    """w -= rate * s * g + decay * w with s = min(1, clip / |g|); returns |g|, the norm over all tensors.

    Args:
        params: changed in place, outside autograd.
        gradients: one for each; they are left as they are.
        rate: learning rate, a tensor without axes: a recorded CUDA graph reads it at every replay.
        clip: None: no clipping.
        decay: weight decay that is not multiplied by the rate (arXiv 1512.05287).
    """
    with torch.no_grad():
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(gradients))))
        scale = rate if clip is None else rate * (clip / (norm + 1e-6)).clamp(max=1.0)
        steps = torch._foreach_mul(list(gradients), scale)
        if decay:
            torch._foreach_add_(steps, list(params), alpha=decay)
        torch._foreach_sub_(list(params), steps)
    return norm


PATHS = (reference_path("update", clipped_step),)
