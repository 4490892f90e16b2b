# mypy: disable-error-code="no-untyped-def,assignment"
# ruff: noqa: RUF005, SIM102  (Triton compiles these forms, and not the others)
"""The LSTM recurrence on a GPU in one launch per pass: all T steps, the recurrent weights held on chip.

Every program owns a few hidden units and keeps their weights in shared memory. At each step it reads the whole masked
h_{t-1} (backward: the gradient of all gates), which the programs exchange through the L2 cache, multiplies it with its
slice of the weights, and computes its units. A barrier over the grid separates the steps; the launch is cooperative,
so that all programs are resident or none is. README.md beside this file has the derivation and the measurements.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from bayesrnn.kernels.gpu import persistent
from bayesrnn.kernels.gpu.exchange import (
    arrive,
    from_units,
    gradient_product,
    half,
    masks_of,
    power_of_two,
    publish,
    rows_back,
    sigmoid,
    state_product,
    tanh,
    units_of,
    wait,
    weights_to_units,
)
from bayesrnn.kernels.lstm.reference import LSTM
from bayesrnn.kernels.shared.recurrent import Layer


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
    weights = weights_to_units(w, H, COPIES == 4, 4, U, KB, KP)
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
            pi, pf, pg, po = state_product(read, row, weights, B, COPIES == 4, 4, BT, U, KB, KP, AHEAD, PERSISTENT)
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
        start, n, start_before, n_before, n_after = rows_back(starts, s, steps, REVERSE)
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
                pi, pf, pg, po = gradient_product(read, row, weights, B, False, False, BT, U, KB, KP, AHEAD, PERSISTENT)
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


def _flags(layer: Layer) -> dict[str, bool]:
    return {"CELL_MASK": layer.z_c is not None}


def _forward(layer: Layer) -> tuple[Any, ...]:
    return persistent.forward(layer, forward_kernel, (layer.z_h, layer.z_c), **_flags(layer))


def _backward(layer: Layer, kept: Any, h_prev: Any, d_out: Any, d_states: Any) -> tuple[Any, ...]:
    gates, cells, starts, _ = kept
    d_gx = torch.empty_like(gates)
    first = persistent.backward(
        layer, backward_kernel, (gates, cells, layer.c), (layer.z_h, layer.z_c), starts, d_out, d_states, (d_gx,),
        COPIES=4 if layer.untied else 1, **_flags(layer),
    )  # fmt: skip
    return d_gx, d_gx, first, None


lstm = persistent.recurrence(LSTM, _forward, _backward, kernel=forward_kernel, flags=_flags)
