"""The compiled draws of Gaussian weights: the generator, the noise, and values and gradients against float64."""

from __future__ import annotations

import ctypes
import gc
import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import bayesrnn as br
from bayesrnn import kernels
from bayesrnn.kernels import cpu
from bayesrnn.kernels.cpu.memory import Pool
from bayesrnn.kernels.gaussian import compiled, reference, sampling
from bayesrnn.kernels.gaussian.plan import DrawSpec, KernelPrior

if cpu.why_not() is not None:
    pytest.skip(f"no compiled kernels: {cpu.why_not()}", allow_module_level=True)

PRIORS = {
    "none": KernelPrior("none"),
    "normal": KernelPrior("normal", sigma1=0.3),
    "groups": KernelPrior("groups", 0.25, 0.4, 0.05),
    "groups, narrow first": KernelPrior("groups", 0.7, 0.01, 0.5),
    "weights": KernelPrior("weights", 0.25, 0.4, 0.002),
    "weights, narrow first": KernelPrior("weights", 0.6, 0.01, 0.5),
}
# around a vector, a tile of 1,024 and a block of 65,536; matrices by row and by column, some longer than a block
SHAPES = [(5, 37), (33, 130), (1,), (1023,), (6, 3, 5), (3, 1025), (2, 40_000), (70_001, 1), (65_536,), (1, 66_000)]
GROUPS = [1, 0, None, None, 1, 0, 0, 1, None, 1]
MASK = 0xFFFFFFFF


def make_spec(shapes, groups=None, prior="none", padding=None, dtype=torch.float32):
    names = tuple(f"w{k}" for k in range(len(shapes)))
    group_dims = tuple(groups or [None if len(s) < 2 else 1 for s in shapes])
    given = tuple(padding or [None] * len(shapes))
    return DrawSpec(names, tuple(shapes), group_dims, given, dtype, torch.device("cpu"), PRIORS[prior])


def seeded(number=7):
    return torch.tensor([number], dtype=torch.int64)


def parameters(shapes, shift=-2.0):
    generator = torch.Generator().manual_seed(0)

    def normal(shape):
        return torch.randn(shape, generator=generator)

    means = [normal(s).requires_grad_() for s in shapes]
    rhos = [(normal(s) + shift).requires_grad_() for s in shapes]
    return means, rhos, [normal(s) for s in shapes]


def drawn(spec, means, rhos, **options):
    return compiled.draw(seeded(), spec, means, rhos, pool=Pool(), **options)


def expected(spec, means, rhos):
    """Weights and KL in float64 and plain torch operations, on the kernel's own noise."""
    noise = [e.double() for e in compiled.noise(seeded(), spec)]
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


def doubled(means, rhos):
    return [[t.detach().double().requires_grad_() for t in ts] for ts in (means, rhos)]


def loss_of(weights, kl, cotangents, scale=0.7):
    return sum((w * c.to(w)).sum() for w, c in zip(weights, cotangents, strict=True)) + scale * kl


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ([0] * 4, [0] * 4, "9c6ca96a e17eae66 fc10ecd4 5256a7d8"),
        ([MASK] * 4, [MASK] * 4, "2a881696 57012287 f6c7446e a16a6732"),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0, 0x082EFA98, 0xEC4E6C89],
            "59cd1dbb b8879579 86b5d00c ac8b6d84",
        ),
    ],
)
def test_the_generator_gives_the_published_known_answers(counter, key, words):
    # of Threefry-4x32 with 20 rounds (Salmon et al. 2011): zeros, ones, and the digits of pi
    array = ctypes.c_uint32 * 4
    found = array()
    cpu.library().bayesrnn_words(array(*counter), array(*key), found)
    assert [f"{w:08x}" for w in found] == words.split()


def threefry(counter, key):
    """Threefry-4x32-20 on whole numbers, written from its definition."""
    keys = [*key, 0x1BD11BDA ^ key[0] ^ key[1] ^ key[2] ^ key[3]]
    turns = [(10, 26), (11, 21), (13, 27), (23, 5), (6, 20), (17, 11), (25, 10), (18, 20)]
    x = [(a + b) & MASK for a, b in zip(counter, key, strict=True)]
    for number in range(20):
        pairs = ((0, 1), (2, 3)) if number % 2 == 0 else ((0, 3), (2, 1))
        for (a, b), turn in zip(pairs, turns[number % 8], strict=True):
            x[a] = (x[a] + x[b]) & MASK
            x[b] = (((x[b] << turn) | (x[b] >> (32 - turn))) & MASK) ^ x[a]
        if number % 4 == 3:
            count = number // 4 + 1
            x = [(x[j] + keys[(count + j) % 5] + (count if j == 3 else 0)) & MASK for j in range(4)]
    return x


@pytest.mark.parametrize("seed", [0, 7, 2**62 + 12345])
def test_noise_is_box_muller_of_the_words_at_each_place(seed):
    spec = make_spec([(3, 50), (70_000,)])
    found = compiled.noise(seeded(seed), spec)
    for tensor, place in ((0, 0), (0, 17), (0, 149), (1, 5), (1, 63), (1, 64), (1, 65_536 + 100), (1, 69_999)):
        group, inside = divmod(place, 64)
        vector, lane = divmod(inside, 16)
        words = threefry([group * 16 + lane, 0, tensor, 0], [seed & MASK, seed >> 32, 0, 0])
        a, b = words[:2] if vector < 2 else words[2:]
        radius = math.sqrt(-2 * math.log(((a >> 1) + 0.5) / 2**31))
        angle = 2 * math.pi * b / 2**32
        wanted = radius * (math.sin(angle) if vector % 2 else math.cos(angle))
        assert float(found[tensor].flatten()[place]) == pytest.approx(wanted, rel=2e-5, abs=2e-6)


def test_noise_is_standard_normal():
    # 2^21 numbers. Limits at 5 standard errors of each moment: a true run fails with probability < 6e-7 each, and an
    # error of 1% in mean or scale is caught with power > 0.999. Kolmogorov-Smirnov: sqrt(n) D < 2.5 fails by chance
    # with probability 7e-6; N(0.01, 1), with D = 0.004 and sqrt(n) D = 5.8, does not pass it.
    n = 1 << 21
    x = compiled.noise(seeded(), make_spec([(n,)]))[0].double()
    assert abs(float(x.mean())) < 5 / math.sqrt(n)
    assert abs(float(x.var()) - 1) < 5 * math.sqrt(2 / n)
    assert abs(float((x**3).mean())) < 5 * math.sqrt(15 / n)
    assert abs(float((x**4).mean()) - 3) < 5 * math.sqrt(96 / n)
    assert abs(float((x**6).mean()) - 15) < 5 * math.sqrt(10_170 / n)
    ordered = x.sort().values
    cdf = 0.5 * (1 + torch.erf(ordered / math.sqrt(2)))
    steps = torch.arange(n + 1, dtype=torch.float64) / n
    assert math.sqrt(n) * max(float((steps[1:] - cdf).max()), float((cdf - steps[:-1]).max())) < 2.5
    # beyond 4 sigma 133 are expected: 5 standard deviations of a Poisson count
    assert abs(int((x.abs() > 4).sum()) - n * math.erfc(4 / math.sqrt(2))) < 5 * math.sqrt(133)
    assert 4.5 < float(x.abs().max()) < 6.7


def test_noise_is_independent_across_places_tensors_and_seeds():
    # products of independent normals have mean 0 and variance 1: 5 standard errors; a correlation of 0.02 between any
    # of these pairs, of values or of squares, is caught with power > 0.99
    n = 1 << 17
    spec = make_spec([(n,), (n,)])
    a, b = (t.double() for t in compiled.noise(seeded(1), spec))
    c = compiled.noise(seeded(2), spec)[0].double()
    d = compiled.noise(seeded(1 + (1 << 40)), spec)[0].double()
    pairs = [(a, b), (a, c), (a, d), *((a[k:], a[:-k]) for k in (1, 2, 15, 16, 17, 32, 48, 64, 1024, 65_536))]
    quads = a.view(-1, 4, 16)  # the four numbers of one counter
    pairs += [(quads[:, j], quads[:, k]) for j in range(4) for k in range(j)]
    for one, other in pairs:
        for f in (lambda t: t, lambda t: (t * t - 1) / math.sqrt(2)):
            assert abs(float((f(one) * f(other)).mean())) < 5 / math.sqrt(one.numel())


def test_the_direction_of_a_pair_is_uniform_and_independent_of_its_length():
    # 2^18 pairs in 64 sectors and 8 rings of equal probability: chi-square with 511 degrees of freedom has mean 511
    # and standard deviation 32; 5 of them. A sector or ring 3% too likely gives more than 11 above.
    x = compiled.noise(seeded(3), make_spec([(1 << 19,)]))[0].double().view(-1, 2, 16)
    first, second = x[:, 0].flatten(), x[:, 1].flatten()
    sector = ((torch.atan2(second, first) / (2 * math.pi) % 1) * 64).long().clamp_max(63)
    ring = ((-0.5 * (first**2 + second**2)).exp() * 8).long().clamp_max(7)
    counts = torch.bincount(sector * 8 + ring, minlength=512).double()
    wanted = first.numel() / 512
    assert abs(float(((counts - wanted) ** 2 / wanted).sum()) - 511) < 5 * 32


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.usefixtures("nan_allocations")
def test_values_and_gradients_are_the_reference_s(prior):
    spec = make_spec(SHAPES, GROUPS, prior)
    means, rhos, cotangents = parameters(SHAPES)
    found = drawn(spec, means, rhos)
    exact = doubled(means, rhos)
    weights, kl = expected(spec, *exact)
    for a, b in zip(found.weights, weights, strict=True):
        assert_close(a.double(), b, rtol=1e-6, atol=1e-6)
    assert_close(found.kl.double(), kl, rtol=2e-6, atol=0)
    ours = torch.autograd.grad(loss_of(*found[:2], cotangents), [*means, *rhos])
    wanted = torch.autograd.grad(loss_of(weights, kl, cotangents), [*exact[0], *exact[1]])
    for a, b in zip(ours, wanted, strict=True):
        # the slope of a single weight's mixture changes within sigma2 = 0.002 of 0, where means near 1 round off 1e-7
        assert float((a.double() - b).norm()) < (1e-4 if "weights" in prior else 3e-6) * float(b.norm())


@pytest.mark.parametrize("shift", [0.0, -15.0, -30.0, 10.0])
def test_sums_over_many_weights_are_those_of_float64(shift):
    spec = make_spec([(301, 257), (400_000,)], [1, None], "groups")
    means, rhos, _ = parameters(spec.shapes, shift)
    assert_close(drawn(spec, means, rhos).kl.double(), expected(spec, *doubled(means, rhos))[1], rtol=1e-6, atol=0)


@pytest.mark.parametrize("prior", ["normal", "groups"])
@pytest.mark.parametrize("used", ["first weight", "kl"])
def test_gradients_where_only_some_outputs_are_used(prior, used):
    shapes = [(5, 3), (6,)]
    spec = make_spec(shapes, [1, None], prior)
    means, rhos, cotangents = parameters(shapes)
    exact = doubled(means, rhos)
    outcome = []
    for (weights, kl), leaves in ((drawn(spec, means, rhos)[:2], (means, rhos)), (expected(spec, *exact), exact)):
        loss = 3 * kl if used == "kl" else (weights[0] * cotangents[0].to(weights[0])).sum()
        grads = torch.autograd.grad(loss, [*leaves[0], *leaves[1]], allow_unused=True)
        outcome.append(
            [torch.zeros((), dtype=torch.float64) if g is None or not g.any() else g.double() for g in grads]
        )
    assert_close(*outcome, rtol=1e-5, atol=1e-6)


def test_without_sums_the_weights_are_the_same_and_differentiable():
    spec = make_spec(SHAPES[:6], GROUPS[:6], "groups")
    means, rhos, cotangents = parameters(spec.shapes)
    a, b = (drawn(spec, means, rhos, sums=s) for s in (True, False))
    assert b.kl is None
    assert_close(a.weights, b.weights, rtol=0, atol=0)
    grads = [torch.autograd.grad(loss_of(d.weights, 0, cotangents), [*means, *rhos]) for d in (a, b)]
    assert_close(*grads, rtol=0, atol=0)


@pytest.mark.parametrize("prior", ["normal", "groups", "weights"])
def test_numbers_do_not_depend_on_the_number_of_threads(prior, monkeypatch):
    spec = make_spec(SHAPES, GROUPS, prior)
    means, rhos, cotangents = parameters(SHAPES)
    found = []
    for threads in (1, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        outputs = drawn(spec, means, rhos)
        grads = torch.autograd.grad(loss_of(*outputs[:2], cotangents), [*means, *rhos])
        found.append([*outputs.weights, outputs.kl, *grads, *compiled.noise(seeded(), spec)])
    assert_close(*found, rtol=0, atol=0)


def test_a_second_backward_gives_the_same_gradient_and_a_double_one_is_refused():
    means, rhos, cotangents = parameters([(5, 3)])
    found = drawn(make_spec([(5, 3)], [1], "groups"), means, rhos)
    loss = loss_of([found.weights[0].sin()], found.kl, cotangents)
    first = torch.autograd.grad(loss, [*means, *rhos], retain_graph=True)
    again = torch.autograd.grad(loss, [*means, *rhos], create_graph=True)
    assert_close(first, tuple(g.detach() for g in again), rtol=0, atol=0)
    with pytest.raises(RuntimeError, match="can be differentiated once"):
        again[0].sum().backward()


def test_parameters_in_any_memory_layout():
    base = torch.randn(4, 3).t()
    mean, rho = base.clone().requires_grad_(), (base - 1).requires_grad_()
    assert not mean.is_contiguous()
    spec = make_spec([(3, 4)], [1], "groups")
    straight = [t.detach().contiguous().requires_grad_() for t in (mean, rho)]
    grads = []
    for m, r in ((mean, rho), straight):
        found = drawn(spec, [m], [r])
        weight = found.weights[0]
        grads.append(torch.autograd.grad((weight * base.sin()).sum() + found.kl, [m, r]))
    assert_close(*grads, rtol=0, atol=0)


def test_softplus_and_its_slopes_are_exact_at_both_ends():
    exact = [-1e4, -200.0, -86.0, -80.0, -20.0, -1e-3, 0.0, 3.0, 20.0, 200.0, 1e30]
    spec = make_spec([(11,)])
    raw, mean = torch.tensor(exact, requires_grad=True), torch.zeros(11, requires_grad=True)
    found = drawn(spec, [mean], [raw])
    noise = compiled.noise(seeded(), spec)[0].double()
    sigma = torch.tensor([math.log1p(math.exp(r)) if r < 30 else r for r in exact], dtype=torch.float64)
    logistic = torch.tensor([1 / (1 + math.exp(-r)) if r > -700 else 0.0 for r in exact], dtype=torch.float64)
    ratio = torch.tensor([1.0 if r < -40 else float(g / s) for r, g, s in zip(exact, logistic, sigma, strict=True)])
    # float32 holds e^rho down to -87; below that sigma is some 1e-38
    assert_close(found.weights[0].detach().double(), sigma * noise, rtol=1e-6, atol=1e-37)
    (slope,) = torch.autograd.grad(found.weights[0].sum(), raw, retain_graph=True)
    assert_close(slope.double(), logistic * noise, rtol=1e-6, atol=1e-37)
    (log_slope,) = torch.autograd.grad(found.kl, raw)
    assert_close(log_slope.double(), -ratio.double(), rtol=1e-6, atol=0)
    log_sigma = sum(math.log(s) if r > -700 else r for r, s in zip(exact, sigma.tolist(), strict=True))
    wanted = -log_sigma - float(noise.square().sum()) / 2 - 11 / 2 * math.log(2 * math.pi)
    assert_close(found.kl.item(), wanted, rtol=1e-6, atol=1e-5)


def test_nan_comes_through():
    means, rhos, _ = parameters([(40,), (40,)])
    with torch.no_grad():
        means[0][3], rhos[1][39] = float("nan"), float("nan")
    found = drawn(make_spec([(40,), (40,)], None, "normal"), means, rhos)
    assert found.weights[0].isnan().nonzero().tolist() == [[3]]
    assert found.weights[1].isnan().nonzero().tolist() == [[39]]
    assert bool(found.kl.isnan())


def test_padding_rows_have_no_noise():
    spec = make_spec([(6, 4), (3, 4), (30, 100)], [0, 1, 0], "groups", padding=(2, None, 11))
    noise = compiled.noise(seeded(), spec)
    free = compiled.noise(seeded(), spec._replace(padding=(None, None, None)))
    for got, without, pad in zip(noise, free, spec.padding, strict=True):
        rows = [k for k in range(got.shape[0]) if k != pad]
        assert pad is None or not got[pad].any()
        assert_close(got[rows], without[rows], rtol=0, atol=0)
    means, rhos, cotangents = parameters(spec.shapes)
    found, exact = drawn(spec, means, rhos), doubled(means, rhos)
    assert torch.equal(found.weights[0][2], means[0][2])
    weights, kl = expected(spec, *exact)
    assert_close(found.kl.double(), kl, rtol=1e-6, atol=0)
    ours = torch.autograd.grad(loss_of(*found[:2], cotangents), rhos)
    wanted = torch.autograd.grad(loss_of(weights, kl, cotangents), exact[1])
    assert_close([g.double() for g in ours], list(wanted), rtol=1e-5, atol=1e-5)


def test_tensors_without_elements_are_harmless():
    shapes = [(3, 2), (4, 0), (0, 3), (5,), (0,)]
    spec = make_spec(shapes, [1, 0, 1, None, None], "groups")
    means, rhos, cotangents = parameters(shapes)
    found, exact = drawn(spec, means, rhos), doubled(means, rhos)
    weights, _ = expected(spec, *exact)
    assert_close([w.double() for w in found.weights], weights, rtol=1e-6, atol=1e-6)
    assert bool(found.kl.isfinite())
    torch.autograd.grad(loss_of(*found[:2], cotangents), [*means, *rhos])


def test_shapes_that_do_not_fit_are_refused_before_they_reach_c():
    means, rhos, _ = parameters([(3, 2)])
    with pytest.raises(ValueError, match=r"must be of shape \(3, 3\), got \(3, 2\)"):
        drawn(make_spec([(3, 3)]), means, rhos)


def test_many_draws_are_each_draw_alone():
    spec = make_spec(SHAPES[:7], GROUPS[:7], padding=[None, 4, *[None] * 5])
    means, rhos, _ = parameters(spec.shapes)
    seeds = [3, 2**61, 5]
    with torch.no_grad():
        many = compiled.draw_many(seeds, spec, means, rhos, pool=Pool())
        for k, seed in enumerate(seeds):
            alone = compiled.draw(seeded(seed), spec, means, rhos, pool=Pool(), sums=False)
            assert_close([w[k] for w in many], list(alone.weights), rtol=0, atol=0)


def model(prior, seed=0):
    torch.manual_seed(seed)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.rnn, self.out = nn.Embedding(7, 5, padding_idx=0), nn.LSTM(5, 3), nn.Linear(3, 4)

        def forward(self, x):
            return self.out(self.rnn(self.embed(x))[0])

    return br.BayesByBackprop(Net(), prior=prior, init_sigma=0.1, exclude="out.bias")


class Laplace:
    def log_prob(self, w):
        return -w.abs() - math.log(2)


@pytest.mark.parametrize(
    "prior", [br.Normal(0.2), br.ScaleMixture(0.5, 1.0, 0.1), br.ScaleMixture(0.5, 1.0, 0.1, "weight"), Laplace()]
)
def test_a_posterior_gives_the_same_on_all_paths(prior):
    q = model(prior)
    x = torch.randint(0, 7, (4, 2))
    outcomes = []
    with br.draw(q, seed=1) as held:
        for path in ("compiled", "loop", "reference"):
            q.zero_grad()
            with kernels.force(path):
                output = q(x)
                kl = br.kl(q)
                (output.square().sum() + 0.1 * kl).backward()
            outcomes.append([output.detach(), kl.detach(), *(p.grad for p in q.parameters())])
            assert next(iter(held._held.values())).path == "compiled"
    assert_close(outcomes[0], outcomes[1], rtol=1e-4, atol=1e-5)
    assert_close(outcomes[0], outcomes[2], rtol=1e-4, atol=1e-5)


def test_a_held_draw_follows_the_model_to_float64_and_back():
    q = model(br.Normal(0.2))
    x = torch.randint(0, 7, (4, 2))
    with br.draw(q, seed=1), torch.no_grad():
        single = q(x)
        q.double()
        assert_close(q(x).float(), single, rtol=1e-5, atol=1e-6)
        q.float()
        assert_close(q(x), single, rtol=0, atol=0)


def test_draws_follow_seeds_and_torch_s_generator():
    q = model(br.Normal(0.2))
    x = torch.randint(0, 7, (4, 2))
    outputs = []
    for seed in (1, 2, 1):
        with br.draw(q, seed=seed), torch.no_grad():
            outputs.append(q(x))
    assert torch.equal(outputs[0], outputs[2])
    assert not torch.equal(outputs[0], outputs[1])
    state = torch.get_rng_state()
    first, second = q(x), q(x)
    assert not torch.equal(first, second)
    torch.set_rng_state(state)
    assert torch.equal(q(x), first)


def test_neither_noise_nor_sigma_is_kept_and_the_weights_memory_is_used_for_their_gradients(monkeypatch):
    q = br.BayesByBackprop(nn.Linear(700, 600, bias=False), prior=br.ScaleMixture(0.5, 1.0, 0.1))
    x = torch.randn(2, 700)
    for _ in range(3):
        q.zero_grad()
        (q(x).sum() + br.kl(q)).backward()
        gc.collect()
    # the drawn weight, whose memory the gradient of rho takes over, and the gradient of the mean
    sizes = [b.memory.numel() for b in q.posterior._pool._buffers]
    assert sizes == [420_000] * 2


def test_noise_for_other_uses_is_made_by_the_same_generator():
    torch.manual_seed(5)
    spec = make_spec([(100,), (3, 70)])
    out = sampling.noise(torch.empty(0), lambda: spec, None, pool=Pool()).tensors(spec)
    torch.manual_seed(5)
    seed = torch.randint(2**63 - 1, (1,), dtype=torch.int64)
    assert_close(out, compiled.noise(seed, spec), rtol=0, atol=0)


def test_predictions_are_batched_for_small_models_and_the_same_as_one_by_one(monkeypatch):
    from bayesrnn.prediction import montecarlo
    from bayesrnn.prediction import weights as weight_draws

    q, x = model(br.Normal(0.2)), torch.randint(0, 7, (4, 2))
    sizes = []
    real = montecarlo.batched_weight_draws
    monkeypatch.setattr(montecarlo, "batched_weight_draws", lambda *a: (sizes.append(len(a[3])), real(*a))[1])
    together = br.predict(q, x, samples=9, seed=3)
    assert sizes == [4, 5]  # the first batch shows how much memory a draw takes
    monkeypatch.setattr(weight_draws, "_SMALL", 0)
    alone = br.predict(q, x, samples=9, seed=3)
    assert sizes == [4, 5]
    assert_close(together.samples, alone.samples, rtol=1e-5, atol=1e-6)


def test_predictions_of_a_model_that_vmap_does_not_know_go_one_by_one():
    class Odd(nn.Linear):
        def forward(self, x):
            out = super().forward(x)
            return out if out.sum().item() > -1e9 else -out

    q, x = br.BayesByBackprop(Odd(3, 2)), torch.randn(4, 3)
    found = br.predict(q, x, samples=4, seed=3).samples
    with torch.no_grad(), kernels.force("reference"):
        assert_close(br.predict(q, x, samples=4, seed=3).samples, found)
