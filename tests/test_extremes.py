"""At the edges: tiny and huge sigmas, very long and very short sequences, one word, low precision, determinism."""

from __future__ import annotations

import copy
import math
from contextlib import nullcontext

import pytest
import torch
from torch import nn

import bayesrnn as br
from bayesrnn.kernels.gaussian import sampling

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute")


class LM(nn.Module):
    def __init__(self, cell=br.LSTM, words=12, hidden=6, word_dropout=0.0, **rates):
        super().__init__()
        self.embed, self.rnn = br.Embedding(words, hidden, word_dropout=word_dropout), cell(hidden, hidden, 2, **rates)
        self.drop, self.head = br.SequenceDropout(0.3 if rates else 0.0), nn.Linear(hidden, words)

    def forward(self, tokens, state=None):
        hidden, state = self.rnn(self.embed(tokens), state)
        return self.head(self.drop(hidden)), state


NOISY = {"input_dropout": 0.2, "recurrent_dropout": 0.3, "word_dropout": 0.2}
CELLS = [br.LSTM, br.GRU, br.RNN]


@pytest.fixture(autouse=True)
def seeded():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def finite(*tensors):
    return all(bool(torch.isfinite(t).all()) for t in tensors)


def train_and_predict(model, *, steps=5, rows=3, words=12, context=nullcontext, samples=3):
    """One step and a prediction: all numbers that come out, by name."""
    x, y = torch.randint(words, (steps, rows)), torch.randint(words, (steps, rows))
    elbo = br.ELBO(model, br.Categorical(), num_data=100_000)
    with context():
        terms = elbo(model.train()(x), y)
    terms.loss.backward()
    with context():
        p = br.predict(model.eval(), x, samples=samples, seed=0, likelihood=br.Categorical())
    gradients = {f"d {n}": w.grad for n, w in model.named_parameters()}
    values = {"loss": terms.loss, "kl": terms.kl, "mean": p.mean, "entropy": p.entropy, "mi": p.mutual_information}
    return values | gradients


def check(values):
    for name, value in values.items():
        assert value is not None, name
        assert finite(value), name
    torch.testing.assert_close(values["mean"].float().sum(-1), torch.ones(values["mean"].shape[:-1]), atol=2e-2, rtol=0)
    assert bool((values["entropy"].float() >= 0).all())
    assert bool((values["mi"].float() >= 0).all())


PRIORS = [br.Normal(1e-12), br.Normal(1e3), br.ScaleMixture(0.5, 1e3, 1e-12), br.ScaleMixture(0.5, 1.0, 1e-3, "weight")]


@pytest.mark.parametrize("path", [None, "loop", "reference"])
@pytest.mark.parametrize("prior", PRIORS, ids=repr)
@pytest.mark.parametrize("sigma", [1e-12, 1e3])
def test_sigmas_of_any_size(sigma, prior, path):
    """Finite loss and gradients, the sigma asked for, and the KL of double precision."""
    q = br.BayesByBackprop(LM(), prior=prior, init_sigma=sigma)
    with br.kernels.force(path) if path else nullcontext():
        check(train_and_predict(q))
        noise = q.posterior.noise(torch.Generator().manual_seed(1))
        value = q.posterior.kl(q.means, noise)
        double = copy.deepcopy(q).double()
        rhos = q.posterior.rho.by_name()
        given = noise if isinstance(noise, sampling.Seeded) else list(noise.values())
        eps = dict(zip(rhos, sampling.tensors(given, q.posterior.spec(), list(rhos.values())), strict=True))
        exact = double.posterior.kl(double.means, {name: e.double() for name, e in eps.items()})
    for _, _, found in q.named_posteriors():
        torch.testing.assert_close(found, torch.full_like(found, sigma), rtol=1e-5, atol=0)
    count = sum(w.numel() for w in q.means.values())
    torch.testing.assert_close(value.double(), exact, rtol=1e-5, atol=1e-4 * count)
    assert finite(*br.signal_to_noise(q).values())


def test_a_tiny_sigma_is_the_mean_and_its_gradient_is_right():
    """d KL / d rho = (sigma^2 / prior^2 - 1) / sigma * sigmoid(rho), which is -1 where sigma is next to nothing."""
    q = br.BayesByBackprop(nn.Linear(3, 2), prior=br.Normal(1.0), init_sigma=1e-12)
    x = torch.randn(4, 3)
    assert torch.equal(q.train()(x), q.eval()(x))
    br.kl(q).backward()
    for rho in q.posterior.parameters():
        torch.testing.assert_close(rho.grad, torch.full_like(rho, -1.0))


def test_pruned_weights_have_a_finite_kl_and_stay_out():
    q = br.BayesByBackprop(LM(), prior=br.ScaleMixture(0.25, 0.4, 1e-3))
    br.prune(q, 1.0)
    check(train_and_predict(q))
    with br.draw(q, seed=3):
        assert q(torch.zeros(2, 1, dtype=torch.long))[0].abs().max().item() < 1e-12


@pytest.mark.parametrize("cell", CELLS)
def test_ten_thousand_steps(cell):
    check(train_and_predict(LM(cell, **NOISY), steps=10_000, rows=1, samples=2))


def test_ten_thousand_steps_with_other_noise():
    for rates in ({"cell_dropout": 0.3}, {"recurrent_dropout": 0.3, "noise": "gaussian"}, {"weight_dropout": 0.3}):
        check(train_and_predict(LM(hidden=3, **rates), steps=10_000, rows=1, samples=2))
    check(train_and_predict(br.BayesByBackprop(LM(hidden=3)), steps=10_000, rows=1, samples=2))


@pytest.mark.parametrize("wrap", [lambda m: m, br.BayesByBackprop], ids=["dropout", "bayes_by_backprop"])
def test_one_sequence_one_step_one_unit(wrap):
    check(train_and_predict(wrap(LM(**NOISY)), steps=1, rows=1))
    check(train_and_predict(wrap(LM(hidden=1, **NOISY)), rows=1))


@pytest.mark.parametrize("wrap", [lambda m: m, br.BayesByBackprop], ids=["dropout", "bayes_by_backprop"])
def test_a_vocabulary_of_one_trains_and_has_no_classes_to_predict(wrap):
    model = wrap(LM(words=1, **NOISY))
    x = torch.zeros(4, 2, dtype=torch.long)
    terms = br.ELBO(model, br.Categorical(), num_data=10)(model(x), x)
    terms.loss.backward()
    assert terms.nll.item() == 0  # the one word is certain
    assert finite(terms.kl, *(p.grad for p in model.parameters()))
    with pytest.raises(ValueError, match="needs logits of at least two classes"):
        br.predict(model.eval(), x, samples=2, likelihood=br.Categorical())


def sharpened(model, **sizes):
    """As :func:`train_and_predict`, of a sharpened posterior: a step on its two draws, and a prediction."""
    x, y = torch.randint(12, (6, sizes.get("rows", 3))), torch.randint(12, (6, sizes.get("rows", 3)))
    elbo = br.ELBO(model, br.Categorical(), num_data=1000)
    with model.sharpen(lambda: elbo.likelihood.nll(model(x)[0], y)):
        terms = elbo(model(x), y)
    terms.loss.backward()
    p = br.predict(model.eval(), x, samples=3, seed=0)
    values = {"loss": terms.loss, "kl": terms.kl, "mean": p.mean, "entropy": p.entropy, "mi": p.mutual_information}
    return values | {f"d {n}": w.grad for n, w in model.named_parameters()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("sigma", [1e-12, 1e3])
@pytest.mark.parametrize("cell", CELLS)
def test_sharpened_posteriors_and_dropped_weights(cell, sigma, dtype):
    """Each of their sigmas at the edge, one sequence or several, in both precisions."""
    for rows in (1, 3):
        check(sharpened(br.PosteriorSharpening(br.BayesByBackprop(LM(cell), init_sigma=sigma)).to(dtype), rows=rows))
        check(sharpened(br.PosteriorSharpening(br.BayesByBackprop(LM(cell)), sigma0=sigma).to(dtype), rows=rows))
        check(train_and_predict(br.DropConnect(LM(cell), p=0.5, prior=br.Normal(sigma)).to(dtype), rows=rows))


MODELS = {
    "dropout": lambda cell: LM(cell, **NOISY),
    "shared": lambda cell: LM(cell, share="batch", weight_dropout=0.1, **NOISY),
    "bayes_by_backprop": lambda cell: br.BayesByBackprop(LM(cell, **NOISY), prior=br.ScaleMixture(0.25, 0.4, 1e-3)),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("name", MODELS)
def test_models_in_low_precision(name, cell, dtype):
    model = MODELS[name](cell).to(dtype)
    check(train_and_predict(model, steps=40))
    assert all(p.dtype == dtype for p in model.parameters())


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("name", MODELS)
def test_autocast(name, cell):
    """bfloat16 products, float32 parameters, gradients and KL; predictions near those of float32."""
    model = MODELS[name](cell)
    values = train_and_predict(model, steps=40, context=lambda: torch.autocast("cpu", torch.bfloat16))
    check(values)
    assert values["kl"].dtype == torch.float32
    assert all(p.grad.dtype == torch.float32 for p in model.parameters())
    x = torch.randint(12, (10, 3))
    with torch.no_grad():
        exact = model(x)[0]
        with torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(model(x)[0].float(), exact, atol=0.05, rtol=0.05)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "prior", [br.Normal(1.0), br.ScaleMixture(0.5, 1.0, 0.1), br.ScaleMixture(0.5, 1, 0.1, "weight")]
)
def test_the_kl_of_half_precision_is_summed_in_float32(dtype, prior):
    """307,000 nats, where float16 holds 65,504 and bfloat16 two digits."""
    q = br.BayesByBackprop(nn.Linear(300, 300), prior=prior)
    with torch.no_grad():
        for p in q.parameters():
            p.copy_(p.to(dtype))
    half, x = copy.deepcopy(q).to(dtype), torch.randn(2, 300)
    terms = br.ELBO(half, br.Gaussian(sigma=1.0), num_data=600)(half(x.to(dtype)), torch.zeros(2, 300).to(dtype))
    assert terms.kl.dtype == torch.float32
    terms.loss.backward()
    noise = {name: torch.randn(p.shape).to(dtype) for name, p in q.means.items()}
    exact = q.double().posterior.kl(q.means, {name: e.double() for name, e in noise.items()})
    torch.testing.assert_close(half.posterior.kl(half.means, noise).double(), exact, rtol=1e-3, atol=0)
    assert all(torch.isfinite(p.grad).all() and p.grad.dtype == dtype for p in half.parameters())


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_inputs_that_are_not_finite_are_noticed(bad):
    model = br.BayesByBackprop(nn.Linear(3, 2))
    x = torch.ones(4, 3)
    x[1, 1] = bad
    with pytest.raises(FloatingPointError, match=r"negative log-likelihood is not finite: look for NaN in the inputs"):
        br.ELBO(model, br.Categorical(), num_data=10)(model(x), torch.zeros(4, dtype=torch.long))


@pytest.fixture
def deterministic():
    """Any operation without a deterministic form is an error; memory that is not written to is NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def everything(cell, kind):
    """Train, predict, measure, prune: all bits that come out."""
    torch.manual_seed(7)
    model = MODELS[kind](cell) if kind != "sharpened" else br.PosteriorSharpening(br.BayesByBackprop(LM(cell)))
    elbo = br.ELBO(model, br.Categorical(), num_data=500)
    optimiser = torch.optim.Adam(elbo.parameters(), lr=1e-2)
    x, y = torch.randint(12, (8, 3)), torch.randint(12, (8, 3))
    out = []
    for _ in range(3):
        optimiser.zero_grad()
        if kind == "sharpened":
            with model.sharpen(lambda: elbo.likelihood.nll(model(x)[0], y)):
                terms = elbo(model(x), y)
        else:
            terms = elbo(model(x), y)
        terms.loss.backward()
        optimiser.step()
        out.append(terms.loss.detach())
    model.eval()
    p = br.predict(model, x, samples=4, seed=3)
    out += [p.mean, p.entropy, p.mutual_information]
    out.append(br.dynamic_evaluation(model, x, y, lr=0.01, window=4).nll)
    gap = br.entropy_gap(model, torch.cat([x, y]), samples=2, seed=0)
    out += [gap.forward, gap.reversed]
    if kind in ("bayes_by_backprop", "sharpened"):
        out.append(br.prune(model, 0.4).threshold)
    return [torch.as_tensor(v) for v in out] + [w.detach() for w in model.parameters()]


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("kind", [*MODELS, "sharpened"])
@pytest.mark.parametrize("cell", CELLS)
def test_deterministic_mode_works_and_a_seed_gives_the_same_bits(cell, kind):
    first, second = everything(cell, kind), everything(cell, kind)
    for one, other in zip(first, second, strict=True):
        assert finite(one)
        assert torch.equal(one, other)
