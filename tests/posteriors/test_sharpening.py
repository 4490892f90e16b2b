"""Posterior sharpening: two levels of weights, an exact KL between them, and learnt rates."""

import copy
import math

import pytest
import torch
from torch import nn

import bayesrnn as br


class LanguageModel(nn.Module):
    def __init__(self, vocabulary=9, size=5):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, size)
        self.rnn = nn.LSTM(size, size)
        self.head = nn.Linear(size, vocabulary)

    def forward(self, x, state=None):
        out, state = self.rnn(self.embed(x), state)
        return self.head(out), state


LIKELIHOOD = br.Categorical()


def setup(prior=None, init_sigma=0.1, **kwargs):
    torch.manual_seed(0)
    q = br.BayesByBackprop(LanguageModel().double(), prior or br.Normal(0.5), init_sigma=init_sigma)
    s = br.PosteriorSharpening(q, **kwargs)
    x, y = torch.randint(9, (2, 6, 3))
    return s, x, y, lambda: LIKELIHOOD.nll(s(x)[0], y)


def weights_during(s, call):
    """The weights that the module runs on in each call, by name."""
    seen = []

    def look(*_):
        places = {n: n.rpartition(".") for n in s.q.means}
        now = {n: s.q.module.get_submodule(path)._parameters[leaf] for n, (path, _, leaf) in places.items()}
        seen.append({n: w.detach().clone() for n, w in now.items()})

    handle = s.q.module.embed.register_forward_pre_hook(look)
    call()
    handle.remove()
    return seen


def test_two_level_draw_and_exact_kl():
    s, x, y, nll = setup(sigma0=0.03, init_eta=0.01)
    with br.draw(s, seed=2):

        def call():
            with s.sharpen(nll):
                s(x)
                s(x)

        phi, theta, again = weights_during(s, call)
        (plain,) = weights_during(s, lambda: s(x))
    assert all(torch.equal(phi[n], plain[n]) for n in phi)  # br.predict and sharpen see the same phi
    assert all(torch.equal(theta[n], again[n]) for n in phi)
    # g at phi by hand, on a plain copy with phi in place
    module = s.q.mean_module()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(phi[name])
    LIKELIHOOD.nll(module(x)[0], y).backward()
    g = {n: p.grad for n, p in module.named_parameters()}
    kl = sum((0.01 * g[n]).square().sum() for n in g) / (2 * 0.03**2)
    with br.draw(s, seed=2), s.sharpen(nll):
        torch.testing.assert_close(s.sharpening_kl(), kl)
    # what is left of theta is N(0, sigma0^2): 335 numbers, so the variance ratio's standard error is 0.077; the limit
    # of 5 of them catches a sigma0 wrong by 30% with power > 0.99.
    rest = torch.cat([(theta[n] - (phi[n] - 0.01 * g[n])).flatten() for n in g]) / 0.03
    assert abs(float(rest.mean())) < 5 / math.sqrt(rest.numel())
    assert abs(float(rest.square().mean()) - 1) < 5 * math.sqrt(2 / rest.numel())


def test_the_second_level_differs_from_draw_to_draw():
    s, x, _, nll = setup(sigma0=0.03)
    outs = []
    for seed in (1, 1, 2):
        with br.draw(s, seed=seed), s.sharpen(nll):
            outs.append(s(x)[0].detach())
    assert torch.equal(outs[0], outs[1])
    assert not torch.equal(outs[0], outs[2])
    with s.sharpen(nll):
        first = s(x)[0].detach()
    with s.sharpen(nll):
        assert not torch.equal(first, s(x)[0].detach())


@pytest.mark.parametrize("prior", [br.Normal(0.5), br.ScaleMixture(0.5, 1.0, 0.1)])
def test_eta_mean_and_rho_gradients_match_finite_differences_with_g_constant(prior):
    s, x, y, _ = setup(prior, sigma0=0.05, init_eta=0.003)
    elbo = br.ELBO(s, LIKELIHOOD, num_data=40)
    g = {}

    def loss(model, fixed=None):
        def nll():
            value = LIKELIHOOD.nll(model(x)[0], y)
            if fixed is None:
                return value
            # a linear stand-in whose gradient is g wherever phi is: g held constant
            return sum((model._placed[n] * fixed[n]).sum() for n in fixed)

        elbo.model = model
        with br.draw(model, seed=3), model.sharpen(nll):
            return elbo(model(x), y).loss

    keep = s._gradient
    s._gradient = lambda phi, nll: g.update(keep(phi, nll)) or g
    loss(s).backward()
    del s._gradient
    fixed = {n: v.clone() for n, v in g.items()}
    generator = torch.Generator().manual_seed(1)
    for name, parameter in s.named_parameters():
        direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        found = float((parameter.grad * direction).sum())
        values = []
        for step in (1e-6, -2e-6, 1e-6):
            with torch.no_grad():
                parameter.add_(direction, alpha=step)
            values.append(float(loss(s, fixed).detach()))
        assert found == pytest.approx((values[0] - values[1]) / 2e-6, rel=1e-4, abs=1e-7), name
        assert parameter.grad.any(), name


def test_elbo_has_the_sharpening_kl_per_batch_and_the_first_level_per_data_set():
    s, x, y, nll = setup(sigma0=0.05, init_eta=0.003)
    elbo = br.ELBO(s, LIKELIHOOD, num_data=1000)
    with s.sharpen(nll):
        terms = elbo(s(x), y)
        assert float(s.sharpening_kl().detach()) > 0
        torch.testing.assert_close(terms.sharpening, s.sharpening_kl())
    torch.testing.assert_close(terms.loss, (terms.nll + terms.sharpening) / 18 + terms.kl / 1000)
    torch.testing.assert_close(terms.kl, br.kl(s.q))
    plain = elbo(s(x), y)  # outside: an ordinary Bayes by Backprop
    assert float(plain.sharpening) == 0
    torch.testing.assert_close(plain.loss, plain.nll / 18 + plain.kl / 1000)


def test_mixture_kl_inside_the_block_is_at_phi():
    prior = br.ScaleMixture(0.5, 1.0, 0.1)
    s, x, _, nll = setup(prior)
    with br.draw(s, seed=1):
        s(x)
        plain = br.kl(s)
    with br.draw(s, seed=1), s.sharpen(nll):
        s(x)
        torch.testing.assert_close(br.kl(s), plain)


def test_bound_in_eval_mode_is_nll_at_theta_plus_kl():
    s, x, y, nll = setup(sigma0=0.05, init_eta=0.002)
    s.eval()
    before = {k: v.clone() for k, v in s.state_dict().items()}
    found = s.bound(nll)
    module = s.q.mean_module()
    LIKELIHOOD.nll(module(x)[0], y).backward()
    kl = 0.0
    with torch.no_grad():
        for parameter in module.parameters():
            step = 0.002 * parameter.grad
            parameter.sub_(step)
            kl += float(step.square().sum()) / (2 * 0.05**2)
    assert float(found.detach()) == pytest.approx(float(LIKELIHOOD.nll(module(x)[0], y).detach()) + kl, rel=1e-10)
    assert torch.equal(s.bound(nll), found)  # deterministic
    assert all(torch.equal(v, before[k]) for k, v in s.state_dict().items())
    assert not s.training
    assert not any(m.training for m in s.modules())
    with torch.no_grad():
        torch.testing.assert_close(s.bound(nll), found)  # g is taken also where gradients are off


def test_sharpening_with_the_best_constant_eta_lowers_the_bound():
    torch.manual_seed(0)
    model = LanguageModel().double()
    stream = torch.arange(9).repeat(8).view(-1, 4)[:18]
    x, y = stream[:-1], stream[1:]
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(40):
        optimiser.zero_grad()
        LIKELIHOOD.nll(model(x)[0], y).backward()
        optimiser.step()
    q = br.BayesByBackprop(model, init_sigma=0.01)
    s = br.PosteriorSharpening(q, sigma0=0.02, init_eta=0.02**2).eval()
    nll = lambda: LIKELIHOOD.nll(s(x)[0], y)  # noqa: E731
    plain = float(nll().detach())
    assert float(s.bound(nll).detach()) < plain


def test_zero_eta_in_eval_mode_is_the_plain_model():
    s, _, _, nll = setup(init_eta=0.0)
    torch.testing.assert_close(s.eval().bound(nll), nll())


def test_predicts_from_the_first_level():
    s, x, _, nll = setup(sigma0=0.5)
    with s.sharpen(nll):
        pass
    a, b = br.predict(s, x, samples=4, seed=1), br.predict(s, x, samples=4, seed=1)
    assert torch.equal(a.samples, b.samples)
    with torch.no_grad():
        torch.testing.assert_close(s.eval()(x)[0], s.mean_module()(x)[0])
    assert float(s.sharpening_kl()) == 0


def test_max_gradient_norm_scales_long_gradients_only():
    s, _, _, nll = setup(sigma0=0.02, init_eta=0.01, max_gradient_norm=0.5)
    with s.eval().sharpen(nll):
        assert float(s.sharpening_kl().detach()) == pytest.approx((0.01 * 0.5) ** 2 / (2 * 0.02**2), rel=1e-6)
    s.max_gradient_norm = 1e9
    free, _, _, free_nll = setup(sigma0=0.02, init_eta=0.01)
    with s.sharpen(nll), free.eval().sharpen(free_nll):
        torch.testing.assert_close(s.sharpening_kl(), free.sharpening_kl())


def test_default_rate_is_a_tenth_of_the_best_constant():
    s, _, _, _ = setup(sigma0=0.1)
    assert {n for n, _ in s.eta.named_parameters()} == set(s.q.means)
    for parameter in s.eta.parameters():
        torch.testing.assert_close(parameter, torch.full_like(parameter, 0.001), check_dtype=False)


def test_dropout_masks_are_held_over_both_passes():
    torch.manual_seed(0)
    module = nn.Sequential(br.Embedding(9, 4, word_dropout=0.5), br.LSTM(4, 3, recurrent_dropout=0.5))
    s = br.PosteriorSharpening(br.BayesByBackprop(module, init_sigma=1e-9), sigma0=1e-9, init_eta=0.0)
    x, outs = torch.randint(9, (6, 3)), []

    def nll():
        outs.append(s(x)[0])
        return outs[-1].square().sum()

    with s.sharpen(nll):
        torch.testing.assert_close(s(x)[0], outs[0], rtol=0, atol=1e-5)
    with s.sharpen(nll):
        pass
    assert not torch.allclose(outs[0], outs[1])


def test_unused_parameters_have_no_gradient_and_no_step():
    module = LanguageModel().double()
    module.spare = nn.Linear(2, 2).double()
    s = br.PosteriorSharpening(br.BayesByBackprop(module), init_eta=0.1)
    x, y = torch.randint(9, (2, 6, 3))
    with s.sharpen(lambda: LIKELIHOOD.nll(s(x)[0], y)):
        (LIKELIHOOD.nll(s(x)[0], y) + s.sharpening_kl()).backward()
    assert not s.eta["spare.weight"].grad.any()
    assert s.eta["head.weight"].grad.any()


def test_training_lowers_the_bound():
    s, x, y, nll = setup(init_sigma=0.02)
    elbo = br.ELBO(s, LIKELIHOOD, num_data=1000)
    optimiser = torch.optim.Adam(s.parameters(), lr=0.01)
    start = float(s.eval().bound(nll).detach())
    s.train()
    for _ in range(60):
        optimiser.zero_grad()
        with s.sharpen(nll):
            elbo(s(x), y).loss.backward()
        optimiser.step()
    assert float(s.eval().bound(nll).detach()) < 0.7 * start


def test_copies_and_state_dicts():
    s, x, _, nll = setup(init_eta=0.01)
    with s.sharpen(nll):
        pass
    other = copy.deepcopy(s)
    fresh, _, _, _ = setup()
    fresh.load_state_dict(s.state_dict())
    for model in (other, fresh):
        with br.draw(model, seed=1), br.draw(s, seed=1):
            torch.testing.assert_close(model(x)[0], s(x)[0])
        torch.testing.assert_close(model.eta["head.bias"], s.eta["head.bias"])


def test_errors():
    s, _, _, nll = setup()
    with pytest.raises(TypeError, match=r"wraps a br.BayesByBackprop, got Linear"):
        br.PosteriorSharpening(nn.Linear(2, 2))
    for sigma in (0, -1.0, math.nan):
        with pytest.raises(ValueError, match="sigma0 must be a positive number"):
            br.PosteriorSharpening(s.q, sigma0=sigma)
    for wrong in (lambda: 3.0, lambda: torch.zeros(()), lambda: nll() * torch.ones(2)):
        with pytest.raises(ValueError, match="summed -log p"), s.sharpen(wrong):
            pass
    # and after an error the module is as it was
    assert torch.isfinite(nll())
    assert s._placed is None


@pytest.mark.parametrize("norm", [0, -1.0, float("nan"), "1", True])
def test_a_limit_that_is_none(norm):
    with pytest.raises(ValueError, match="max_gradient_norm must be a number > 0"):
        br.PosteriorSharpening(br.BayesByBackprop(nn.Linear(2, 2)), max_gradient_norm=norm)
