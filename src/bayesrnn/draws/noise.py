"""The distributions that noise is sampled from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch
from torch import Tensor


class Distribution(Protocol):
    """Noise that a `Source` can sample."""

    def sample(self, shape: Sequence[int], like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Noise of this shape, with the device and dtype of `like`."""
        ...

    def each(self, generators: Sequence[torch.Generator], shape: Sequence[int], device: torch.device) -> Tensor:
        """(draws, *shape) in float32: one part per generator."""
        ...

    def seeded(self, seeds: Sequence[int], shape: Sequence[int], device: torch.device) -> Tensor:
        """(draws, *shape) in float32: one part per seed."""
        ...


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


@dataclass(frozen=True)
class Noise:
    """Multipliers of mean 1: Bernoulli(1 - p) / (1 - p), or N(1, p / (1 - p)), which has the same variance."""

    p: float
    kind: str = "bernoulli"

    def sample(self, shape: Sequence[int], like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        out = torch.empty(tuple(shape), device=like.device, dtype=torch.float32)  # same numbers in any dtype
        self._fill(out, generator)
        return self._scale(out).to(like.dtype)

    def each(self, generators: Sequence[torch.Generator], shape: Sequence[int], device: torch.device) -> Tensor:
        out = torch.empty((len(generators), *shape), device=device, dtype=torch.float32)
        for generator, part in zip(generators, out.unbind(), strict=True):
            self._fill(part, generator)
        return self._scale(out)

    def seeded(self, seeds: Sequence[int], shape: Sequence[int], device: torch.device) -> Tensor:
        masks = masks_in_one_launch(device.type)
        if masks is not None and self.p < 1:
            return masks(seeds, shape, self.p, gaussian=self.kind == "gaussian", device=device)
        return self.each([torch.Generator(device).manual_seed(seed) for seed in seeds], shape, device)

    def _fill(self, out: Tensor, generator: torch.Generator | None) -> None:
        if self.p == 1:
            out.zero_()  # torch's own dropout layers allow it
        elif self.kind == "bernoulli":
            out.bernoulli_(1 - self.p, generator=generator)
        else:
            out.normal_(1.0, (self.p / (1 - self.p)) ** 0.5, generator=generator)

    def _scale(self, out: Tensor) -> Tensor:
        return out.div_(1 - self.p) if self.kind == "bernoulli" and self.p < 1 else out


@dataclass(frozen=True)
class Uniform:
    """Uniform between `low` and `high`: the random slopes of `torch.nn.RReLU`."""

    low: float
    high: float

    def sample(self, shape: Sequence[int], like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        out = torch.empty(tuple(shape), device=like.device, dtype=torch.float32)
        return out.uniform_(self.low, self.high, generator=generator).to(like.dtype)

    def each(self, generators: Sequence[torch.Generator], shape: Sequence[int], device: torch.device) -> Tensor:
        like = torch.empty(0, device=device, dtype=torch.float32)
        return torch.stack([self.sample(shape, like, generator) for generator in generators])

    def seeded(self, seeds: Sequence[int], shape: Sequence[int], device: torch.device) -> Tensor:
        return self.each([torch.Generator(device).manual_seed(seed) for seed in seeds], shape, device)
