# mypy: disable-error-code="no-untyped-def,assignment"
# ruff: noqa: RUF005, SIM102  (Triton compiles these forms, and not the others)
"""The LSTM recurrence on a GPU in one launch per pass: all T steps, the recurrent weights held on chip.

Every program owns a few hidden units and keeps their weights in shared memory. At each step it reads the whole masked
h_{t-1} (backward: the gradient of all gates), which the programs exchange through the L2 cache, multiplies it with its
slice of the weights, and computes its units. A barrier over the grid separates the steps; the launch is cooperative,
so that all programs are resident or none is. README.md beside this file has the derivation and the measurements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from bayesrnn.kernels.gpu import persistent
from bayesrnn.kernels.gpu.persistent import (
    arrive,
    exchanged,
    exchanged_by_gate,
    from_units,
    gates_of,
    half,
    masks_of,
    now,
    power_of_two,
    publish,
    sigmoid,
    tanh,
    to_units,
    to_units_by_gate,
    units_of,
    wait,
)
from bayesrnn.kernels.lstm import reference
from bayesrnn.kernels.shared.derivatives import once_differentiable
from bayesrnn.kernels.shared.recurrent import weight_gradient
from bayesrnn.kernels.shared.rows import previous_rows
from bayesrnn.kernels.shared.tensors import Mapped, for_each, transformed


@triton.jit
def forward_kernel(
    gx, w, z_h, z_c, starts, h0, c0, exchange, h_state, c_state, out, cells, counter,
    first, last, programs, steps, B, H,
    REVERSE: tl.constexpr, COPIES: tl.constexpr, MASKED: tl.constexpr, CELL_MASK: tl.constexpr, DRAWS: tl.constexpr,
    U: tl.constexpr, BT: tl.constexpr, KB: tl.constexpr, KP: tl.constexpr, AHEAD: tl.constexpr,
    PERSISTENT: tl.constexpr,
):  # fmt: skip
    """Steps `first` to `last`; step -1 puts the masked h0 where all programs read it, and copies the initial state.

    DRAWS: every group has a draw of the weights of its own, and all B sequences.
    """
    unit = units_of(H, U)
    first_row, stride = tl.program_id(1) * BT, tl.num_programs(1) * BT  # groups of sequences go their own ways
    counter += tl.program_id(1)
    copy = B * KP  # numbers in one copy of the exchanged state; there are two sets, for even and odd steps
    if DRAWS:
        first_row, stride = 0, BT
        draw = tl.program_id(1).to(tl.int64)
        rows = tl.load(starts + steps)
        gx, out, cells = gx + draw * rows * (4 * H), out + draw * rows * H, cells + draw * rows * H
        h0, c0, h_state, c_state = h0 + draw * B * H, c0 + draw * B * H, h_state + draw * B * H, c_state + draw * B * H
        w, exchange = w + draw * (4 * H) * H, exchange + draw * (2 * B) * KP
    weights = ()
    for k in tl.static_range(KP // KB):
        if COPIES == 4:
            weights = weights + (to_units_by_gate(w, k * KB, H, 4, U, KB),)
        else:
            weights = weights + (to_units(w, k * KB, H, 4, U, KB),)
    if first < 0:
        for r0 in range(first_row, B, stride):
            row = r0 + tl.arange(0, BT)
            inside = (row < B)[:, None] & (unit < H)[None, :]
            state = row[:, None] * H + unit[None, :]
            h = tl.load(h0 + state, mask=inside, other=0.0)
            c = tl.load(c0 + state, mask=inside, other=0.0)
            masks = masks_of(z_h, row, unit, inside, H, COPIES, MASKED)
            there = exchange + row[:, None] * KP + unit[None, :]
            publish(there, h, masks, inside, copy, COPIES, MASKED)
            publish(there + COPIES * copy, h, masks, inside, copy, COPIES, MASKED)  # for rows that join later
            tl.store(h_state + state, h, mask=inside)
            tl.store(c_state + state, c, mask=inside)
        if PERSISTENT:
            arrive(counter)
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
            masks = masks_of(z_h, row, unit, inside, H, COPIES, MASKED)
            if CELL_MASK:
                cell_mask = tl.load(z_c + state, mask=inside, other=0.0)
            if PERSISTENT:
                if r0 == first_row:
                    wait(counter, programs * (s + 1))
            if COPIES == 4:
                ahead = ()
                for k in tl.static_range(AHEAD):
                    ahead = ahead + (exchanged_by_gate(read, row, k * KB, B, 4, KP, KB),)
                p3 = tl.zeros((4, BT, U), tl.float32)
                for k in tl.static_range(KP // KB):
                    if (k + AHEAD) * KB < KP:
                        ahead = ahead + (exchanged_by_gate(read, row, (k + AHEAD) * KB, B, 4, KP, KB),)
                    p3 = tl.dot(now(ahead[k], PERSISTENT), weights[k], p3)
                p = tl.reshape(tl.permute(p3, (1, 2, 0)), (BT, 4 * U))
            else:
                ahead = ()
                for k in tl.static_range(AHEAD):
                    ahead = ahead + (exchanged(read, row, k * KB, B, KP, KB),)
                p = tl.zeros((BT, 4 * U), tl.float32)
                for k in tl.static_range(KP // KB):
                    if (k + AHEAD) * KB < KP:
                        ahead = ahead + (exchanged(read, row, (k + AHEAD) * KB, B, KP, KB),)
                    p = tl.dot(now(ahead[k], PERSISTENT), weights[k], p)
            pi, pf, pg, po = gates_of(p, BT, U)
            i, f, g, o = sigmoid(ai + pi), sigmoid(af + pf), tanh(ag + pg), sigmoid(ao + po)
            c = f * c + i * g
            if CELL_MASK:
                c = c * cell_mask
            m = o * tanh(c)
            there = write + row[:, None] * KP + unit[None, :]
            publish(there, m, masks, inside, copy, COPIES, MASKED)
            if PERSISTENT:
                if r0 + stride >= B:
                    arrive(counter)
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
    unit = units_of(H, U)
    first_row, stride = tl.program_id(1) * BT, tl.num_programs(1) * BT  # groups of sequences go their own ways
    counter += tl.program_id(1)
    copy = B * KP  # numbers per gate in the exchanged gradient; there are two sets, for even and odd steps
    up = power_of_two(tl.load(scale))
    down = 1 / up
    weights = ()
    for k in tl.static_range(KP // KB):
        weights = weights + (from_units(w, k * KB, H, 4, U, KB),)
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
            q = tanh(tl.load(cells + here, mask=inside, other=0.0))
            had = inside & (row < n_before)[:, None]
            c = tl.load(cells + (start_before + row[:, None]) * H + unit[None, :], mask=had, other=0.0)
            c += tl.load(c0 + state, mask=inside & (row >= n_before)[:, None], other=0.0)
            dh = tl.load(dh_state + state, mask=ours, other=0.0)
            dc = tl.load(dc_state + state, mask=ours, other=0.0)
            masks = masks_of(z_h, row, unit, ours, H, COPIES, MASKED)
            dm = tl.zeros((BT, U), tl.float32)
            if D_OUT:
                dm += tl.load(d_out + here, mask=inside, other=0.0)
            if CELL_MASK:
                cell_mask = tl.load(z_c + state, mask=inside, other=0.0)
            if s > 0:
                if PERSISTENT:
                    if r0 == first_row:
                        wait(counter, programs * s)
                ahead = ()
                for k in tl.static_range(AHEAD):
                    ahead = ahead + (exchanged_by_gate(read, row, k * KB, B, 4, KP, KB),)
                p = tl.zeros((4, BT, U), tl.float32)
                for k in tl.static_range(KP // KB):
                    if (k + AHEAD) * KB < KP:
                        ahead = ahead + (exchanged_by_gate(read, row, (k + AHEAD) * KB, B, 4, KP, KB),)
                    p = tl.dot(now(ahead[k], PERSISTENT), weights[k], p)
                pi, pf, pg, po = gates_of(tl.reshape(tl.permute(p, (1, 2, 0)), (BT, 4 * U)), BT, U)
                if COPIES == 4:
                    total = (pi * masks[0] + pf * masks[1]) + (pg * masks[2] + po * masks[3])
                else:
                    total = (pi + pf) + (pg + po)
                    if MASKED:
                        total = total * masks[0]
                dh = tl.where((row < n_after)[:, None], total * down, dh)
            dm += dh
            dq = dc + dm * o * (1 - q * q)
            if CELL_MASK:
                dq = dq * cell_mask
            di = dq * g * i * (1 - i)
            df = dq * c * f * (1 - f)
            dg = dq * i * (1 - g * g)
            do = dm * q * o * (1 - o)
            there = write + row[:, None] * KP + unit[None, :]
            tl.store(there, half(di * up), mask=inside)
            tl.store(there + copy, half(df * up), mask=inside)
            tl.store(there + 2 * copy, half(dg * up), mask=inside)
            tl.store(there + 3 * copy, half(do * up), mask=inside)
            if PERSISTENT:
                if r0 + stride >= B:
                    arrive(counter)
            gradient = d_gx + (start + row[:, None]) * (4 * H) + unit[None, :]
            tl.store(gradient, di, mask=inside)
            tl.store(gradient + H, df, mask=inside)
            tl.store(gradient + 2 * H, dg, mask=inside)
            tl.store(gradient + 3 * H, do, mask=inside)
            tl.store(dc_state + state, tl.where(inside, dq * f, dc), mask=ours)
            tl.store(dh_state + state, dh, mask=ours)
        tl.debug_barrier()  # another thread may read the state at the next step


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
        laid = persistent.plan_of(h0, z_h, gates=4)
        gates, w_hh = gx.contiguous(), w_hh.contiguous()
        z_h, z_c = (None if z is None else z.contiguous() for z in (z_h, z_c))
        starts = persistent.starts_of(sizes, gx.device)
        exchange, counter = persistent.space(2 * copies * batch * laid.forward.padded, laid.groups, gx)
        h, c = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (h0, c0))
        out, cells = gx.new_empty(gx.shape[0], hidden), gx.new_empty(gx.shape[0], hidden)
        persistent.launch(
            forward_kernel, laid, -1, steps,
            (gates, w_hh, z_h, z_c, starts, h0.contiguous(), c0.contiguous(), exchange, h, c, out, cells, counter),
            (steps, batch, hidden),
            REVERSE=reverse, COPIES=copies, MASKED=z_h is not None, CELL_MASK=z_c is not None, DRAWS=False,
            **laid.forward.constants,
        )  # fmt: skip
        ctx.save_for_backward(gates, h0, c0, w_hh, z_h, z_c, out, cells, starts)
        ctx.batch_sizes, ctx.reverse, ctx.plan = list(sizes), reverse, laid
        ctx.set_materialize_grads(False)
        return out, h, c

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor | None, d_h: Tensor | None, d_c: Tensor | None) -> tuple[Any, ...]:
        gates, h0, c0, w_hh, z_h, z_c, out, cells, starts = ctx.saved_tensors
        laid, sizes, reverse = ctx.plan, ctx.batch_sizes, ctx.reverse
        batch, hidden = h0.shape
        scale = persistent.scale_of([d_out, d_h, d_c], like=gates)
        d_gx = torch.empty_like(gates)
        exchange, counter, dh, dc = persistent.space(8 * batch * laid.backward.padded, laid.groups, h0, d_h, d_c)
        d_out = None if d_out is None else d_out.contiguous()
        persistent.launch(
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


def _draws(count: int, tensors: Sequence[Any], *, sizes: Sequence[int], reverse: bool) -> tuple[Tensor, ...]:
    """The recurrence with `count` draws of the weights, as many at a time as fit on the chip; without masks."""
    gx, h0, c0, w = (for_each(t, count) for t in tensors)
    batch, hidden, steps = h0.shape[1], h0.shape[2], len(sizes)
    laid = persistent.plan_of_draws(batch, hidden, **persistent.limits(gx.device))
    each = 2 * batch * laid.forward.padded
    exchange, counter = persistent.space(count * each, count, gx)
    h, c = torch.empty_like(h0), torch.empty_like(c0)
    out, cells = (gx.new_empty(*gx.shape[:2], hidden) for _ in range(2))
    starts = persistent.starts_of(tuple(sizes), gx.device)
    for at in range(0, count, laid.groups):
        part = slice(at, at + laid.groups)
        own = [t[part] for t in (gx, w, h0, c0, h, c, out, cells)]
        persistent.launch(
            forward_kernel, replace(laid, groups=own[0].shape[0]), -1, steps,
            (own[0], own[1], None, None, starts, own[2], own[3], exchange[at * each :], *own[4:], counter[at:]),
            (steps, batch, hidden),
            REVERSE=reverse, COPIES=1, MASKED=False, CELL_MASK=False, DRAWS=True, **laid.forward.constants,
        )  # fmt: skip
    return out, h, c


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
    reason = persistent.supported(
        gates=4,
        dtype=gx.dtype,
        batch=h.shape[0],
        hidden=h.shape[1],
        rows=gx.shape[0],
        projection=w_hr is not None,
        untied=z_h is not None and z_h.ndim == 3,
        device=gx.device,
    )
    if reason is not None or gx.shape[0] == 0:
        raise ValueError(f"the persistent LSTM cannot run this: {reason or 'no steps'}")
    if transformed():
        if z_h is not None or z_c is not None or torch.is_grad_enabled():
            return reference.lstm(gx, h, c, w_hh, w_hr, z_h, z_c, batch_sizes=batch_sizes, reverse=reverse)
        run = partial(_draws, sizes=batch_sizes, reverse=reverse)
        return Mapped.apply(run, gx, h, c, w_hh)  # type: ignore[no-any-return]
    return _LSTM.apply(gx, h, c, w_hh, z_h, z_c, batch_sizes, reverse)  # type: ignore[no-any-return]
