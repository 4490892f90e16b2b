"""Normal noise as tensors, for devices and dtypes whose kernels do not make it from a seed."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch
from torch import Tensor

from bayesrnn.kernels.cpu.memory import Pool
from bayesrnn.kernels.dispatch import loop_path
from bayesrnn.kernels.gaussian.plan import DrawSpec
from bayesrnn.kernels.shared.tensors import traced

_NOISE_BLOCK = 1 << 19  # elements per generator: fixes the numbers, whatever the number of threads


@cache
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="bayesrnn-noise")


def noise(like: Tensor, spec: DrawSpec, generator: torch.Generator | None, *, pool: Pool) -> list[Tensor]:
    """N(0, 1) for every weight as float32 tensors, and 0 for padding rows."""
    single = torch.empty(0, dtype=torch.float32, device=like.device)
    made = [pool.take(shape, single) for shape in spec.shapes]
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


PATHS = (loop_path("noise", noise, traced=True),)
