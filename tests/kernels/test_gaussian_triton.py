"""The GPU kernels of Gaussian weights, run by Triton's interpreter on the CPU, against the plain version in float64.

The interpreter must be chosen before Triton is first imported, so test_interpreter.py runs this file in a process of
its own.
"""

from __future__ import annotations

import math
import os

import pytest
import torch
from torch import nn
from torch.testing import assert_close

pytest.importorskip("triton", reason="Triton is not installed")
if torch.cuda.is_available():
    pytest.skip("tests/kernels/test_gpu_gaussian.py runs the same kernels on the GPU", allow_module_level=True)

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("test_interpreter.py runs these tests", allow_module_level=True)

import triton as triton_module
import triton.language as tl

import bayesrnn as br
from bayesrnn.kernels.gaussian import plan, reference
from bayesrnn.kernels.gaussian.plan import DrawSpec, KernelPrior
from bayesrnn.kernels.gpu import gaussian as triton
from bayesrnn.kernels.gpu import launches
from bayesrnn.kernels.gpu import tiles as device
from tests.kernels.philox import box_muller, normals

CPU = torch.device("cpu")
LARGE = ((256, 256), (512, 16))


@pytest.fixture
def large_steps(monkeypatch):
    """Whole tiles at a time, and with LARGE large ones: the interpreter's time is that of the number of steps."""
    monkeypatch.setattr(launches, "_AT_ONCE", 1 << 16)


# four are wide: rows folded by four and by two, a vector in whole quads, and one that has none; three are narrow
SHAPES = [(8, 37), (10, 70), (200,), (1,), (6, 3, 5), (70, 2), (9, 33)]
GROUPS = [1, 0, None, None, 1, 0, 0]
PRIORS = {
    "none": KernelPrior("none"),
    "normal": KernelPrior("normal", sigma1=0.3),
    "groups": KernelPrior("groups", 0.25, 0.4, 0.05),
    "groups, narrow first": KernelPrior("groups", 0.7, 0.01, 0.5),
    "weights": KernelPrior("weights", 0.25, 0.4, 0.002),
    "weights, narrow first": KernelPrior("weights", 0.6, 0.01, 0.5),
}


def make_spec(shapes, groups=None, prior="none", dtype=torch.float64, **options):
    names = tuple(f"w{k}" for k in range(len(shapes)))
    # smaller tiles than on a GPU, so that less of them lies outside these small tensors
    given = {"padding": (None,) * len(shapes), "tiles": ((8, 64), (64, 16)), **options}
    group_dims = tuple(groups or [None if len(s) < 2 else 1 for s in shapes])
    return DrawSpec(names, tuple(shapes), group_dims, dtype=dtype, device=CPU, prior=PRIORS[prior], **given)


def seeded(number=7):
    return torch.tensor([number], dtype=torch.int64)


def parameters(shapes, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    means = [torch.randn(s, generator=generator, dtype=dtype).requires_grad_() for s in shapes]
    rhos = [(torch.randn(s, generator=generator, dtype=dtype) - 2).requires_grad_() for s in shapes]
    return means, rhos, [torch.randn(s, generator=generator, dtype=dtype) for s in shapes]


def expected(spec, means, rhos):
    """Weights and KL in plain torch operations on the kernel's own noise."""
    noise = [e.to(spec.dtype) for e in triton.noise(seeded(), spec)]
    sample = reference.sample(means, rhos, noise, spec.group_dims)
    count, p = sum(m.numel() for m in means), spec.prior
    if p.kind == "normal":
        squares = sample.sigma_squared + sum(m.square().sum() for m in means)
        return sample.weights, squares / (2 * p.sigma1**2) - sample.log_sigma + count * (math.log(p.sigma1) - 0.5)
    log_q = -sample.log_sigma - sum(0.5 * e.square().sum() for e in noise) - 0.5 * count * math.log(2 * math.pi)
    if p.kind == "none":
        return sample.weights, log_q
    prior = br.ScaleMixture(p.pi, p.sigma1, p.sigma2, group="input" if p.kind == "groups" else "weight")
    log_p = sum(prior.log_prob(w, group_dim=g).sum() for w, g in zip(sample.weights, spec.group_dims, strict=True))
    return sample.weights, log_q - log_p


def loss_of(weights, kl, cotangents, scale=0.7):
    return sum((w.sin() * c).sum() for w, c in zip(weights, cotangents, strict=True)) + scale * kl


@pytest.mark.parametrize("prior", [p for p in PRIORS if p != "none"])
def test_values_and_gradients_are_the_reference_s(prior, nan_allocations):
    spec = make_spec(SHAPES, GROUPS, prior)
    means, rhos, cotangents = parameters(SHAPES)
    found = triton.draw(seeded(), spec, means, rhos)
    weights, kl = expected(spec, means, rhos)
    assert_close(list(found.weights), list(weights))
    assert_close(found.kl, kl)
    ours = torch.autograd.grad(loss_of(*found[:2], cotangents), [*means, *rhos])
    assert_close(ours, torch.autograd.grad(loss_of(weights, kl, cotangents), [*means, *rhos]), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("prior", ["normal", "groups", "weights"])
def test_float32_is_close_to_float64(prior):
    spec = make_spec(SHAPES[:4], GROUPS[:4], prior)
    means, rhos, cotangents = parameters(SHAPES[:4])
    weights, kl = expected(spec, means, rhos)
    wanted = torch.autograd.grad(loss_of(weights, kl, cotangents), [*means, *rhos])
    small = [[t.detach().float().requires_grad_() for t in ts] for ts in (means, rhos)]
    found = triton.draw(seeded(), spec._replace(dtype=torch.float32), *small)
    assert_close(found.kl.double(), kl.detach(), rtol=2e-6, atol=0)
    ours = torch.autograd.grad(loss_of(*found[:2], [c.float() for c in cotangents]), [*small[0], *small[1]])
    for a, b in zip(ours, wanted, strict=True):
        assert float((a.double() - b).norm() / b.norm()) < 1e-4


@pytest.mark.parametrize("prior", ["normal", "groups"])
@pytest.mark.parametrize("used", ["first weight", "kl"])
def test_gradients_where_only_some_outputs_are_used(prior, used):
    shapes = [(5, 3), (6,)]
    spec = make_spec(shapes, [1, None], prior)
    means, rhos, cotangents = parameters(shapes)
    outcome = []
    for weights, kl in (triton.draw(seeded(), spec, means, rhos)[:2], expected(spec, means, rhos)):
        loss = kl.sin() if used == "kl" else (weights[0] * cotangents[0]).sum()
        grads = torch.autograd.grad(loss, [*means, *rhos], allow_unused=True)
        outcome.append([torch.zeros(()) if g is None or not g.any() else g for g in grads])
    assert_close(*outcome, check_dtype=False)


def test_without_sums_the_weights_are_the_same_and_differentiable():
    spec = make_spec(SHAPES, GROUPS, "groups")
    means, rhos, cotangents = parameters(SHAPES)
    a, b = (triton.draw(seeded(), spec, means, rhos, sums=s) for s in (True, False))
    assert b.kl is None
    assert_close(a.weights, b.weights, rtol=0, atol=0)
    grads = [torch.autograd.grad(loss_of(d.weights, 0, cotangents), [*means, *rhos]) for d in (a, b)]
    assert_close(*grads, rtol=0, atol=0)


def test_a_second_backward_gives_the_same_gradient_and_a_double_one_is_refused():
    means, rhos, cotangents = parameters([(5, 3)])
    found = triton.draw(seeded(), make_spec([(5, 3)], [1], "groups"), means, rhos)
    loss = loss_of(*found[:2], cotangents)
    first = torch.autograd.grad(loss, [*means, *rhos], retain_graph=True)
    again = torch.autograd.grad(loss, [*means, *rhos], create_graph=True)
    assert_close(first, tuple(g.detach() for g in again), rtol=0, atol=0)
    with pytest.raises(RuntimeError, match="can be differentiated once"):
        again[0].sum().backward()


def test_parameters_in_any_memory_layout():
    base = torch.randn(4, 3, dtype=torch.float64).t()
    mean, rho = base.clone().requires_grad_(), (base - 1).requires_grad_()
    assert not mean.is_contiguous()
    spec = make_spec([(3, 4)], [1], "groups")
    found, (weights, kl) = triton.draw(seeded(), spec, [mean], [rho]), expected(spec, [mean], [rho])
    ours, theirs = (
        torch.autograd.grad(loss_of(w, k, [base.sin()]), [mean, rho]) for w, k in (found[:2], (weights, kl))
    )
    assert_close(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_softplus_and_its_slopes_are_exact_at_both_ends(dtype):
    rho = torch.tensor([-1e4, -200.0, -85.0, -80.0, -20.0, -1e-3, 0.0, 3.0, 20.0, 200.0], dtype=dtype)
    spec = make_spec([(10,)], None, "none", dtype)
    mean, raw = torch.zeros(10, dtype=dtype, requires_grad=True), rho.clone().requires_grad_()
    found = triton.draw(seeded(), spec, [mean], [raw])
    noise, exact = triton.noise(seeded(), spec)[0].double(), rho.tolist()
    # log(1 + e^rho), rounded once: far below zero it is e^rho, which float32 can hold down to -87
    sigma = torch.tensor([math.log1p(math.exp(r)) if r < 30 else r for r in exact], dtype=torch.float64)
    logistic = torch.tensor([1 / (1 + math.exp(-r)) if r > -700 else 0.0 for r in exact], dtype=torch.float64)
    ratio = torch.tensor([1.0 if r < -40 else float(g / s) for r, g, s in zip(exact, logistic, sigma, strict=True)])
    (slope,) = torch.autograd.grad(found.weights[0].sum(), raw, retain_graph=True)
    # in float32 the error of exp grows with its argument: README.md
    relative = 1e-14 if dtype == torch.float64 else 4e-7 + 7e-8 * rho.double().clamp(max=0).abs()
    smallest = 0.0 if dtype == torch.float64 else 1e-37
    for ours, exactly in ((found.weights[0].detach(), sigma), (slope, logistic)):
        assert bool(((ours.double() - exactly * noise).abs() <= relative * (exactly * noise).abs() + smallest).all())
    (log_slope,) = torch.autograd.grad(found.kl, raw)
    assert_close(log_slope.double(), -ratio.double(), rtol=1e-6, atol=0)
    log_sigma = sum(math.log(s) if r > -700 else r for r, s in zip(exact, sigma.tolist(), strict=True))
    wanted = -log_sigma - float(noise.square().sum()) / 2 - 5 * math.log(2 * math.pi)
    assert_close(found.kl.item(), wanted, rtol=1e-6, atol=1e-5)


def test_the_plain_noise_is_philox_and_box_muller():
    # the published known answer of Philox4x32-10 for counter 0 and key 0 (Salmon et al. 2011)
    zero = [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    found = normals(0, torch.tensor([0]))[0].tolist()
    for k in (0, 2):
        radius = math.sqrt(-2 * math.log((zero[k] + 0.5) / 2**32))
        angle = 2 * math.pi * zero[k + 1] / 2**32
        assert found[k : k + 2] == pytest.approx([radius * math.cos(angle), radius * math.sin(angle)], abs=1e-12)


def test_noise_is_the_plain_one_by_place():
    # (10, 70) and (8, 37) have two and four of their rows in one, the others' rows end in quads that are not whole
    shapes, seed = [(10, 70), (8, 37), (5, 37), (4, 3), (130,)], 123456789 + (987654321 << 32)
    found, first = triton.noise(seeded(seed), make_spec(shapes, tiles=((8, 128), (64, 16)))), 0
    order = [(5, 140), (2, 148), (5, 37), (4, 3), (2, 128)]
    for noise, (rows, columns) in zip(found, order, strict=True):
        quads = -(-columns // 4)
        plain = normals(seed, first + torch.arange(rows * quads)).view(rows, 4 * quads)[:, :columns]
        assert_close(noise.flatten().double(), plain.flatten()[: noise.numel()], rtol=0, atol=4e-6)
        first += rows * quads


@triton_module.jit
def pairs(words, out, N: tl.constexpr):
    at = tl.arange(0, N)
    a, b = device._pair(tl.load(words + at).to(tl.uint32), tl.load(words + N + at).to(tl.uint32))
    tl.store(out + at, a)
    tl.store(out + N + at, b)


def test_the_transform_is_right_in_the_middle_and_in_the_tails():
    # radii from 1e-5 to 6.8: words at both ends, at powers of two, and 4,096 drawn ones
    ends = [0, 1, 2, 3, 2**32 - 1, 2**32 - 2, *(2**k for k in range(2, 32)), *(2**32 - 2**k for k in range(2, 31))]
    radii = torch.cat([torch.tensor(ends), torch.randint(2**32, (4096 - len(ends),))])
    angles = torch.randint(2**32, (4096,))
    angles[:4] = torch.tensor([0, 1 << 30, 1 << 31, 2**32 - 1])
    out = torch.empty(2, 4096)
    pairs[(1,)](torch.cat([radii, angles]), out, N=4096)
    exact = box_muller(radii, angles)
    # where the radius is small, u is close to 1, and float32 has 2^-24 between its numbers there
    assert_close(out.t().double(), exact, rtol=2e-6, atol=4e-4)
    usual = exact.norm(dim=1) > 0.01
    assert float((out.t().double() - exact)[usual].abs().max()) < 1e-5
    assert float((out.t().double() - exact)[exact.norm(dim=1) > 1].abs().max()) < 4e-6


def test_noise_does_not_depend_on_the_tiles():
    shapes = [(9, 35), (150,), (6, 3, 5)]
    spec = make_spec(shapes, None, "groups", torch.float32)
    means, rhos, _ = parameters(shapes, torch.float32)
    usual, drawn = triton.noise(seeded(), spec), triton.draw(seeded(), spec, means, rhos)
    for tiles in (((8, 32), (4, 4)), plan._TILES):
        other = spec._replace(tiles=tiles)
        assert_close(triton.noise(seeded(), other), usual, rtol=0, atol=0)
        again = triton.draw(seeded(), other, means, rhos)
        assert_close(again.weights, drawn.weights, rtol=0, atol=0)
        assert_close(again.kl, drawn.kl)


def test_noise_is_standard_normal(large_steps):
    # 262,144 numbers. Limits at 5 standard errors of each moment: a true run fails with probability < 2e-6 each,
    # an error of 2% in mean or scale is caught with power > 0.99. Kolmogorov-Smirnov: sqrt(n) D < 2.5 fails by
    # chance with probability 7e-6, and is passed by N(0.02, 1), with D = 0.008, once in 10,000.
    x = triton.noise(seeded(), make_spec([(512, 512)], tiles=LARGE))[0].flatten().double()
    n = x.numel()
    assert abs(float(x.mean())) < 5 / math.sqrt(n)
    assert abs(float(x.var()) - 1) < 5 * math.sqrt(2 / n)
    assert abs(float((x**3).mean())) < 5 * math.sqrt(15 / n)
    assert abs(float((x**4).mean()) - 3) < 5 * math.sqrt(96 / n)
    ordered = x.sort().values
    cdf = 0.5 * (1 + torch.erf(ordered / math.sqrt(2)))
    steps = torch.arange(n + 1, dtype=torch.float64) / n
    distance = max(float((steps[1:] - cdf).max()), float((cdf - steps[:-1]).max()))
    assert math.sqrt(n) * distance < 2.5
    assert 4 < float(x.abs().max()) < 7
    # numbers beyond k sigma: 5 standard errors, and 1 more where few are expected. Beyond 3 there are 708, and a
    # tail that is a third too light or too heavy is caught with power > 0.99; beyond 4.5, 1.8 are expected
    for k in (2, 3, 3.5, 4, 4.5):
        share = math.erfc(k / math.sqrt(2))
        assert abs(int((x.abs() > k).sum()) - n * share) < 1 + 5 * math.sqrt(n * share), k


def test_noise_is_independent_across_places_tensors_and_seeds(large_steps):
    # products of independent normals have mean 0 and variance 1: 5 standard errors, as above; a correlation of
    # 0.03 between any of these pairs is caught with power > 0.99
    spec = make_spec([(256, 256), (256, 256)], tiles=LARGE)
    a, b = (t.double() for t in triton.noise(seeded(1), spec))
    c = triton.noise(seeded(2), spec)[0].double()
    d = triton.noise(seeded(1 + (1 << 40)), spec)[0].double()
    couples = [(a, b), (a, c), (a, d), (a[:, 1:], a[:, :-1]), (a[1:], a[:-1])]
    couples += [(a[:, j::4], a[:, k::4]) for j in range(4) for k in range(j)]  # the four of one counter
    couples += [(a[:, 4:], a[:, :-4])]
    for one, other in couples:
        for f in (lambda t: t, lambda t: (t * t - 1) / math.sqrt(2)):
            assert abs(float((f(one) * f(other)).mean())) < 5 / math.sqrt(one.numel())


def test_padding_rows_have_no_noise():
    spec = make_spec([(6, 4), (3, 4), (8, 37)], [0, 1, 0], "groups", padding=(2, None, 5))
    noise = triton.noise(seeded(), spec)
    free = triton.noise(seeded(), spec._replace(padding=(None,) * 3))
    assert not noise[0][2].any()
    rows = [0, 1, 3, 4, 5]
    assert not noise[2][5].any()
    others = [0, 1, 2, 3, 4, 6, 7]
    assert_close(
        [noise[0][rows], noise[1], noise[2][others]], [free[0][rows], free[1], free[2][others]], rtol=0, atol=0
    )
    means, rhos, cotangents = parameters(spec.shapes)
    found, (weights, kl) = triton.draw(seeded(), spec, means, rhos), expected(spec, means, rhos)
    assert torch.equal(found.weights[0][2], means[0][2])
    assert_close(found.kl, kl)
    ours, theirs = (torch.autograd.grad(loss_of(w, k, cotangents), rhos) for w, k in (found[:2], (weights, kl)))
    assert_close(ours, theirs)


def test_more_tensors_than_one_launch_takes_and_empty_ones(monkeypatch):
    monkeypatch.setattr(plan, "_AT_ONCE", 2)
    plan.plan.cache_clear()
    shapes = [(3, 2), (4, 0), (0, 3), (40, 33), (5,), (3, 2), (7, 50)]
    spec = make_spec(shapes, [1, 0, 1, 1, None, 0, 1], "groups")
    assert len(plan.plan(spec).launches) == 5
    means, rhos, cotangents = parameters(shapes)
    found, (weights, kl) = triton.draw(seeded(), spec, means, rhos), expected(spec, means, rhos)
    assert_close(list(found.weights), list(weights))
    assert_close(found.kl, kl)
    both = (found[:2], (weights, kl))
    assert_close(*(torch.autograd.grad(loss_of(w, k, cotangents), [*means, *rhos]) for w, k in both))
    plan.plan.cache_clear()


def test_weights_in_lower_precision_are_the_same_draw_rounded():
    shapes = [(20, 33), (7,), (4, 5)]
    spec = make_spec(shapes, None, "groups", torch.float32)
    lower = spec._replace(low=frozenset({"w0", "w1"}))
    means, rhos, cotangents = parameters(shapes, torch.float32)
    full, low = (triton.draw(seeded(), s, means, rhos) for s in (spec, lower))
    assert [w.dtype for w in low.weights] == [torch.bfloat16, torch.bfloat16, torch.float32]
    assert_close(low.kl, full.kl, rtol=0, atol=0)
    assert_close(list(low.weights), [w.to(v.dtype) for w, v in zip(full.weights, low.weights, strict=True)])
    grads = []
    for drawn in (full, low):
        # gradients that bfloat16 holds exactly, so that both passes see the same
        total = sum((w * c.bfloat16().to(w.dtype)).sum() for w, c in zip(drawn.weights, cotangents, strict=True))
        grads.append(torch.autograd.grad(total + drawn.kl, [*means, *rhos]))
    assert_close(*grads, rtol=1e-6, atol=1e-6)


def test_parameters_in_half_precision():
    means, rhos, cotangents = parameters([(20, 33)], torch.bfloat16)
    found = triton.draw(seeded(), make_spec([(20, 33)], None, "groups", torch.bfloat16), means, rhos)
    exact = [[t.detach().double().requires_grad_() for t in ts] for ts in (means, rhos)]
    weights, kl = expected(make_spec([(20, 33)], None, "groups"), *exact)
    assert_close(found.weights[0].double(), weights[0], rtol=1e-2, atol=1e-3)
    assert_close(found.kl.double(), kl, rtol=1e-2, atol=0)
    ours = torch.autograd.grad(loss_of(*found[:2], cotangents), [*means, *rhos])
    theirs = torch.autograd.grad(loss_of(weights, kl, [c.double() for c in cotangents]), [*exact[0], *exact[1]])
    for a, b in zip(ours, theirs, strict=True):
        assert float((a.double() - b).norm() / b.norm()) < 1e-2


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.rnn = nn.Embedding(7, 5, padding_idx=0), nn.LSTM(5, 3)

    def forward(self, x):
        return self.rnn(self.embed(x))[0]


def model(prior, net=Net):
    torch.manual_seed(0)
    return br.BayesByBackprop(net(), prior=prior, init_sigma=0.1).double()


def linear(prior):
    return model(prior, lambda: nn.Linear(3, 2))


class Laplace:
    def log_prob(self, w):
        return -w.abs() - math.log(2)


@pytest.mark.parametrize("prior", [br.ScaleMixture(0.5, 1.0, 0.1), br.Normal(0.2), Laplace()])
def test_a_posterior_on_this_path_gives_the_reference_s_outputs_kl_and_gradients(prior):
    grouped = isinstance(prior, br.ScaleMixture)
    q = model(prior) if grouped else linear(prior)
    x = torch.randint(0, 7, (4, 2)) if grouped else torch.randn(4, 3, dtype=torch.float64)
    outcomes = []
    with br.kernels.force("triton"), br.draw(q, seed=1) as held:
        for path in ("triton", "loop", "reference"):
            q.zero_grad()
            with br.kernels.force(path):
                output = q(x)
                kl = br.kl(q)
                (output.square().sum() + 0.1 * kl).backward()
            outcomes.append([output.detach(), kl.detach(), *(p.grad for p in q.parameters())])
            assert type(next(iter(held._held.values()))).__name__ == "Seeded"
    assert_close(outcomes[0], outcomes[1])
    assert_close(outcomes[0], outcomes[2])


def test_draws_by_seed_and_fresh_draws():
    q, x = linear(br.Normal(0.2)), torch.ones(1, 3, dtype=torch.float64)
    with br.kernels.force("triton"), torch.no_grad():
        outputs = []
        for seed in (1, 2, 1):
            with br.draw(q, seed=seed):
                outputs += [q(x), q(x)]
        assert_close(outputs[0], outputs[1], rtol=0, atol=0)
        assert_close(outputs[0], outputs[4], rtol=0, atol=0)
        assert not torch.equal(outputs[0], outputs[2])
        torch.manual_seed(3)
        first, second = q(x), q(x)
        assert not torch.equal(first, second)
        torch.manual_seed(3)
        assert torch.equal(q(x), first)


def test_the_kl_can_be_asked_for_alone_and_under_no_grad():
    q, x = linear(br.ScaleMixture(0.5, 1.0, 0.1)), torch.ones(1, 3, dtype=torch.float64)
    with br.kernels.force("triton"), br.draw(q, seed=1):
        q(x)
        usual = br.kl(q)
        with torch.no_grad():
            q(x)
            alone = br.kl(q)
        q._current = None
        assert_close(br.kl(q), usual)
        assert_close(alone, usual.detach())


def test_parameters_changed_between_draw_and_backward_are_noticed():
    q = linear(br.Normal(0.2))
    with br.kernels.force("triton"):
        loss = q(torch.ones(1, 3, dtype=torch.float64)).sum()
    with torch.no_grad():
        q.posterior.rho["weight"].add_(0.1)
    with pytest.raises(RuntimeError, match="changed between the draw and its backward"):
        loss.backward()


@pytest.mark.parametrize("sigma0", [0.0, 0.3])
def test_sharpening_gives_the_formula_s_weights_and_gradients(sigma0, nan_allocations):
    from bayesrnn.kernels.gpu.sharpening import sharpen

    shapes = [(5, 37), (3,), (6, 3, 5)]
    spec = make_spec(shapes)
    phis, etas, cotangents = parameters(shapes)
    gradients = [torch.randn(s, dtype=torch.float64) for s in shapes]
    noise = [e.double() for e in triton.noise(seeded(), spec)]
    total, thetas = sharpen(seeded(), spec, phis, etas, gradients, sigma0=sigma0)
    steps = [e * g for e, g in zip(etas, gradients, strict=True)]
    wanted = [p - s + sigma0 * n for p, s, n in zip(phis, steps, noise, strict=True)]
    squares = sum(s.square().sum() for s in steps)
    assert_close(thetas, wanted)
    assert_close(total, squares)
    both = ((thetas, total), (wanted, squares))
    assert_close(*(torch.autograd.grad(loss_of(w, t, cotangents), [*phis, *etas]) for w, t in both))


def test_sharpened_posteriors_on_this_path_give_the_reference_s_numbers():
    s = br.PosteriorSharpening(linear(br.ScaleMixture(0.5, 1.0, 0.1)), sigma0=0.1, init_eta=0.01).double()
    x, y = torch.randn(4, 3, dtype=torch.float64), torch.randint(0, 2, (4,))
    elbo = br.ELBO(s, br.Categorical(), num_data=100)
    for training in (True, False):
        s.train(training)
        outcomes = []
        with br.kernels.force("triton"), br.draw(s, seed=1) if training else br.mean(s):
            for path in ("triton", "reference"):
                s.zero_grad()
                torch.manual_seed(2)  # of the KL's own draw, where the weights are at their means
                with br.kernels.force(path), s.sharpen(lambda: elbo.likelihood.nll(s(x), y)):
                    terms = elbo(s(x), y)
                    terms.loss.backward()
                outcomes.append([terms.loss.detach(), terms.sharpening.detach(), *(p.grad for p in s.parameters())])
        assert_close(*outcomes)
