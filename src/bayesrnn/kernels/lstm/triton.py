# mypy: disable-error-code="no-untyped-def,assignment"
# ruff: noqa: RUF005, SIM102  (Triton compiles these forms, and not the others)
"""The LSTM recurrence on a GPU in one launch per pass: all T steps, the recurrent weights held on chip.

Every program owns a few hidden units and keeps their weights in shared memory. At each step it reads the whole masked
h_{t-1} (backward: the gradient of all gates), which the programs exchange through the L2 cache, multiplies it with its
slice of the weights, and computes its units. A barrier over the grid separates the steps; the launch is cooperative,
so that all programs are resident or none is. README.md beside this file has the derivation and the measurements.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from bayesrnn.kernels.recurrent import weight_gradient
from bayesrnn.kernels.steps import offsets, previous_rows

INTERPRETED = bool(triton.knobs.runtime.interpret)  # TRITON_INTERPRET=1: no barrier there, one launch per step
MAX_BATCH = 128  # above, cuBLAS fills the chip better step by step


@triton.jit
def _arrive(counter):
    tl.debug_barrier()
    tl.atomic_add(counter, 1, sem="release", scope="gpu")


@triton.jit
def _wait(counter, target):
    while tl.atomic_add(counter, 0, sem="acquire", scope="gpu") < target:
        pass


@triton.jit
def _sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit
def _tanh(x):
    return 2 / (1 + tl.exp(-2 * x)) - 1


@triton.jit
def _half(x):
    """To 16 bits, of which 10 are mantissa, as in TF32; what is too large stays finite."""
    return tl.minimum(tl.maximum(x, -65504.0), 65504.0).to(tl.float16)


@triton.jit
def _gate(four, BT: tl.constexpr, U: tl.constexpr):
    """(BT, 4 U) with the gates of one unit side by side, to i, f, g, o of (BT, U) each."""
    first, second = tl.split(tl.reshape(four, (BT, U, 2, 2)))  # i and g, f and o
    i, g = tl.split(first)
    f, o = tl.split(second)
    return i, f, g, o


@triton.jit
def _to_units(w, first, H, U: tl.constexpr, KB: tl.constexpr):
    """(KB, 4 U): weights from hidden units `first`... to the gates of this program's units, gates side by side."""
    k = first + tl.arange(0, KB)[:, None]
    column = tl.arange(0, 4 * U)[None, :]
    u = tl.program_id(0) * U + column // 4
    return _half(tl.load(w + ((column % 4) * H + u) * H + k, mask=(k < H) & (u < H), other=0.0))


@triton.jit
def _to_units_by_gate(w, first, H, U: tl.constexpr, KB: tl.constexpr):
    """(4, KB, U): the same weights, gate by gate."""
    gate = tl.arange(0, 4)[:, None, None]
    k = first + tl.arange(0, KB)[None, :, None]
    u = tl.program_id(0) * U + tl.arange(0, U)[None, None, :]
    return _half(tl.load(w + (gate * H + u) * H + k, mask=(k < H) & (u < H), other=0.0))


@triton.jit
def _from_units(w, first, H, U: tl.constexpr, KB: tl.constexpr):
    """(4, KB, U): weights from this program's units to each gate of hidden units `first`..."""
    gate = tl.arange(0, 4)[:, None, None]
    k = first + tl.arange(0, KB)[None, :, None]
    u = tl.program_id(0) * U + tl.arange(0, U)[None, None, :]
    return _half(tl.load(w + (gate * H + k) * H + u, mask=(k < H) & (u < H), other=0.0))


@triton.jit
def _exchanged(exchange, row, first, B, KP: tl.constexpr, KB: tl.constexpr):
    """(BT, KB): what all programs wrote for these rows, columns `first`...; from L2, as L1 may be out of date."""
    r, k = row[:, None], first + tl.arange(0, KB)[None, :]
    return tl.load(exchange + r * KP + k, mask=r < B, other=0.0, cache_modifier=".cg")


@triton.jit
def _exchanged_by_gate(exchange, row, first, B, KP: tl.constexpr, KB: tl.constexpr):
    """(4, BT, KB): the same of four copies."""
    gate = tl.arange(0, 4)[:, None, None]
    r, k = row[None, :, None], first + tl.arange(0, KB)[None, None, :]
    return tl.load(exchange + (gate * B + r) * KP + k, mask=r < B, other=0.0, cache_modifier=".cg")


@triton.jit
def _now(x, PERSISTENT: tl.constexpr):
    """`x`, needed from here on: the compiler would store it in shared memory, and so wait, where it is loaded."""
    if PERSISTENT:
        x = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=tl.float16, is_pure=False, pack=2)
    return x


@triton.jit
def forward_kernel(
    gx, w, z_h, z_c, starts, exchange, h_state, c_state, out, cells, counter,
    first, last, programs, steps, B, H,
    REVERSE: tl.constexpr, COPIES: tl.constexpr, MASKED: tl.constexpr, CELL_MASK: tl.constexpr,
    U: tl.constexpr, BT: tl.constexpr, KB: tl.constexpr, KP: tl.constexpr, AHEAD: tl.constexpr,
    PERSISTENT: tl.constexpr,
):  # fmt: skip
    """Steps `first` to `last`; step -1 puts the masked initial state where all programs read it."""
    unit = tl.program_id(0) * U + tl.arange(0, U)
    first_row, stride = tl.program_id(1) * BT, tl.num_programs(1) * BT  # groups of sequences go their own ways
    counter += tl.program_id(1)
    copy = B * KP  # numbers in one copy of the exchanged state; there are two sets, for even and odd steps
    weights = ()
    for k in tl.static_range(KP // KB):
        if COPIES == 4:
            weights = weights + (_to_units_by_gate(w, k * KB, H, U, KB),)
        else:
            weights = weights + (_to_units(w, k * KB, H, U, KB),)
    if first < 0:
        for r0 in range(first_row, B, stride):
            row = r0 + tl.arange(0, BT)
            inside = (row < B)[:, None] & (unit < H)[None, :]
            h = tl.load(h_state + row[:, None] * H + unit[None, :], mask=inside, other=0.0)
            for k in tl.static_range(COPIES):
                m = h
                if MASKED:
                    m = h * tl.load(z_h + (row[:, None] * COPIES + k) * H + unit[None, :], mask=inside, other=0.0)
                there = exchange + k * copy + row[:, None] * KP + unit[None, :]
                tl.store(there, _half(m), mask=inside)
                tl.store(there + COPIES * copy, _half(m), mask=inside)
        if PERSISTENT:
            _arrive(counter)
    for s in range(tl.maximum(first, 0), last):
        t = s
        if REVERSE:
            t = steps - 1 - s
        start = tl.load(starts + t)
        n = tl.load(starts + t + 1) - start
        read = exchange + (s % 2) * (COPIES * copy)
        write = exchange + ((s + 1) % 2) * (COPIES * copy)
        for r0 in range(first_row, B, stride):
            row = r0 + tl.arange(0, BT)
            inside = (row < n)[:, None] & (unit < H)[None, :]
            state = row[:, None] * H + unit[None, :]
            gate = gx + (start + row[:, None]) * (4 * H) + unit[None, :]
            ai = tl.load(gate, mask=inside, other=0.0)
            af = tl.load(gate + H, mask=inside, other=0.0)
            ag = tl.load(gate + 2 * H, mask=inside, other=0.0)
            ao = tl.load(gate + 3 * H, mask=inside, other=0.0)
            c = tl.load(c_state + state, mask=inside, other=0.0)
            if PERSISTENT:
                if r0 == first_row:
                    _wait(counter, programs * (s + 1))
            if COPIES == 4:
                ahead = ()
                for k in tl.static_range(AHEAD):
                    ahead = ahead + (_exchanged_by_gate(read, row, k * KB, B, KP, KB),)
                p3 = tl.zeros((4, BT, U), tl.float32)
                for k in tl.static_range(KP // KB):
                    if (k + AHEAD) * KB < KP:
                        ahead = ahead + (_exchanged_by_gate(read, row, (k + AHEAD) * KB, B, KP, KB),)
                    p3 = tl.dot(_now(ahead[k], PERSISTENT), weights[k], p3)
                p = tl.reshape(tl.permute(p3, (1, 2, 0)), (BT, 4 * U))
            else:
                ahead = ()
                for k in tl.static_range(AHEAD):
                    ahead = ahead + (_exchanged(read, row, k * KB, B, KP, KB),)
                p = tl.zeros((BT, 4 * U), tl.float32)
                for k in tl.static_range(KP // KB):
                    if (k + AHEAD) * KB < KP:
                        ahead = ahead + (_exchanged(read, row, (k + AHEAD) * KB, B, KP, KB),)
                    p = tl.dot(_now(ahead[k], PERSISTENT), weights[k], p)
            pi, pf, pg, po = _gate(p, BT, U)
            i, f, g, o = _sigmoid(ai + pi), _sigmoid(af + pf), _tanh(ag + pg), _sigmoid(ao + po)
            c = f * c + i * g
            if CELL_MASK:
                c = c * tl.load(z_c + state, mask=inside, other=0.0)
            m = o * _tanh(c)
            for k in tl.static_range(COPIES):
                x = m
                if MASKED:
                    x = m * tl.load(z_h + (row[:, None] * COPIES + k) * H + unit[None, :], mask=inside, other=0.0)
                tl.store(write + k * copy + row[:, None] * KP + unit[None, :], _half(x), mask=inside)
            if PERSISTENT:
                if r0 + stride >= B:
                    _arrive(counter)
            here = (start + row[:, None]) * H + unit[None, :]
            tl.store(gate, i, mask=inside)
            tl.store(gate + H, f, mask=inside)
            tl.store(gate + 2 * H, g, mask=inside)
            tl.store(gate + 3 * H, o, mask=inside)
            tl.store(cells + here, c, mask=inside)
            tl.store(out + here, m, mask=inside)
            tl.store(c_state + state, c, mask=inside)
            tl.store(h_state + state, m, mask=inside)
        tl.debug_barrier()  # another thread may read the state at the next step


@triton.jit
def backward_kernel(
    gates, cells, c0, w, z_h, z_c, starts, d_out, scale, exchange, dh_state, dc_state, d_gx, counter,
    first, last, programs, steps, B, H,
    REVERSE: tl.constexpr, COPIES: tl.constexpr, MASKED: tl.constexpr, CELL_MASK: tl.constexpr, D_OUT: tl.constexpr,
    U: tl.constexpr, BT: tl.constexpr, KB: tl.constexpr, KP: tl.constexpr, AHEAD: tl.constexpr,
    PERSISTENT: tl.constexpr,
):  # fmt: skip
    """Steps `first` to `last` in the order of the gradient; step `steps` only carries it to the initial state."""
    unit = tl.program_id(0) * U + tl.arange(0, U)
    first_row, stride = tl.program_id(1) * BT, tl.num_programs(1) * BT  # groups of sequences go their own ways
    counter += tl.program_id(1)
    copy = B * KP  # numbers per gate in the exchanged gradient; there are two sets, for even and odd steps
    largest = tl.load(scale)
    # a power of two that brings gradients into the range of 16 bits; NaN stays NaN
    up = tl.where(largest > 0, tl.exp2(6 - tl.ceil(tl.log2(tl.maximum(largest, 1e-30)))), 1 + 0 * largest)
    down = 1 / up
    weights = ()
    for k in tl.static_range(KP // KB):
        weights = weights + (_from_units(w, k * KB, H, U, KB),)
    for s in range(first, last):
        t = steps - 1 - s
        before, after = t - 1, t + 1  # the steps of time that the recurrence did before and after this one
        if REVERSE:
            t = s
            before, after = t + 1, t - 1
        working = s < steps
        t = tl.where(working, t, 0)
        start = tl.load(starts + t)
        n = tl.where(working, tl.load(starts + t + 1) - start, 0)
        known = (before >= 0) & (before < steps) & working
        before = tl.where(known, before, 0)
        start_before = tl.load(starts + before)
        n_before = tl.where(known, tl.load(starts + before + 1) - start_before, 0)
        after = tl.where(s > 0, after, 0)
        n_after = tl.where(s > 0, tl.load(starts + after + 1) - tl.load(starts + after), 0)
        read = exchange + (s % 2) * (4 * copy)
        write = exchange + ((s + 1) % 2) * (4 * copy)
        for r0 in range(first_row, B, stride):
            row = r0 + tl.arange(0, BT)
            ours = (row < B)[:, None] & (unit < H)[None, :]
            inside = (row < n)[:, None] & (unit < H)[None, :]
            state = row[:, None] * H + unit[None, :]
            here = (start + row[:, None]) * H + unit[None, :]
            gate = gates + (start + row[:, None]) * (4 * H) + unit[None, :]
            i = tl.load(gate, mask=inside, other=0.0)
            f = tl.load(gate + H, mask=inside, other=0.0)
            g = tl.load(gate + 2 * H, mask=inside, other=0.0)
            o = tl.load(gate + 3 * H, mask=inside, other=0.0)
            q = _tanh(tl.load(cells + here, mask=inside, other=0.0))
            had = inside & (row < n_before)[:, None]
            c = tl.load(cells + (start_before + row[:, None]) * H + unit[None, :], mask=had, other=0.0)
            c += tl.load(c0 + state, mask=inside & (row >= n_before)[:, None], other=0.0)
            dh = tl.load(dh_state + state, mask=ours, other=0.0)
            dc = tl.load(dc_state + state, mask=ours, other=0.0)
            if s > 0:
                if PERSISTENT:
                    if r0 == first_row:
                        _wait(counter, programs * s)
                ahead = ()
                for k in tl.static_range(AHEAD):
                    ahead = ahead + (_exchanged_by_gate(read, row, k * KB, B, KP, KB),)
                p = tl.zeros((4, BT, U), tl.float32)
                for k in tl.static_range(KP // KB):
                    if (k + AHEAD) * KB < KP:
                        ahead = ahead + (_exchanged_by_gate(read, row, (k + AHEAD) * KB, B, KP, KB),)
                    p = tl.dot(_now(ahead[k], PERSISTENT), weights[k], p)
                if COPIES == 4:
                    by_gate = (row[None, :, None] * 4 + tl.arange(0, 4)[:, None, None]) * H + unit[None, None, :]
                    p = p * tl.load(z_h + by_gate, mask=ours[None, :, :], other=0.0)
                total = tl.sum(p, axis=0) * down
                if MASKED and COPIES == 1:
                    total = total * tl.load(z_h + state, mask=ours, other=0.0)
                dh = tl.where((row < n_after)[:, None], total, dh)
            dm = dh
            if D_OUT:
                dm += tl.load(d_out + here, mask=inside, other=0.0)
            dq = dc + dm * o * (1 - q * q)
            if CELL_MASK:
                dq = dq * tl.load(z_c + state, mask=inside, other=0.0)
            di = dq * g * i * (1 - i)
            df = dq * c * f * (1 - f)
            dg = dq * i * (1 - g * g)
            do = dm * q * o * (1 - o)
            there = write + row[:, None] * KP + unit[None, :]
            tl.store(there, _half(di * up), mask=inside)
            tl.store(there + copy, _half(df * up), mask=inside)
            tl.store(there + 2 * copy, _half(dg * up), mask=inside)
            tl.store(there + 3 * copy, _half(do * up), mask=inside)
            if PERSISTENT:
                if r0 + stride >= B:
                    _arrive(counter)
            gradient = d_gx + (start + row[:, None]) * (4 * H) + unit[None, :]
            tl.store(gradient, di, mask=inside)
            tl.store(gradient + H, df, mask=inside)
            tl.store(gradient + 2 * H, dg, mask=inside)
            tl.store(gradient + 3 * H, do, mask=inside)
            tl.store(dc_state + state, tl.where(inside, dq * f, dc), mask=ours)
            tl.store(dh_state + state, dh, mask=ours)
        tl.debug_barrier()  # another thread may read the state at the next step


@dataclass(frozen=True)
class Tiles:
    """How the sum over k is cut: `padded` columns in blocks, of which some are on their way while one is used."""

    warps: int
    block: int
    padded: int
    ahead: int

    @property
    def constants(self) -> dict[str, int]:
        return {"KB": self.block, "KP": self.padded, "AHEAD": self.ahead, "num_warps": self.warps}


@dataclass(frozen=True)
class Plan:
    """How one layer is laid out on the device."""

    units: int
    programs: int
    groups: int
    rows: int
    forward: Tiles
    backward: Tiles


def _tiles(hidden: int, units: int, row_bytes: int, warps: int, memory: int, blocks: Sequence[int]) -> Tiles | None:
    for block in blocks:
        count = -(-hidden // block)
        registers = row_bytes * block // (128 * warps)  # of every thread, for one block on its way
        # the weights of four gates stay in shared memory, with one block in use and one that follows
        if 8 * units * count * block + 2 * row_bytes * block <= memory and 2 * registers <= 96:
            return Tiles(warps, block, count * block, min(count, 96 // registers))
    return None


@functools.cache
def plan(batch: int, hidden: int, copies: int, processors: int, memory: int) -> Plan | None:
    """Units per program, so that the whole grid is resident with its weights; None where it cannot be."""
    units = 8
    while -(-hidden // units) > processors:
        units *= 2
    rows = 16 if batch <= 16 else 32
    warps = 4 if units == 8 or copies == 4 else 8
    forward = _tiles(hidden, units, 2 * copies * rows, warps, memory, (128, 64, 32))
    backward = _tiles(hidden, units, 8 * rows, 4, memory, (64, 32))
    if forward is None or backward is None:
        return None
    programs = -(-hidden // units)
    groups = min(-(-batch // rows), processors // programs)
    return Plan(units, programs, groups, rows, forward, backward)


def _plan(batch: int, hidden: int, copies: int, device: torch.device) -> Plan | None:
    if device.type != "cuda":  # interpreted
        return plan(batch, hidden, copies, 4, 227 * 1024)
    about = torch.cuda.get_device_properties(device)
    return plan(batch, hidden, copies, about.multi_processor_count, about.shared_memory_per_block_optin)  # type: ignore[attr-defined]


def supported(
    *,
    dtype: torch.dtype,
    batch: int,
    hidden: int,
    projection: bool = False,
    untied: bool = False,
    device: torch.device | None = None,
) -> str | None:
    """None, or why this recurrence cannot run here."""
    device = device or torch.device("cpu")
    if dtype != torch.float32:
        return f"it takes and gives float32, not {dtype}"
    if projection:
        return "it has no projections"
    if batch > MAX_BATCH:
        return f"a batch of {batch} is larger than {MAX_BATCH}, where single steps fill the chip better"
    if device.type != "cuda" and not INTERPRETED:
        return "it needs a CUDA device"
    if device.type == "cuda" and torch.cuda.get_device_capability(device)[0] < 8:
        return "it needs compute capability 8.0 or newer"
    if device.type == "cuda" and not torch.backends.cudnn.allow_tf32:
        return "its products have TF32's 10 bits of mantissa, which torch.backends.cudnn.allow_tf32 forbids"
    if _plan(batch, hidden, 4 if untied else 1, device) is None:
        return f"the recurrent weights of {hidden} units do not fit on this chip"
    return None


@functools.lru_cache(maxsize=64)
def _starts(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """The first row of each step, and the number of rows, on the device; kept, since a graph cannot make it."""
    return torch.tensor(offsets(sizes), dtype=torch.int32, device=device)


def _launch(
    kernel: Any, laid: Plan, first: int, last: int, arguments: tuple[Any, ...], shape: tuple[int, ...], **constants: Any
) -> None:
    constants |= {"U": laid.units, "BT": laid.rows}
    grid = (laid.programs, laid.groups)
    if INTERPRETED:
        for s in range(first, last):
            kernel[grid](*arguments, s, s + 1, laid.programs, *shape, PERSISTENT=False, **constants)
        return
    kernel[grid](
        *arguments, first, last, laid.programs, *shape, PERSISTENT=True, launch_cooperative_grid=True, **constants
    )


def _space(count: int, groups: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Zeros for `count` exchanged numbers of 16 bits, and each group's counter of arrivals behind them."""
    space = torch.zeros(count // 2 + groups, dtype=torch.int32, device=like.device)
    return space.view(torch.float16), space[count // 2 :]


class _LSTM(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        gx: Tensor,
        h0: Tensor,
        c0: Tensor,
        w_hh: Tensor,
        z_h: Tensor | None,
        z_c: Tensor | None,
        batch_sizes: Sequence[int],
        reverse: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        batch, hidden = h0.shape
        sizes, steps = tuple(batch_sizes), len(batch_sizes)
        copies = 4 if z_h is not None and z_h.ndim == 3 else 1
        laid = _plan(batch, hidden, copies, gx.device)
        assert laid is not None
        gates, w_hh = gx.contiguous(), w_hh.contiguous()
        z_h, z_c = (None if z is None else z.contiguous() for z in (z_h, z_c))
        starts = _starts(sizes, gx.device)
        exchange, counter = _space(2 * copies * batch * laid.forward.padded, laid.groups, gx)
        h, c = h0.clone(memory_format=torch.contiguous_format), c0.clone(memory_format=torch.contiguous_format)
        out, cells = gx.new_empty(gx.shape[0], hidden), gx.new_empty(gx.shape[0], hidden)
        _launch(
            forward_kernel, laid, -1, steps,
            (gates, w_hh, z_h, z_c, starts, exchange, h, c, out, cells, counter), (steps, batch, hidden),
            REVERSE=reverse, COPIES=copies, MASKED=z_h is not None, CELL_MASK=z_c is not None,
            **laid.forward.constants,
        )  # fmt: skip
        ctx.save_for_backward(gates, h0, c0, w_hh, z_h, z_c, out, cells, starts)
        ctx.batch_sizes, ctx.reverse, ctx.plan = list(sizes), reverse, laid
        ctx.set_materialize_grads(False)
        return out, h, c

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, d_out: Tensor | None, d_h: Tensor | None, d_c: Tensor | None) -> tuple[Any, ...]:
        gates, h0, c0, w_hh, z_h, z_c, out, cells, starts = ctx.saved_tensors
        laid, sizes, reverse = ctx.plan, ctx.batch_sizes, ctx.reverse
        batch, hidden = h0.shape
        scale = _scale([d for d in (d_out, d_h, d_c) if d is not None], like=gates)
        dh = torch.zeros_like(out[:batch]) if d_h is None else d_h.clone(memory_format=torch.contiguous_format)
        dc = torch.zeros_like(out[:batch]) if d_c is None else d_c.clone(memory_format=torch.contiguous_format)
        d_gx = torch.empty_like(gates)
        exchange, counter = _space(8 * batch * laid.backward.padded, laid.groups, gates)
        d_out = None if d_out is None else d_out.contiguous()
        _launch(
            backward_kernel, laid, 0, len(sizes) + 1,
            (gates, cells, c0.contiguous(), w_hh, z_h, z_c, starts, d_out, scale, exchange, dh, dc, d_gx, counter),
            (len(sizes), batch, hidden),
            REVERSE=reverse, COPIES=4 if z_h is not None and z_h.ndim == 3 else 1, MASKED=z_h is not None,
            CELL_MASK=z_c is not None, D_OUT=d_out is not None, **laid.backward.constants,
        )  # fmt: skip
        d_w_hh = None
        if ctx.needs_input_grad[3]:
            d_w_hh = weight_gradient(d_gx, previous_rows(out, h0, sizes, reverse=reverse), z_h, sizes)
        return d_gx, dh, dc, d_w_hh, None, None, None, None


def _scale(gradients: list[Tensor], like: Tensor) -> Tensor:
    """The largest gradient that comes in: the kernel brings it to 2^6, of a range that ends at 2^16."""
    if not gradients:
        return like.new_zeros(())
    largest = [torch.linalg.vector_norm(d, ord=float("inf")) for d in gradients]
    return largest[0] if len(largest) == 1 else torch.stack(largest).amax()


def lstm(
    gx: Tensor,
    h: Tensor,
    c: Tensor,
    w_hh: Tensor,
    w_hr: Tensor | None = None,
    z_h: Tensor | None = None,
    z_c: Tensor | None = None,
    *,
    batch_sizes: Sequence[int],
    reverse: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """As `reference.lstm`, differentiable once; `gx` is used up: the gates are written over it."""
    reason = supported(
        dtype=gx.dtype,
        batch=h.shape[0],
        hidden=h.shape[1],
        projection=w_hr is not None,
        untied=z_h is not None and z_h.ndim == 3,
        device=gx.device,
    )
    if reason is not None or gx.shape[0] == 0:
        raise ValueError(f"the persistent LSTM cannot run this: {reason or 'no steps'}")
    return _LSTM.apply(gx, h, c, w_hh, z_h, z_c, batch_sizes, reverse)  # type: ignore[no-any-return]
