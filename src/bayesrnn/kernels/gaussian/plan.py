"""Tiles and memory layout of a posterior's weights, as tables for the GPU kernels.

Plain bookkeeping, without Triton. README.md beside this file explains the choice of tiles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from bayesrnn.kernels.shared.tables import kept

WHOLE, BY_ROW, BY_COLUMN = 0, 1, 2  # what a group of the prior is: the whole tensor, a row, or some columns
_TILES = ((64, 128), (512, 16))  # rows and columns of a tile, for wide and for narrow tensors
_NARROW = 32  # columns up to which a tensor is narrow
_QUAD = 4  # neighbours that share a counter of the noise, and are loaded together
_VECTOR = 128  # a vector is laid out in rows of this length
_AT_ONCE = 24  # tensors per launch
_ALIGNED = 64  # elements; every tensor starts at a multiple of this in a shared buffer
_LARGEST = 1 << 30  # elements of one tensor: places in it are 32-bit numbers
GROUPS = 16  # groups that one program of the second stage sums up

FIELDS = ("first", "column_tiles", "rows", "columns", "numel", "counter", "padding", "padding_end", "kind", "group",
          "rest", "partial", "flat", "low", "quads", "fold", "base")  # fmt: skip
GROUP_FIELDS = ("first", "groups", "size", "group", "partial", "group_stride", "rest", "stride", "count")


class Recurrent(NamedTuple):
    """A recurrent layer whose weights cuDNN wants in one piece of memory: their names, and torch's arguments."""

    names: tuple[str, ...]
    weights_per_layer: int
    input_size: int
    mode: str
    hidden_size: int
    proj_size: int
    num_layers: int
    batch_first: bool
    bidirectional: bool


class KernelPrior(NamedTuple):
    """A prior that the kernels know: "normal" (sigma1), "groups" or "weights" (mixtures); "none": they leave it out."""

    kind: str
    pi: float = 0.5
    sigma1: float = 1.0
    sigma2: float = 1.0

    @property
    def wide_first(self) -> tuple[float, float, float]:
        """Share of the wider component, its sigma, the other's."""
        return self[1:] if self.sigma1 >= self.sigma2 else (1 - self.pi, self.sigma2, self.sigma1)


class DrawSpec(NamedTuple):
    """Everything a plan depends on."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    group_dims: tuple[int | None, ...]
    padding: tuple[int | None, ...]
    dtype: torch.dtype
    device: torch.device
    prior: KernelPrior
    recurrent: tuple[Recurrent, ...] = ()
    low: frozenset[str] = frozenset()
    """Weights that are wanted in `low_dtype`, autocast's, instead of `dtype`."""
    low_dtype: torch.dtype = torch.bfloat16
    tiles: tuple[tuple[int, int], ...] = _TILES


class View(NamedTuple):
    """A tensor as a matrix, and its groups."""

    rows: int
    columns: int
    kind: int
    groups: int
    rest: int
    """Neighbouring columns that belong to one group."""
    fold: int = 1
    """Rows of the tensor that lie in one row of the matrix."""

    @property
    def base(self) -> int:
        """Columns of the tensor."""
        return self.columns // self.fold

    @property
    def quads(self) -> int:
        """Counters of the noise in one row."""
        return -(-self.columns // _QUAD)

    def folded(self) -> View:
        """Two or four rows as one, where each of these then begins at a multiple of four elements."""
        fold = _QUAD // math.gcd(self.columns, _QUAD)
        if self.columns <= _NARROW or self.rows % fold:
            return self
        return self._replace(rows=self.rows // fold, columns=self.columns * fold, fold=fold)

    @classmethod
    def of(cls, shape: Sequence[int], group_dim: int | None) -> View:
        numel = math.prod(shape)
        if len(shape) < 2:
            columns = min(max(numel, 1), _VECTOR)
            return cls(-(-numel // columns), columns, WHOLE, 1, 1)
        rest = math.prod(shape[2:])
        if group_dim == 0:
            return cls(shape[0], numel // max(shape[0], 1), BY_ROW, shape[0], 1)
        if group_dim == 1:
            return cls(shape[0], shape[1] * rest, BY_COLUMN, shape[1], rest)
        return cls(shape[0], numel // max(shape[0], 1), WHOLE, 1, 1)


class Launch(NamedTuple):
    """Some of the tensors, with the tables that one launch of each kernel reads."""

    which: tuple[int, ...]
    rows: int
    columns: int
    vectors: bool
    """Every row of every tensor is a number of whole quads."""
    tiles: int
    places: Tensor
    """For each tile: its tensor, and its row and column among the tiles of that tensor."""
    first_sum: int
    table: Tensor
    programs: int
    first_group_sum: int
    group_table: Tensor


class Buffer(NamedTuple):
    """One piece of memory for drawn weights: (tensor, offset) of each that lies in it."""

    size: int
    dtype: torch.dtype
    parts: tuple[tuple[int, int], ...]


class TilePlan(NamedTuple):
    launches: tuple[Launch, ...]
    buffers: tuple[Buffer, ...]
    offsets: tuple[int, ...]
    """Where each tensor's gradient lies in a flat buffer of `size` elements."""
    size: int
    sums: int
    partials: int
    groups: int
    constant: Tensor
    """The constant term of the KL, in float64."""


class Drawn(NamedTuple):
    """Drawn weights and, on request, their KL in at least float32; for the prior "none", log q alone."""

    weights: tuple[Tensor, ...]
    kl: Tensor | None
    mark: int | None = None
    """A hash of the parameters, from kernels that compute it in the same pass."""


@kept
def plan(spec: DrawSpec) -> TilePlan:
    """The tiles of a spec's weights, with the tables on its device."""
    views = [View.of(s, g).folded() for s, g in zip(spec.shapes, spec.group_dims, strict=True)]
    sizes = [math.prod(s) for s in spec.shapes]
    if max(sizes) > _LARGEST:
        name = spec.names[sizes.index(max(sizes))]
        raise ValueError(f"{name} has {max(sizes):,} weights; drawn weights have at most {_LARGEST:,} in one tensor")
    offsets, size = _aligned(sizes)
    groups = list(accumulate((view.groups for view in views), initial=0))
    counters = list(accumulate((view.rows * view.quads for view in views), initial=0))
    launches: list[Launch] = []
    sums = partials = 0
    for rows, columns, vectors, which in _batches(spec, views, sizes):
        lines, group_lines, programs = [], [], 0
        places: list[tuple[int, int, int]] = []
        for j, k in enumerate(which):
            view, pad = views[k], spec.padding[k]
            down, across = -(-view.rows // rows), -(-view.columns // columns)
            first, end = (-1, -1) if pad is None else (pad * view.base, (pad + 1) * view.base)
            lines.append(
                (len(places), max(across, 1), view.rows, view.columns, sizes[k], counters[k], first, end, view.kind,
                 groups[k], view.rest, partials, offsets[k], int(spec.names[k] in spec.low), view.quads, view.fold,
                 max(view.base, 1))
            )  # fmt: skip
            # sums of squares of a group: how many, from group to group, in one row, and from row to row; and of all
            count, group_stride, rest, stride, kept = {
                WHOLE: (down * across, 0, 1, 1, down * across),
                BY_ROW: (across, across, across, 0, view.rows * view.fold * across),
                BY_COLUMN: (down * view.fold * view.rest, view.rest, view.rest, view.base, down * view.columns),
            }[view.kind]
            group_size = sizes[k] // view.groups if view.groups else 0
            group_lines.append(
                (programs, view.groups, group_size, groups[k], partials, group_stride, max(rest, 1), stride, count)
            )
            places += [(j, row, column) for row in range(down) for column in range(across)]
            programs, partials = programs - (-view.groups // GROUPS), partials + kept
        table, group_table = (torch.tensor(t, dtype=torch.int64, device=spec.device) for t in (lines, group_lines))
        where = torch.tensor(places, dtype=torch.int32, device=spec.device)
        tiles, later = len(places), sums + len(places)
        launches.append(Launch(which, rows, columns, vectors, tiles, where, sums, table, programs, later, group_table))
        sums = later + programs
    beside = torch.tensor(constant(spec.prior, sum(sizes)), dtype=torch.float64, device=spec.device)
    return TilePlan(
        tuple(launches), tuple(_buffers(spec, sizes)), tuple(offsets), size, sums, partials, groups[-1], beside
    )


def _batches(
    spec: DrawSpec, views: Sequence[View], sizes: Sequence[int]
) -> list[tuple[int, int, bool, tuple[int, ...]]]:
    """Groups of tensors that share a launch: one tile shape, all or none in whole quads, a limited number."""
    wide, narrow = spec.tiles
    kinds: dict[tuple[int, int, bool], list[int]] = {(*wide, True): [], (*wide, False): [], (*narrow, False): []}
    for k, view in enumerate(views):
        tile = narrow if view.columns <= _NARROW else wide
        kinds[*tile, tile is wide and view.columns % _QUAD == 0 and sizes[k] % _QUAD == 0].append(k)
    return [
        (*kind, tuple(which[k : k + _AT_ONCE])) for kind, which in kinds.items() for k in range(0, len(which), _AT_ONCE)
    ]


def _aligned(sizes: Sequence[int]) -> tuple[list[int], int]:
    offsets, size = [], 0
    for n in sizes:
        offsets.append(size)
        size += -(-n // _ALIGNED) * _ALIGNED
    return offsets, size


def constant(prior: KernelPrior, count: int) -> float:
    """The terms of the KL that depend on no parameter."""
    if prior.kind == "normal":
        return count * (math.log(prior.sigma1) - 0.5)
    if prior.kind == "weights":
        share, wide, _ = prior.wide_first
        return count * (math.log(wide) - math.log(share))
    return -0.5 * count * math.log(2 * math.pi)


def _buffers(spec: DrawSpec, sizes: Sequence[int]) -> list[Buffer]:
    """One for each recurrent layer that cuDNN runs, one for each dtype of the rest."""
    made, left = [], dict.fromkeys(spec.names)
    place = {name: k for k, name in enumerate(spec.names)}
    for layer in spec.recurrent:
        if spec.device.type != "cuda" or any(name not in left for name in layer.names):
            continue  # a weight shared with another layer, or one that is not drawn
        indices = [place[name] for name in layer.names]
        found = _cudnn_layout(layer, tuple(spec.shapes[k] for k in indices), _dtype(spec, layer.names[0]), spec.device)
        if found is None:
            continue
        offsets, size = found
        made.append(Buffer(size, _dtype(spec, layer.names[0]), tuple(zip(indices, offsets, strict=True))))
        for name in layer.names:
            del left[name]
    for dtype in dict.fromkeys(_dtype(spec, name) for name in left):
        indices = [place[name] for name in left if _dtype(spec, name) == dtype]
        offsets, size = _aligned([sizes[k] for k in indices])
        made.append(Buffer(size, dtype, tuple(zip(indices, offsets, strict=True))))
    return made


def _dtype(spec: DrawSpec, name: str) -> torch.dtype:
    return spec.low_dtype if name in spec.low else spec.dtype


def _cudnn_layout(
    layer: Recurrent, shapes: Sequence[tuple[int, ...]], dtype: torch.dtype, device: torch.device
) -> tuple[list[int], int] | None:
    """Where cuDNN wants each weight, learnt from what torch's own `flatten_parameters` does with empty ones."""
    trial = [torch.empty(shape, dtype=dtype, device=device) for shape in shapes]
    if not torch.backends.cudnn.is_acceptable(trial[0]) or not torch._use_cudnn_rnn_flatten_weight():
        return None
    import torch.backends.cudnn.rnn as cudnn

    with torch.no_grad(), torch.cuda.device(device):
        flat: Tensor = torch._cudnn_rnn_flatten_weight(
            trial, layer.weights_per_layer, layer.input_size, cudnn.get_cudnn_mode(layer.mode), layer.hidden_size,
            layer.proj_size, layer.num_layers, layer.batch_first, layer.bidirectional,
        )  # fmt: skip
    start = flat.data_ptr()
    return [(t.data_ptr() - start) // t.element_size() for t in trial], flat.numel()


class Terms(NamedTuple):
    """A prior's numbers as the kernels want them: precisions, and the log odds of the narrower component at 0."""

    wide: float
    narrow: float
    offset: float

    @classmethod
    def of(cls, prior: KernelPrior) -> Terms:
        if prior.kind == "normal":
            return cls(1 / prior.sigma1**2, 0.0, 0.0)
        if prior.kind != "weights":
            return cls(0.0, 0.0, 0.0)
        share, sigma, other = prior.wide_first
        return cls(1 / sigma**2, 1 / other**2, math.log((1 - share) / share) + math.log(sigma / other))
