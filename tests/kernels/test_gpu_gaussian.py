"""Gaussian weights on a GPU: the Triton kernels against the plain version, in CUDA graphs, and in cuDNN's layout."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import bayesrnn as br
from bayesrnn.kernels.gaussian import plan, reference
from bayesrnn.kernels.gaussian.plan import DrawSpec, KernelPrior
from tests.kernels.philox import normals

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

# with rows in whole quads, folded by two and by four, neither, and narrow ones
SHAPES = [(70, 132), (66, 130), (65, 130), (1000, 37), (130, 650), (1,), (1300,), (6, 3, 5), (511, 2), (33, 1)]
GROUPS = [1, 1, 1, 0, 0, None, None, 1, 0, 1]
PRIORS = {
    "none": KernelPrior("none"),
    "normal": KernelPrior("normal", sigma1=0.3),
    "groups": KernelPrior("groups", 0.25, 0.4, 0.05),
    "weights": KernelPrior("weights", 0.25, 0.4, 0.02),
}


def make_spec(shapes, groups, prior, dtype=torch.float64, **options):
    names = tuple(f"w{k}" for k in range(len(shapes)))
    given = {"padding": (None,) * len(shapes), **options}
    device = torch.device("cuda", torch.cuda.current_device())
    return DrawSpec(names, tuple(shapes), tuple(groups), dtype=dtype, device=device, prior=PRIORS[prior], **given)


def seeded(number=7):
    return torch.tensor([number], dtype=torch.int64, device="cuda")


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.usefixtures("nan_allocations")
def test_the_kernels_give_the_reference_s_values_and_gradients(prior, dtype, tolerance):
    from bayesrnn.kernels.gpu import gaussian as triton

    torch.manual_seed(0)
    spec = make_spec(SHAPES, GROUPS, prior, dtype)
    means = [torch.randn(s, dtype=torch.float64, device="cuda") for s in SHAPES]
    rhos = [torch.randn(s, dtype=torch.float64, device="cuda") - 2 for s in SHAPES]
    cotangents = [torch.randn(s, dtype=torch.float64, device="cuda") for s in SHAPES]
    noise = [e.double() for e in triton.noise(seeded(), spec)]
    results = []
    for fast in (True, False):
        kind = dtype if fast else torch.float64
        m, r = ([t.to(kind).requires_grad_() for t in ts] for ts in (means, rhos))
        if fast:
            weights, kl, _ = triton.draw(seeded(), spec, m, r)
        else:
            sample = reference.sample(m, r, noise, GROUPS)
            weights, kl = sample.weights, plain_kl(spec.prior, sample, m, noise)
        loss = sum((w.sin() * c.to(w)).sum() for w, c in zip(weights, cotangents, strict=True)) + 0.7 * kl
        grads = torch.autograd.grad(loss, [*m, *r])
        results.append([t.detach().double() for t in (*weights, kl, *grads)])
    for a, b in zip(*results, strict=True):
        assert float((a - b).norm()) <= tolerance * float(b.norm()) + 1e-12


def plain_kl(prior, sample, means, noise):
    count = sum(m.numel() for m in means)
    if prior.kind == "normal":
        squares = sample.sigma_squared + sum(m.square().sum() for m in means)
        return squares / (2 * prior.sigma1**2) - sample.log_sigma + count * (math.log(prior.sigma1) - 0.5)
    log_q = -sample.log_sigma - sum(0.5 * e.square().sum() for e in noise) - 0.5 * count * math.log(2 * math.pi)
    if prior.kind == "none":
        return log_q
    group = "input" if prior.kind == "groups" else "weight"
    mixture = br.ScaleMixture(prior.pi, prior.sigma1, prior.sigma2, group=group)
    return log_q - sum(mixture.log_prob(w, group_dim=g).sum() for w, g in zip(sample.weights, GROUPS, strict=True))


@pytest.mark.parametrize("prior", PRIORS)
def test_every_run_gives_the_same_bits(prior):
    from bayesrnn.kernels.gpu import gaussian as triton

    torch.manual_seed(0)
    spec = make_spec(SHAPES, GROUPS, prior, torch.float32)
    means = [torch.randn(s, device="cuda", requires_grad=True) for s in SHAPES]
    rhos = [(torch.randn(s, device="cuda") - 2).requires_grad_() for s in SHAPES]
    cotangents = [torch.randn(s, device="cuda") for s in SHAPES]
    first = None
    for _ in range(30):
        weights, kl, _ = triton.draw(seeded(), spec, means, rhos)
        grads = torch.autograd.grad([*weights, kl], [*means, *rhos], [*cotangents, torch.ones_like(kl)])
        found = [kl.detach(), *(w.detach() for w in weights), *grads]
        first = first or found
        assert_close(found, first, rtol=0, atol=0)


class Net(nn.Module):
    def __init__(self, size=33, words=50):
        super().__init__()
        self.embed, self.rnn = nn.Embedding(words, size, padding_idx=0), nn.LSTM(size, size, 2)
        self.out = nn.Linear(size, words)

    def forward(self, x):
        return self.out(self.rnn(self.embed(x))[0])


def posterior(prior=None, **options):
    torch.manual_seed(0)
    prior = prior or br.ScaleMixture(0.25, 0.4, 0.01)
    return br.BayesByBackprop(Net(), prior=prior, init_sigma=0.05, exclude="out.bias").cuda()


TOKENS = torch.randint(0, 50, (7, 5), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "prior", [br.Normal(0.2), br.ScaleMixture(0.25, 0.4, 0.01), br.ScaleMixture(0.25, 0.4, 0.01, "weight")]
)
def test_a_posterior_takes_the_kernels_by_itself_and_gives_the_reference_s_outputs_and_gradients(prior):
    q, x = posterior(prior).double(), TOKENS.cuda()
    assert br.kernels.path("cuda", name="gaussian", dtype=torch.float64) == "triton"
    outcomes = []
    for path in (None, "reference"):
        q.zero_grad()
        with br.draw(q, seed=1):
            if path is None:
                output, kl = q(x), br.kl(q)
            else:
                with br.kernels.force(path):
                    output, kl = q(x), br.kl(q)
            (output.square().sum() + 0.1 * kl).backward()
        outcomes.append([output.detach(), kl.detach(), *(p.grad for p in q.parameters())])
    assert_close(*outcomes, rtol=1e-7, atol=1e-7)


def test_the_same_seed_is_the_same_draw_and_fresh_draws_follow_manual_seed():
    q, x = posterior(), TOKENS.cuda()
    with torch.no_grad():
        outputs = []
        for seed in (1, 2, 1):
            with br.draw(q, seed=seed):
                outputs += [q(x), q(x)]
        assert torch.equal(outputs[0], outputs[1])
        assert torch.equal(outputs[0], outputs[4])
        assert not torch.equal(outputs[0], outputs[2])
        torch.manual_seed(3)
        first, second = q(x), q(x)
        torch.manual_seed(3)
        assert torch.equal(q(x), first)
        assert not torch.equal(first, second)
        a, b = (br.predict(q, x, samples=6, seed=5).samples for _ in range(2))
        assert_close(a, b)
        assert float(a.std(0).mean()) > 0


def test_a_held_draw_follows_the_model_to_the_cpu():
    q, x = posterior().double(), TOKENS.cuda()
    with br.draw(q, seed=1), torch.no_grad():
        there = q(x)
        here = q.cpu()(x.cpu())
    assert_close(here, there.cpu())


def test_a_graph_draws_anew_at_every_replay_and_its_gradients_belong_to_that_draw():
    q = br.BayesByBackprop(nn.Linear(70, 40, bias=False), prior=br.Normal(0.5), init_sigma=0.1).cuda()
    eye = torch.eye(70, device="cuda")
    params = list(q.parameters())

    def work():
        weight = q(eye).t()  # the drawn weight itself
        loss = 0.5 * weight.square().sum() + 0.01 * br.kl(q)
        return weight, torch.autograd.grad(loss, params)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        weight, grads = work()
    mean, rho = (p.detach().double() for p in params)
    sigma = nn.functional.softplus(rho)
    seen = []
    for _ in range(3):
        graph.replay()
        w = weight.detach().double()
        eps = (w - mean) / sigma
        seen.append(eps)
        assert abs(float(eps.mean())) < 5 / math.sqrt(eps.numel())
        assert_close(grads[0].double(), w + 0.01 * mean / 0.25, rtol=1e-4, atol=1e-5)
        slope = torch.sigmoid(rho) * (w * eps + 0.01 * (sigma / 0.25 - 1 / sigma))
        assert_close(grads[1].double(), slope, rtol=1e-3, atol=1e-4)
    assert abs(float((seen[0] * seen[1]).mean())) < 5 / math.sqrt(seen[0].numel())
    assert abs(float((seen[1] * seen[2]).mean())) < 5 / math.sqrt(seen[0].numel())


def test_cudnn_runs_on_the_drawn_weights_where_they_lie(monkeypatch):
    q, x = posterior(), TOKENS.cuda()
    q(x)  # the layout is learnt once

    def refuse(*args):
        raise AssertionError("torch copied the weights")

    monkeypatch.setattr(torch, "_cudnn_rnn_flatten_weight", refuse)
    places = [p.data_ptr() for p in q.parameters()]
    q(x).sum().backward()
    q.eval()
    q(x)
    assert [p.data_ptr() for p in q.parameters()] == places


@pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"proj_size": 5}, {"bias": False}])
def test_every_kind_of_recurrent_layer_lies_as_cudnn_wants_it(options, monkeypatch):
    torch.manual_seed(0)
    for layer in (nn.LSTM(7, 9, 2, **options), *([] if "proj_size" in options else [nn.GRU(7, 9, 2, **options)])):
        q, x = br.BayesByBackprop(layer, init_sigma=0.1).cuda(), torch.randn(4, 3, 7, device="cuda")
        q(x)
        with monkeypatch.context() as patch:
            patch.setattr(torch, "_cudnn_rnn_flatten_weight", None)
            with br.draw(q, seed=1):
                here = q(x)[0]
        with br.kernels.force("reference"), br.draw(q, seed=1):
            plain = q(x)[0]  # the same weights, laid out by torch
        assert_close(here, plain, rtol=1e-3, atol=1e-3)


def test_autocast_draws_in_the_lower_precision_what_it_would_cast():
    q, x = posterior(), TOKENS.cuda()
    seen = {}

    def note(module, *_):
        seen[type(module).__name__] = next(iter(module._parameters.values()))

    hooks = [m.register_forward_hook(note) for m in (q.module.embed, q.module.rnn, q.module.out)]
    outcomes = []
    for path in ("triton", "reference"):
        q.zero_grad()
        with br.draw(q, seed=1), torch.autocast("cuda", torch.bfloat16):
            if path == "triton":
                output = q(x)
            else:
                with br.kernels.force(path):
                    output = q(x)
            kl = br.kl(q)
        if path == "triton":
            assert seen["LSTM"].dtype == seen["Linear"].dtype == torch.bfloat16
            assert seen["Embedding"].dtype == torch.float32
        (output.float().square().mean() + 1e-4 * kl).backward()
        outcomes.append([output.detach().float(), kl.detach(), *(p.grad for p in q.parameters())])
    for hook in hooks:
        hook.remove()
    for a, b in zip(*outcomes, strict=True):
        assert float((a - b).norm()) <= 2e-2 * float(b.norm())


def test_noise_is_the_plain_one_by_place_up_to_the_rounding_of_the_instructions():
    from bayesrnn.kernels.gpu import gaussian as triton

    # the instructions' own errors are 2^-20.5 of sine and cosine and 2^-22 of the logarithm
    seed = 123456789 + (987654321 << 32)
    found, first = triton.noise(seeded(seed), make_spec([(512, 1024), (10, 70), (5, 37)], [1, 1, 1], "none")), 0
    for noise, (rows, columns) in zip(found, [(512, 1024), (5, 140), (5, 37)], strict=True):
        quads = -(-columns // 4)
        counters = first + torch.arange(rows * quads, device="cuda")
        plain = normals(seed, counters).view(rows, 4 * quads)[:, :columns]
        error = (noise.flatten().double() - plain.flatten()).abs()
        assert float(error.max()) < 1e-3  # one in a million, where the radius is close to 0
        assert float(error.mean()) < 1e-6
        assert float(error[plain.flatten().abs() > 0.1].max()) < 2e-5
        first += rows * quads


def test_sixty_four_million_normal_numbers():
    # Moments and Kolmogorov-Smirnov at 5 standard errors, as in the tests of the interpreter. Numbers beyond k sigma
    # likewise: 456 are expected beyond 4.5, so that a tail that is half as light or heavy again is caught with
    # power > 0.99; beyond 3, 181,000: an error of 2%
    from bayesrnn.kernels.gpu import gaussian as triton

    x = triton.noise(seeded(3), make_spec([(16384, 4096)], [1], "none"))[0]
    n = x.numel()
    y = x.double()
    assert abs(float(y.mean())) < 5 / math.sqrt(n)
    assert abs(float(y.var()) - 1) < 5 * math.sqrt(2 / n)
    assert abs(float((y**3).mean())) < 5 * math.sqrt(15 / n)
    assert abs(float((y**4).mean()) - 3) < 5 * math.sqrt(96 / n)
    for k in (1, 2, 3, 4, 4.5, 5):
        share = math.erfc(k / math.sqrt(2))
        for side in (y > k, y < -k):
            assert abs(int(side.sum()) - n * share / 2) < 1 + 5 * math.sqrt(n * share / 2), k
    few = y[:1024].flatten().sort().values
    cdf = 0.5 * (1 + torch.erf(few / math.sqrt(2)))
    steps = torch.arange(1, few.numel() + 1, dtype=torch.float64, device="cuda") / few.numel()
    assert math.sqrt(few.numel()) * float((steps - cdf).abs().max()) < 2.5
    for f in (lambda t: t, lambda t: (t * t - 1) / math.sqrt(2)):
        for j in range(4):
            for k in range(j):  # the four of one counter
                assert abs(float((f(y[:, j::4]) * f(y[:, k::4])).mean())) < 5 / math.sqrt(n / 4)
        assert abs(float((f(y[:, 4:]) * f(y[:, :-4])).mean())) < 5 / math.sqrt(n)
        assert abs(float((f(y[1:]) * f(y[:-1])).mean())) < 5 / math.sqrt(n)


@pytest.mark.parametrize("prior", ["groups", "weights"])
def test_tensors_that_do_not_lie_at_multiples_of_16_bytes_give_the_same_numbers(prior):
    from bayesrnn.kernels.gpu import gaussian as triton

    torch.manual_seed(0)
    shapes, groups = [(70, 132), (1000, 37), (64, 650)], [1, 0, 0]
    spec, results = make_spec(shapes, groups, prior, torch.float32), []
    flat = [torch.randn(3, math.prod(s), device="cuda") for s in shapes]
    for shift in (0, 1):
        tensors = [[torch.empty(t.shape[1] + 1, device="cuda")[shift:][: t.shape[1]] for t in flat] for _ in range(3)]
        for k, part in enumerate(tensors):
            for own, t in zip(part, flat, strict=True):
                own.copy_(t[k] - (2 if k == 1 else 0))
                assert own.data_ptr() % 16 == 4 * shift
        means, rhos, given = ([t.view(s) for t, s in zip(part, shapes, strict=True)] for part in tensors)
        means, rhos = ([t.requires_grad_() for t in part] for part in (means, rhos))
        weights, kl, _ = triton.draw(seeded(), spec, means, rhos)
        grads = torch.autograd.grad([*weights, kl], [*means, *rhos], [*given, torch.ones_like(kl)])
        results.append([kl.detach(), *(w.detach() for w in weights), *grads])
    assert_close(*results, rtol=1e-6, atol=1e-6)


def test_tiles_do_not_change_the_numbers():
    from bayesrnn.kernels.gpu import gaussian as triton

    spec = make_spec(SHAPES, GROUPS, "groups", torch.float32)
    usual = triton.noise(seeded(), spec)
    assert_close(triton.noise(seeded(), spec._replace(tiles=((16, 64), (64, 16)))), usual, rtol=0, atol=0)
    assert plan.plan(spec).launches[0].tiles > 1


@pytest.mark.parametrize("training", [True, False])
def test_sharpening_gives_the_reference_s_loss_and_gradients(training):
    s = br.PosteriorSharpening(posterior(), sigma0=0.02, init_eta=1e-4).double().cuda().train(training)
    x, y = TOKENS.cuda(), TOKENS.roll(1, 0).cuda()
    elbo = br.ELBO(s, br.Categorical(), num_data=1000)
    outcomes = []
    for path in ("triton", "reference"):
        s.zero_grad()
        torch.manual_seed(2)
        held = br.draw(s, seed=1) if training else br.mean(s)
        with held, br.kernels.force(path), s.sharpen(lambda: elbo.likelihood.nll(s(x), y)):
            terms = elbo(s(x), y)
            terms.loss.backward()
        outcomes.append([terms.loss.detach(), terms.sharpening.detach(), *(p.grad for p in s.parameters())])
    assert_close(*outcomes, rtol=1e-7, atol=1e-9)
