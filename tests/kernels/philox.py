"""The noise of the GPU kernels in plain torch: Philox4x32-10 and the Box-Muller transform."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def normals(seed: int, counters: Tensor) -> Tensor:
    """The noise of the kernels on a GPU in float64: four normal numbers for every counter, (..., 4).

    Philox4x32-10 (Salmon et al. 2011) with the seed as its key, and the transform of Box and Muller (1958).
    """
    word = 0xFFFFFFFF
    a, b = counters & word, (counters >> 32) & word
    c = d = torch.zeros_like(a)
    for k in range(10):
        keys = ((seed & word) + k * 0x9E3779B9) & word, ((seed >> 32) + k * 0xBB67AE85) & word
        first, second = a * 0xD2511F53, c * 0xCD9E8D57  # modulo 2^64
        a, b, c, d = (
            ((second >> 32) & word) ^ b ^ keys[0], second & word, ((first >> 32) & word) ^ d ^ keys[1], first & word
        )  # fmt: skip
    return torch.cat([box_muller(a, b), box_muller(c, d)], dim=-1)


def box_muller(a: Tensor, b: Tensor) -> Tensor:
    """Two normal numbers, (..., 2), of two 32-bit words: the radius from a, the angle from b."""
    radius = (-2 * ((a.double() + 0.5) / 2**32).log()).sqrt()
    angle = b.double() * (2 * math.pi / 2**32)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=-1)
