"""Drawn Gaussian weights, whatever computes them: noise, one draw with its KL, several draws, and sharpening.

theta = mean + sigma eps with sigma = softplus(rho). Each function chooses its path through `kernels.dispatch`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from bayesrnn.kernels.cpu.memory import Pool
from bayesrnn.kernels.dispatch import Case, choose, implementation, paths_of
from bayesrnn.kernels.gaussian.plan import Drawn, DrawSpec, KernelPrior
from bayesrnn.kernels.shared.tensors import beneath, ordinary, outside_tracers, traced


class Seeded:
    """The noise of one draw as one number in the device's memory, so that a CUDA graph draws anew at every replay.

    `path` names the kernels that make the noise from it: "triton", or on a CPU "compiled".
    """

    def __init__(self, device: torch.device, generator: torch.Generator | None = None, *, path: str = "triton") -> None:
        self.path = path
        self.seed = torch.randint(2**63 - 1, (1,), dtype=torch.int64, device=device, generator=generator)
        self._made: list[Tensor] | None = None

    def tensors(self, spec: DrawSpec) -> list[Tensor]:
        """The noise itself, for paths that take it as tensors; made once."""
        if self._made is None:
            plain = spec._replace(
                device=self.seed.device, prior=KernelPrior("none"), recurrent=(), low=frozenset(), dtype=torch.float32
            )
            seed = beneath(self.seed)
            if seed.numel() != 1:
                raise RuntimeError("vmap with randomness='different' cannot draw weights: hold one draw with br.draw")
            # inside vmap, fake tensors and the like, new tensors would have no memory
            with outside_tracers(), torch._C._DisableFuncTorch():
                self._made = implementation("noise", self.path)(seed, plain)
        return self._made


_case = lru_cache(maxsize=64)(Case)

Noise = Seeded | Sequence[Tensor]
"""The noise of one draw: the seed it is made from, or one tensor for each weight tensor."""


def noise(
    like: Tensor, spec: Callable[[], DrawSpec], generator: torch.Generator | None, *, pool: Pool
) -> Seeded | list[Tensor]:
    """N(0, 1) for every weight, and 0 for padding rows.

    By what the device can do, not by the path asked for, and in float32: one seed is one draw on every path and in
    every dtype.

    Args:
        like: one of the parameters.
        spec: asked only where the noise is made as tensors.
        generator: None for torch's global one.
    """
    if traced() and generator is not None and ordinary(like):
        with outside_tracers():  # a held draw is a constant of the graph that is traced
            return noise(like, spec, generator, pool=pool)
    case = _case("noise", like.device.type, torch.float32)
    row = next(row for row in paths_of("noise") if row.refuses(case) is None and (row.traced or not traced()))
    if row.name != "loop":
        return Seeded(like.device, generator, path=row.name)
    made: list[Tensor] = row.load()(like, spec(), generator, pool=pool)
    return made


def _run(kernel: str, noise: Noise | None, spec: DrawSpec, like: Sequence[Tensor], *given: Any, **options: Any) -> Any:
    """The kernel on its path, which takes the noise as a seed if it is the one that makes it, else as tensors."""
    path = None if noise is None else noise.path if isinstance(noise, Seeded) else "tensors"
    row, _ = choose(_case(kernel, spec.device.type, spec.dtype, noise=path))
    first: Any = None
    if isinstance(noise, Seeded) and row.name == path:
        first = noise.seed.to(spec.device)
    elif noise is not None:
        first = tensors(noise, spec, like)
    return row.load()(first, spec, *given, **options)


def draw(
    noise: Noise, spec: DrawSpec, means: Sequence[Tensor], rhos: Sequence[Tensor], *, pool: Pool, sums: bool = True
) -> Drawn:
    """One draw of the weights; with `sums` also KL(q || p), or log q alone for a prior that the kernels do not know."""
    return _run("gaussian", noise, spec, rhos, means, rhos, pool=pool, sums=sums)  # type: ignore[no-any-return]


def draw_many(
    noises: Sequence[Noise], spec: DrawSpec, means: Sequence[Tensor], rhos: Sequence[Tensor], *, pool: Pool
) -> list[Tensor]:
    """The weights of several draws, (draws, *shape) each, without gradients."""
    path = choose(_case("gaussian", spec.device.type, spec.dtype))[0].name
    seeds = [e.seed for e in noises if isinstance(e, Seeded) and e.path == path]
    if len(seeds) == len(noises):
        many: list[Tensor] = implementation("draws", path)(
            torch.cat(seeds).to(spec.device), spec, means, rhos, pool=pool
        )
        return many
    each = [draw(noise, spec, means, rhos, pool=pool, sums=False).weights for noise in noises]
    return [torch.stack(weights) for weights in zip(*each, strict=True)]


def sharpen(
    noise: Noise | None,
    spec: DrawSpec,
    phis: Sequence[Tensor],
    etas: Sequence[Tensor],
    gradients: Sequence[Tensor],
    *,
    sigma0: float,
) -> tuple[Tensor, list[Tensor]]:
    """The sum of (eta g)^2 over all weights, and theta = phi - eta g + sigma0 eps; without eps where noise is None.

    Gradients flow to `phis` and `etas`; `gradients`, g, are constants.
    """
    return _run("sharpening", noise, spec, phis, phis, etas, gradients, sigma0=sigma0)  # type: ignore[no-any-return]


def tensors(noise: Noise, spec: DrawSpec, like: Sequence[Tensor]) -> list[Tensor]:
    """Noise as tensors; a held draw follows the model's device and dtype."""
    made = noise.tensors(spec) if isinstance(noise, Seeded) else noise
    return [eps.to(own) for eps, own in zip(made, like, strict=True)]
