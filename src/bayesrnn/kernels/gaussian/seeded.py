"""Noise that is not stored: the seed it is made from."""

from __future__ import annotations

from importlib import import_module

import torch
from torch import Tensor

from bayesrnn.kernels.gaussian.plan import Prior, Spec
from bayesrnn.kernels.shared.vmap import beneath


class Seeded:
    """The noise of one draw as one number in the device's memory, so that a CUDA graph draws anew at every replay.

    `path` names the kernels that make the noise from it: "triton", or on a CPU "compiled".
    """

    def __init__(self, device: torch.device, generator: torch.Generator | None = None, *, path: str = "triton") -> None:
        self.path = path
        self.seed = torch.randint(2**63 - 1, (1,), dtype=torch.int64, device=device, generator=generator)
        self._made: list[Tensor] | None = None

    def tensors(self, spec: Spec) -> list[Tensor]:
        """The noise itself, for paths that take it as tensors; made once."""
        if self._made is None:
            plain = spec._replace(device=self.seed.device, prior=Prior("none"), recurrent=(), low=frozenset())
            make = import_module(f"bayesrnn.kernels.gaussian.{self.path}").noise
            seed = beneath(self.seed)
            if seed.numel() != 1:
                raise RuntimeError("vmap with randomness='different' cannot draw weights: hold one draw with br.draw")
            with torch._C._DisableFuncTorch():  # inside vmap and the like new tensors would have no memory
                self._made = make(seed, plain)
        return self._made
