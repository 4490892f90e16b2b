"""Diagonal Gaussian weights, cache block by cache block: one pass forward, one pass backward.

README.md beside this file has the equations. Compared with `reference` in values and gradients by the tests.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bayesrnn.kernels.gaussian.pool import Pool

_BLOCK = 1 << 17  # elements worked on at a time: a few such arrays stay in a core's L2 cache
_softplus: Any = torch._C._nn.softplus
_NOISE_BLOCK = 1 << 19  # elements per generator: fixes the numbers, whatever the number of threads


@cache
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="bayesrnn-noise")


def normal_noise(buffers: Sequence[Tensor], generator: torch.Generator | None) -> None:
    """Fill with N(0, 1). On a CPU in parallel blocks, each with a generator of its own: torch's is sequential."""
    if not buffers or buffers[0].device.type != "cpu":
        for buffer in buffers:
            buffer.normal_(generator=generator)
        return
    blocks = list(itertools.chain.from_iterable(b.view(-1).split(_NOISE_BLOCK) for b in buffers))
    seeds = torch.randint(2**62, (len(blocks),), generator=generator).tolist()

    def fill(part: Sequence[tuple[Tensor, int]]) -> None:
        own = torch.Generator()
        with torch.no_grad():
            for block, seed in part:
                block.normal_(generator=own.manual_seed(seed))

    work = list(zip(blocks, seeds, strict=True))
    count = min(torch.get_num_threads(), len(work))
    if count < 2:
        fill(work)
    else:
        list(_threads(count).map(fill, [work[k::count] for k in range(count)]))


def _blocks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Matching pieces of tensors of one size."""
    flat = [t.reshape(-1) for t in tensors]  # a copy only of parameters in another layout, which are read
    if flat[0].numel() <= _BLOCK or flat[0].device.type != "cpu":
        yield tuple(flat)
    else:
        yield from zip(*(f.split(_BLOCK) for f in flat), strict=True)


class _Sample(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, pool: Pool, noise: Sequence[Tensor], sums_wanted: bool, *params: Tensor
    ) -> tuple[Tensor, ...]:
        count = len(noise)
        means, rhos = params[:count], params[count:]
        log_sum = torch.zeros((), dtype=torch.float64, device=means[0].device)
        square_sum = torch.zeros_like(log_sum)
        tiny = torch.finfo(rhos[0].dtype).tiny
        weights, sigmas = [], []
        for mean, rho, eps in zip(means, rhos, noise, strict=True):
            weight, sigma = pool.take(mean.shape, mean), pool.take(rho.shape, rho)
            scratch = torch.empty(min(_BLOCK, mean.numel()), dtype=mean.dtype, device=mean.device)
            if mean.device.type != "cpu":
                scratch = torch.empty(mean.numel(), dtype=mean.dtype, device=mean.device)
            for m, r, e, w, s in _blocks(mean, rho, eps, weight, sigma):
                _softplus(r, out=s)
                torch.addcmul(m, s, e, out=w)
                if sums_wanted:
                    logs = torch.clamp_min(s, tiny, out=scratch[: s.numel()]).log_()
                    log_sum += logs.sum()
                    square_sum += torch.dot(s, s)
            weights.append(weight)
            sigmas.append(sigma)
        ctx.noise, ctx.sigmas, ctx.rhos = noise, sigmas, [r.detach() for r in rhos]
        ctx.versions = [r._version for r in rhos]
        ctx.set_materialize_grads(False)
        sums = torch.stack([log_sum, square_sum]).to(means[0].dtype)
        return (sums, *weights)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, d_sums: Tensor | None, *d_weights: Tensor | None) -> tuple[Any, ...]:
        if [r._version for r in ctx.rhos] != ctx.versions:
            raise RuntimeError("the posterior's parameters were changed between the draw and its backward pass")
        on_cpu = ctx.rhos[0].device.type == "cpu"
        g_log: Any = 0.0
        g_square: Any = 0.0
        if d_sums is not None:
            g_log, g_square = d_sums.tolist() if on_cpu else d_sums.unbind()
        sigmas, ctx.sigmas = ctx.sigmas, None
        if sigmas is None:  # a second backward through the same draw: the first one used the buffers up
            sigmas = [torch.nn.functional.softplus(r) for r in ctx.rhos]
        d_rhos: list[Tensor | None] = []
        for rho, sigma, eps, d_weight in zip(ctx.rhos, sigmas, ctx.noise, d_weights, strict=True):
            if d_weight is None and d_sums is None:
                d_rhos.append(None)
                continue
            d_weight = torch.zeros_like(rho) if d_weight is None else d_weight.contiguous()
            block = min(_BLOCK, rho.numel()) if on_cpu else rho.numel()
            scratch = torch.empty(2, block, dtype=rho.dtype, device=rho.device)
            for r, s, e, d in _blocks(rho, sigma, eps, d_weight):
                a, b = scratch[0, : r.numel()], scratch[1, : r.numel()]
                torch.mul(d, e, out=a)
                torch.sigmoid(r, out=b)
                if d_sums is not None:
                    # sigmoid / sigma -> 1 as rho -> -inf, also where both have underflowed
                    a.mul_(b)
                    a.addcmul_(s, b, value=2 * g_square) if on_cpu else a.add_(2 * g_square * s * b)
                    ratio = torch.div(b, s, out=s).nan_to_num_(nan=1.0, posinf=1.0)
                    torch.add(a, ratio, alpha=g_log, out=s) if on_cpu else torch.add(a, g_log * ratio, out=s)
                else:
                    torch.mul(a, b, out=s)
            d_rhos.append(sigma)
        return (None, None, None, *d_weights, *d_rhos)


def sample(
    means: Sequence[Tensor],
    rhos: Sequence[Tensor],
    noise: Sequence[Tensor],
    *,
    pool: Pool,
    sums: bool = True,
) -> tuple[list[Tensor], Tensor]:
    """As `reference.sample`; without `sums` they are zeros and cost nothing."""
    sums_, *weights = _Sample.apply(pool, noise, sums, *means, *rhos)
    return weights, sums_
