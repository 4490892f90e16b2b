"""The distributions that noise is sampled from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor


@cache
def masks_in_one_launch(kind: str) -> Callable[..., Tensor] | None:
    """The kernel that makes the masks of several draws at once on this kind of device; None: there is none."""
    if kind != "cuda":
        return None
    try:
        from bayesrnn.kernels.gpu.masks import masks
    except ImportError:  # no Triton
        return None
    return masks


class Distribution(ABC):
    """Noise that a `Source` can sample, in float32 first: a seed gives the same numbers in any dtype."""

    @abstractmethod
    def fill(self, out: Tensor, generator: torch.Generator | None) -> None:
        """Write raw noise into `out`, float32."""

    def scaled(self, out: Tensor) -> Tensor:
        """The noise that raw noise becomes, for any number of draws at once."""
        return out

    def sample(self, shape: Sequence[int], like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Noise of this shape, with the device and dtype of `like`."""
        out = torch.empty(tuple(shape), device=like.device, dtype=torch.float32)
        self.fill(out, generator)
        return self.scaled(out).to(like.dtype)

    def seeded(self, seeds: Sequence[int], shape: Sequence[int], device: torch.device) -> Tensor:
        """(draws, *shape) in float32: one part per seed."""
        out, generator = torch.empty((len(seeds), *shape), device=device, dtype=torch.float32), torch.Generator(device)
        for seed, part in zip(seeds, out.unbind(), strict=True):
            self.fill(part, generator.manual_seed(seed))
        return self.scaled(out)


@dataclass(frozen=True)
class Noise(Distribution):
    """Multipliers of mean 1: Bernoulli(1 - p) / (1 - p), or N(1, p / (1 - p)), which has the same variance."""

    p: float
    kind: str = "bernoulli"

    def fill(self, out: Tensor, generator: torch.Generator | None) -> None:
        if self.p == 1:
            out.zero_()  # torch's own dropout layers allow it
        elif self.kind == "bernoulli":
            out.bernoulli_(1 - self.p, generator=generator)
        else:
            out.normal_(1.0, (self.p / (1 - self.p)) ** 0.5, generator=generator)

    def scaled(self, out: Tensor) -> Tensor:
        return out.div_(1 - self.p) if self.kind == "bernoulli" and self.p < 1 else out

    def seeded(self, seeds: Sequence[int], shape: Sequence[int], device: torch.device) -> Tensor:
        masks = masks_in_one_launch(device.type)
        if masks is not None and self.p < 1:
            return masks(seeds, shape, self.p, gaussian=self.kind == "gaussian", device=device)
        return super().seeded(seeds, shape, device)


@dataclass(frozen=True)
class Uniform(Distribution):
    """Uniform between `low` and `high`: the random slopes of `torch.nn.RReLU`."""

    low: float
    high: float

    def fill(self, out: Tensor, generator: torch.Generator | None) -> None:
        out.uniform_(self.low, self.high, generator=generator)
