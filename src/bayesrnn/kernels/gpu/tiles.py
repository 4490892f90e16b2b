# mypy: disable-error-code="no-untyped-def"
"""Device functions shared by the GPU kernels: arithmetic, counter-based noise, and tiles over many tensors."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

# One instruction each on NVIDIA's chips; the interpreter and other chips have Triton's own functions.
_HARDWARE = tl.constexpr(not triton.knobs.runtime.interpret and torch.version.hip is None)


@triton.jit
def _instruction(x, NAME: tl.constexpr):
    return tl.inline_asm_elementwise(NAME + " $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def log2(x):
    """Error 2^-22, relative or absolute, whichever is larger; x is positive and not denormal."""
    if x.dtype == tl.float32 and _HARDWARE:
        return _instruction(x, "lg2.approx.ftz.f32")
    else:
        return tl.log2(x)


@triton.jit
def _exp2(x):
    if x.dtype == tl.float32 and _HARDWARE:
        return _instruction(x, "ex2.approx.ftz.f32")
    else:
        return tl.exp2(x)


@triton.jit
def reciprocal(x):
    """1 / x, to 1 unit in the last place."""
    if x.dtype == tl.float32 and _HARDWARE:
        return _instruction(x, "rcp.approx.ftz.f32")
    else:
        return 1 / x


@triton.jit
def _exp(x):
    """e^x for x <= 0. In float32 with a relative error of 2^-22 + |x| 2^-24, and 0 below the normal numbers."""
    if x.dtype == tl.float64:
        return tl.exp(x)
    else:
        return _exp2(x * 1.4426950408889634)


@triton.jit
def _log1p_ratio(e):
    """log(1 + e) / e for 0 <= e <= 1; right to the last digits where e vanishes.

    In float32 a polynomial, to 4e-8; in float64 2 artanh(s) / e with s = e / (2 + e).
    """
    if e.dtype == tl.float64:
        r = 1 / (2 + e)
        t = (e * r) * (e * r)
        p = t * 0 + 1 / 35
        for j in tl.static_range(17):
            p = p * t + 1 / (33 - 2 * j)
        return 2 * r * p
    else:
        p = -0.137538016 + e * (0.0792045221 + e * (-0.0300657861 + e * 0.00536482269))
        return 1 + e * (-0.499996483 + e * (0.33321324 + e * (-0.248571634 + e * (0.191536546 + e * p))))


@triton.jit
def softplus(rho):
    """e = exp(-|rho|), sigma = log(1 + e^rho), and a with log sigma = log(a) + min(rho, 0)."""
    e = _exp(-tl.abs(rho))
    ratio = _log1p_ratio(e)
    sigma = tl.maximum(rho, 0.0) + e * ratio
    return e, sigma, tl.where(rho < 0, ratio, sigma)


@triton.jit
def _pair(a, b):
    """Two normal numbers of two random words (Box and Muller 1958): radius from a, angle from b.

    The instructions for sine and cosine are right to 2^-20.5, absolutely; the radius to 2^-21, relatively, but for
    one in a million that is below 0.002.
    """
    u = a.to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10
    square = -1.3862943611198906 * log2(u)
    angle = b.to(tl.int32, bitcast=True).to(tl.float32) * 1.4629180792671596e-09  # from -pi to pi
    if _HARDWARE:
        radius = _instruction(tl.abs(square), "sqrt.approx.ftz.f32")
        return radius * _instruction(angle, "cos.approx.ftz.f32"), radius * _instruction(angle, "sin.approx.ftz.f32")
    else:
        radius = tl.sqrt(tl.abs(square))
        return radius * tl.cos(angle), radius * tl.sin(angle)


@triton.jit
def _philox(seed, counter):
    """Four random words for every counter: Philox4x32-10 (Salmon et al. 2011) with the seed as its key.

    Both halves of each product come from one multiplication, which `tl.philox` does not get from the compiler.
    """
    a = counter.to(tl.uint32)
    b = (counter >> 32).to(tl.uint32)
    c = a * 0
    d = a * 0
    key = seed.to(tl.uint32)
    other = (seed >> 32).to(tl.uint32)
    for _ in tl.static_range(10):
        first = a.to(tl.uint64) * 0xD2511F53
        second = c.to(tl.uint64) * 0xCD9E8D57
        a = (second >> 32).to(tl.uint32) ^ b ^ key
        c = (first >> 32).to(tl.uint32) ^ d ^ other
        b, d = second.to(tl.uint32), first.to(tl.uint32)
        key = (key.to(tl.uint64) + 0x9E3779B9).to(tl.uint32)
        other = (other.to(tl.uint64) + 0xBB67AE85).to(tl.uint32)
    return a, b, c, d


@triton.jit
def _normals(seed, counter, R: tl.constexpr, C: tl.constexpr):
    """Normal numbers (R, C), four neighbours for every counter (R, C / 4)."""
    a, b, c, d = _philox(seed, counter)
    n0, n1 = _pair(a, b)
    n2, n3 = _pair(c, d)
    return tl.join(tl.join(n0, n2), tl.join(n1, n3)).reshape(R, C)


@triton.jit
def row_of(table, program, N: tl.constexpr, F: tl.constexpr):
    """The row of the table that this program belongs to; the first column has each row's first program."""
    k = 0
    for j in tl.static_range(1, N):
        k += (program >= tl.load(table + j * F)).to(tl.int32)
    return k


@triton.jit
def address_of(pointers, k, N: tl.constexpr):
    found = pointers[0].to(tl.int64)
    for j in tl.static_range(1, N):
        found = tl.where(k == j, pointers[j].to(tl.int64), found)
    return found


@triton.jit
def pointer_to(address, ELEMENT: tl.constexpr, VECTORS: tl.constexpr):
    """A tensor's address as a pointer."""
    pointer = address.to(tl.pointer_type(ELEMENT))
    return tl.multiple_of(pointer, 16) if VECTORS else pointer


@triton.jit
def own_tile(table, tiles, F: tl.constexpr):
    """Which tensor, its line in the table, and the tile's row and column among its tiles."""
    own = tiles + 3 * tl.program_id(0)
    k = tl.load(own)
    return k, table + k * F, tl.load(own + 1), tl.load(own + 2)


@triton.jit
def extent_of(line, VECTORS: tl.constexpr):
    """Rows, columns, elements and quads in a row, and the places of its padding: no noise there."""
    columns, count = tl.load(line + 3).to(tl.int32), tl.load(line + 4).to(tl.int32)
    if VECTORS:
        columns, count = tl.multiple_of(columns, 4), tl.multiple_of(count, 4)
    return (tl.load(line + 2).to(tl.int32), columns, count, tl.load(line + 14).to(tl.int32),
            tl.load(line + 6).to(tl.int32), tl.load(line + 7).to(tl.int32))  # fmt: skip


@triton.jit
def places_of(extent, row, column):
    """Places in the flat tensor (rows, columns), and which of them exist."""
    rows, columns, count, _, _, _ = extent
    place = row[:, None] * columns + column[None, :]
    return place, (row[:, None] < rows) & (column[None, :] < columns) & (place < count)


@triton.jit
def noise_of(extent, seed, first, row, tile_column, place, R: tl.constexpr, C: tl.constexpr):
    """The noise (R, C) of these rows of a tile."""
    _, _, _, quads, padding, padding_end = extent
    quad = tile_column * (C // 4) + tl.arange(0, C // 4)
    eps = _normals(seed, first + (row[:, None] * quads + quad[None, :]), R, C)
    if padding_end > 0:
        eps = tl.where((place >= padding) & (place < padding_end), 0.0, eps)
    return eps


@triton.jit
def mixture(square, WIDE: tl.constexpr, NARROW: tl.constexpr, OFFSET: tl.constexpr):
    """For a weight with this square: d, the log of the narrow component over the wide one, and exp(-|d|)."""
    d = OFFSET + 0.5 * (WIDE - NARROW) * square
    return d, _exp(-tl.abs(d))
