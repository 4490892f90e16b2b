"""Diagonal Gaussian weights, cache block by cache block: one pass forward, one pass backward.

README.md beside this file has the equations. Compared with `reference` in values and gradients by the tests.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayesrnn.kernels.cpu.memory import Pool
from bayesrnn.kernels.dispatch import loop_path
from bayesrnn.kernels.gaussian.mixture import LogDensitySum
from bayesrnn.kernels.gaussian.plan import Drawn, DrawSpec
from bayesrnn.kernels.gaussian.reference import Sample, kl_of
from bayesrnn.kernels.shared.derivatives import OnceFunction, once_differentiable
from bayesrnn.kernels.shared.tensors import traced

_BLOCK = 1 << 18  # elements worked on at a time: large enough for torch's threads, small enough for their caches
_softplus: Any = torch._C._nn.softplus
_NOISE_BLOCK = 1 << 19  # elements per generator: fixes the numbers, whatever the number of threads


@cache
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="bayesrnn-noise")


def noise(like: Tensor, spec: DrawSpec, generator: torch.Generator | None, *, pool: Pool) -> list[Tensor]:
    """N(0, 1) for every weight as tensors, and 0 for padding rows."""
    made = [pool.take(shape, like) for shape in spec.shapes]
    normal_noise(made, generator)
    for eps, row in zip(made, spec.padding, strict=True):
        if row is not None:
            eps[row].zero_()
    return made


def normal_noise(buffers: Sequence[Tensor], generator: torch.Generator | None) -> None:
    """Fill with N(0, 1). On a CPU in parallel blocks that each have a generator of their own: torch's is sequential."""
    if not buffers or buffers[0].device.type != "cpu" or traced():
        for buffer in buffers:
            buffer.normal_(generator=generator)
        return
    blocks = list(itertools.chain.from_iterable(b.view(-1).split(_NOISE_BLOCK) for b in buffers))
    seeds = torch.randint(2**62, (len(blocks),), generator=generator, device="cpu").tolist()
    inference = torch.is_inference_mode_enabled()  # such modes are per thread

    def fill(part: Sequence[tuple[Tensor, int]]) -> None:
        own = torch.Generator()
        with torch.inference_mode(inference), torch.no_grad():
            for block, seed in part:
                block.normal_(generator=own.manual_seed(seed))

    work = list(zip(blocks, seeds, strict=True))
    count = min(torch.get_num_threads(), len(work))
    if count < 2:
        fill(work)
    else:
        list(_threads(count).map(fill, [work[k::count] for k in range(count)]))


class _Shape(NamedTuple):
    """A tensor as (rows, groups, rest): what is needed to work on blocks of whole rows and to sum by group."""

    rows: int
    columns: int
    rest: int
    group_axis: int | None

    @classmethod
    def of(cls, tensor: Tensor, group_dim: int | None) -> _Shape:
        if tensor.ndim < 2 or group_dim not in (0, 1):
            return cls(1, 1, tensor.numel(), None)
        return cls(tensor.shape[0], tensor.shape[1], math.prod(tensor.shape[2:]), group_dim)

    @property
    def groups(self) -> int:
        return 1 if self.group_axis is None else (self.rows, self.columns)[self.group_axis]

    def blocks(self, *tensors: Tensor) -> Iterator[tuple[slice, tuple[Tensor, ...]]]:
        """Matching flat pieces of tensors of this shape, with the rows (or elements) each covers."""
        flat = [t.reshape(-1) for t in tensors]  # a copy only of parameters in another layout, which are read
        step = flat[0].numel()
        if flat[0].device.type == "cpu":
            row = self.columns * self.rest if self.group_axis is not None else 1
            step = max(_BLOCK // max(row, 1), 1) * row
        for start in range(0, flat[0].numel(), max(step, 1)):
            yield slice(start, start + step), tuple(f[start : start + step] for f in flat)

    def sum_by_group(self, squares: Tensor, where: slice, into: Tensor) -> None:
        """Add the block's entries to their groups."""
        if self.group_axis is None:
            into += squares.sum()
            return
        block = squares.view(-1, self.columns, self.rest)
        if self.group_axis == 1:
            into += block.sum((0, 2))
        else:
            row = self.columns * self.rest
            into[where.start // row : where.start // row + len(block)] += block.sum((1, 2))

    def add_scaled(self, by_group: Tensor, weights: Tensor, where: slice, to: Tensor, out: Tensor) -> None:
        """out = to + 2 * by_group * weights on one block."""
        if self.group_axis is None:
            torch.addcmul(to, weights, by_group.view(()), value=2, out=out)
            return
        shape = (-1, self.columns, self.rest)
        if self.group_axis == 1:
            scale = by_group.view(1, -1, 1)
        else:
            row = self.columns * self.rest
            scale = by_group[where.start // row :][: weights.numel() // row].view(-1, 1, 1)
        torch.addcmul(to.view(shape), weights.view(shape), scale, value=2, out=out.view(shape))


def _log_sum(sigma: Tensor, scratch: Tensor) -> Tensor:
    """Sum of log sigma. Four at a time where their product cannot underflow: a quarter of the logarithms."""
    if sigma.dtype == torch.float16:  # four sigmas of 0.01 are below its smallest number
        return sigma.float().clamp_min(1e-12).log().sum()
    n = sigma.numel() // 4
    low, high = sigma.aminmax() if n and sigma.device.type == "cpu" else (0.0, 0.0)
    if float(low) > 1e-9 and float(high) < 1e9:
        a, b, c, d, rest = sigma.split([n, n, n, n, sigma.numel() - 4 * n])
        product = torch.mul(a, b, out=scratch[:n]).mul_(c).mul_(d).log_().sum()
        return product + rest.log().sum()
    tiny = torch.finfo(sigma.dtype).tiny
    return torch.clamp_min(sigma, tiny, out=scratch[: sigma.numel()]).log_().sum()


class _Sample(OnceFunction):
    @staticmethod
    def forward(
        ctx: Any,
        pool: Pool,
        noise: Sequence[Tensor],
        group_dims: Sequence[int | None] | None,
        sums: bool,
        *params: Tensor,
    ) -> tuple[Tensor, ...]:
        count = len(noise)
        means, rhos = [p.detach() for p in params[:count]], [p.detach() for p in params[count:]]
        device = means[0].device
        weights, sigmas = [pool.take(m.shape, m) for m in means], [pool.take(r.shape, r) for r in rhos]
        shapes = [_Shape.of(m, None if group_dims is None else group_dims[k]) for k, m in enumerate(means)]

        log_sum = torch.zeros((), dtype=torch.float64, device=device)
        square_sum = torch.zeros_like(log_sum)
        squares = [torch.zeros(shape.groups, dtype=means[0].dtype, device=device) for shape in shapes]
        scratch = _Scratch(means[0])
        for k, where, (m, r, e, w, s) in _blocks(shapes, zip(means, rhos, noise, weights, sigmas, strict=True)):
            _softplus(r, out=s)
            torch.addcmul(m, s, e, out=w)
            if sums:
                log_sum += _log_sum(s, scratch.like(s))
                square_sum += torch.dot(s, s)
            if sums and group_dims is not None:
                shapes[k].sum_by_group(torch.mul(w, w, out=scratch.like(w)), where, squares[k])
        ctx.noise, ctx.sigmas, ctx.shapes, ctx.pool = noise, sigmas, shapes, pool
        ctx.means, ctx.rhos = means, rhos
        ctx.versions = [p._version for p in params]
        ctx.set_materialize_grads(False)
        dtype = means[0].dtype
        grouped = [g if shape.group_axis is not None else g.view(()) for g, shape in zip(squares, shapes, strict=True)]
        return (log_sum.to(dtype), square_sum.to(dtype), *(grouped if group_dims is not None else ()), *weights)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_log: Tensor | None, d_square: Tensor | None, *d_rest: Tensor | None) -> tuple[Any, ...]:
        if [p._version for p in (*ctx.means, *ctx.rhos)] != ctx.versions:
            raise RuntimeError("the posterior's parameters were changed between the draw and its backward pass")
        on_cpu = ctx.rhos[0].device.type == "cpu"
        g_log: Any = _number(d_log, on_cpu)
        g_square: Any = _number(d_square, on_cpu)
        count = len(ctx.rhos)
        d_squares = d_rest[:-count] or (None,) * count
        sigmas, ctx.sigmas = ctx.sigmas, None
        if sigmas is None:  # a second backward through the same draw: the first one used the buffers up
            sigmas = [torch.nn.functional.softplus(r).contiguous() for r in ctx.rhos]
        d_weights = [
            torch.zeros_like(rho) if d is None else d.contiguous()
            for rho, d in zip(ctx.rhos, d_rest[-count:], strict=True)
        ]
        d_means = [
            d if g is None else ctx.pool.take(m.shape, m)
            for m, d, g in zip(ctx.means, d_weights, d_squares, strict=True)
        ]

        first, second = _Scratch(ctx.rhos[0]), _Scratch(ctx.rhos[0])
        arrays = zip(ctx.means, ctx.rhos, sigmas, ctx.noise, d_weights, d_means, strict=True)
        for k, where, (m, r, s, e, d, total) in _blocks(ctx.shapes, arrays):
            a, b = first.like(r), second.like(r)
            if d_squares[k] is not None:
                ctx.shapes[k].add_scaled(d_squares[k], torch.addcmul(m, s, e, out=a), where, d, total)
            torch.mul(total, e, out=a)
            if d_square is not None:
                a.add_(s, alpha=2 * g_square) if on_cpu else a.add_(2 * g_square * s)
            a.mul_(torch.sigmoid(r, out=b))
            if d_log is None:
                s.copy_(a)
                continue
            # sigmoid / sigma -> 1 as rho -> -inf, also where both have underflowed
            ratio = torch.div(b, s, out=s).nan_to_num_(nan=1.0, posinf=1.0)
            torch.add(a, ratio, alpha=g_log, out=s) if on_cpu else torch.add(a, g_log * ratio, out=s)
        everywhere = d_log is not None or d_square is not None
        used = [everywhere or d is not None or g is not None for d, g in zip(d_rest[-count:], d_squares, strict=True)]
        outcome = [x if u else None for x, u in zip((*d_means, *sigmas), used * 2, strict=True)]
        return (None, None, None, None, *outcome)


def _blocks(
    shapes: Sequence[_Shape], arrays: Iterable[tuple[Tensor, ...]]
) -> Iterator[tuple[int, slice, tuple[Tensor, ...]]]:
    """All blocks of all parameters: which parameter, where in it, the pieces of its arrays."""
    for k, (shape, tensors) in enumerate(zip(shapes, arrays, strict=True)):
        for where, pieces in shape.blocks(*tensors):
            yield k, where, pieces


class _Scratch:
    """Memory for intermediate results, as large as the largest block."""

    def __init__(self, like: Tensor) -> None:
        self._memory = like.new_empty(0)

    def like(self, block: Tensor) -> Tensor:
        if self._memory.numel() < block.numel():
            self._memory = block.new_empty(block.numel())
        return self._memory[: block.numel()]


def _number(gradient: Tensor | None, on_cpu: bool) -> Any:
    """A plain number on a CPU; elsewhere the tensor, so that the device is not waited for."""
    return 0.0 if gradient is None else float(gradient) if on_cpu else gradient


def sample(
    means: Sequence[Tensor],
    rhos: Sequence[Tensor],
    noise: Sequence[Tensor],
    group_dims: Sequence[int | None] | None = None,
    *,
    pool: Pool,
    sums: bool = True,
) -> Sample:
    """As `reference.sample`; without `sums` they are zeros and cost nothing."""
    log_sigma, sigma_squared, *rest = _Sample.apply(pool, noise, group_dims, sums, *means, *rhos)
    count = len(means)
    return Sample(rest[-count:], log_sigma, sigma_squared, rest[:-count])


def draw(
    noise: Sequence[Tensor],
    spec: DrawSpec,
    means: Sequence[Tensor],
    rhos: Sequence[Tensor],
    *,
    pool: Pool,
    sums: bool = True,
) -> Drawn:
    """Like `reference.draw`, differentiable once."""
    groups = spec.group_dims if sums and spec.prior.kind == "groups" else None
    found = sample(means, rhos, noise, groups, pool=pool, sums=sums)
    kl = kl_of(found, spec, means, noise, LogDensitySum.apply) if sums else None
    return Drawn(tuple(found.weights), kl)


PATHS = (loop_path("gaussian", draw), loop_path("noise", noise, traced=True))
