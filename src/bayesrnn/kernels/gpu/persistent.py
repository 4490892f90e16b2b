# mypy: disable-error-code="no-untyped-def,assignment"
# ruff: noqa: RUF005  (Triton compiles this form, and not the other)
"""What the recurrences that run in one launch share: the barrier, the exchange through L2, the layout on the chip.

`lstm/triton.py` and `gru/triton.py` are built from these pieces; lstm/README.md has the derivation.
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

from bayesrnn.kernels.shared.precision import tf32
from bayesrnn.kernels.shared.rows import offsets
from bayesrnn.kernels.shared.tables import kept

INTERPRETED = bool(triton.knobs.runtime.interpret)  # TRITON_INTERPRET=1: no barrier there, one launch per step
# Turns of sequences in one step up to which one launch is the fastest, by gates and by units per program (8, or more).
# From results/gpu-layers*.json, LSTMs and GRUs of 200, 650 and 1500 units; GRUs of 1500 units with 20 sequences only.
# Against single steps, where gates share their mask or have none, and where each has its own. LSTM: 4 to 6 turns won
# and 7 or 8 lost, of 1500 units 4 lost, and lines through 1 and 4 cross between 1 and 2; untied 8 won and 16 lost, of
# 1500 units 4 lost, and the lines cross at 3. GRU, whose single steps are the loop, with more launches each: 8 won and
# 16 lost; untied 8 won and 16 were even. Its large ones have the 3 turns of the LSTM's untied masks: a guess.
MAX_TURNS = {4: {8: (6, 12), 16: (1, 3)}, 3: {8: (8, 12), 16: (3, 3)}}
# Against cuDNN, which can run a layer without noise: 8 turns of 650 units won and 16 lost, LSTM and GRU; of 200 units
# 512 sequences, 4 turns, were even for the LSTM and won for the GRU, and 1024 lost for the LSTM; LSTMs of 1500 units
# lost with 4 turns, and the lines cross between 2 and 3.
MAX_TURNS_PLAIN, MAX_BATCH_PLAIN = {4: {8: 8, 16: 2}, 3: {8: 8, 16: 2}}, 512


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
    """To 16 bits, of which 10 are mantissa, as in TF32; what is too large stays finite, and NaN stays NaN."""
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
class GridPlan:
    """How one layer is laid out on the device."""

    units: int
    programs: int
    groups: int
    rows: int
    forward: Tiles
    backward: Tiles


def _tiles(length: int, units: int, row_bytes: int, warps: int, memory: int, blocks: Sequence[int]) -> Tiles | None:
    for block in blocks:
        count = -(-length // block)
        registers = row_bytes * block // (128 * warps)  # of every thread, for one block on its way
        # the weights of four gates stay in shared memory, with one block in use and one that follows
        if 8 * units * count * block + 2 * row_bytes * block <= memory and 2 * registers <= 96:
            return Tiles(warps, block, count * block, min(count, 96 // registers))
    return None


def _units(hidden: int, processors: int) -> int:
    """The fewest units per program so that there is a processor for each."""
    units = 8
    while -(-hidden // units) > processors:
        units *= 2
    return units


@functools.lru_cache(maxsize=1024)
def plan(batch: int, hidden: int, *, gates: int, untied: bool, processors: int, memory: int) -> GridPlan | None:
    """Units per program, so that the whole grid is resident with its weights; None where it cannot be.

    Products have four parts: the gates, of which fewer than four are filled up with zeros, or, in the backward of
    gates that share their mask, four equal pieces of the sum over all gates.
    """
    units, rows = _units(hidden, processors), 16 if batch <= 16 else 32
    warps = 4 if units == 8 or untied else 8
    piece = hidden if untied else -(-gates * hidden // 4)
    forward = _tiles(hidden, units, (8 if untied else 2) * rows, warps, memory, (128, 64, 32))
    backward = _tiles(piece, units, 8 * rows, 4, memory, (64, 32))
    if forward is None or backward is None:
        return None
    programs = -(-hidden // units)
    groups = min(-(-batch // rows), processors // programs)
    return GridPlan(units, programs, groups, rows, forward, backward)


@functools.lru_cache(maxsize=1024)
def plan_of_draws(batch: int, hidden: int, *, processors: int, memory: int) -> GridPlan:
    """For draws of the weights that run side by side, each in its own group: most groups that fit; forward only.

    Where `plan` has something for this batch, there is room for one group at least.
    """
    fewest, rows = _units(hidden, processors), 16 if batch <= 16 else 32
    found = None
    for units in (fewest, *(u for u in (16, 32) if u > fewest)):
        programs = -(-hidden // units)
        tiles = _tiles(hidden, units, 2 * rows, 4 if units == 8 else 8, memory, (128, 64, 32))
        groups = processors // programs
        if tiles is not None and groups and (found is None or groups > found.groups):
            found = GridPlan(units, programs, groups, rows, tiles, tiles)
    assert found is not None
    return found


def limits(device: torch.device) -> dict[str, int]:
    """Processors of a device, and bytes of shared memory of each."""
    if device.type != "cuda":  # interpreted
        return {"processors": 4, "memory": 227 * 1024}
    about: Any = torch.cuda.get_device_properties(device)
    return {"processors": about.multi_processor_count, "memory": about.shared_memory_per_block_optin}


def plan_of(h: Tensor, z_h: Tensor | None, *, gates: int) -> GridPlan:
    """The plan for a state (B, H) and its masks, where `supported` has nothing against it."""
    laid = plan(h.shape[0], h.shape[1], gates=gates, untied=z_h is not None and z_h.ndim == 3, **limits(h.device))
    assert laid is not None
    return laid


def supported(
    *,
    gates: int,
    dtype: torch.dtype,
    batch: int,
    hidden: int,
    rows: int = 0,
    projection: bool = False,
    untied: bool = False,
    device: torch.device | None = None,
) -> str | None:
    """None, or why this recurrence, of `rows` time-major rows in all, cannot run here."""
    device = device or torch.device("cpu")
    if dtype != torch.float32:
        return f"it takes and gives float32, not {dtype}"
    if projection:
        return "it has no projections"
    if rows * gates * hidden >= 2**31:
        return f"it counts in 32 bits, too few for the gates of {rows} rows"
    if device.type != "cuda" and not INTERPRETED:
        return "it needs a CUDA device"
    if device.type == "cuda" and torch.cuda.get_device_capability(device)[0] < 8:
        return "it needs compute capability 8.0 or newer"
    if device.type == "cuda" and not tf32(products=False):
        return "its products have TF32's 10 bits of mantissa, which torch.backends.cudnn.allow_tf32 forbids"
    if plan(batch, hidden, gates=gates, untied=untied, **limits(device)) is None:
        return f"the recurrent weights of {hidden} units do not fit on this chip"
    return None


def slower(*, gates: int, batch: int, hidden: int, untied: bool, cudnn: bool, device: torch.device) -> str | None:
    """None, or why another path is the faster one, where this one can run too; by the times of results/gpu-layers.json.

    A step takes the sequences in turns, as many at a time as all groups of programs hold.

    Args:
        cudnn: the other path is cuDNN's kernel for whole layers, not single steps.
    """
    laid = plan(batch, hidden, gates=gates, untied=untied, **limits(device))
    assert laid is not None
    room, size = laid.groups * laid.rows, min(laid.units, 16)
    if cudnn:
        most, other = min(MAX_BATCH_PLAIN, room * MAX_TURNS_PLAIN[gates][size]), "cuDNN's kernel is"
    else:
        most, other = room * MAX_TURNS[gates][size][untied], "single steps are"
    if batch <= most:
        return None
    return f"of {batch} sequences {room} fit on the chip at a time; above {most} {other} faster"


@kept
def starts_of(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """The first row of each step, and the number of rows, on the device."""
    return torch.tensor(offsets(sizes), dtype=torch.int32, device=device)


def launch(
    kernel: Any,
    laid: GridPlan,
    first: int,
    last: int,
    arguments: tuple[Any, ...],
    shape: tuple[int, ...],
    **constants: Any,
) -> None:
    """Steps `first` to `last` of a kernel, in one launch; in the interpreter in one launch each."""
    constants |= {"U": laid.units, "BT": laid.rows}
    grid = (laid.programs, laid.groups)
    if INTERPRETED:
        for s in range(first, last):
            kernel[grid](*arguments, s, s + 1, laid.programs, *shape, PERSISTENT=False, **constants)
        return
    kernel[grid](
        *arguments, first, last, laid.programs, *shape, PERSISTENT=True, launch_cooperative_grid=True, **constants
    )


def space(count: int, groups: int, like: Tensor, *states: Tensor | None) -> tuple[Tensor, ...]:
    """Zeros for `count` exchanged numbers of 16 bits, each group's counter of arrivals, and states to work in.

    One allocation, filled once. Of the states those that are given are copied, the others are zeros like `like`.
    """
    each = -(-like.numel() // 4) * 4 if states else 0  # so that each begins on 16 bytes
    begin = -(-count // 8) * 4
    made = torch.zeros(begin + each * len(states) + groups, dtype=torch.int32, device=like.device)
    copies = []
    for k, given in enumerate(states):
        zeros = made[begin + k * each :][: like.numel()].view(torch.float32).view(like.shape)
        copies.append(zeros if given is None else given.clone(memory_format=torch.contiguous_format))
    return made.view(torch.float16), made[begin + each * len(states) :], *copies


def scale_of(gradients: Sequence[Tensor | None], like: Tensor) -> Tensor:
    """The largest gradient that comes in: the kernel brings it to 2^6, of a range that ends at 2^16."""
    largest = [torch.linalg.vector_norm(d, ord=float("inf")) for d in gradients if d is not None]
    if not largest:
        return like.new_zeros(())
    return largest[0] if len(largest) == 1 else torch.stack(largest).amax()
