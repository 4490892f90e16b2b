"""Diagonal Gaussian weights in C: one pass over all tensors draws them with their KL, one more is the backward.

The noise is never stored: both passes make it from a seed and the place of the weight. kernels/cpu/README.md has the
equations, the generator and the measurements.
"""

from __future__ import annotations

import ctypes
import math
from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayesrnn.kernels.cpu import build
from bayesrnn.kernels.cpu.memory import Pool, address, addresses
from bayesrnn.kernels.gaussian import plan as planning
from bayesrnn.kernels.gaussian import reference
from bayesrnn.kernels.gaussian.plan import Drawn, DrawSpec, Terms, View
from bayesrnn.kernels.paths import compiled_path
from bayesrnn.kernels.shared.derivatives import OnceFunction, once_differentiable
from bayesrnn.kernels.shared.tensors import ordinary

_BLOCK = 1 << 16  # weights that one thread takes at a time
_GROUP = 64  # weights whose noise is made together: a block's borders are multiples of it
_ROWS = 16  # of a tensor that is summed by column, at least, in a block
_KINDS = {"none": 0, "normal": 1, "groups": 2, "weights": 3}


class _Prior(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("kind", "sums")),
        *((name, ctypes.c_double) for name in ("wide", "narrow", "offset")),
        *((name, ctypes.c_double * 2) for name in ("log_pi", "log_sigma", "half")),
        ("constant", ctypes.c_double),
    ]


class _Tables(NamedTuple):
    """What the kernels are told about a posterior, once for all draws."""

    shapes: array[int]
    priors: tuple[_Prior, _Prior]
    """Without and with sums."""
    blocks: int
    partials: int
    groups: int

    @property
    def threads(self) -> int:
        return max(1, min(build.threads(), self.blocks))


@lru_cache(maxsize=64)
def _tables(spec: DrawSpec) -> _Tables:
    """One line of numbers for each tensor, as C's Shape has them."""
    lines: list[int] = []
    sizes = tuple(math.prod(shape) for shape in spec.shapes)
    blocks = partials = groups = 0
    for shape, numel, group_dim, padding in zip(spec.shapes, sizes, spec.group_dims, spec.padding, strict=True):
        view = View.of(shape, group_dim)
        # a vector is laid out in rows by View, for the sake of a GPU's tiles
        row = view.columns if len(shape) > 1 else max(numel, 1)
        block = _BLOCK
        if view.kind == planning.BY_COLUMN:
            block = max(block, -(-_ROWS * row // _GROUP) * _GROUP)
        count = -(-numel // block)
        first, end = (-1, -1) if padding is None else (padding * row, (padding + 1) * row)
        kept = {planning.WHOLE: 1, planning.BY_ROW: 2, planning.BY_COLUMN: view.groups}[view.kind]
        lines += (
            numel, row, view.groups, view.rest, view.kind, view.groups, groups,
            numel // view.groups if view.groups else 0, first, end, block, blocks, count, partials,
        )  # fmt: skip
        blocks, partials, groups = blocks + count, partials + kept * count, groups + view.groups
    priors = _prior(spec, sum(sizes), sums=False), _prior(spec, sum(sizes), sums=True)
    return _Tables(array("q", lines), priors, blocks, partials, groups)


def _prior(spec: DrawSpec, count: int, *, sums: bool) -> _Prior:
    prior, half = spec.prior, 0.5 * math.log(2 * math.pi)
    pairs = [(prior.pi, prior.sigma1), (1 - prior.pi, prior.sigma2)]
    numbers = [tuple(f(p, s) for p, s in pairs) for f in (
        lambda p, s: math.log(p), lambda p, s: math.log(s) + half, lambda p, s: 0.5 / s**2
    )]  # fmt: skip
    return _Prior(_KINDS[prior.kind], sums, *Terms.of(prior), *numbers, planning.constant(prior, count))


def _at(numbers: array[int]) -> ctypes.c_void_p:
    return ctypes.c_void_p(numbers.buffer_info()[0])


def _pointer(tensor: Tensor, dtype: torch.dtype = torch.float32) -> ctypes.c_void_p:
    return ctypes.c_void_p(address(tensor, dtype=dtype))


def _interleaved(spec: DrawSpec, *lists: Sequence[Tensor | None]) -> array[int]:
    """The addresses of all lists' first tensors, then of their second ones, and so on."""
    tensors = [t for of_one in zip(*lists, strict=True) for t in of_one]
    return addresses(tensors, [shape for shape in spec.shapes for _ in lists])


class _Draw(OnceFunction):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Tensor, ...]:
        seed, spec, sums, pool, mark, *params = given
        tables, count = _tables(spec), len(spec.shapes)
        flat = [p.contiguous() for p in params]  # a copy only of parameters in another layout
        means, rhos = flat[:count], flat[count:]
        weights = pool.take_all(spec.shapes, means[0])
        grouped = sums and spec.prior.kind == "groups"
        cpu: Any = {"device": "cpu"}
        partials = torch.empty(tables.blocks + (tables.partials if grouped else 0), dtype=torch.float64, **cpu)
        groups = torch.empty(tables.groups if grouped else 0, dtype=torch.float64, **cpu)
        slopes = torch.empty(tables.groups if grouped else 0, dtype=torch.float32, **cpu)
        pointers = _interleaved(spec, means, rhos, weights)
        kl = build.loaded().bayesrnn_draw(
            count, _at(tables.shapes), ctypes.byref(tables.priors[sums]), _at(pointers), ctypes.c_uint64(seed),
            _pointer(partials, torch.float64), _pointer(groups, torch.float64), _pointer(slopes), ctypes.byref(mark),
            tables.threads,
        )  # fmt: skip
        ctx.seed, ctx.spec, ctx.sums, ctx.pool, ctx.slopes = seed, spec, sums, pool, slopes
        ctx.params, ctx.flat, ctx.versions = params, flat, [p._version for p in params]
        ctx.set_materialize_grads(False)
        return torch.tensor(kl if sums else 0.0, dtype=torch.float32, device="cpu"), *weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_kl: Tensor | None, *d_weights: Tensor | None) -> tuple[Any, ...]:
        if [p._version for p in ctx.params] != ctx.versions:
            raise RuntimeError("the posterior's parameters were changed between the draw and its backward pass")
        spec: DrawSpec = ctx.spec
        tables, count, sums = _tables(spec), len(spec.shapes), ctx.sums and d_kl is not None
        given = [None if d is None else d.contiguous() for d in d_weights]
        means, rhos, nothing = ctx.flat[:count], ctx.flat[count:], [None] * count
        own = sums and spec.prior.kind != "none"  # else the gradient of the mean is that of the weight
        d_means = ctx.pool.take_all(spec.shapes, means[0]) if own else nothing
        used = [sums or d is not None for d in given]
        room = iter(ctx.pool.take_all([s for s, u in zip(spec.shapes, used, strict=True) if u], means[0]))
        d_rhos = [next(room) if u else None for u in used]
        pointers = _interleaved(spec, means, rhos, given, d_means, d_rhos)
        scale = 0.0 if d_kl is None else float(d_kl)
        build.loaded().bayesrnn_draw_backward(
            count, _at(tables.shapes), ctypes.byref(tables.priors[sums]), _at(pointers), ctypes.c_uint64(ctx.seed),
            _pointer(ctx.slopes), ctypes.c_float(scale), tables.threads,
        )  # fmt: skip
        return None, None, None, None, None, *(d_means if own else given), *d_rhos


def draw(
    seed: Tensor, spec: DrawSpec, means: Sequence[Tensor], rhos: Sequence[Tensor], *, pool: Pool, sums: bool = True
) -> Drawn:
    """Like `gpu.gaussian.draw`, for float32 on a CPU. `pool` has the buffers that are used again at every step."""
    if not ordinary(*means, *rhos):
        return reference.draw(noise(seed, spec), spec, means, rhos, sums=sums)
    found = ctypes.c_uint64()
    kl, *weights = _Draw.apply(int(seed), spec, sums, pool, found, *means, *rhos)
    return Drawn(tuple(weights), kl, found.value) if sums else Drawn(tuple(weights), None)


def places(spec: DrawSpec, parameters: Sequence[Tensor]) -> list[int]:
    """The addresses of all means, then of all rhos: contiguous tensors of one dtype, in the shapes of the spec."""
    return addresses(parameters, spec.shapes * 2, parameters[0].dtype).tolist()


def mark(spec: DrawSpec, places: Sequence[int], dtype: torch.dtype) -> int:
    """A hash of all bytes of the parameters at these places, the one that `draw` makes along."""
    tables, pointers = _tables(spec), array("Q", places)
    item = ctypes.c_int64(dtype.itemsize)
    found: int = build.loaded().bayesrnn_mark(len(spec.shapes), _at(tables.shapes), _at(pointers), item, tables.threads)
    return found


def draw_many(
    seeds: Sequence[int] | Tensor, spec: DrawSpec, means: Sequence[Tensor], rhos: Sequence[Tensor], *, pool: Pool
) -> list[Tensor]:
    """The weights of several draws, (draws, *shape) each: what `draw` gives for each seed; without gradients."""
    tables, count, draws = _tables(spec), len(means), len(seeds)
    flat = [p.detach().contiguous() for p in (*means, *rhos)]
    room = -(-draws // 8) * 8  # so that batches of about one size find the same buffers
    weights = [pool.take((room, *m.shape), m)[:draws] for m in flat[:count]]
    three = [t for of_one in zip(flat[:count], flat[count:], weights, strict=True) for t in of_one]
    expected = [(draws, *shape) if k == 2 else shape for shape in spec.shapes for k in range(3)]
    pointers, numbers = addresses(three, expected), array("Q", [int(seed) for seed in seeds])
    build.loaded().bayesrnn_draw_many(
        count, _at(tables.shapes), _at(pointers), _at(numbers), ctypes.c_int64(draws), tables.threads
    )
    return weights


def noise(seed: Tensor, spec: DrawSpec) -> list[Tensor]:
    """The noise that `draw` uses for this seed, in float32; padding rows have none."""
    outs = [torch.empty(shape, dtype=torch.float32, device="cpu") for shape in spec.shapes]
    tables, at = _tables(spec), ctypes.c_uint64(int(seed))
    pointers = addresses(outs, spec.shapes)
    build.loaded().bayesrnn_noise(len(outs), _at(tables.shapes), _at(pointers), at, tables.threads)
    return outs


PATHS = (compiled_path("gaussian", draw), compiled_path("noise", noise), compiled_path("draws", draw_many))
