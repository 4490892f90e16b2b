"""Marks of a posterior's parameters: every change shows, and the draw's own mark is that of the parameters."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import bayesrnn as br
from bayesrnn.kernels.cpu import build
from bayesrnn.kernels.cpu.memory import Pool
from bayesrnn.kernels.gaussian import compiled
from bayesrnn.kernels.gaussian.marks import Mark
from bayesrnn.kernels.gaussian.plan import DrawSpec, KernelPrior

SHAPES = ((3,), (70, 1100), (1,), (4, 5, 3), (129,))
needs_c = pytest.mark.skipif(build.why_not() is not None, reason="no compiled kernels")


def posterior(dtype: torch.dtype = torch.float32) -> tuple[DrawSpec, list[torch.Tensor], list[torch.Tensor]]:
    torch.manual_seed(0)
    nothing: tuple[None, ...] = (None,) * len(SHAPES)
    spec = DrawSpec(
        tuple("abcde"), SHAPES, (None, 1, None, 0, None), nothing, dtype, torch.device("cpu"), KernelPrior("groups")
    )
    return spec, [torch.randn(s, dtype=dtype) for s in SHAPES], [torch.randn(s, dtype=dtype) - 3 for s in SHAPES]


@pytest.fixture(params=[pytest.param("c", marks=needs_c), "torch"])
def route(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "torch":
        monkeypatch.setenv("BAYESRNN_COMPILE", "0")
    return str(request.param)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_unchanged_parameters_fit_in_any_memory(route, dtype):
    spec, means, rhos = posterior(dtype)
    mark = Mark.of(spec, means, rhos)
    assert isinstance(mark.value, int) is (route == "c")
    assert mark.fits(means, rhos)
    assert mark.fits([m.clone() for m in means], [r.clone() for r in rhos])
    strided = [m.t().contiguous().t() if m.ndim == 2 else m for m in means]
    assert mark.fits(strided, rhos)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_every_weight_counts(route, dtype):
    spec, means, rhos = posterior(dtype)
    mark = Mark.of(spec, means, rhos)
    for tensor in (*means, *rhos):
        flat = tensor.view(-1)
        for place in {0, flat.numel() // 2, flat.numel() - 1}:
            before = flat[place].clone()
            flat[place] = before * 1.5 + 0.25
            assert not mark.fits(means, rhos)
            flat[place] = before
    assert mark.fits(means, rhos)


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.neg_(),
        lambda t: t.mul_(2),
        lambda t: t.zero_(),
        lambda t: t.copy_(t.flip(0)),
        lambda t: t.copy_(t.roll(1, -1)),
        lambda t: t.view(-1).copy_(t.view(-1).roll(64)),
    ],
)
@pytest.mark.parametrize("of", ["means", "rhos", "both"])
def test_changes_with_a_pattern_show(route, change, of):
    spec, means, rhos = posterior()
    mark = Mark.of(spec, means, rhos)
    for tensors, name in ((means, "means"), (rhos, "rhos")):
        if of in (name, "both"):
            change(tensors[1])
    assert not mark.fits(means, rhos)


def test_means_and_rhos_that_change_places_show(route):
    spec, means, rhos = posterior()
    assert not Mark.of(spec, means, rhos).fits(rhos, means)


@needs_c
def test_a_transposed_view_of_the_same_memory_shows():
    shape = (16, 16)
    spec = posterior()[0]._replace(names=("a",), shapes=(shape,), group_dims=(None,), padding=(None,))
    mean, rho = nn.Parameter(torch.randn(shape)), nn.Parameter(torch.randn(shape))
    mark = Mark.of(spec, [mean], [rho])
    mean.data = mean.data.t()
    assert not mark.fits([mean], [rho])


@needs_c
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_a_draw_gives_the_mark_of_its_parameters(threads, monkeypatch):
    spec, means, rhos = posterior()
    monkeypatch.setattr(build, "threads", lambda: threads)
    drawn = compiled.draw(torch.tensor([7]), spec, means, rhos, pool=Pool())
    assert drawn.mark == Mark.of(spec, means, rhos).value
    assert compiled.draw(torch.tensor([7]), spec, means, rhos, pool=Pool(), sums=False).mark is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_kl_is_never_stale(route, dtype):
    torch.manual_seed(0)
    q = br.BayesByBackprop(nn.Linear(70, 90).to(dtype), prior=br.Normal(0.5))
    q(torch.randn(2, 70, dtype=dtype))
    before = float(br.kl(q).detach())
    weight = q.module.weight.data
    was = float(weight[40, 3])
    weight[40, 3] = was + 3.0
    after = float(br.kl(q).detach())
    assert math.isclose(after - before, ((was + 3.0) ** 2 - was**2) / (2 * 0.5**2), rel_tol=0.01)
    q.posterior.prior = br.Normal(2.0)
    assert float(br.kl(q).detach()) != pytest.approx(after, rel=0.01)
