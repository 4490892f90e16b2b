# mypy: disable-error-code="no-untyped-def"
"""The second level of posterior sharpening on a GPU: theta = phi - eta g + sigma0 eps and the sum of (eta g)^2.

One launch over all weights forward and one backward; tiles, noise and layout are those of `triton`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from bayesrnn.kernels.gaussian.plan import DrawSpec, plan
from bayesrnn.kernels.gpu.launches import allocate, element_options, flat_parts, launches
from bayesrnn.kernels.gpu.tiles import address_of, extent_of, noise_of, own_tile, places_of, pointer_to
from bayesrnn.kernels.shared import beside
from bayesrnn.kernels.shared.derivatives import once_differentiable


@triton.jit
def _move(
    seed, phis, etas, gradients, thetas, table, tiles, sums,
    SIGMA: tl.constexpr, ELEMENT: tl.constexpr, COMPUTE: tl.constexpr, VECTORS: tl.constexpr,
    R: tl.constexpr, C: tl.constexpr, STEPS: tl.constexpr, N: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    """One tile of theta, and its squared steps."""
    k, line, down, tile_column = own_tile(table, tiles, F)
    extent = extent_of(line, VECTORS)
    phi_at = pointer_to(address_of(phis, k, N), ELEMENT, VECTORS)
    eta_at = pointer_to(address_of(etas, k, N), ELEMENT, VECTORS)
    g_at = pointer_to(address_of(gradients, k, N), ELEMENT, VECTORS)
    theta_at = pointer_to(address_of(thetas, k, N), ELEMENT, VECTORS)
    first, number = tl.load(line + 5), tl.load(seed)
    total = tl.zeros((R, C), COMPUTE)
    for j in range(STEPS):
        row = (down * STEPS + j) * R + tl.arange(0, R)
        place, exists = places_of(extent, row, tile_column * C + tl.arange(0, C))
        eta = tl.load(eta_at + place, mask=exists, other=0.0).to(COMPUTE)
        g = tl.load(g_at + place, mask=exists, other=0.0).to(COMPUTE)
        phi = tl.load(phi_at + place, mask=exists, other=0.0).to(COMPUTE)
        step = eta * g
        theta = phi - step
        if SIGMA > 0:
            theta += SIGMA * noise_of(extent, number, first, row, tile_column, place, R, C).to(COMPUTE)
        tl.store(theta_at + place, theta.to(ELEMENT), mask=exists)
        total += step * step
    tl.store(sums + tl.program_id(0), tl.sum(tl.sum(total, 1), 0).to(tl.float64))


@triton.jit(do_not_specialize=["present"])
def _move_back(
    etas, gradients, d_thetas, present, d_etas, table, tiles, d_total,
    ELEMENT: tl.constexpr, COMPUTE: tl.constexpr, VECTORS: tl.constexpr,
    R: tl.constexpr, C: tl.constexpr, STEPS: tl.constexpr, N: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    """d_eta = g (2 d_total eta g - d_theta)."""
    k, line, down, tile_column = own_tile(table, tiles, F)
    extent = extent_of(line, VECTORS)
    given = ((present >> k) & 1) * extent[2]
    eta_at = pointer_to(address_of(etas, k, N), ELEMENT, VECTORS)
    g_at = pointer_to(address_of(gradients, k, N), ELEMENT, VECTORS)
    d_at = pointer_to(address_of(d_thetas, k, N), ELEMENT, VECTORS)
    out = d_etas + tl.multiple_of(tl.load(line + 12), 4)
    weight = 2 * tl.load(d_total).to(COMPUTE)
    for j in range(STEPS):
        row = (down * STEPS + j) * R + tl.arange(0, R)
        place, exists = places_of(extent, row, tile_column * C + tl.arange(0, C))
        eta = tl.load(eta_at + place, mask=exists, other=0.0).to(COMPUTE)
        g = tl.load(g_at + place, mask=exists, other=0.0).to(COMPUTE)
        d = tl.load(d_at + place, mask=exists & (place < given), other=0.0).to(COMPUTE)
        tl.store(out + place, (g * (weight * eta * g - d)).to(ELEMENT), mask=exists)


class _Sharpen(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, seed: Tensor, spec: DrawSpec, sigma0: float, gradients: Sequence[Tensor], *params: Tensor
    ) -> tuple[Tensor, ...]:
        count = len(spec.shapes)
        dense = [p.detach().contiguous() for p in params]
        phis, etas, given = dense[:count], dense[count:], [g.detach().contiguous() for g in gradients]
        thetas, sums = allocate(spec), torch.zeros(plan(spec).sums, dtype=torch.float64, device=spec.device)
        for launch, own, options in launches(spec, phis, etas, given, thetas):
            _move[(launch.tiles,)](
                seed, *own, launch.table, launch.places, sums[launch.first_sum :], SIGMA=sigma0,
                **element_options(spec), **options,
            )  # fmt: skip
        ctx.spec, ctx.etas, ctx.gradients = spec, etas, given
        ctx.params, ctx.versions = params[count:], [p._version for p in params[count:]]
        ctx.set_materialize_grads(False)
        return sums.sum().to(torch.float64 if spec.dtype == torch.float64 else torch.float32), *thetas

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_total: Tensor | None, *d_thetas: Tensor | None) -> tuple[Any, ...]:
        if [p._version for p in ctx.params] != ctx.versions:
            raise RuntimeError("eta was changed between sharpening and its backward pass")
        spec: DrawSpec = ctx.spec
        flat = torch.empty(plan(spec).size, dtype=spec.dtype, device=spec.device)
        given = [e if d is None else d.contiguous() for e, d in zip(ctx.etas, d_thetas, strict=True)]
        weight = torch.zeros((), device=spec.device) if d_total is None else d_total
        for launch, own, options in launches(spec, ctx.etas, ctx.gradients, given):
            present = sum(1 << j for j, k in enumerate(launch.which) if d_thetas[k] is not None)
            _move_back[(launch.tiles,)](
                *own, present, flat, launch.table, launch.places, weight, **element_options(spec), **options
            )
        return None, None, None, None, *d_thetas, *flat_parts(spec, flat)


def sharpen(
    seed: Tensor | None,
    spec: DrawSpec,
    phis: Sequence[Tensor],
    etas: Sequence[Tensor],
    gradients: Sequence[Tensor],
    *,
    sigma0: float,
) -> tuple[Tensor, list[Tensor]]:
    """Like `gaussian.reference.sharpen`, with the noise of `seed`."""
    if seed is None:
        seed, sigma0 = torch.zeros(1, dtype=torch.int64, device=spec.device), 0.0
    total, *thetas = beside.run(_Sharpen.apply, seed, spec, sigma0, list(gradients), *phis, *etas, like=phis)
    return total, thetas
