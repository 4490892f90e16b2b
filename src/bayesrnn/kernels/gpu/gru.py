# mypy: disable-error-code="no-untyped-def,assignment"
# ruff: noqa: RUF005, SIM102  (Triton compiles these forms, and not the others)
"""The GRU recurrence on a GPU in one launch per pass: all T steps, the recurrent weights held on chip.

It works as the LSTM's, with three gates where there are four: lstm/README.md has the method, README.md beside this
file what differs.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from bayesrnn.kernels.gpu import persistent
from bayesrnn.kernels.gpu.exchange import (
    arrive,
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
from bayesrnn.kernels.gru.reference import GRU
from bayesrnn.kernels.shared.recurrent import Layer


@triton.jit
def forward_kernel(
    gx, w, b_hn, z_h, starts, h0, exchange, h_state, out, inner, counter,
    first, last, programs, steps, B, H,
    REVERSE: tl.constexpr, COPIES: tl.constexpr, MASKED: tl.constexpr, BIAS: tl.constexpr, DRAWS: tl.constexpr,
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
        gx, out, inner = gx + draw * rows * (3 * H), out + draw * rows * H, inner + draw * rows * H
        h0, h_state = h0 + draw * B * H, h_state + draw * B * H
        w, exchange = w + draw * (3 * H) * H, exchange + draw * (2 * B) * KP
        if BIAS:
            b_hn += draw * H
    if BIAS:
        bias = tl.load(b_hn + unit, mask=unit < H, other=0.0)
    weights = weights_to_units(w, H, COPIES == 3, 3, U, KB, KP)
    if first < 0:
        for r0 in range(first_row, B, stride):
            row = r0 + tl.arange(0, BT)
            inside = (row < B)[:, None] & (unit < H)[None, :]
            state = row[:, None] * H + unit[None, :]
            h = tl.load(h0 + state, mask=inside, other=0.0)
            masks = masks_of(z_h, row, unit, inside, H, COPIES, MASKED)
            there = exchange + row[:, None] * KP + unit[None, :]
            publish(there, h, masks, inside, copy, COPIES, MASKED)
            publish(there + COPIES * copy, h, masks, inside, copy, COPIES, MASKED)  # for rows that join later
            tl.store(h_state + state, h, mask=inside)
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
            gate = gx + (start + row[:, None]) * (3 * H) + unit[None, :]
            ar = tl.load(gate, mask=inside, other=0.0)
            az = tl.load(gate + H, mask=inside, other=0.0)
            an = tl.load(gate + 2 * H, mask=inside, other=0.0)
            h = tl.load(h_state + state, mask=inside, other=0.0)
            masks = masks_of(z_h, row, unit, inside, H, COPIES, MASKED)
            if PERSISTENT:
                if r0 == first_row:
                    wait(counter, programs * (s + 1))
            pr, pz, u, _ = state_product(read, row, weights, B, COPIES == 3, 3, BT, U, KB, KP, AHEAD, PERSISTENT)
            if BIAS:
                u += bias[None, :]
            r, z = sigmoid(ar + pr), sigmoid(az + pz)
            new = tanh(an + r * u)
            h = new + z * (h - new)
            there = write + row[:, None] * KP + unit[None, :]
            publish(there, h, masks, inside, copy, COPIES, MASKED)
            if PERSISTENT:
                if r0 + stride >= B:
                    arrive(counter)
            here = (start + row[:, None]) * H + unit[None, :]
            tl.store(gate, r, mask=inside)
            tl.store(gate + H, z, mask=inside)
            tl.store(gate + 2 * H, new, mask=inside)
            tl.store(inner + here, u, mask=inside)
            tl.store(out + here, h, mask=inside)
            tl.store(h_state + state, h, mask=inside)
        tl.debug_barrier()  # another thread may read the state at the next step


@triton.jit
def _pieces(w, first, H, UNTIED: tl.constexpr, U: tl.constexpr, KB: tl.constexpr, KP: tl.constexpr):
    """(4, KB, U): weights from this program's units, columns `first`... of every piece of the exchanged gradient."""
    piece = tl.arange(0, 4)[:, None, None]
    k = first + tl.arange(0, KB)[None, :, None]
    u = tl.program_id(0) * U + tl.arange(0, U)[None, None, :]
    if UNTIED:  # one piece is one gate, the fourth is empty
        row = piece * H + k
        inside = (k < H) & (piece < 3)
    else:
        row = piece * KP + k
        inside = row < 3 * H
    return half(tl.load(w + row * H + u, mask=inside & (u < H), other=0.0))


@triton.jit
def backward_kernel(
    gates, inner, out, h0, w, z_h, starts, d_out, scale, exchange, dh_state, d_gx, d_product, counter,
    first, last, programs, steps, B, H,
    REVERSE: tl.constexpr, UNTIED: tl.constexpr, MASKED: tl.constexpr, D_OUT: tl.constexpr,
    U: tl.constexpr, BT: tl.constexpr, KB: tl.constexpr, KP: tl.constexpr, AHEAD: tl.constexpr,
    PERSISTENT: tl.constexpr,
):  # fmt: skip
    """Steps `first` to `last` in the order of the gradient; step `steps` only carries it to the initial state."""
    unit = units_of(H, U)
    first_row, stride = tl.program_id(1) * BT, tl.num_programs(1) * BT  # groups of sequences go their own ways
    counter += tl.program_id(1)
    one_set = B * 4 * KP  # numbers of the exchanged gradient; there are two sets, for even and odd steps
    apart = H  # from gate to gate of one row: they follow each other, and the row is cut into four equal pieces
    if UNTIED:
        apart = KP
    up = power_of_two(tl.load(scale))
    down = 1 / up
    weights = ()
    for k in tl.static_range(KP // KB):
        weights = weights + (_pieces(w, k * KB, H, UNTIED, U, KB, KP),)
    for s in range(first, last):
        start, n, start_before, n_before, n_after = rows_back(starts, s, steps, REVERSE)
        read = exchange + (s % 2) * one_set
        write = exchange + ((s + 1) % 2) * one_set
        for r0 in range(first_row, B, stride):
            row = r0 + tl.arange(0, BT)
            ours = (row < B)[:, None] & (unit < H)[None, :]
            inside = (row < n)[:, None] & (unit < H)[None, :]
            state = row[:, None] * H + unit[None, :]
            here = (start + row[:, None]) * H + unit[None, :]
            gate = gates + (start + row[:, None]) * (3 * H) + unit[None, :]
            r = tl.load(gate, mask=inside, other=0.0)
            z = tl.load(gate + H, mask=inside, other=0.0)
            new = tl.load(gate + 2 * H, mask=inside, other=0.0)
            u = tl.load(inner + here, mask=inside, other=0.0)
            had = inside & (row < n_before)[:, None]
            h = tl.load(out + (start_before + row[:, None]) * H + unit[None, :], mask=had, other=0.0)
            h += tl.load(h0 + state, mask=inside & (row >= n_before)[:, None], other=0.0)
            by_new = (1 - z) * (1 - new * new)
            by_u = by_new * r
            by_r, by_z = by_u * u * (1 - r), (h - new) * z * (1 - z)
            masks = masks_of(z_h, row, unit, ours, H, 3 if UNTIED else 1, MASKED)
            dh = tl.load(dh_state + state, mask=ours, other=0.0)
            dm = tl.zeros((BT, U), tl.float32)
            if D_OUT:
                dm += tl.load(d_out + here, mask=inside, other=0.0)
            if s > 0:
                if PERSISTENT:
                    if r0 == first_row:
                        wait(counter, programs * s)
                p0, p1, p2, p3 = gradient_product(read, row, weights, B, True, UNTIED, BT, U, KB, KP, AHEAD, PERSISTENT)
                if UNTIED:
                    total = p0 * masks[0] + p1 * masks[1] + p2 * masks[2]
                else:
                    total = (p0 + p1) + (p2 + p3)
                    if MASKED:
                        total = total * masks[0]
                dh += tl.where((row < n_after)[:, None], total * down, 0.0)
            dm += dh
            d_new, du, dr, dz = dm * by_new, dm * by_u, dm * by_r, dm * by_z
            there = write + row[:, None] * (4 * KP) + unit[None, :]
            tl.store(there, half(dr * up), mask=inside)
            tl.store(there + apart, half(dz * up), mask=inside)
            tl.store(there + 2 * apart, half(du * up), mask=inside)
            if PERSISTENT:
                if r0 + stride >= B:
                    arrive(counter)
            gradient = (start + row[:, None]) * (3 * H) + unit[None, :]
            tl.store(d_gx + gradient, dr, mask=inside)
            tl.store(d_gx + gradient + H, dz, mask=inside)
            tl.store(d_gx + gradient + 2 * H, d_new, mask=inside)
            tl.store(d_product + gradient, dr, mask=inside)
            tl.store(d_product + gradient + H, dz, mask=inside)
            tl.store(d_product + gradient + 2 * H, du, mask=inside)
            tl.store(dh_state + state, tl.where(inside, dm * z, dh), mask=ours)
        tl.debug_barrier()  # another thread may read the state at the next step


def _flags(layer: Layer) -> dict[str, bool]:
    return {"BIAS": layer.b_hn is not None}


def _forward(layer: Layer) -> tuple[Any, ...]:
    return persistent.forward(layer, forward_kernel, (layer.b_hn, layer.z_h), **_flags(layer))


def _backward(layer: Layer, kept: Any, h_prev: Any, d_out: Any, d_states: Any) -> tuple[Any, ...]:
    gates, inner, starts, out = kept
    d_gx, d_product = torch.empty_like(gates), torch.empty_like(gates)
    first = persistent.backward(
        layer, backward_kernel, (gates, inner, out, layer.h), (layer.z_h,), starts, d_out, d_states,
        (d_gx, d_product), UNTIED=layer.untied,
    )  # fmt: skip
    return d_gx, d_product, first, None


gru = persistent.recurrence(GRU, _forward, _backward, kernel=forward_kernel, flags=_flags)
