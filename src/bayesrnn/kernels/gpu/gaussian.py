# mypy: disable-error-code="no-untyped-def"
"""Diagonal Gaussian weights on a GPU: one launch over all tensors draws them with their KL, one more is the backward.

The noise is never stored: both passes make it from a seed in device memory and the place of the weight. README.md
beside this file has the equations and the measurements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from bayesrnn.kernels.cpu.memory import Pool
from bayesrnn.kernels.gaussian import plan as planning
from bayesrnn.kernels.gaussian.plan import GROUP_FIELDS, Drawn, DrawSpec, Launch, Terms, plan
from bayesrnn.kernels.gpu.launches import ELEMENTS, allocate, element_options, flat_parts, launches, on
from bayesrnn.kernels.gpu.tiles import (
    address_of,
    extent_of,
    log2,
    mixture,
    noise_of,
    own_tile,
    places_of,
    pointer_to,
    reciprocal,
    row_of,
    softplus,
)
from bayesrnn.kernels.shared import beside
from bayesrnn.kernels.shared.derivatives import once_differentiable

_WHOLE, _BY_ROW, _BY_COLUMN = (tl.constexpr(k) for k in (planning.WHOLE, planning.BY_ROW, planning.BY_COLUMN))
_NONE, _NORMAL, _GROUPS, _WEIGHTS = (tl.constexpr(k) for k in range(4))
_KINDS = {"none": 0, "normal": 1, "groups": 2, "weights": 3}


@triton.jit
def _forward(
    seed, means, rhos, thetas, table, tiles, partials, sums,
    WIDE: tl.constexpr, NARROW: tl.constexpr, OFFSET: tl.constexpr, PRIOR: tl.constexpr, SUMS: tl.constexpr,
    ELEMENT: tl.constexpr, LOW: tl.constexpr, COMPUTE: tl.constexpr, VECTORS: tl.constexpr,
    R: tl.constexpr, C: tl.constexpr, STEPS: tl.constexpr, N: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    """One tile, R rows at a time: theta = mean + sigma eps, its share of the KL, and its sums of squares by group."""
    k, line, down, tile_column = own_tile(table, tiles, F)
    extent = extent_of(line, VECTORS)
    rows, columns = extent[0], extent[1]
    across, first, low = tl.load(line + 1).to(tl.int32), tl.load(line + 5), tl.load(line + 13) != 0
    kind, partial, fold = tl.load(line + 8), partials + tl.load(line + 11), tl.load(line + 15).to(tl.int32)
    column = tile_column * C + tl.arange(0, C)
    part = column // tl.load(line + 16).to(tl.int32)  # which of the rows that are folded into one
    mean_at = pointer_to(address_of(means, k, N), ELEMENT, VECTORS)
    rho_at = pointer_to(address_of(rhos, k, N), ELEMENT, VECTORS)
    address = address_of(thetas, k, N)
    number = tl.load(seed)
    terms = tl.zeros((R, C), COMPUTE)
    squares = tl.zeros((R, C), COMPUTE)
    for step in range(STEPS):
        row = (down * STEPS + step) * R + tl.arange(0, R)
        place, exists = places_of(extent, row, column)
        mean = tl.load(mean_at + place, mask=exists, other=0.0).to(COMPUTE)
        rho = tl.load(rho_at + place, mask=exists, other=0.0).to(COMPUTE)
        eps = noise_of(extent, number, first, row, tile_column, place, R, C).to(COMPUTE)
        _e, sigma, a = softplus(rho)
        theta = mean + sigma * eps
        if low:
            tl.store(pointer_to(address, LOW, VECTORS) + place, theta.to(LOW), mask=exists)
        else:
            tl.store(pointer_to(address, ELEMENT, VECTORS) + place, theta.to(ELEMENT), mask=exists)
        if SUMS:
            square = tl.where(exists, theta * theta, 0.0)
            term = -2 * tl.minimum(rho, 0.0, propagate_nan=tl.PropagateNan.ALL)  # twice its share
            if PRIOR == _NORMAL:
                term += WIDE * (sigma * sigma + mean * mean)
            else:
                term -= eps * eps
            if PRIOR == _WEIGHTS:
                d, rest = mixture(square, WIDE, NARROW, OFFSET)
                term += WIDE * square - 2 * tl.maximum(d, 0.0)
                a *= 1 + rest
            terms += tl.where(exists, term - 1.3862943611198906 * log2(a), 0.0)
            if PRIOR == _GROUPS:
                squares += square
                if kind == _BY_ROW:
                    for j in range(fold):
                        total = tl.sum(tl.where(part[None, :] == j, square, 0.0), 1)
                        tl.store(partial + (row * fold + j) * across + tile_column, total, mask=row < rows)
    if SUMS:
        tl.store(sums + tl.program_id(0), 0.5 * tl.sum(tl.sum(terms, 1), 0).to(tl.float64))
        if PRIOR == _GROUPS:
            if kind == _BY_COLUMN:
                tl.store(partial + down * columns + column, tl.sum(squares, 0), mask=column < columns)
            if kind == _WHOLE:
                tl.store(partial + down * across + tile_column, tl.sum(tl.sum(squares, 1), 0))


@triton.jit
def _group(
    table, partials, coefficients, sums,
    PI1: tl.constexpr, PI2: tl.constexpr, SIGMA1: tl.constexpr, SIGMA2: tl.constexpr,
    HALF1: tl.constexpr, HALF2: tl.constexpr, B: tl.constexpr, G: tl.constexpr, N: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    """-log p of G groups from their sums of squares Q, and its derivative in Q for the backward; in float64."""
    program = tl.program_id(0)
    k = row_of(table, program, N, F)
    line = table + k * F
    group = (program - tl.load(line)) * G + tl.arange(0, G)
    inside = group < tl.load(line + 1)
    n = tl.load(line + 2).to(tl.float64)
    rest, stride, count = tl.load(line + 6), tl.load(line + 7), tl.load(line + 8)
    start = partials + tl.load(line + 4) + group * tl.load(line + 5)
    q = tl.zeros((B, G), tl.float64)
    for first in range(0, count, B):
        part = first + tl.arange(0, B)
        place = start[None, :] + ((part % rest) + (part // rest) * stride)[:, None]
        q += tl.load(place, mask=(part < count)[:, None] & inside[None, :], other=0.0).to(tl.float64)
    square = tl.sum(q, 0)
    # log p = a + softplus(d): a from the first component, d the log of the second over the first
    a = PI1 - n * SIGMA1 - HALF1 * square
    d = (PI2 - PI1) - n * (SIGMA2 - SIGMA1) - (HALF2 - HALF1) * square
    e = tl.exp(-tl.abs(d))
    cost = -(a + tl.maximum(d, 0.0) + tl.log(1 + e))
    share = tl.where(d < 0, e, 1.0) / (1 + e)
    slope = HALF1 + (HALF2 - HALF1) * share
    tl.store(coefficients + tl.load(line + 3) + group, slope, mask=inside)
    tl.store(sums + program, tl.sum(tl.where(inside, cost, 0.0), 0))


@triton.jit
def _total(sums, constant, out, count, B: tl.constexpr):
    """The sum of all shares and the constant, in one program."""
    total = tl.zeros((B,), tl.float64)
    for first in range(0, count, B):
        at = first + tl.arange(0, B)
        total += tl.load(sums + at, mask=at < count, other=0.0)
    tl.store(out, tl.sum(total, 0) + tl.load(constant))


@triton.jit(do_not_specialize=["present"])
def _backward(
    seed, means, rhos, d_thetas, present, d_means, d_rhos, table, tiles, coefficients, d_kl,
    WIDE: tl.constexpr, NARROW: tl.constexpr, OFFSET: tl.constexpr, PRIOR: tl.constexpr, SUMS: tl.constexpr,
    ELEMENT: tl.constexpr, LOW: tl.constexpr, COMPUTE: tl.constexpr, VECTORS: tl.constexpr,
    R: tl.constexpr, C: tl.constexpr, STEPS: tl.constexpr, N: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    """One tile of d_mean and d_rho, with noise made again. Bit k of `present`: tensor k has a gradient."""
    k, line, down, tile_column = own_tile(table, tiles, F)
    extent = extent_of(line, VECTORS)
    rows, columns, count = extent[0], extent[1], extent[2]
    low, first, kind = tl.load(line + 13) != 0, tl.load(line + 5), tl.load(line + 8)
    given = ((present >> k) & 1) * count  # elements of a gradient, none or all
    mean_at = pointer_to(address_of(means, k, N), ELEMENT, VECTORS)
    rho_at = pointer_to(address_of(rhos, k, N), ELEMENT, VECTORS)
    address = address_of(d_thetas, k, N)
    offset = tl.multiple_of(tl.load(line + 12), 4)
    d_mean_at, d_rho_at = d_means + offset, d_rhos + offset
    number = tl.load(seed)
    g = tl.load(d_kl).to(COMPUTE)
    column = tile_column * C + tl.arange(0, C)
    base, fold = tl.load(line + 16).to(tl.int32), tl.load(line + 15).to(tl.int32)
    part = column // base
    coefficient = coefficients + tl.load(line + 9)
    by_column = tl.zeros((C,), COMPUTE)
    if SUMS and PRIOR == _GROUPS:
        group = tl.where(kind == _BY_COLUMN, (column - part * base) // tl.load(line + 10).to(tl.int32), 0)
        wanted = tl.where(kind == _BY_ROW, 0, columns)
        by_column = 2 * g * tl.load(coefficient + group, mask=column < wanted, other=0.0)
    for step in range(STEPS):
        row = (down * STEPS + step) * R + tl.arange(0, R)
        place, exists = places_of(extent, row, column)
        mean = tl.load(mean_at + place, mask=exists, other=0.0).to(COMPUTE)
        rho = tl.load(rho_at + place, mask=exists, other=0.0).to(COMPUTE)
        if low:
            d = tl.load(pointer_to(address, LOW, VECTORS) + place, mask=exists & (place < given), other=0.0).to(COMPUTE)
        else:
            d = tl.load(pointer_to(address, ELEMENT, VECTORS) + place, mask=exists & (place < given), other=0.0).to(
                COMPUTE
            )
        eps = noise_of(extent, number, first, row, tile_column, place, R, C).to(COMPUTE)
        e, sigma, a = softplus(rho)
        inverse = reciprocal((1 + e) * a)
        slope = tl.where(rho < 0, e, 1.0) * (inverse * a)
        d_mean = d
        d_rho = tl.zeros((R, C), COMPUTE)
        if SUMS:
            theta = mean + sigma * eps
            if PRIOR == _GROUPS:
                if kind == _BY_ROW:
                    for j in range(fold):
                        by_row = 2 * g * tl.load(coefficient + row * fold + j, mask=row < rows, other=0.0)
                        d_mean += tl.where(part[None, :] == j, by_row[:, None], 0.0) * theta
                else:
                    d_mean += by_column[None, :] * theta
            if PRIOR == _WEIGHTS:
                log_odds, rest = mixture(theta * theta, WIDE, NARROW, OFFSET)
                share = tl.where(log_odds < 0, rest, 1.0) * reciprocal(1 + rest)
                d_mean += g * (WIDE + (NARROW - WIDE) * share) * theta
            d_rho = slope * eps * d_mean
            if PRIOR == _NORMAL:
                d_mean += g * WIDE * mean
                d_rho += g * WIDE * sigma * slope
            d_rho -= g * inverse
        else:
            d_rho = slope * eps * d_mean
        tl.store(d_mean_at + place, d_mean.to(ELEMENT), mask=exists)
        tl.store(d_rho_at + place, d_rho.to(ELEMENT), mask=exists)


@triton.jit
def _noise(
    seed, outs, table, tiles,
    VECTORS: tl.constexpr, R: tl.constexpr, C: tl.constexpr, STEPS: tl.constexpr, N: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    """One tile of the noise itself."""
    k, line, down, tile_column = own_tile(table, tiles, F)
    extent = extent_of(line, VECTORS)
    out = pointer_to(address_of(outs, k, N), tl.float32, VECTORS)
    first, number = tl.load(line + 5), tl.load(seed)
    for step in range(STEPS):
        row = (down * STEPS + step) * R + tl.arange(0, R)
        place, exists = places_of(extent, row, tile_column * C + tl.arange(0, C))
        tl.store(out + place, noise_of(extent, number, first, row, tile_column, place, R, C), mask=exists)


def _prior_options(spec: DrawSpec, sums: bool) -> dict[str, Any]:
    """The constants of the two kernels over weights."""
    wide, narrow, offset = Terms.of(spec.prior)
    return {
        "WIDE": wide, "NARROW": narrow, "OFFSET": offset, "PRIOR": _KINDS[spec.prior.kind], "SUMS": sums,
        "LOW": ELEMENTS[spec.low_dtype], **element_options(spec),
    }  # fmt: skip


def _group_options(spec: DrawSpec, launch: Launch) -> dict[str, Any]:
    pi, s1, s2, half = spec.prior.pi, spec.prior.sigma1, spec.prior.sigma2, 0.5 * math.log(2 * math.pi)
    return {
        "PI1": math.log(pi), "PI2": math.log(1 - pi), "SIGMA1": math.log(s1) + half, "SIGMA2": math.log(s2) + half,
        "HALF1": 0.5 / s1**2, "HALF2": 0.5 / s2**2, "B": 64, "G": planning.GROUPS,
        "N": len(launch.which), "F": len(GROUP_FIELDS),
    }  # fmt: skip


class _Draw(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, seed: Tensor, spec: DrawSpec, sums: bool, *params: Tensor) -> tuple[Tensor, ...]:
        made = plan(spec)
        count = len(spec.shapes)
        flat = [p.detach().contiguous() for p in params]  # a copy only of parameters in another layout
        means, rhos = flat[:count], flat[count:]
        weights = allocate(spec)
        grouped = sums and spec.prior.kind == "groups"
        compute = torch.float64 if spec.dtype == torch.float64 else torch.float32
        kl = torch.empty((), dtype=compute, device=spec.device)
        partials = torch.empty(made.partials if grouped else 0, dtype=compute, device=spec.device)
        coefficients = torch.empty(made.groups if grouped else 0, dtype=compute, device=spec.device)
        shares = torch.empty(made.sums if sums else 0, dtype=torch.float64, device=spec.device)
        if sums and not grouped:
            shares.zero_()  # the places of the groups
        for launch, own, options in launches(spec, means, rhos, weights):
            _forward[(launch.tiles,)](
                seed, *own, launch.table, launch.places, partials, shares[launch.first_sum :],
                **_prior_options(spec, sums), **options,
            )  # fmt: skip
        with on(spec.device):
            for launch in made.launches:
                if grouped and launch.programs:
                    _group[(launch.programs,)](
                        launch.group_table, partials, coefficients, shares[launch.first_group_sum :],
                        **_group_options(spec, launch), num_warps=4,
                    )  # fmt: skip
            if sums:
                _total[(1,)](shares, made.constant, kl, made.sums, B=1024, num_warps=8)
        ctx.seed, ctx.spec, ctx.sums, ctx.coefficients = seed, spec, sums, coefficients
        ctx.params, ctx.flat, ctx.versions = params, flat, [p._version for p in params]
        ctx.set_materialize_grads(False)
        return kl, *weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_kl: Tensor | None, *d_weights: Tensor | None) -> tuple[Any, ...]:
        if [p._version for p in ctx.params] != ctx.versions:
            raise RuntimeError("the posterior's parameters were changed between the draw and its backward pass")
        spec: DrawSpec = ctx.spec
        made, count, sums = plan(spec), len(spec.shapes), ctx.sums and d_kl is not None
        means, rhos = ctx.flat[:count], ctx.flat[count:]
        d_means, d_rhos = (torch.empty(made.size, dtype=spec.dtype, device=spec.device) for _ in range(2))
        given = [m if d is None else d.contiguous() for m, d in zip(means, d_weights, strict=True)]
        scale = made.constant if d_kl is None else d_kl  # not read without sums
        for launch, own, options in launches(spec, means, rhos, given):
            present = sum(1 << j for j, k in enumerate(launch.which) if d_weights[k] is not None)
            _backward[(launch.tiles,)](
                ctx.seed, *own, present, d_means, d_rhos, launch.table, launch.places, ctx.coefficients, scale,
                **_prior_options(spec, sums), **options,
            )  # fmt: skip
        parts = zip((*d_weights, *d_weights), (*flat_parts(spec, d_means), *flat_parts(spec, d_rhos)), strict=True)
        return None, None, None, *(part if sums or d is not None else None for d, part in parts)


def draw(
    seed: Tensor,
    spec: DrawSpec,
    means: Sequence[Tensor],
    rhos: Sequence[Tensor],
    *,
    pool: Pool | None = None,
    sums: bool = True,
) -> Drawn:
    """theta = mean + softplus(rho) * noise for all tensors, and KL(q || p) for a prior that the kernels know.

    Args:
        seed: one int64 in memory of the device: noise depends on it and on the place of the weight alone.
        spec: shapes, groups, prior and layout; see `DrawSpec`.
        means, rhos: one tensor for each shape.
        pool: not used: CUDA has a caching allocator of its own.
        sums: False: weights alone.

    Returns:
        The weights, those of a recurrent layer in the one piece of memory that cuDNN wants, and the KL.
    """
    kl, *weights = beside.run(_Draw.apply, seed, spec, sums, *means, *rhos, like=means)
    return Drawn(tuple(weights), kl if sums else None)


def noise(seed: Tensor, spec: DrawSpec) -> list[Tensor]:
    """The noise that `draw` uses for this seed, in float32; padding rows have none."""
    outs = [torch.empty(shape, dtype=torch.float32, device=spec.device) for shape in spec.shapes]
    for launch, own, options in launches(spec, outs):
        _noise[(launch.tiles,)](seed, *own, launch.table, launch.places, **options)
    return outs
