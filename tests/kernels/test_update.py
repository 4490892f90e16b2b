"""Clipping and a step of SGD: torch's operations against the formula, the GPU's kernels against those."""

from __future__ import annotations

import os

import pytest
import torch
from torch.testing import assert_close

from bayesrnn.kernels.update import reference

SHAPES = [(3, 5), (5000,), (1,), (0,), (70, 130), (64, 128)]  # of a block, less, more, and two whole ones
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
CUDA = torch.cuda.is_available()


def problem(device="cpu", dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    params = [torch.randn(s, generator=generator).to(device, dtype).requires_grad_() for s in SHAPES]
    return params, [torch.randn(s, generator=generator).to(device, dtype) for s in SHAPES]


@pytest.mark.parametrize("clip", [None, 0.5, 1e9])
@pytest.mark.parametrize("decay", [0.0, 1e-3])
def test_the_reference_is_the_formula(clip, decay):
    params, gradients = problem(dtype=torch.float64)
    before = [p.detach().clone() for p in params]
    norm = reference.clipped_step(params, gradients, rate=torch.tensor(0.3).double(), clip=clip, decay=decay)
    whole = torch.cat([g.flatten() for g in gradients]).norm()
    scale = 1.0 if clip is None else min(1.0, clip / (float(whole) + 1e-6))
    assert_close(norm, whole)
    rate = float(torch.tensor(0.3))
    assert_close(params, [w - rate * scale * g - decay * w for w, g in zip(before, gradients, strict=True)])


@pytest.mark.skipif(not INTERPRETED and not CUDA, reason="needs Triton's interpreter or a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("clip", "decay"), [(None, 0.0), (0.5, 0.0), (0.5, 1e-3), (1e9, 1e-3)])
def test_the_kernels_give_the_reference_s_numbers(clip, decay, dtype, monkeypatch):
    from bayesrnn.kernels.gpu import update as triton

    monkeypatch.setattr(triton, "_AT_ONCE", 2)  # several launches
    triton._plan.cache_clear()
    outcomes = []
    for step in (triton.clipped_step, reference.clipped_step):
        params, gradients = problem("cuda" if CUDA else "cpu", dtype)
        given = [g.clone() for g in gradients]
        versions = [p._version for p in params]
        rate = torch.tensor(0.3, device=params[0].device)
        norm = step(params, gradients, rate=rate, clip=clip, decay=decay)
        assert all(p._version > v for p, v in zip(params, versions, strict=True))
        assert_close(gradients, given, rtol=0, atol=0)
        outcomes.append([norm.float(), *(p.detach().float() for p in params)])
    tight = {} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    assert_close(*outcomes, **tight)
    triton._plan.cache_clear()


@pytest.mark.skipif(not INTERPRETED and not CUDA, reason="needs Triton's interpreter or a CUDA device")
def test_the_kernels_give_nan_where_a_gradient_is_and_leave_odd_layouts_to_the_reference():
    from bayesrnn.kernels.gpu import update as triton

    device = "cuda" if CUDA else "cpu"
    params, gradients = problem(device)
    gradients[1][7] = float("nan")
    norm = triton.clipped_step(params, gradients, rate=torch.tensor(1.0, device=device), clip=1.0)
    assert norm.isnan()
    assert all(p.isnan().all() for p in params)
    shifted = [torch.ones(9000, device=device)[1:] for _ in range(2)]  # not at a multiple of 16 bytes
    triton.clipped_step(shifted[:1], shifted[1:], rate=torch.tensor(1.0, device=device), clip=None)
    assert_close(shifted[0], torch.zeros_like(shifted[0]))
    odd, other = (torch.ones(4, 3, device=device).t() for _ in range(2))
    triton.clipped_step([odd], [other], rate=torch.tensor(1.0, device=device), clip=None)
    assert_close(odd, torch.zeros_like(odd))


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="no CUDA device")
def test_large_tensors_wherever_they_lie_on_a_gpu():
    from bayesrnn.kernels.gpu import update as triton

    sizes = [3_000_001, 1 << 20, 7]
    for shift in (0, 1):  # elements: with 1, nothing lies at a multiple of 16 bytes
        outcomes = []
        for step, dtype in ((triton.clipped_step, torch.float32), (reference.clipped_step, torch.float64)):
            generator = torch.Generator("cuda").manual_seed(0)
            made = [torch.randn(n + shift, device="cuda", generator=generator) for n in [*sizes, *sizes]]
            params, gradients = made[:3], made[3:]
            lists = [[t.to(dtype)[shift:] for t in part] for part in (params, gradients)]
            norm = step(*lists, rate=torch.tensor(0.3, device="cuda"), clip=100.0, decay=1e-3)
            outcomes.append([norm.double(), *(p.double() for p in lists[0])])
        assert_close(*outcomes, rtol=1e-6, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="no CUDA device")
def test_a_recorded_graph_reads_the_rate_and_the_gradients_at_every_replay():
    from bayesrnn.kernels.gpu import update as triton

    params, gradients = problem("cuda")
    params = [p.detach() for p in params]
    rate = torch.tensor(0.0, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        triton.clipped_step(params, gradients, rate=rate, clip=1.0)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        norm = triton.clipped_step(params, gradients, rate=rate, clip=1.0)
    wanted = [p.clone() for p in params]
    for k in (1, 2, 3):
        rate.fill_(0.1 * k)
        for g in gradients:
            g.mul_(-0.5 * k)
        graph.replay()
        expected_norm = reference.clipped_step(wanted, gradients, rate=rate, clip=1.0)
        assert_close(norm, expected_norm)
        assert_close(params, wanted)
