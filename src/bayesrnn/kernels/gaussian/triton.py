# mypy: disable-error-code="no-untyped-def"
"""Diagonal Gaussian weights on a GPU: one launch over all tensors draws them with their KL, one more is the backward.

The noise is never stored: both passes make it from a seed in device memory and the place of the weight. README.md
beside this file has the equations and the measurements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from bayesrnn.kernels.gaussian import plan as planning
from bayesrnn.kernels.gaussian.plan import FIELDS, GROUP_FIELDS, Drawn, Launch, Plan, Spec, plan

_WHOLE, _BY_ROW, _BY_COLUMN = (tl.constexpr(k) for k in (planning.WHOLE, planning.BY_ROW, planning.BY_COLUMN))
_NONE, _NORMAL, _GROUPS, _WEIGHTS = (tl.constexpr(k) for k in range(4))
_KINDS = {"none": 0, "normal": 1, "groups": 2, "weights": 3}
_ELEMENTS = {
    torch.float64: tl.float64,
    torch.float32: tl.float32,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
}


_WARPS = 8
_AT_ONCE = 2048  # elements that a program has in its registers at a time


@triton.jit
def _exp(x):
    """e^x for x <= 0, also where x is so low that the rounding of x log2(e) would show."""
    if x.dtype == tl.float64:
        return tl.exp(x)
    else:
        k = tl.floor(x * 1.4426950408889634 + 0.5)
        r = (x - k * 0.693359375) + k * 2.12194440e-4
        return tl.exp(r) * tl.exp2(k)


@triton.jit
def _log(x):
    """log x for ordinary positive numbers; the polynomial is log(1 + f) / f between sqrt(1/2) and sqrt(2), to 1e-7."""
    if x.dtype == tl.float64:
        return tl.log(x)
    else:
        bits = x.to(tl.int32, bitcast=True)
        k = (bits - 0x3F3504F3) >> 23
        f = (bits - (k << 23)).to(tl.float32, bitcast=True) - 1
        p = 0.149774013 + f * (-0.142692582 + f * 0.0853331305)
        p = 0.333341933 + f * (-0.250013522 + f * (0.199559334 + f * (-0.165779929 + f * p)))
        return k.to(tl.float32) * 0.6931471805599453 + f * (1 + f * (-0.5 + f * p))


@triton.jit
def _log1p_ratio(e):
    """log(1 + e) / e for 0 <= e <= 1: 2 artanh(s) / e with s = e / (2 + e); right to the last digits where e vanishes.

    In float32 artanh(s) / s is a polynomial in s^2 fitted on [0, 1/9], to 4e-9.
    """
    r = 1 / (2 + e)
    t = (e * r) * (e * r)
    if e.dtype == tl.float64:
        p = t * 0 + 1 / 35
        for j in tl.static_range(17):
            p = p * t + 1 / (33 - 2 * j)
        return 2 * r * p
    else:
        return 2 * r * (1 + t * (0.333331608 + t * (0.200122976 + t * (0.139825789 + t * 0.140788892))))


@triton.jit
def _softplus(rho):
    """e = exp(-|rho|), sigma = log(1 + e^rho), and a with log sigma = log(a) + min(rho, 0)."""
    e = _exp(-tl.abs(rho))
    ratio = _log1p_ratio(e)
    sigma = tl.maximum(rho, 0.0) + e * ratio
    return e, sigma, tl.where(rho < 0, ratio, sigma)


@triton.jit
def _pair(a, b):
    """Two normal numbers of two random words (Box and Muller 1958): radius from a, angle from b.

    The angle is pi/2 (q + f): q the two upper bits of b, f in [-1/2, 1/2) the rest, where short series do for sine and
    cosine.
    """
    u = a.to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10
    radius = tl.sqrt(-2 * _log(u))
    q = b >> 30
    x = (b << 2).to(tl.int32, bitcast=True).to(tl.float32) * 3.6572951981678990e-10
    y = x * x
    sine = x * (1 + y * (-1 / 6 + y * (1 / 120 + y * (-1 / 5040 + y * (1 / 362880)))))
    cosine = 1 + y * (-1 / 2 + y * (1 / 24 + y * (-1 / 720 + y * (1 / 40320))))
    odd = (q & 1) == 1
    first = radius * tl.where(odd, sine, cosine)
    second = radius * tl.where(odd, cosine, sine)
    return tl.where((q == 1) | (q == 2), -first, first), tl.where(q >= 2, -second, second)


@triton.jit
def _normals(seed, counter):
    """Four normal numbers for every counter: Philox4x32-10 (Salmon et al. 2011) with the seed as its key."""
    low = counter.to(tl.uint32)
    high = (counter >> 32).to(tl.uint32)
    a, b, c, d = tl.philox(seed, low, high, low * 0, low * 0)
    n0, n1 = _pair(a, b)
    n2, n3 = _pair(c, d)
    return n0, n1, n2, n3


@triton.jit
def _which(table, program, N: tl.constexpr, F: tl.constexpr):
    """The row of the table that this program belongs to; the first column has each row's first program."""
    k = 0
    for j in tl.static_range(1, N):
        k += (program >= tl.load(table + j * F)).to(tl.int32)
    return k


@triton.jit
def _address(pointers, k, N: tl.constexpr):
    found = pointers[0].to(tl.int64)
    for j in tl.static_range(1, N):
        found = tl.where(k == j, pointers[j].to(tl.int64), found)
    return found


@triton.jit
def _tile(table, C: tl.constexpr, N: tl.constexpr, F: tl.constexpr):
    """Which tensor, its line in the table, the tile's row and column among its tiles, and the columns (C,) it has."""
    program = tl.program_id(0)
    k = _which(table, program, N, F)
    line = table + k * F
    tile = program - tl.load(line).to(tl.int32)
    across = tl.load(line + 1).to(tl.int32)
    down = tile // across
    tile_column = tile - down * across
    return k, line, down, tile_column, tile_column * C + tl.arange(0, C)


@triton.jit
def _extent(line):
    """Rows, columns and elements of the tensor, and the places of its padding: no noise there."""
    return (tl.load(line + 2).to(tl.int32), tl.load(line + 3).to(tl.int32), tl.load(line + 4).to(tl.int32),
            tl.load(line + 6).to(tl.int32), tl.load(line + 7).to(tl.int32))  # fmt: skip


@triton.jit
def _places(extent, row, column):
    """Places in the flat tensor (rows, columns), and which of them exist."""
    rows, columns, count, _, _ = extent
    place = row[:, None] * columns + column[None, :]
    return place, (row[:, None] < rows) & (column[None, :] < columns) & (place < count)


@triton.jit
def _padded(extent, place, noise):
    _, _, _, first, end = extent
    return tl.where((place >= first) & (place < end), 0.0, noise)


@triton.jit
def _mixture(square, WIDE: tl.constexpr, NARROW: tl.constexpr, OFFSET: tl.constexpr):
    """Of a weight with this square: c and b with -log p = c - log(b), constants aside; f with d(-log p)/dw = f w."""
    d = OFFSET + 0.5 * (WIDE - NARROW) * square  # log of the narrow component over the wide one
    e = tl.exp(-tl.abs(d))
    share = tl.where(d < 0, e, 1.0) / (1 + e)
    return 0.5 * WIDE * square - tl.maximum(d, 0.0), 1 + e, WIDE + (NARROW - WIDE) * share


@triton.jit
def _draw_rows(
    extent, mean_at, rho_at, theta_at, low, noise, row, column,
    WIDE: tl.constexpr, NARROW: tl.constexpr, OFFSET: tl.constexpr, PRIOR: tl.constexpr, SUMS: tl.constexpr,
    ELEMENT: tl.constexpr, LOW: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    """Draw one row of every quad: what the KL has of them beside -log(factor), factor, and their squares."""
    place, exists = _places(extent, row, column)
    mean = tl.load(mean_at.to(tl.pointer_type(ELEMENT)) + place, mask=exists, other=0.0).to(COMPUTE)
    rho = tl.load(rho_at.to(tl.pointer_type(ELEMENT)) + place, mask=exists, other=0.0).to(COMPUTE)
    eps = _padded(extent, place, noise).to(COMPUTE)
    _, sigma, a = _softplus(rho)
    theta = mean + sigma * eps
    if low:
        tl.store(theta_at.to(tl.pointer_type(LOW)) + place, theta.to(LOW), mask=exists)
    else:
        tl.store(theta_at.to(tl.pointer_type(ELEMENT)) + place, theta.to(ELEMENT), mask=exists)
    term = tl.zeros_like(theta)
    square = tl.zeros_like(theta)
    if SUMS:
        term -= tl.minimum(rho, 0.0, propagate_nan=tl.PropagateNan.ALL)
        square = theta * theta
        if PRIOR == _NORMAL:
            term += 0.5 * WIDE * (sigma * sigma + mean * mean)
        else:
            term -= 0.5 * eps * eps
        if PRIOR == _WEIGHTS:
            cost, b, _ = _mixture(square, WIDE, NARROW, OFFSET)
            term += cost
            a *= b
        term = tl.where(exists, term, 0.0)
        square = tl.where(exists, square, 0.0)
        a = tl.where(exists, a, 1.0)
    return term, a, square


@triton.jit
def _forward(
    seed, means, rhos, thetas, table, partials, sums,
    WIDE: tl.constexpr, NARROW: tl.constexpr, OFFSET: tl.constexpr, PRIOR: tl.constexpr, SUMS: tl.constexpr,
    ELEMENT: tl.constexpr, LOW: tl.constexpr, COMPUTE: tl.constexpr,
    R: tl.constexpr, C: tl.constexpr, STEPS: tl.constexpr, N: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    """One tile, R rows at a time: theta = mean + sigma eps, its share of the KL, and its sums of squares by group."""
    k, line, down, tile_column, column = _tile(table, C, N, F)
    extent = _extent(line)
    rows, columns, _, _, _ = extent
    across, low, first = tl.load(line + 1).to(tl.int32), tl.load(line + 13) != 0, tl.load(line + 5)
    kind, partial = tl.load(line + 8), partials + tl.load(line + 11)
    mean_at, rho_at, theta_at = _address(means, k, N), _address(rhos, k, N), _address(thetas, k, N)
    number = tl.load(seed)
    terms = tl.zeros((R // 4, C), COMPUTE)
    squares = tl.zeros((R // 4, C), COMPUTE)
    for step in range(STEPS):
        quad = (down * STEPS + step) * (R // 4) + tl.arange(0, R // 4)
        n0, n1, n2, n3 = _normals(number, first + (quad[:, None] * columns + column[None, :]))
        t0, a0, q0 = _draw_rows(extent, mean_at, rho_at, theta_at, low, n0, 4 * quad, column,
                                WIDE, NARROW, OFFSET, PRIOR, SUMS, ELEMENT, LOW, COMPUTE)  # fmt: skip
        t1, a1, q1 = _draw_rows(extent, mean_at, rho_at, theta_at, low, n1, 4 * quad + 1, column,
                                WIDE, NARROW, OFFSET, PRIOR, SUMS, ELEMENT, LOW, COMPUTE)  # fmt: skip
        t2, a2, q2 = _draw_rows(extent, mean_at, rho_at, theta_at, low, n2, 4 * quad + 2, column,
                                WIDE, NARROW, OFFSET, PRIOR, SUMS, ELEMENT, LOW, COMPUTE)  # fmt: skip
        t3, a3, q3 = _draw_rows(extent, mean_at, rho_at, theta_at, low, n3, 4 * quad + 3, column,
                                WIDE, NARROW, OFFSET, PRIOR, SUMS, ELEMENT, LOW, COMPUTE)  # fmt: skip
        if SUMS:
            terms += (t0 + t1) + (t2 + t3) - _log((a0 * a1) * (a2 * a3))  # a quarter of the logarithms
            if PRIOR == _GROUPS:
                squares += (q0 + q1) + (q2 + q3)
                if kind == _BY_ROW:
                    by_row = partial + tile_column + 4 * quad * across
                    tl.store(by_row, tl.sum(q0, 1), mask=4 * quad < rows)
                    tl.store(by_row + across, tl.sum(q1, 1), mask=4 * quad + 1 < rows)
                    tl.store(by_row + 2 * across, tl.sum(q2, 1), mask=4 * quad + 2 < rows)
                    tl.store(by_row + 3 * across, tl.sum(q3, 1), mask=4 * quad + 3 < rows)
    if SUMS:
        tl.store(sums + tl.program_id(0), tl.sum(tl.sum(terms, 1), 0).to(tl.float64))
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
    k = _which(table, program, N, F)
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


@triton.jit
def _gradient_rows(
    extent, mean_at, rho_at, theta_at, d_mean_at, d_rho_at, given, low, noise, row, column, by_row, by_column, d_kl,
    WIDE: tl.constexpr, NARROW: tl.constexpr, OFFSET: tl.constexpr, PRIOR: tl.constexpr, SUMS: tl.constexpr,
    ELEMENT: tl.constexpr, LOW: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    """d_mean and d_rho of one row of every quad. by_row, by_column: coefficients of the groups, one of them zero."""
    place, exists = _places(extent, row, column)
    mean = tl.load(mean_at.to(tl.pointer_type(ELEMENT)) + place, mask=exists, other=0.0).to(COMPUTE)
    rho = tl.load(rho_at.to(tl.pointer_type(ELEMENT)) + place, mask=exists, other=0.0).to(COMPUTE)
    eps = _padded(extent, place, noise).to(COMPUTE)
    if low:
        d = tl.load(theta_at.to(tl.pointer_type(LOW)) + place, mask=exists & (place < given), other=0.0).to(COMPUTE)
    else:
        d = tl.load(theta_at.to(tl.pointer_type(ELEMENT)) + place, mask=exists & (place < given), other=0.0).to(COMPUTE)
    e, sigma, a = _softplus(rho)
    inverse = 1 / ((1 + e) * a)
    slope = tl.where(rho < 0, e, 1.0) * (inverse * a)
    d_mean = d
    if SUMS:
        theta = mean + sigma * eps
        if PRIOR == _GROUPS:
            d_mean += (by_row[:, None] + by_column[None, :]) * theta
        if PRIOR == _WEIGHTS:
            _, _, factor = _mixture(theta * theta, WIDE, NARROW, OFFSET)
            d_mean += d_kl * factor * theta
        d_rho = slope * eps * d_mean
        if PRIOR == _NORMAL:
            d_mean += d_kl * WIDE * mean
            d_rho += d_kl * WIDE * sigma * slope
        d_rho -= d_kl * inverse
    else:
        d_rho = slope * eps * d_mean
    tl.store(d_mean_at + place, d_mean.to(ELEMENT), mask=exists)
    tl.store(d_rho_at + place, d_rho.to(ELEMENT), mask=exists)


@triton.jit(do_not_specialize=["present"])
def _backward(
    seed, means, rhos, d_thetas, present, d_means, d_rhos, table, coefficients, d_kl,
    WIDE: tl.constexpr, NARROW: tl.constexpr, OFFSET: tl.constexpr, PRIOR: tl.constexpr, SUMS: tl.constexpr,
    ELEMENT: tl.constexpr, LOW: tl.constexpr, COMPUTE: tl.constexpr,
    R: tl.constexpr, C: tl.constexpr, STEPS: tl.constexpr, N: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    """One tile of d_mean and d_rho, with noise made again. Bit k of `present`: tensor k has a gradient."""
    k, line, down, _, column = _tile(table, C, N, F)
    extent = _extent(line)
    rows, columns, count, _, _ = extent
    low, first, kind = tl.load(line + 13) != 0, tl.load(line + 5), tl.load(line + 8)
    given = ((present >> k) & 1) * count  # elements of a gradient, none or all
    mean_at, rho_at, theta_at = _address(means, k, N), _address(rhos, k, N), _address(d_thetas, k, N)
    d_mean_at, d_rho_at = d_means + tl.load(line + 12), d_rhos + tl.load(line + 12)
    number = tl.load(seed)
    g = tl.load(d_kl).to(COMPUTE)
    by_column = tl.zeros((C,), COMPUTE)
    coefficient = coefficients + tl.load(line + 9)
    with_rows = tl.where(kind == _BY_ROW, rows, 0)  # of one of the two nothing is loaded
    with_columns = tl.where(kind == _BY_ROW, 0, columns)
    if SUMS and PRIOR == _GROUPS:
        group = tl.where(kind == _BY_COLUMN, column // tl.load(line + 10).to(tl.int32), 0)
        by_column = 2 * g * tl.load(coefficient + group, mask=column < with_columns, other=0.0)
    for step in range(STEPS):
        quad = (down * STEPS + step) * (R // 4) + tl.arange(0, R // 4)
        n0, n1, n2, n3 = _normals(number, first + (quad[:, None] * columns + column[None, :]))
        c0 = tl.zeros((R // 4,), COMPUTE)
        c1, c2, c3 = c0, c0, c0
        if SUMS and PRIOR == _GROUPS:
            c0 = 2 * g * tl.load(coefficient + 4 * quad, mask=4 * quad < with_rows, other=0.0)
            c1 = 2 * g * tl.load(coefficient + 4 * quad + 1, mask=4 * quad + 1 < with_rows, other=0.0)
            c2 = 2 * g * tl.load(coefficient + 4 * quad + 2, mask=4 * quad + 2 < with_rows, other=0.0)
            c3 = 2 * g * tl.load(coefficient + 4 * quad + 3, mask=4 * quad + 3 < with_rows, other=0.0)
        _gradient_rows(extent, mean_at, rho_at, theta_at, d_mean_at, d_rho_at, given, low, n0, 4 * quad, column, c0,
                       by_column, g, WIDE, NARROW, OFFSET, PRIOR, SUMS, ELEMENT, LOW, COMPUTE)  # fmt: skip
        _gradient_rows(extent, mean_at, rho_at, theta_at, d_mean_at, d_rho_at, given, low, n1, 4 * quad + 1, column, c1,
                       by_column, g, WIDE, NARROW, OFFSET, PRIOR, SUMS, ELEMENT, LOW, COMPUTE)  # fmt: skip
        _gradient_rows(extent, mean_at, rho_at, theta_at, d_mean_at, d_rho_at, given, low, n2, 4 * quad + 2, column, c2,
                       by_column, g, WIDE, NARROW, OFFSET, PRIOR, SUMS, ELEMENT, LOW, COMPUTE)  # fmt: skip
        _gradient_rows(extent, mean_at, rho_at, theta_at, d_mean_at, d_rho_at, given, low, n3, 4 * quad + 3, column, c3,
                       by_column, g, WIDE, NARROW, OFFSET, PRIOR, SUMS, ELEMENT, LOW, COMPUTE)  # fmt: skip


@triton.jit
def _noise_rows(extent, out, noise, row, column):
    place, exists = _places(extent, row, column)
    tl.store(out + place, _padded(extent, place, noise), mask=exists)


@triton.jit
def _noise(seed, outs, table, R: tl.constexpr, C: tl.constexpr, STEPS: tl.constexpr, N: tl.constexpr, F: tl.constexpr):
    """One tile of the noise itself."""
    k, line, down, _, column = _tile(table, C, N, F)
    extent = _extent(line)
    _, columns, _, _, _ = extent
    out = _address(outs, k, N).to(tl.pointer_type(tl.float32))
    for step in range(STEPS):
        quad = (down * STEPS + step) * (R // 4) + tl.arange(0, R // 4)
        n0, n1, n2, n3 = _normals(tl.load(seed), tl.load(line + 5) + (quad[:, None] * columns + column[None, :]))
        _noise_rows(extent, out, n0, 4 * quad, column)
        _noise_rows(extent, out, n1, 4 * quad + 1, column)
        _noise_rows(extent, out, n2, 4 * quad + 2, column)
        _noise_rows(extent, out, n3, 4 * quad + 3, column)


def _tile_options(launch: Launch) -> dict[str, int]:
    """A tile is worked on a few rows at a time, so that its numbers fit into registers."""
    rows = min(launch.rows, max(4, _AT_ONCE // launch.columns))
    return {
        "R": rows, "C": launch.columns, "STEPS": launch.rows // rows, "N": len(launch.which), "F": len(FIELDS),
        "num_warps": _WARPS,
    }  # fmt: skip


def _on(device: torch.device) -> AbstractContextManager[Any]:
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _options(spec: Spec, launch: Launch, sums: bool) -> dict[str, Any]:
    """The constants of the two kernels over weights."""
    prior = spec.prior
    wide = narrow = offset = 0.0
    if prior.kind == "normal":
        wide = 1 / prior.sigma1**2
    elif prior.kind == "weights":
        share, sigma, other = planning.wide_first(prior)
        wide, narrow = 1 / sigma**2, 1 / other**2
        offset = math.log((1 - share) / share) + math.log(sigma / other)
    compute = tl.float64 if spec.dtype == torch.float64 else tl.float32
    return {
        "WIDE": wide, "NARROW": narrow, "OFFSET": offset, "PRIOR": _KINDS[prior.kind], "SUMS": sums,
        "ELEMENT": _ELEMENTS[spec.dtype], "LOW": _ELEMENTS[spec.low_dtype], "COMPUTE": compute,
        **_tile_options(launch),
    }  # fmt: skip


def _group_options(spec: Spec, launch: Launch) -> dict[str, Any]:
    pi, s1, s2, half = spec.prior.pi, spec.prior.sigma1, spec.prior.sigma2, 0.5 * math.log(2 * math.pi)
    return {
        "PI1": math.log(pi), "PI2": math.log(1 - pi), "SIGMA1": math.log(s1) + half, "SIGMA2": math.log(s2) + half,
        "HALF1": 0.5 / s1**2, "HALF2": 0.5 / s2**2, "B": 64, "G": planning._GROUPS,
        "N": len(launch.which), "F": len(GROUP_FIELDS),
    }  # fmt: skip


def _pick(tensors: Sequence[Tensor], launch: Launch) -> tuple[Tensor, ...]:
    return tuple(tensors[k] for k in launch.which)


def _allocate(spec: Spec, made: Plan) -> list[Tensor]:
    """Memory for the drawn weights. Not views of one tensor, which autograd would treat as such."""
    out: dict[int, Tensor] = {}
    for buffer in made.buffers:
        memory = torch.empty(buffer.size, dtype=buffer.dtype, device=spec.device).untyped_storage()
        for k, offset in buffer.parts:
            shape = spec.shapes[k]
            empty = torch.empty(0, dtype=buffer.dtype, device=spec.device)
            out[k] = empty.set_(memory, offset, shape, _strides(shape))
    return [out[k] for k in range(len(spec.shapes))]


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


class _Draw(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, seed: Tensor, spec: Spec, sums: bool, *params: Tensor) -> tuple[Tensor, ...]:
        made = plan(spec)
        count = len(spec.shapes)
        flat = [p.detach().contiguous() for p in params]  # a copy only of parameters in another layout
        means, rhos = flat[:count], flat[count:]
        weights = _allocate(spec, made)
        grouped = sums and spec.prior.kind == "groups"
        compute = torch.float64 if spec.dtype == torch.float64 else torch.float32
        kl = torch.empty((), dtype=compute, device=spec.device)
        partials = torch.empty(made.partials if grouped else 0, dtype=compute, device=spec.device)
        coefficients = torch.empty(made.groups if grouped else 0, dtype=compute, device=spec.device)
        shares = torch.empty(made.sums if sums else 0, dtype=torch.float64, device=spec.device)
        if sums and not grouped:
            shares.zero_()  # the places of the groups
        with _on(spec.device):
            for launch in made.launches:
                if launch.tiles:
                    _forward[(launch.tiles,)](
                        seed, _pick(means, launch), _pick(rhos, launch), _pick(weights, launch), launch.table, partials,
                        shares[launch.first_sum :], **_options(spec, launch, sums),
                    )  # fmt: skip
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
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, d_kl: Tensor | None, *d_weights: Tensor | None) -> tuple[Any, ...]:
        if [p._version for p in ctx.params] != ctx.versions:
            raise RuntimeError("the posterior's parameters were changed between the draw and its backward pass")
        spec: Spec = ctx.spec
        made, count, sums = plan(spec), len(spec.shapes), ctx.sums and d_kl is not None
        means, rhos = ctx.flat[:count], ctx.flat[count:]
        d_means, d_rhos = (torch.empty(made.size, dtype=spec.dtype, device=spec.device) for _ in range(2))
        given = [m if d is None else d.contiguous() for m, d in zip(means, d_weights, strict=True)]
        scale = made.constant if d_kl is None else d_kl  # not read without sums
        with _on(spec.device):
            for launch in made.launches:
                if launch.tiles:
                    present = sum(1 << j for j, k in enumerate(launch.which) if d_weights[k] is not None)
                    _backward[(launch.tiles,)](
                        ctx.seed, _pick(means, launch), _pick(rhos, launch), _pick(given, launch), present, d_means,
                        d_rhos, launch.table, ctx.coefficients, scale, **_options(spec, launch, sums),
                    )  # fmt: skip
        used = [sums or d is not None for d in d_weights]
        parts = [
            flat[at : at + math.prod(shape)].view(shape) if wanted else None
            for flat in (d_means, d_rhos)
            for at, shape, wanted in zip(made.offsets, spec.shapes, used, strict=True)
        ]
        return None, None, None, *parts


def draw(seed: Tensor, spec: Spec, means: Sequence[Tensor], rhos: Sequence[Tensor], *, sums: bool = True) -> Drawn:
    """theta = mean + softplus(rho) * noise for all tensors, and KL(q || p) for a prior that the kernels know.

    Args:
        seed: one int64 in memory of the device: noise depends on it and on the place of the weight alone.
        spec: shapes, groups, prior and layout; see `plan.Spec`.
        means, rhos: one tensor for each shape.
        sums: False: weights alone.

    Returns:
        The weights, those of a recurrent layer in the one piece of memory that cuDNN wants, and the KL.
    """
    kl, *weights = _Draw.apply(seed, spec, sums, *means, *rhos)
    return Drawn(tuple(weights), kl if sums else None)


def noise(seed: Tensor, spec: Spec) -> list[Tensor]:
    """The noise that `draw` uses for this seed, in float32; padding rows have none."""
    made = plan(spec)
    outs = [torch.empty(shape, dtype=torch.float32, device=spec.device) for shape in spec.shapes]
    with _on(spec.device):
        for launch in made.launches:
            if launch.tiles:
                _noise[(launch.tiles,)](seed, _pick(outs, launch), launch.table, **_tile_options(launch))
    return outs
