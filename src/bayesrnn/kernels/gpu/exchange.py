# mypy: disable-error-code="no-untyped-def,assignment"
# ruff: noqa: RUF005  (Triton compiles this form, and not the other)
"""What the recurrences that run in one launch do on the chip: the barrier, the exchange through L2, the products.

`gpu/lstm.py` and `gpu/gru.py` are built from these pieces; lstm/README.md has the derivation.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def arrive(counter):
    tl.debug_barrier()
    tl.atomic_add(counter, 1, sem="release", scope="gpu")


@triton.jit
def wait(counter, target):
    while tl.atomic_add(counter, 0, sem="acquire", scope="gpu") < target:
        pass


@triton.jit
def sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit
def tanh(x):
    return 2 / (1 + tl.exp(-2 * x)) - 1


@triton.jit
def half(x):
    """Round to 16 bits with a 10-bit mantissa, as TF32 has. Overflow saturates; NaN stays NaN."""
    x = tl.maximum(x, -65504.0, propagate_nan=tl.PropagateNan.ALL)
    return tl.minimum(x, 65504.0, propagate_nan=tl.PropagateNan.ALL).to(tl.float16)


@triton.jit
def power_of_two(largest):
    """What brings gradients of up to `largest` into the range of 16 bits; NaN stays NaN."""
    return tl.where(largest > 0, tl.exp2(6 - tl.ceil(tl.log2(tl.maximum(largest, 1e-30)))), 1 + 0 * largest)


@triton.jit
def units_of(H, U: tl.constexpr):
    """The hidden units of this program.

    With a zero that the compiler does not know: where H makes some addresses aligned and others not, their loads and
    stores had different layouts, and numbers went from thread to thread through shared memory between them.
    """
    return tl.program_id(0) * U + tl.arange(0, U) + H * tl.program_id(2)


@triton.jit
def masks_of(z_h, row, unit, inside, H, COPIES: tl.constexpr, MASKED: tl.constexpr):
    """The masks (BT, U) of these rows and units: of every gate, or one for all; none where there are none."""
    masks = ()
    if MASKED:
        for k in tl.static_range(COPIES):
            place = (row[:, None] * COPIES + k) * H + unit[None, :]
            masks = masks + (tl.load(z_h + place, mask=inside, other=0.0),)
    return masks


@triton.jit
def publish(there, h, masks, inside, copy, COPIES: tl.constexpr, MASKED: tl.constexpr):
    """Put the masked h where all programs read it at the next step, one copy per mask."""
    for k in tl.static_range(COPIES):
        if MASKED:
            tl.store(there + k * copy, half(h * masks[k]), mask=inside)
        else:
            tl.store(there, half(h), mask=inside)


@triton.jit
def gates_of(side_by_side, BT: tl.constexpr, U: tl.constexpr):
    """(BT, 4 U) with the gates of one unit side by side, to four of (BT, U) each."""
    even, odd = tl.split(tl.reshape(side_by_side, (BT, U, 2, 2)))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def to_units(w, first, H, GATES: tl.constexpr, U: tl.constexpr, KB: tl.constexpr):
    """(KB, 4 U): weights from hidden units `first`... to the gates of this program's units, gates side by side."""
    k = first + tl.arange(0, KB)[:, None]
    column = tl.arange(0, 4 * U)[None, :]
    gate, u = column % 4, tl.program_id(0) * U + column // 4
    return half(tl.load(w + (gate * H + u) * H + k, mask=(k < H) & (u < H) & (gate < GATES), other=0.0))


@triton.jit
def to_units_by_gate(w, first, H, GATES: tl.constexpr, U: tl.constexpr, KB: tl.constexpr):
    """(4, KB, U): the same weights, gate by gate."""
    gate = tl.arange(0, 4)[:, None, None]
    k = first + tl.arange(0, KB)[None, :, None]
    u = tl.program_id(0) * U + tl.arange(0, U)[None, None, :]
    return half(tl.load(w + (gate * H + u) * H + k, mask=(k < H) & (u < H) & (gate < GATES), other=0.0))


@triton.jit
def from_units(w, first, H, GATES: tl.constexpr, U: tl.constexpr, KB: tl.constexpr):
    """(4, KB, U): weights from this program's units to each gate of hidden units `first`..."""
    gate = tl.arange(0, 4)[:, None, None]
    k = first + tl.arange(0, KB)[None, :, None]
    u = tl.program_id(0) * U + tl.arange(0, U)[None, None, :]
    return half(tl.load(w + (gate * H + k) * H + u, mask=(k < H) & (u < H) & (gate < GATES), other=0.0))


@triton.jit
def exchanged(exchange, row, first, B, KP: tl.constexpr, KB: tl.constexpr):
    """(BT, KB): what all programs wrote for these rows, columns `first`...; from L2, as L1 may be out of date."""
    r, k = row[:, None], first + tl.arange(0, KB)[None, :]
    return tl.load(exchange + r * KP + k, mask=r < B, other=0.0, cache_modifier=".cg")


@triton.jit
def exchanged_by_gate(exchange, row, first, B, GATES: tl.constexpr, KP: tl.constexpr, KB: tl.constexpr):
    """(4, BT, KB): the same of one copy per gate."""
    gate = tl.arange(0, 4)[:, None, None]
    r, k = row[None, :, None], first + tl.arange(0, KB)[None, None, :]
    mask = r < B
    if GATES < 4:
        mask = mask & (gate < GATES)
    return tl.load(exchange + (gate * B + r) * KP + k, mask=mask, other=0.0, cache_modifier=".cg")


@triton.jit
def now(x, PERSISTENT: tl.constexpr):
    """`x`, needed from here on: the compiler would store it in shared memory, and so wait, where it is loaded."""
    if PERSISTENT:
        x = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=tl.float16, is_pure=False, pack=2)
    return x


@triton.jit
def weights_to_units(
    w, H, BY_GATE: tl.constexpr, GATES: tl.constexpr, U: tl.constexpr, KB: tl.constexpr, KP: tl.constexpr
):
    """All weights to this program's units, block by block."""
    weights = ()
    for k in tl.static_range(KP // KB):
        if BY_GATE:
            weights = weights + (to_units_by_gate(w, k * KB, H, GATES, U, KB),)
        else:
            weights = weights + (to_units(w, k * KB, H, GATES, U, KB),)
    return weights


@triton.jit
def state_product(
    read, row, weights, B, BY_GATE: tl.constexpr, GATES: tl.constexpr, BT: tl.constexpr, U: tl.constexpr,
    KB: tl.constexpr, KP: tl.constexpr, AHEAD: tl.constexpr, PERSISTENT: tl.constexpr,
):  # fmt: skip
    """Four of (BT, U): the exchanged state of these rows times the weights of each gate."""
    ahead = ()
    if BY_GATE:
        for k in tl.static_range(AHEAD):
            ahead = ahead + (exchanged_by_gate(read, row, k * KB, B, GATES, KP, KB),)
        p3 = tl.zeros((4, BT, U), tl.float32)
        for k in tl.static_range(KP // KB):
            if (k + AHEAD) * KB < KP:
                ahead = ahead + (exchanged_by_gate(read, row, (k + AHEAD) * KB, B, GATES, KP, KB),)
            p3 = tl.dot(now(ahead[k], PERSISTENT), weights[k], p3)
        p = tl.reshape(tl.permute(p3, (1, 2, 0)), (BT, 4 * U))
    else:
        for k in tl.static_range(AHEAD):
            ahead = ahead + (exchanged(read, row, k * KB, B, KP, KB),)
        p = tl.zeros((BT, 4 * U), tl.float32)
        for k in tl.static_range(KP // KB):
            if (k + AHEAD) * KB < KP:
                ahead = ahead + (exchanged(read, row, (k + AHEAD) * KB, B, KP, KB),)
            p = tl.dot(now(ahead[k], PERSISTENT), weights[k], p)
    return gates_of(p, BT, U)


@triton.jit
def exchanged_pieces(exchange, row, first, B, UNTIED: tl.constexpr, KP: tl.constexpr, KB: tl.constexpr):
    """(4, BT, KB): the gradient that all programs wrote for these rows, columns `first`... of every piece."""
    piece = tl.arange(0, 4)[:, None, None]
    r, k = row[None, :, None], first + tl.arange(0, KB)[None, None, :]
    mask = r < B
    if UNTIED:
        mask = mask & (piece < 3)
    return tl.load(exchange + r * (4 * KP) + piece * KP + k, mask=mask, other=0.0, cache_modifier=".cg")


@triton.jit
def gradient_product(
    read, row, weights, B, PIECES: tl.constexpr, UNTIED: tl.constexpr, BT: tl.constexpr, U: tl.constexpr,
    KB: tl.constexpr, KP: tl.constexpr, AHEAD: tl.constexpr, PERSISTENT: tl.constexpr,
):  # fmt: skip
    """Four of (BT, U): the exchanged gradient of these rows times the weights, gate by gate, or piece by piece."""
    ahead = ()
    for k in tl.static_range(AHEAD):
        if PIECES:
            ahead = ahead + (exchanged_pieces(read, row, k * KB, B, UNTIED, KP, KB),)
        else:
            ahead = ahead + (exchanged_by_gate(read, row, k * KB, B, 4, KP, KB),)
    p = tl.zeros((4, BT, U), tl.float32)
    for k in tl.static_range(KP // KB):
        if (k + AHEAD) * KB < KP:
            if PIECES:
                ahead = ahead + (exchanged_pieces(read, row, (k + AHEAD) * KB, B, UNTIED, KP, KB),)
            else:
                ahead = ahead + (exchanged_by_gate(read, row, (k + AHEAD) * KB, B, 4, KP, KB),)
        p = tl.dot(now(ahead[k], PERSISTENT), weights[k], p)
    return gates_of(tl.reshape(tl.permute(p, (1, 2, 0)), (BT, 4 * U)), BT, U)


@triton.jit
def rows_back(starts, s, steps, REVERSE: tl.constexpr):
    """At step s of the gradient: first row and rows of this step of time, of the one before it, rows of the one after.

    Before and after are in the order of the recurrence.
    """
    t = steps - 1 - s
    before, after = t - 1, t + 1
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
    return start, n, start_before, n_before, n_after
