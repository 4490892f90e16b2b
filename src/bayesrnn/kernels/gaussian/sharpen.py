# mypy: disable-error-code="no-untyped-def"
"""The second level of posterior sharpening on a GPU: theta = phi - eta g + sigma0 eps and the sum of (eta g)^2.

One launch over all weights forward and one backward; tiles, noise and layout are those of `triton`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from bayesrnn.kernels.gaussian.plan import Spec, plan
from bayesrnn.kernels.gaussian.triton import (
    _ELEMENTS,
    _address,
    _allocate,
    _extent,
    _normals,
    _on,
    _padded,
    _pick,
    _places,
    _tile,
    _tile_options,
)


@triton.jit
def _move_rows(
    extent, phi_at, eta_at, g_at, theta_at, noise, row, column,
    SIGMA: tl.constexpr, ELEMENT: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    """theta of one row of every quad, and its squared steps."""
    place, exists = _places(extent, row, column)
    eta = tl.load(eta_at.to(tl.pointer_type(ELEMENT)) + place, mask=exists, other=0.0).to(COMPUTE)
    g = tl.load(g_at.to(tl.pointer_type(ELEMENT)) + place, mask=exists, other=0.0).to(COMPUTE)
    phi = tl.load(phi_at.to(tl.pointer_type(ELEMENT)) + place, mask=exists, other=0.0).to(COMPUTE)
    step = eta * g
    theta = phi - step
    if SIGMA > 0:
        theta += SIGMA * _padded(extent, place, noise).to(COMPUTE)
    tl.store(theta_at.to(tl.pointer_type(ELEMENT)) + place, theta.to(ELEMENT), mask=exists)
    return step * step


@triton.jit
def _move(
    seed, phis, etas, gradients, thetas, table, sums,
    SIGMA: tl.constexpr, ELEMENT: tl.constexpr, COMPUTE: tl.constexpr,
    R: tl.constexpr, C: tl.constexpr, STEPS: tl.constexpr, N: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    k, line, down, _, column = _tile(table, C, N, F)
    extent = _extent(line)
    _, columns, _, _, _ = extent
    phi_at, eta_at, g_at = _address(phis, k, N), _address(etas, k, N), _address(gradients, k, N)
    theta_at = _address(thetas, k, N)
    first, number = tl.load(line + 5), tl.load(seed)
    total = tl.zeros((R // 4, C), COMPUTE)
    for step in range(STEPS):
        quad = (down * STEPS + step) * (R // 4) + tl.arange(0, R // 4)
        n0, n1, n2, n3 = 0.0, 0.0, 0.0, 0.0
        if SIGMA > 0:
            n0, n1, n2, n3 = _normals(number, first + (quad[:, None] * columns + column[None, :]))
        total += _move_rows(extent, phi_at, eta_at, g_at, theta_at, n0, 4 * quad, column, SIGMA, ELEMENT, COMPUTE)
        total += _move_rows(extent, phi_at, eta_at, g_at, theta_at, n1, 4 * quad + 1, column, SIGMA, ELEMENT, COMPUTE)
        total += _move_rows(extent, phi_at, eta_at, g_at, theta_at, n2, 4 * quad + 2, column, SIGMA, ELEMENT, COMPUTE)
        total += _move_rows(extent, phi_at, eta_at, g_at, theta_at, n3, 4 * quad + 3, column, SIGMA, ELEMENT, COMPUTE)
    tl.store(sums + tl.program_id(0), tl.sum(tl.sum(total, 1), 0).to(tl.float64))


@triton.jit(do_not_specialize=["present"])
def _move_back(
    etas, gradients, d_thetas, present, d_etas, table, d_total,
    ELEMENT: tl.constexpr, COMPUTE: tl.constexpr,
    R: tl.constexpr, C: tl.constexpr, STEPS: tl.constexpr, N: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    """d_eta = g (2 d_total eta g - d_theta)."""
    k, line, down, _, column = _tile(table, C, N, F)
    extent = _extent(line)
    _, _, count, _, _ = extent
    given = ((present >> k) & 1) * count
    eta_at, g_at, d_at = _address(etas, k, N), _address(gradients, k, N), _address(d_thetas, k, N)
    out = d_etas + tl.load(line + 12)
    weight = 2 * tl.load(d_total).to(COMPUTE)
    for step in range(STEPS):
        row = (down * STEPS + step) * R + tl.arange(0, R)
        place, exists = _places(extent, row, column)
        eta = tl.load(eta_at.to(tl.pointer_type(ELEMENT)) + place, mask=exists, other=0.0).to(COMPUTE)
        g = tl.load(g_at.to(tl.pointer_type(ELEMENT)) + place, mask=exists, other=0.0).to(COMPUTE)
        d = tl.load(d_at.to(tl.pointer_type(ELEMENT)) + place, mask=exists & (place < given), other=0.0).to(COMPUTE)
        tl.store(out + place, (g * (weight * eta * g - d)).to(ELEMENT), mask=exists)


def _compute(spec: Spec) -> dict[str, Any]:
    return {
        "ELEMENT": _ELEMENTS[spec.dtype],
        "COMPUTE": tl.float64 if spec.dtype == torch.float64 else tl.float32,
    }


class _Sharpen(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, seed: Tensor, spec: Spec, sigma0: float, gradients: Sequence[Tensor], *params: Tensor
    ) -> tuple[Tensor, ...]:
        made, count = plan(spec), len(spec.shapes)
        dense = [p.detach().contiguous() for p in params]
        phis, etas, given = dense[:count], dense[count:], [g.detach().contiguous() for g in gradients]
        thetas = _allocate(spec, made)
        sums = torch.zeros(made.sums, dtype=torch.float64, device=spec.device)
        with _on(spec.device):
            for launch in made.launches:
                if launch.tiles:
                    _move[(launch.tiles,)](
                        seed, _pick(phis, launch), _pick(etas, launch), _pick(given, launch), _pick(thetas, launch),
                        launch.table, sums[launch.first_sum :], SIGMA=sigma0, **_compute(spec), **_tile_options(launch),
                    )  # fmt: skip
        ctx.spec, ctx.etas, ctx.gradients = spec, etas, given
        ctx.params, ctx.versions = params[count:], [p._version for p in params[count:]]
        ctx.set_materialize_grads(False)
        return sums.sum().to(torch.float64 if spec.dtype == torch.float64 else torch.float32), *thetas

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, d_total: Tensor | None, *d_thetas: Tensor | None) -> tuple[Any, ...]:
        if [p._version for p in ctx.params] != ctx.versions:
            raise RuntimeError("eta was changed between sharpening and its backward pass")
        spec: Spec = ctx.spec
        made = plan(spec)
        flat = torch.empty(made.size, dtype=spec.dtype, device=spec.device)
        given = [e if d is None else d.contiguous() for e, d in zip(ctx.etas, d_thetas, strict=True)]
        weight = torch.zeros((), device=spec.device) if d_total is None else d_total
        with _on(spec.device):
            for launch in made.launches:
                if launch.tiles:
                    present = sum(1 << j for j, k in enumerate(launch.which) if d_thetas[k] is not None)
                    _move_back[(launch.tiles,)](
                        _pick(ctx.etas, launch), _pick(ctx.gradients, launch), _pick(given, launch), present, flat,
                        launch.table, weight, **_compute(spec), **_tile_options(launch),
                    )  # fmt: skip
        d_etas = [
            flat[at : at + math.prod(shape)].view(shape) for at, shape in zip(made.offsets, spec.shapes, strict=True)
        ]
        return None, None, None, None, *d_thetas, *d_etas


def sharpen(
    seed: Tensor,
    spec: Spec,
    phis: Sequence[Tensor],
    etas: Sequence[Tensor],
    gradients: Sequence[Tensor],
    *,
    sigma0: float,
) -> tuple[Tensor, list[Tensor]]:
    """Sum of (eta g)^2 over all weights, and theta = phi - eta g + sigma0 eps; sigma0 = 0: without noise.

    Gradients flow to `phis` and `etas`; `gradients`, g, are constants.
    """
    total, *thetas = _Sharpen.apply(seed, spec, sigma0, list(gradients), *phis, *etas)
    return total, thetas
