"""Noise that is not stored: the seed it is made from."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesrnn.kernels.gaussian.plan import Prior, Spec


class Seeded:
    """The noise of one draw as one number in the device's memory, so that a CUDA graph draws anew at every replay."""

    def __init__(self, device: torch.device, generator: torch.Generator | None = None) -> None:
        self.seed = torch.randint(2**63 - 1, (1,), dtype=torch.int64, device=device, generator=generator)
        self._made: list[Tensor] | None = None

    def tensors(self, spec: Spec) -> list[Tensor]:
        """The noise itself, for paths that take it as tensors; made once."""
        if self._made is None:
            from bayesrnn.kernels.gaussian import triton

            plain = spec._replace(device=self.seed.device, prior=Prior("none"), recurrent=(), low=frozenset())
            self._made = triton.noise(self.seed, plain)
        return self._made
