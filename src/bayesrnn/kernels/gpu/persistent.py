"""How the recurrences that run in one launch are laid out on the chip, and started.

`gpu/exchange.py` has what their kernels share; lstm/README.md has the derivation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import triton
from torch import Tensor

from bayesrnn.kernels.shared.precision import tf32
from bayesrnn.kernels.shared.recurrent import Cell, Layer, Recurrence
from bayesrnn.kernels.shared.rows import offsets
from bayesrnn.kernels.shared.tables import kept
from bayesrnn.kernels.shared.tensors import for_each, ordinary, transformed

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


@dataclass(frozen=True)
class Tiles:
    """How the sum over k is cut: `padded` columns in blocks; later blocks load while one is used."""

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
    found = []
    for units in (fewest, *(u for u in (16, 32) if u > fewest)):
        tiles = _tiles(hidden, units, 2 * rows, 4 if units == 8 else 8, memory, (128, 64, 32))
        programs = -(-hidden // units)
        if tiles is not None:
            found.append(GridPlan(units, programs, processors // programs, rows, tiles, tiles))
    return max(found, key=lambda laid: laid.groups)


def limits(device: torch.device) -> dict[str, int]:
    """Processors of a device, and bytes of shared memory of each."""
    if device.type != "cuda":  # interpreted
        return {"processors": 4, "memory": 227 * 1024}
    about: Any = torch.cuda.get_device_properties(device)
    return {"processors": about.multi_processor_count, "memory": about.shared_memory_per_block_optin}


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

    One allocation, filled once. Given states are copied; missing ones are zeros shaped like `like`.
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
    """The largest incoming gradient. The kernel scales it to 2^6; the format overflows at 2^16."""
    largest = [torch.linalg.vector_norm(d, ord=float("inf")) for d in gradients if d is not None]
    if not largest:
        return like.new_zeros(())
    return largest[0] if len(largest) == 1 else torch.stack(largest).amax()


def _laid(layer: Layer) -> GridPlan:
    """The plan for a layer, where `supported` has nothing against it."""
    batch, hidden = layer.h.shape
    laid = plan(batch, hidden, gates=layer.gates, untied=layer.untied, **limits(layer.h.device))
    assert laid is not None
    return laid


def _ready(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()


def forward(layer: Layer, kernel: Any, beside: Sequence[Tensor | None], **flags: bool) -> tuple[Any, ...]:
    """All steps of one layer in one launch, as `Recurrence` wants it.

    Args:
        beside: what the kernel takes between the weights and the states: masks, or a bias and a mask.
        flags: what else the kernel is compiled for.
    """
    (batch, hidden), gx, sizes, laid = layer.h.shape, layer.gx.contiguous(), layer.sizes, _laid(layer)
    copies, starts = layer.gates if layer.untied else 1, starts_of(tuple(sizes), gx.device)
    exchange, counter = space(2 * copies * batch * laid.forward.padded, laid.groups, gx)
    last = tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in layer.states)
    out, kept_ = gx.new_empty(gx.shape[0], hidden), gx.new_empty(gx.shape[0], hidden)
    launch(
        kernel, laid, -1, len(sizes),
        (gx, layer.w_hh.contiguous(), *map(_ready, beside), starts, *map(_ready, layer.states), exchange, *last, out,
         kept_, counter),
        (len(sizes), batch, hidden), REVERSE=layer.reverse, COPIES=copies, MASKED=layer.z_h is not None, DRAWS=False,
        **flags, **laid.forward.constants,
    )  # fmt: skip
    return out, last, out, (gx, kept_, starts, out)


def backward(
    layer: Layer, kernel: Any, before: Sequence[Tensor], beside: Sequence[Tensor | None], starts: Tensor,
    d_out: Tensor | None, d_states: Sequence[Tensor | None], d_gates: Sequence[Tensor], **flags: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Run the whole backward in one launch. Returns the gradient of the initial states; writes `d_gates`.

    Args:
        before, beside: what the kernel takes before the weights, and after them.
    """
    (batch, hidden), steps, laid = layer.h.shape, len(layer.sizes), _laid(layer)
    scale = scale_of([d_out, *d_states], like=layer.h)
    exchange, counter, *first = space(8 * batch * laid.backward.padded, laid.groups, layer.h, *d_states)
    launch(
        kernel, laid, 0, steps + 1,
        (*map(_ready, before), layer.w_hh.contiguous(), *map(_ready, beside), starts, _ready(d_out), scale, exchange,
         *first, *d_gates, counter),
        (steps, batch, hidden), REVERSE=layer.reverse, MASKED=layer.z_h is not None, D_OUT=d_out is not None, **flags,
        **laid.backward.constants,
    )  # fmt: skip
    return tuple(first)


def draws(
    count: int, tensors: Sequence[Any], *, kernel: Any, flags: Callable[[Layer], dict[str, bool]], kind: str,
    sizes: Sequence[int], reverse: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The recurrence with `count` draws of the weights, as many at a time as fit on the chip; without masks."""
    gx, h, c, w, bias = (for_each(t, count) for t in tensors)
    layer = Layer(kind, sizes, reverse, gx, h, c, w, b_hn=bias)
    (batch, hidden), steps, states = h.shape[1:], len(sizes), layer.states
    laid = plan_of_draws(batch, hidden, **limits(gx.device))
    each = 2 * batch * laid.forward.padded
    exchange, counter = space(count * each, count, gx)
    last = [torch.empty_like(x) for x in states]
    out, kept_ = (gx.new_empty(*gx.shape[:2], hidden) for _ in range(2))
    starts = starts_of(tuple(sizes), gx.device)
    for at in range(0, count, laid.groups):
        now = slice(at, at + laid.groups)
        own = [t[now] for t in (*last, out, kept_)]
        beside = None if bias is None else bias[now], None
        launch(
            kernel, replace(laid, groups=len(gx[now])), -1, steps,
            (gx[now], w[now], *beside, starts, *(x[now] for x in states), exchange[at * each :], *own, counter[at:]),
            (steps, batch, hidden), REVERSE=reverse, COPIES=1, MASKED=False, DRAWS=True, **flags(layer),
            **laid.forward.constants,
        )  # fmt: skip
    return out, *last


def recurrence(cell: Cell, run: Callable[..., Any], back: Callable[..., Any], **kernel: Any) -> Recurrence:
    """A cell's recurrence in one launch per pass; `kernel` and `flags` are those of `draws`."""
    return Recurrence(cell, run, back, serves=_serves, draws=partial(draws, **kernel))


def _serves(layer: Layer) -> bool:
    """Refuse what this path cannot run."""
    gx, (batch, hidden), projection = layer.gx, layer.h.shape, layer.w_hr is not None
    reason = supported(
        gates=layer.gates, dtype=gx.dtype, batch=batch, hidden=hidden, rows=gx.shape[0], projection=projection,
        untied=layer.untied, device=gx.device,
    )  # fmt: skip
    if reason is not None or gx.shape[0] == 0:
        raise ValueError(f"the persistent {layer.kind} cannot run this: {reason or 'no steps'}")
    return transformed() or ordinary(*layer[3:])
