"""Drawing the weights of a language model on a GPU: milliseconds of each part beside the time its bytes need.

python benchmarks/gaussian.py                    # --variants 0 1 …: other tiles and numbers of warps too; --only: these
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable

import torch

import bayesrnn as br
from bayesrnn import kernels
from bayesrnn.kernels.gaussian import reference
from bayesrnn.kernels.gaussian.plan import DrawSpec, KernelPrior
from bayesrnn.kernels.gpu import gaussian as triton
from bayesrnn.kernels.gpu import launches
from bayesrnn.kernels.gpu import sharpening as sharpen
from bayesrnn.kernels.gpu import update as fast_update
from bayesrnn.kernels.update import reference as plain_update

PRIORS = {
    "groups": KernelPrior("groups", 0.25, math.exp(-1), math.exp(-7)),
    "weights": KernelPrior("weights", 0.25, math.exp(-1), math.exp(-7)),
    "normal": KernelPrior("normal", sigma1=0.2),
}


VARIANTS = [  # rows of a tile of 128 columns, elements at a time, warps; (64, 2048, 8) is what is used
    (128, 2048, 8),
    (32, 2048, 8),
    (64, 1024, 8),
    (64, 4096, 8),
    (64, 1024, 4),
    (64, 2048, 4),
    (32, 1024, 4),
    (32, 512, 4),
]


def shapes(hidden: int, words: int = 10_000) -> tuple[list[tuple[int, ...]], list[int | None]]:
    layer: list[tuple[int, ...]] = [(4 * hidden, hidden), (4 * hidden, hidden), (4 * hidden,), (4 * hidden,)]
    return [(words, hidden), *layer, *layer, (words, hidden)], [0, 1, 1, None, None, 1, 1, None, None, 1]


def milliseconds(work: Callable[[], object], repeats: int = 30) -> float:
    """Median time of one replay of `work` as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with kernels.capture(graph):
        work()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times[5:])


def bandwidth() -> float:
    """Bytes per millisecond of a large copy, read and written."""
    a = torch.randn(1 << 28, device="cuda")
    b = torch.empty_like(a)
    return 8 * a.numel() / milliseconds(lambda: b.copy_(a), 15)


def measure(name: str, hidden: int, prior: str, speed: float, **options: object) -> None:
    sizes, groups = shapes(hidden)
    device = torch.device("cuda", torch.cuda.current_device())
    names = tuple(f"w{k}" for k in range(len(sizes)))
    spec = DrawSpec(names, tuple(sizes), tuple(groups), (None,) * len(sizes), torch.float32, device, PRIORS[prior])
    spec = spec._replace(**options)
    means = [torch.randn(s, device="cuda").mul_(0.05).requires_grad_() for s in sizes]
    rhos = [torch.randn(s, device="cuda").sub_(3).requires_grad_() for s in sizes]
    seed = torch.tensor([1], device="cuda")
    count = sum(m.numel() for m in means)
    given = [torch.randn(s, device="cuda") for s in sizes]

    def both() -> object:
        weights, kl, _ = triton.draw(seed, spec, means, rhos)
        return torch.autograd.grad([*weights, kl], [*means, *rhos], [*given, torch.ones_like(kl)])

    with torch.no_grad():
        forward = milliseconds(lambda: triton.draw(seed, spec, means, rhos))
    whole = milliseconds(both)
    floors = 12 * count / speed, 20 * count / speed
    print(
        f"{name:28} {count / 1e6:5.1f}M weights  forward {forward:.3f} ms (floor {floors[0]:.3f})"
        f"  backward {whole - forward:.3f} ms (floor {floors[1]:.3f})",
        flush=True,
    )


def second_level(hidden: int, speed: float) -> None:
    """The second level of sharpening, forward and backward."""
    sizes, groups = shapes(hidden)
    device = torch.device("cuda", torch.cuda.current_device())
    names = tuple(f"w{k}" for k in range(len(sizes)))
    spec = DrawSpec(
        names, tuple(sizes), tuple(groups), (None,) * len(sizes), torch.float32, device, KernelPrior("none")
    )
    phis, etas, given = ([torch.randn(s, device="cuda").mul_(0.05) for s in sizes] for _ in range(3))
    for tensor in (*phis, *etas):
        tensor.requires_grad_()
    seed, count = torch.tensor([1], device="cuda"), sum(p.numel() for p in phis)

    def both() -> object:
        total, thetas = sharpen.sharpen(seed, spec, phis, etas, given, sigma0=0.02)
        return torch.autograd.grad([total, *thetas], etas, [torch.ones_like(total), *given])

    with torch.no_grad():
        forward = milliseconds(lambda: sharpen.sharpen(seed, spec, phis, etas, given, sigma0=0.02))
    floor = 16 * count / speed
    whole = milliseconds(both)
    print(
        f"H={hidden} second level of sharpening: forward {forward:.3f} ms, backward {whole - forward:.3f} ms"
        f" (floors {floor:.3f})",
        flush=True,
    )


def before(hidden: int) -> None:
    """The same by torch's operations, with the prior's terms."""
    sizes, groups = shapes(hidden)
    prior = br.ScaleMixture(0.25, math.exp(-1), math.exp(-7))
    means = [torch.randn(s, device="cuda").mul_(0.05).requires_grad_() for s in sizes]
    rhos = [torch.randn(s, device="cuda").sub_(3).requires_grad_() for s in sizes]
    given = [torch.randn(s, device="cuda") for s in sizes]

    def both() -> object:
        noise = [torch.randn_like(m) for m in means]
        sample = reference.sample(means, rhos, noise, groups)
        log_p = sum(
            prior.of_squares(s, m.numel() // s.numel()).sum() for s, m in zip(sample.squares, means, strict=True)
        )
        kl = -sample.log_sigma - sum(0.5 * torch.linalg.vector_norm(e).square() for e in noise) - log_p
        return torch.autograd.grad([*sample.weights, kl], [*means, *rhos], [*given, torch.ones_like(kl)])

    print(f"H={hidden} groups, torch operations: forward and backward {milliseconds(both):.3f} ms", flush=True)


def update(hidden: int, speed: float) -> None:
    """Clipping and SGD over means and rhos."""
    sizes, _ = shapes(hidden)
    params = [torch.randn(s, device="cuda") for s in sizes * 2]
    gradients = [torch.randn(s, device="cuda") for s in sizes * 2]
    rate = torch.tensor(1e-3, device="cuda")
    count = sum(p.numel() for p in params)
    for name, step in (("kernels", fast_update.clipped_step), ("torch operations", plain_update.clipped_step)):
        took = milliseconds(lambda step=step: step(params, gradients, rate=rate, clip=5.0))
        print(f"H={hidden} clip and update, {name}: {took:.3f} ms (floor {16 * count / speed:.3f})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--variants", type=int, nargs="*", default=[], help="numbers of variants to measure too")
    parser.add_argument("--only", action="store_true", help="the variants alone")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this measures on a GPU, and torch sees no CUDA device here")
    speed = bandwidth()
    print(f"{torch.cuda.get_device_name()}: a copy moves {speed / 1e9:.2f} TB/s")
    for hidden in () if options.only else (650, 1500):
        for prior in PRIORS:
            measure(f"H={hidden} {prior}", hidden, prior, speed)
        before(hidden)
    if not options.only:
        second_level(650, speed)
        update(650, speed)
    for k in options.variants:
        rows, launches._AT_ONCE, launches._WARPS = VARIANTS[k]
        measure(f"H=650 groups, variant {VARIANTS[k]}", 650, "groups", speed, tiles=((rows, 128), (512, 16)))


if __name__ == "__main__":
    main()
