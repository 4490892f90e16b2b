"""The LSTM recurrence on a GPU in one launch per pass: all T steps, the recurrent weights held on chip.

Every program owns a few hidden units. At each step it reads the whole masked h_{t-1} (backward: the gradient of all
gates), which the programs exchange through the L2 cache, multiplies it with its slice of the weights, and computes its
units. A barrier over the grid separates the steps; the launch is cooperative, so that all programs are resident or
none is. README.md beside this file has the derivation and the measurements.
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
_SHARED_MEMORY = 200_000
MAX_BATCH = 32  # above, cuBLAS fills the chip better step by step


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
def _to_units(w, gate, first, unit, H, CHUNKS: tl.constexpr, K: tl.constexpr):
    """(CHUNKS, K, U): weights from hidden units k, from `first` on, to one gate of this program's units."""
    k = first + tl.arange(0, CHUNKS)[:, None, None] * K + tl.arange(0, K)[None, :, None]
    u = unit[None, None, :]
    return tl.load(w + (gate * H + u) * H + k, mask=(k < H) & (u < H), other=0.0)


@triton.jit
def _from_units(w, gate, first, unit, H, CHUNKS: tl.constexpr, K: tl.constexpr):
    """(CHUNKS, K, U): weights by which this program's units enter one gate of units k, from `first` on."""
    k = first + tl.arange(0, CHUNKS)[:, None, None] * K + tl.arange(0, K)[None, :, None]
    u = unit[None, None, :]
    return tl.load(w + (gate * H + k) * H + u, mask=(k < H) & (u < H), other=0.0)


@triton.jit
def _exchanged(exchange, row, first, B, KP: tl.constexpr, CHUNKS: tl.constexpr, K: tl.constexpr):
    """(CHUNKS, BT, K): what all programs wrote for these rows of the batch, columns from `first` on."""
    k = first + tl.arange(0, CHUNKS)[:, None, None] * K + tl.arange(0, K)[None, None, :]
    r = row[None, :, None]
    # from L2: a line in L1 may be older than the barrier
    return tl.load(exchange + r * KP + k, mask=r < B, other=0.0, cache_modifier=".cg")


@triton.jit
def forward_kernel(
    gx, w, z_h, z_c, starts, exchange, h_state, c_state, out, cells, counter,
    first, last, programs, steps, B, H,
    REVERSE: tl.constexpr, COPIES: tl.constexpr, MASKED: tl.constexpr, CELL_MASK: tl.constexpr,
    U: tl.constexpr, BT: tl.constexpr, CHUNKS: tl.constexpr, K0: tl.constexpr, K1: tl.constexpr, KP: tl.constexpr,
    RESIDENT: tl.constexpr, PERSISTENT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Steps `first` to `last`; step -1 puts the masked initial state where all programs read it."""
    unit = tl.program_id(0) * U + tl.arange(0, U)
    copy = B * KP  # numbers in one copy of the exchanged state; there are two sets, for even and odd steps
    if RESIDENT:
        wi0 = _to_units(w, 0, 0, unit, H, CHUNKS, K0)
        wf0 = _to_units(w, 1, 0, unit, H, CHUNKS, K0)
        wg0 = _to_units(w, 2, 0, unit, H, CHUNKS, K0)
        wo0 = _to_units(w, 3, 0, unit, H, CHUNKS, K0)
        if K1 > 0:
            wi1 = _to_units(w, 0, CHUNKS * K0, unit, H, CHUNKS, K1)
            wf1 = _to_units(w, 1, CHUNKS * K0, unit, H, CHUNKS, K1)
            wg1 = _to_units(w, 2, CHUNKS * K0, unit, H, CHUNKS, K1)
            wo1 = _to_units(w, 3, CHUNKS * K0, unit, H, CHUNKS, K1)
    if first < 0:
        for r0 in range(0, B, BT):
            row = r0 + tl.arange(0, BT)
            inside = (row < B)[:, None] & (unit < H)[None, :]
            h = tl.load(h_state + row[:, None] * H + unit[None, :], mask=inside, other=0.0)
            for k in tl.static_range(COPIES):
                m = h
                if MASKED:
                    m = h * tl.load(z_h + (row[:, None] * COPIES + k) * H + unit[None, :], mask=inside, other=0.0)
                there = exchange + k * copy + row[:, None] * KP + unit[None, :]
                tl.store(there, m, mask=inside)
                tl.store(there + COPIES * copy, m, mask=inside)
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
        for r0 in range(0, B, BT):
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
                if r0 == 0:
                    _wait(counter, programs * (s + 1))
            if RESIDENT:
                h = _exchanged(read, row, 0, B, KP, CHUNKS, K0)
                pi = tl.dot(h, wi0, input_precision=PRECISION)
                if COPIES == 4:
                    h = _exchanged(read + copy, row, 0, B, KP, CHUNKS, K0)
                pf = tl.dot(h, wf0, input_precision=PRECISION)
                if COPIES == 4:
                    h = _exchanged(read + 2 * copy, row, 0, B, KP, CHUNKS, K0)
                pg = tl.dot(h, wg0, input_precision=PRECISION)
                if COPIES == 4:
                    h = _exchanged(read + 3 * copy, row, 0, B, KP, CHUNKS, K0)
                po = tl.dot(h, wo0, input_precision=PRECISION)
                if K1 > 0:
                    h = _exchanged(read, row, CHUNKS * K0, B, KP, CHUNKS, K1)
                    pi = tl.dot(h, wi1, pi, input_precision=PRECISION)
                    if COPIES == 4:
                        h = _exchanged(read + copy, row, CHUNKS * K0, B, KP, CHUNKS, K1)
                    pf = tl.dot(h, wf1, pf, input_precision=PRECISION)
                    if COPIES == 4:
                        h = _exchanged(read + 2 * copy, row, CHUNKS * K0, B, KP, CHUNKS, K1)
                    pg = tl.dot(h, wg1, pg, input_precision=PRECISION)
                    if COPIES == 4:
                        h = _exchanged(read + 3 * copy, row, CHUNKS * K0, B, KP, CHUNKS, K1)
                    po = tl.dot(h, wo1, po, input_precision=PRECISION)
            else:
                pi = tl.zeros((CHUNKS, BT, U), tl.float32)
                pf = tl.zeros((CHUNKS, BT, U), tl.float32)
                pg = tl.zeros((CHUNKS, BT, U), tl.float32)
                po = tl.zeros((CHUNKS, BT, U), tl.float32)
                for k in range(0, KP, CHUNKS * K0):
                    h = _exchanged(read, row, k, B, KP, CHUNKS, K0)
                    pi = tl.dot(h, _to_units(w, 0, k, unit, H, CHUNKS, K0), pi, input_precision=PRECISION)
                    if COPIES == 4:
                        h = _exchanged(read + copy, row, k, B, KP, CHUNKS, K0)
                    pf = tl.dot(h, _to_units(w, 1, k, unit, H, CHUNKS, K0), pf, input_precision=PRECISION)
                    if COPIES == 4:
                        h = _exchanged(read + 2 * copy, row, k, B, KP, CHUNKS, K0)
                    pg = tl.dot(h, _to_units(w, 2, k, unit, H, CHUNKS, K0), pg, input_precision=PRECISION)
                    if COPIES == 4:
                        h = _exchanged(read + 3 * copy, row, k, B, KP, CHUNKS, K0)
                    po = tl.dot(h, _to_units(w, 3, k, unit, H, CHUNKS, K0), po, input_precision=PRECISION)
            i = _sigmoid(ai + tl.sum(pi, axis=0))
            f = _sigmoid(af + tl.sum(pf, axis=0))
            g = _tanh(ag + tl.sum(pg, axis=0))
            o = _sigmoid(ao + tl.sum(po, axis=0))
            c = f * c + i * g
            if CELL_MASK:
                c = c * tl.load(z_c + state, mask=inside, other=0.0)
            m = o * _tanh(c)
            for k in tl.static_range(COPIES):
                x = m
                if MASKED:
                    x = m * tl.load(z_h + (row[:, None] * COPIES + k) * H + unit[None, :], mask=inside, other=0.0)
                tl.store(write + k * copy + row[:, None] * KP + unit[None, :], x, mask=inside)
            if PERSISTENT:
                if r0 + BT >= B:
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
    gates, cells, c0, w, z_h, z_c, starts, d_out, exchange, dh_state, dc_state, d_gx, counter,
    first, last, programs, steps, B, H,
    REVERSE: tl.constexpr, COPIES: tl.constexpr, MASKED: tl.constexpr, CELL_MASK: tl.constexpr, D_OUT: tl.constexpr,
    U: tl.constexpr, BT: tl.constexpr, CHUNKS: tl.constexpr, K0: tl.constexpr, K1: tl.constexpr, KP: tl.constexpr,
    RESIDENT: tl.constexpr, PERSISTENT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Steps `first` to `last` in the order of the gradient; step `steps` only carries it to the initial state."""
    unit = tl.program_id(0) * U + tl.arange(0, U)
    copy = B * KP  # numbers per gate in the exchanged gradient; there are two sets, for even and odd steps
    if RESIDENT:
        wi0 = _from_units(w, 0, 0, unit, H, CHUNKS, K0)
        wf0 = _from_units(w, 1, 0, unit, H, CHUNKS, K0)
        wg0 = _from_units(w, 2, 0, unit, H, CHUNKS, K0)
        wo0 = _from_units(w, 3, 0, unit, H, CHUNKS, K0)
        if K1 > 0:
            wi1 = _from_units(w, 0, CHUNKS * K0, unit, H, CHUNKS, K1)
            wf1 = _from_units(w, 1, CHUNKS * K0, unit, H, CHUNKS, K1)
            wg1 = _from_units(w, 2, CHUNKS * K0, unit, H, CHUNKS, K1)
            wo1 = _from_units(w, 3, CHUNKS * K0, unit, H, CHUNKS, K1)
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
        for r0 in range(0, B, BT):
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
                    if r0 == 0:
                        _wait(counter, programs * s)
                total = tl.zeros((BT, U), tl.float32)
                p = tl.zeros((CHUNKS, BT, U), tl.float32)
                for k in tl.static_range(4):
                    if RESIDENT:
                        e = _exchanged(read + k * copy, row, 0, B, KP, CHUNKS, K0)
                        w0 = wi0 if k == 0 else wf0 if k == 1 else wg0 if k == 2 else wo0
                        p = tl.dot(e, w0, p, input_precision=PRECISION)
                        if K1 > 0:
                            e = _exchanged(read + k * copy, row, CHUNKS * K0, B, KP, CHUNKS, K1)
                            w1 = wi1 if k == 0 else wf1 if k == 1 else wg1 if k == 2 else wo1
                            p = tl.dot(e, w1, p, input_precision=PRECISION)
                    else:
                        for b in range(0, KP, CHUNKS * K0):
                            e = _exchanged(read + k * copy, row, b, B, KP, CHUNKS, K0)
                            p = tl.dot(e, _from_units(w, k, b, unit, H, CHUNKS, K0), p, input_precision=PRECISION)
                    if COPIES == 4:
                        z = tl.load(z_h + (row[:, None] * 4 + k) * H + unit[None, :], mask=ours, other=0.0)
                        total += tl.sum(p, axis=0) * z
                        p = tl.zeros((CHUNKS, BT, U), tl.float32)
                if COPIES == 1:
                    total = tl.sum(p, axis=0)
                    if MASKED:
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
            tl.store(there, di, mask=inside)
            tl.store(there + copy, df, mask=inside)
            tl.store(there + 2 * copy, dg, mask=inside)
            tl.store(there + 3 * copy, do, mask=inside)
            if PERSISTENT:
                if r0 + BT >= B:
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
class Plan:
    """How one layer is laid out on the device."""

    units: int
    programs: int
    rows: int
    warps: int
    k0: int
    k1: int
    blocks: int
    resident: bool

    @property
    def padded(self) -> int:
        """Columns of the exchanged state: H, and zeros up to a whole number of tiles."""
        return self.warps * (self.k0 + self.k1) * self.blocks


def _power_of_two(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


@functools.cache
def plan(batch: int, hidden: int, processors: int) -> Plan:
    """Units per program, so that the grid is resident at once; the products' k is split over the warps of a program."""
    units = 8
    while -(-hidden // units) > processors:
        units *= 2
    warps = 8 if hidden > 128 else 4
    k0 = max(16, 1 << (max(1, hidden // warps).bit_length() - 1))
    rest = hidden - warps * k0
    k1 = 0 if rest <= 0 else max(16, _power_of_two(-(-rest // warps)))
    rows = 16 if batch <= 16 else 32
    # shared memory: the weights of four gates, and the larger part of the exchanged state
    resident = 4 * warps * (4 * units * (k0 + k1) + rows * k0) <= _SHARED_MEMORY
    if not resident:
        k0, k1 = 16, 0
    return Plan(units, -(-hidden // units), rows, warps, k0, k1, -(-hidden // (warps * (k0 + k1))), resident)


def supported(
    *, dtype: torch.dtype, batch: int, hidden: int, projection: bool = False, device: torch.device | None = None
) -> str | None:
    """None, or why this recurrence cannot run here."""
    if dtype != torch.float32:
        return f"it computes in float32, not {dtype}"
    if projection:
        return "it has no projections"
    if batch > MAX_BATCH:
        return f"a batch of {batch} is larger than {MAX_BATCH}, where single steps fill the chip better"
    if device is None or device.type != "cuda":
        return None if INTERPRETED else "it needs a CUDA device"
    if torch.cuda.get_device_capability(device)[0] < 8:
        return "it needs compute capability 8.0 or newer"
    return None


def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


def _precision() -> str:
    return "ieee" if INTERPRETED else "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"


@functools.lru_cache(maxsize=64)
def _starts(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """The first row of each step, and the number of rows, on the device; kept, since a graph cannot make it."""
    return torch.tensor(offsets(sizes), dtype=torch.int32, device=device)


def _launch(kernel: Any, laid: Plan, first: int, last: int, arguments: tuple[Any, ...], shape: tuple[int, ...], **constants: Any) -> None:
    options: dict[str, Any] = {
        "U": laid.units, "BT": laid.rows, "CHUNKS": laid.warps, "K0": laid.k0, "K1": laid.k1, "KP": laid.padded,
        "RESIDENT": laid.resident, "PRECISION": _precision(), "num_warps": laid.warps, **constants,
    }  # fmt: skip
    if INTERPRETED:
        for s in range(first, last):
            kernel[(laid.programs,)](*arguments, s, s + 1, laid.programs, *shape, PERSISTENT=False, **options)
        return
    kernel[(laid.programs,)](
        *arguments, first, last, laid.programs, *shape, PERSISTENT=True, launch_cooperative_grid=True, **options
    )


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
        laid = plan(batch, hidden, _processors(gx.device))
        gates, w_hh = gx.contiguous(), w_hh.contiguous()
        z_h, z_c = (None if z is None else z.contiguous() for z in (z_h, z_c))
        copies = 4 if z_h is not None and z_h.ndim == 3 else 1
        starts = _starts(sizes, gx.device)
        # the exchanged state twice, and the barrier's counter
        space = gx.new_zeros(2 * copies * batch * laid.padded + 1)
        h, c = h0.clone(memory_format=torch.contiguous_format), c0.clone(memory_format=torch.contiguous_format)
        out, cells = gx.new_empty(gx.shape[0], hidden), gx.new_empty(gx.shape[0], hidden)
        counter = space[-1:].view(torch.int32)
        _launch(
            forward_kernel, laid, -1, steps,
            (gates, w_hh, z_h, z_c, starts, space, h, c, out, cells, counter), (steps, batch, hidden),
            REVERSE=reverse, COPIES=copies, MASKED=z_h is not None, CELL_MASK=z_c is not None,
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
        dh = torch.zeros_like(out[:batch]) if d_h is None else d_h.clone(memory_format=torch.contiguous_format)
        dc = torch.zeros_like(out[:batch]) if d_c is None else d_c.clone(memory_format=torch.contiguous_format)
        d_gx = torch.empty_like(gates)
        space = gates.new_zeros(8 * batch * laid.padded + 1)
        counter = space[-1:].view(torch.int32)
        d_out = None if d_out is None else d_out.contiguous()
        _launch(
            backward_kernel, laid, 0, len(sizes) + 1,
            (gates, cells, c0.contiguous(), w_hh, z_h, z_c, starts, d_out, space, dh, dc, d_gx, counter),
            (len(sizes), batch, hidden),
            REVERSE=reverse, COPIES=4 if z_h is not None and z_h.ndim == 3 else 1, MASKED=z_h is not None,
            CELL_MASK=z_c is not None, D_OUT=d_out is not None,
        )  # fmt: skip
        d_w_hh = None
        if ctx.needs_input_grad[3]:
            d_w_hh = weight_gradient(d_gx, previous_rows(out, h0, sizes, reverse=reverse), z_h, sizes)
        return d_gx, dh, dc, d_w_hh, None, None, None, None


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
        dtype=gx.dtype, batch=h.shape[0], hidden=h.shape[1], projection=w_hr is not None, device=gx.device
    )
    if reason is not None or gx.shape[0] == 0:
        raise ValueError(f"the persistent LSTM cannot run this: {reason or 'no steps'}")
    return _LSTM.apply(gx, h, c, w_hh, z_h, z_c, batch_sizes, reverse)  # type: ignore[no-any-return]
