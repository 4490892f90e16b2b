# mypy: disable-error-code="no-untyped-def"
"""The weights of many draws on a GPU in one launch, for predictions: those that `triton.draw` gives for each seed.

A tile's means and sigmas are read once for all draws.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from bayesrnn.kernels.cpu.memory import Pool
from bayesrnn.kernels.gaussian.plan import DrawSpec
from bayesrnn.kernels.gpu.launches import element_options, launches
from bayesrnn.kernels.gpu.tiles import address_of, extent_of, noise_of, own_tile, places_of, pointer_to, softplus


@triton.jit(do_not_specialize=["draws"])
def _draws(
    seeds, draws, means, rhos, thetas, table, tiles,
    ELEMENT: tl.constexpr, COMPUTE: tl.constexpr, VECTORS: tl.constexpr,
    R: tl.constexpr, C: tl.constexpr, STEPS: tl.constexpr, N: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    """One tile of every draw, R rows at a time: theta = mean + sigma eps."""
    k, line, down, tile_column = own_tile(table, tiles, F)
    extent = extent_of(line, VECTORS)
    first, count = tl.load(line + 5), extent[2].to(tl.int64)
    column = tile_column * C + tl.arange(0, C)
    mean_at = pointer_to(address_of(means, k, N), ELEMENT, VECTORS)
    rho_at = pointer_to(address_of(rhos, k, N), ELEMENT, VECTORS)
    theta_at = pointer_to(address_of(thetas, k, N), ELEMENT, VECTORS)
    if VECTORS:
        count = tl.multiple_of(count, 4)
    for step in range(STEPS):
        row = (down * STEPS + step) * R + tl.arange(0, R)
        place, exists = places_of(extent, row, column)
        mean = tl.load(mean_at + place, mask=exists, other=0.0).to(COMPUTE)
        _, sigma, _ = softplus(tl.load(rho_at + place, mask=exists, other=0.0).to(COMPUTE))
        for j in range(draws):
            eps = noise_of(extent, tl.load(seeds + j), first, row, tile_column, place, R, C).to(COMPUTE)
            tl.store(theta_at + j * count + place, (mean + sigma * eps).to(ELEMENT), mask=exists)


def draw_many(
    seeds: Tensor, spec: DrawSpec, means: Sequence[Tensor], rhos: Sequence[Tensor], *, pool: Pool | None = None
) -> list[Tensor]:
    """The weights of several draws, (draws, *shape) each, without gradients. `seeds`: (draws,) int64 on the device."""
    draws, flat = seeds.shape[0], [[p.detach().contiguous() for p in part] for part in (means, rhos)]
    weights = [torch.empty(draws, *shape, dtype=spec.dtype, device=spec.device) for shape in spec.shapes]
    for launch, own, options in launches(spec, *flat, weights):
        options["VECTORS"] &= spec.dtype.itemsize >= 4  # so that every draw begins on 16 bytes
        _draws[(launch.tiles,)](seeds, draws, *own, launch.table, launch.places, **element_options(spec), **options)
    return weights
