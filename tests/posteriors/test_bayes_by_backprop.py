"""Bayes by Backprop: the KL, the draws, the gradients, and what it converges to."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence

import bayesrnn as br
from bayesrnn.nn import recurrence as layered


def analytic_kl(q, scale):
    with torch.no_grad():
        return sum(
            kl_divergence(Normal(m.double(), s.double()), Normal(torch.zeros_like(m.double()), scale)).sum()
            for _, m, s in q.named_posteriors()
        )


class LanguageModel(nn.Module):
    def __init__(self, rnn, vocabulary=11, size=6):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, size)
        self.rnn = rnn
        self.head = nn.Linear(rnn.hidden_size, vocabulary)

    def forward(self, x, state=None):
        out, state = self.rnn(self.embed(x), state)
        return self.head(out), state


# ---- the KL


@pytest.mark.parametrize("scale", [0.05, 1.0, 30.0])
@pytest.mark.parametrize("steps", [1, 2, 40])
def test_kl_is_the_analytic_sum_whatever_the_length_of_the_sequence(scale, steps):
    q = br.BayesByBackprop(LanguageModel(nn.LSTM(6, 5, num_layers=2)), br.Normal(scale), init_sigma=(0.01, 0.2))
    q(torch.zeros(steps, 3, dtype=torch.long))
    expected = analytic_kl(q, scale)
    torch.testing.assert_close(br.kl(q).double(), expected, rtol=1e-5, atol=1e-3)
    q(torch.zeros(steps, 3, dtype=torch.long))
    torch.testing.assert_close(br.kl(q).double(), expected, rtol=1e-5, atol=1e-3)  # nothing accumulates


def test_kl_survives_casts_copies_nesting_and_modes():
    q = br.BayesByBackprop(nn.LSTM(4, 3, bidirectional=True), br.Normal(0.3), init_sigma=(0.05, 0.2))
    expected = analytic_kl(q, 0.3)
    x = torch.randn(5, 2, 4)
    for prepare in (
        lambda q: q,
        lambda q: q.to("cpu"),
        lambda q: q.double(),
        lambda q: copy.deepcopy(q),
        lambda q: nn.Sequential(q),
        lambda q: nn.ModuleDict({"a": nn.ModuleList([nn.Identity(), nn.Sequential(q)])}),
        lambda q: nn.ModuleList([q, nn.Sequential(q)]),  # the same posterior twice counts once
        lambda q: q.eval(),
        lambda q: copy.deepcopy(q.train()).double().float(),
    ):
        made = prepare(copy.deepcopy(q))
        torch.testing.assert_close(br.kl(made).double(), expected, rtol=1e-5, atol=1e-4)
        with br.draw(made, seed=3):
            next(m for m in made.modules() if isinstance(m, br.BayesByBackprop))(x.to(next(made.parameters()).dtype))
            torch.testing.assert_close(br.kl(made).double(), expected, rtol=1e-5, atol=1e-4)
            torch.testing.assert_close(br.kl(made.double()).double(), expected, rtol=1e-5, atol=1e-4)


def test_kl_in_float64_is_exact():
    q = br.BayesByBackprop(nn.Linear(30, 20).double(), br.Normal(0.7), init_sigma=(0.05, 0.2))
    torch.testing.assert_close(br.kl(q), analytic_kl(q, 0.7), rtol=1e-12, atol=0)
    q(torch.ones(1, 30, dtype=torch.float64))
    torch.testing.assert_close(br.kl(q).detach(), analytic_kl(q, 0.7), rtol=1e-12, atol=0)


def test_kl_is_zero_at_the_prior():
    linear = nn.Linear(40, 30)
    with torch.no_grad():
        for p in linear.parameters():
            p.zero_()
    q = br.BayesByBackprop(linear, br.Normal(0.2), init_sigma=0.2)
    assert abs(float(br.kl(q).detach())) < 1e-2


def test_kl_of_tied_weights_counts_once():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x):
            return self.head(self.embed(x))

    q = br.BayesByBackprop(Tied(), br.Normal(0.3), init_sigma=0.1)
    torch.testing.assert_close(br.kl(q).double(), analytic_kl(q, 0.3), rtol=1e-5, atol=1e-4)
    assert sum(m.numel() for _, m, _ in q.named_posteriors()) == 36


def test_kl_of_two_posteriors_adds_up():
    a = br.BayesByBackprop(nn.Linear(3, 4), br.Normal(0.3))
    b = br.BayesByBackprop(nn.Linear(4, 2), br.Normal(0.9))
    torch.testing.assert_close(br.kl(nn.Sequential(a, b)), br.kl(a) + br.kl(b))


def test_kl_of_excluded_parameters_is_not_counted():
    q = br.BayesByBackprop(nn.Linear(3, 4), br.Normal(0.3), exclude="bias")
    torch.testing.assert_close(br.kl(q).double(), analytic_kl(q, 0.3), rtol=1e-5, atol=1e-4)
    (q(torch.ones(1, 3)).sum() * 0 + br.kl(q)).backward()
    assert not q.module.bias.grad.any()


def test_kl_is_not_a_side_effect_of_forward():
    q = br.BayesByBackprop(nn.Linear(3, 2), br.Normal(0.3), init_sigma=0.1)
    x = torch.randn(4, 3)
    with br.draw(q, seed=1):
        (a,) = torch.autograd.grad(q(x).sum(), [q.posterior.rho["weight"]])
    with br.draw(q, seed=1):
        out = q(x)
        br.kl(q)
        (b,) = torch.autograd.grad(out.sum(), [q.posterior.rho["weight"]])
    assert torch.equal(a, b)


def test_a_weight_with_dropout_and_a_posterior_has_one_kl():
    q = br.BayesByBackprop(br.LSTM(4, 3, input_dropout=0.3, recurrent_dropout=0.2, weight_dropout=0.1), br.Normal(0.3))
    torch.testing.assert_close(br.kl(q).double(), analytic_kl(q, 0.3), rtol=1e-5, atol=1e-4)
    part = br.BayesByBackprop(br.LSTM(4, 3, input_dropout=0.3, recurrent_dropout=0.2), br.Normal(0.3), exclude="*hh*")
    l2 = 0.5 * 0.8 * part.module.weight_hh_l0.square().sum()
    torch.testing.assert_close(br.kl(part).double(), (analytic_kl(part, 0.3) + l2).double(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("group", ["weight", "input"])
@pytest.mark.parametrize("weights", [1, 2])
def test_mixture_kl_estimate_is_unbiased(group, weights):
    # 20,000 draws; the limit is 5 standard errors (about 0.03), which a right estimator passes with probability
    # 1 - 6e-7; a bias of 0.06 (2% of this KL) is caught with power > 0.999.
    prior = br.ScaleMixture(0.3, 1.5, 0.2, group=group)
    module = nn.Module()
    module.w = nn.Parameter(torch.tensor([0.7, -0.3][:weights], dtype=torch.float64))
    q = br.BayesByBackprop(module, prior, init_sigma=0.4)
    grid = torch.linspace(-4, 4, 1601, dtype=torch.float64)
    points = torch.cartesian_prod(*[grid] * weights).view(-1, weights)
    log_q = Normal(module.w.detach(), 0.4).log_prob(points).sum(-1)

    def normal(scale):
        return Normal(0.0, scale).log_prob(points)

    parts = torch.stack([math.log(0.3) + normal(1.5), math.log(0.7) + normal(0.2)])
    if group == "input":
        joint = torch.stack([math.log(0.3) + normal(1.5).sum(-1), math.log(0.7) + normal(0.2).sum(-1)])
        log_p = joint.logsumexp(0)
    else:
        log_p = parts.logsumexp(0).sum(-1)
    exact = float(((log_q - log_p) * log_q.exp()).sum() * (grid[1] - grid[0]) ** weights)
    torch.manual_seed(1)
    with torch.no_grad():
        noise = torch.randn(20_000, weights, dtype=torch.float64)
        found = torch.vmap(lambda e: q.posterior.kl(q.means, {"w": e}))(noise)
    assert abs(float(found.mean()) - exact) < 5 * float(found.std()) / math.sqrt(len(found))


def test_mixture_kl_is_taken_at_the_draw_of_the_forward_pass():
    prior = br.ScaleMixture(0.25, 1.0, 0.05)
    q = br.BayesByBackprop(LanguageModel(nn.LSTM(6, 5)), prior, init_sigma=0.1)
    kept = {}

    for part, name in ((q.module.embed, "embed"), (q.module.rnn, "rnn"), (q.module.head, "head")):
        part.register_forward_hook(
            lambda m, *_, name=name: kept.update({f"{name}.{k}": v for k, v in m._parameters.items()})
        )
    for _ in range(2):
        q(torch.zeros(4, 2, dtype=torch.long))
        log_q = sum(Normal(m.double(), s.double()).log_prob(kept[n].double()).sum() for n, m, s in q.named_posteriors())
        log_p = sum(
            prior.log_prob(kept[n].double(), group_dim=0 if n == "embed.weight" else None).sum()
            for n, _, _ in q.named_posteriors()
        )
        torch.testing.assert_close(br.kl(q).double(), log_q - log_p, rtol=1e-4, atol=1e-2)


def test_mixture_kl_without_a_current_draw_makes_one():
    q = br.BayesByBackprop(nn.Linear(3, 2), br.ScaleMixture(0.5, 1.0, 0.1), init_sigma=0.3)
    assert not torch.equal(br.kl(q), br.kl(q))
    with br.draw(q, seed=2):
        assert torch.equal(br.kl(q), br.kl(q))
    q.eval()(torch.ones(1, 3))
    assert torch.isfinite(br.kl(q))


# ---- draws


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN, br.LSTM, br.GRU, br.RNN])
def test_small_sigma_gives_the_plain_layer(kind):
    torch.manual_seed(0)
    plain = kind(5, 4, num_layers=2, bidirectional=True).double()
    q = br.BayesByBackprop(plain, init_sigma=1e-12)
    x = torch.randn(7, 3, 5, dtype=torch.float64)
    for a, b in zip(torch.utils._pytree.tree_leaves(q(x)), torch.utils._pytree.tree_leaves(plain(x)), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-9)


def test_train_draws_anew_eval_is_the_mean_and_draw_holds():
    q = br.BayesByBackprop(LanguageModel(br.LSTM(6, 5)), init_sigma=0.3)
    x = torch.arange(8).view(4, 2)
    assert not torch.equal(q(x)[0], q(x)[0])
    with br.draw(q, seed=1):
        a, b = q(x)[0], q(x)[0]
    with br.draw(q.eval(), seed=1):
        c = q(x)[0]
    assert torch.equal(a, b)
    assert torch.equal(a, c)
    assert torch.equal(q(x)[0], q.mean_module()(x)[0])
    with br.mean(q.train()):
        torch.testing.assert_close(q(x)[0], q.mean_module()(x)[0])


def test_windows_under_a_held_draw_are_one_long_pass():
    q = br.BayesByBackprop(LanguageModel(nn.LSTM(6, 5, num_layers=2)), init_sigma=0.3)
    x = torch.randint(11, (12, 2))
    with br.draw(q, seed=4):
        whole, last = q(x)
        state, parts = None, []
        for window in x.split(5):
            out, state = q(window, state)
            parts.append(out)
    torch.testing.assert_close(torch.cat(parts), whole)
    torch.testing.assert_close(state, last)


def test_a_held_draw_survives_a_cast():
    q, x = br.BayesByBackprop(nn.Linear(3, 2), init_sigma=0.3), torch.ones(1, 3)
    with br.draw(q, seed=1):
        a = q(x)
        b = q.double()(x.double())
    torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-6)


def test_drawn_weights_are_normal_with_the_named_mean_and_sigma():
    # 200 weights x 2,000 draws, standardised: 400,000 numbers. Kolmogorov-Smirnov at level 1e-6 (D < 2.69 / sqrt(n) =
    # 0.0043): a sigma wrong by 3%, or a mean wrong by 0.02 sigma, is caught with power > 0.99.
    torch.manual_seed(0)
    q = br.BayesByBackprop(nn.Linear(20, 10, bias=False), init_sigma=(0.01, 1.0))
    (_, mean, sigma), eye, n = next(q.named_posteriors()), torch.eye(20), 2000
    with torch.no_grad():
        drawn = torch.stack([q(eye).t() for _ in range(n)])
    z = ((drawn - mean) / sigma).detach().double().flatten().sort().values
    steps = torch.arange(1, z.numel() + 1, dtype=torch.float64) / z.numel()
    cdf = torch.special.ndtr(z)
    assert float(torch.maximum((steps - cdf).abs(), (cdf - steps + 1 / z.numel()).abs()).max()) < 2.69 / math.sqrt(
        z.numel()
    )
    # independence: the largest of 19,900 correlations of 2,000 draws stays below 6 standard errors
    correlation = torch.corrcoef(drawn.view(n, -1).t())
    assert float((correlation - torch.eye(200)).abs().max()) < 6 / math.sqrt(n)


@pytest.mark.parametrize(
    ("module", "x"),
    [
        (nn.Linear(3, 2), torch.randn(4, 3)),
        (nn.Conv2d(3, 4, 3), torch.randn(2, 3, 6, 6)),
        (nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last), torch.randn(2, 3, 6, 6)),
        (nn.ConvTranspose1d(3, 4, 2), torch.randn(2, 3, 6)),
        (nn.Embedding(9, 3, padding_idx=0), torch.tensor([[1, 2], [0, 4]])),
        (nn.LSTM(3, 4, num_layers=2, proj_size=2), torch.randn(5, 2, 3)),
        (nn.GRU(3, 4, batch_first=True, bias=False), torch.randn(2, 5, 3)),
        (nn.RNN(3, 4, nonlinearity="relu", dropout=0.3, num_layers=2), torch.randn(5, 2, 3)),
        (br.LSTM(3, 4, input_dropout=0.2, recurrent_dropout=0.2, cell_dropout=0.1, tied=False), torch.randn(5, 2, 3)),
        (br.GRU(3, 4, weight_dropout=0.2, share="batch", recurrent_dropout=0.1), torch.randn(5, 2, 3)),
        (br.Embedding(9, 3, word_dropout=0.4), torch.tensor([[1, 2], [0, 4]])),
        (nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.5)), torch.randn(6, 3)),
        (nn.TransformerEncoderLayer(4, 2, 8), torch.randn(5, 2, 4)),
        (nn.LSTMCell(3, 4), torch.randn(2, 3)),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, nn.Module) else "",
)
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("prior", [br.Normal(1.0), br.ScaleMixture(0.5, 1.0, 0.01)], ids=["normal", "mixture"])
def test_any_module_trains_evaluates_and_predicts(module, x, prior):
    torch.manual_seed(0)
    q = br.BayesByBackprop(module, prior, init_sigma=0.1)
    first = lambda out: out[0] if isinstance(out, tuple) else out  # noqa: E731
    for _ in range(2):
        (first(q(x)).square().sum() + br.kl(q)).backward()
    for name, mean, _ in q.named_posteriors():
        assert torch.isfinite(q.posterior.rho[name].grad).all()
        assert q.posterior.rho[name].grad.any()
        assert mean.grad.any() or not mean.any() or not isinstance(prior, br.Normal)
    plain = q.eval().mean_module()
    torch.testing.assert_close(first(q(x)), first(plain(x)))
    prediction = br.predict(q, x, samples=3, seed=1, likelihood=br.Gaussian())
    assert prediction.mean.shape == first(plain(x)).shape
    assert float(prediction.epistemic.detach().max()) > 0


def test_batch_norm_keeps_its_statistics():
    q = br.BayesByBackprop(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)))
    q(torch.randn(6, 3))
    assert int(q.module[1].num_batches_tracked) == 1


# ---- the fused kernel


@pytest.mark.parametrize("kind", [nn.LSTM, br.LSTM, nn.GRU, br.GRU, nn.RNN, br.RNN])
def test_recurrent_layers_run_the_fused_kernel_on_the_drawn_weights(kind, monkeypatch):
    q = br.BayesByBackprop(kind(3, 4, num_layers=2), init_sigma=0.3)
    name = {"LSTM": "lstm", "GRU": "gru", "RNN": "rnn_tanh"}[kind.__name__]
    fused, calls = getattr(torch._VF, name), []

    def spy(*args):
        calls.append([w for a in args if isinstance(a, (list, tuple)) for w in a])
        return fused(*args)

    def forbidden(*_, **__):
        raise AssertionError("left the fused kernel")

    monkeypatch.setattr(torch._VF, name, spy)
    monkeypatch.setattr(layered, "run", forbidden)
    q(torch.randn(5, 2, 3))[0].sum().backward()
    assert len(calls) == 1
    shapes = [tuple(w.shape) for w in calls[0]]
    for _, mean, _ in q.named_posteriors():
        assert tuple(mean.shape) in shapes
        assert not any(w.shape == mean.shape and torch.equal(w, mean) for w in calls[0])
    assert q.posterior.rho["weight_hh_l1"].grad.any()


# ---- gradients


def finite_difference(f, parameter, direction, step=1e-6):
    with torch.no_grad():
        parameter.add_(direction, alpha=step)
        up = float(f())
        parameter.sub_(direction, alpha=2 * step)
        down = float(f())
        parameter.add_(direction, alpha=step)
    return (up - down) / (2 * step)


@pytest.mark.parametrize(
    "prior", [br.Normal(0.3), br.ScaleMixture(0.25, 1.0, 0.05), br.ScaleMixture(0.25, 1.0, 0.05, group="weight")]
)
@pytest.mark.parametrize("rnn", [nn.LSTM, br.LSTM, nn.GRU])
def test_gradients_match_finite_differences_with_the_draw_held(prior, rnn):
    torch.manual_seed(0)
    model = LanguageModel(rnn(6, 5, num_layers=2)).double()
    q = br.BayesByBackprop(model, prior, init_sigma=(0.05, 0.3), exclude="head.bias")
    elbo = br.ELBO(q, br.Categorical(), num_data=50)
    x, y = torch.randint(11, (2, 7, 3))

    def loss():
        with br.draw(q, seed=5):
            return elbo(q(x), y).loss

    loss().backward()
    generator = torch.Generator().manual_seed(1)
    for name, parameter in q.named_parameters():
        direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        found = float((parameter.grad * direction).sum())
        wanted = finite_difference(loss, parameter, direction)
        assert found == pytest.approx(wanted, rel=1e-5, abs=1e-8), name


def test_mean_gradient_over_draws_is_the_gradient_of_the_exact_elbo():
    # Linear-Gaussian: the expected loss is known. 1,500 draws; every component within 5 standard errors (a right
    # gradient fails with probability < 1e-5 over 16 components); an error of 10 standard errors in any component
    # (here under 5% of the gradient's norm) is caught with power > 0.999.
    torch.manual_seed(0)
    n, d, noise, scale = 20, 4, 0.5, 0.8
    x, y = torch.randn(n, d, dtype=torch.float64), torch.randn(n, 1, dtype=torch.float64)
    q = br.BayesByBackprop(nn.Linear(d, 1, bias=False).double(), br.Normal(scale), init_sigma=0.3)
    elbo = br.ELBO(q, br.Gaussian(noise, learn=False), num_data=n)
    mean, rho = q.module.weight, q.posterior.rho["weight"]
    sigma = nn.functional.softplus(rho)
    expected_nll = (
        ((y - x @ mean.t()).square().sum() + (x.square() @ sigma.square().t()).sum()) / (2 * noise**2)
        + n * math.log(noise) + 0.5 * n * math.log(2 * math.pi)
    )  # fmt: skip
    exact = torch.autograd.grad((expected_nll + br.kl(q)) / n, [mean, rho])
    found = []
    for _ in range(1500):
        found.append(torch.cat([g.flatten() for g in torch.autograd.grad(elbo(q(x), y).loss, [mean, rho])]))
    found = torch.stack(found)
    error = (found.mean(0) - torch.cat([g.flatten() for g in exact])).abs()
    assert bool((error < 5 * found.std(0) / math.sqrt(len(found)) + 1e-9).all())


def test_converges_to_the_best_diagonal_gaussian_of_a_linear_model():
    # The exact posterior is N(m, S); the best diagonal q has mean m and variance 1 / diag(S^-1). Means and log sigmas
    # are averaged over the last third of 1,500 steps; the averages' noise is about 0.5%, the limits are 5%.
    torch.manual_seed(3)
    n, d, noise, scale = 30, 3, 0.7, 1.0
    x = torch.randn(n, d, dtype=torch.float64) @ torch.tensor(
        [[1.0, 0.5, 0], [0, 1, 0.5], [0, 0, 0.6]], dtype=torch.float64
    )
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64) + noise * torch.randn(n, 1, dtype=torch.float64)
    precision = x.t() @ x / noise**2 + torch.eye(d, dtype=torch.float64) / scale**2
    best_mean = torch.linalg.solve(precision, x.t() @ y / noise**2).flatten()
    best_sigma = precision.diagonal().rsqrt()
    q = br.BayesByBackprop(nn.Linear(d, 1, bias=False).double(), br.Normal(scale), init_sigma=0.05)
    elbo = br.ELBO(q, br.Gaussian(noise, learn=False), num_data=n)
    optimiser = torch.optim.Adam(q.parameters(), lr=0.03)
    means, logs = [], []
    for step in range(1500):
        if step == 700:
            optimiser.param_groups[0]["lr"] = 0.01
        optimiser.zero_grad()
        elbo(q(x), y).loss.backward()
        optimiser.step()
        if step >= 1000:
            ((_, mean, sigma),) = list(q.named_posteriors())
            means.append(mean.detach().flatten().clone())
            logs.append(sigma.detach().flatten().log())
    assert bool(((torch.stack(means).mean(0) - best_mean).abs() < 0.3 * best_sigma).all())
    torch.testing.assert_close(torch.stack(logs).mean(0).exp(), best_sigma, rtol=0.05, atol=0)


# ---- arguments


def test_init_sigma_as_number_pair_and_patterns():
    model = LanguageModel(nn.LSTM(6, 5))
    q = br.BayesByBackprop(model, init_sigma={"rnn.*": (0.1, 0.2), "*.bias": 0.5, "*": 0.01})
    sigmas = {n: s.detach() for n, _, s in q.named_posteriors()}
    assert 0.1 <= float(sigmas["rnn.weight_hh_l0"].min()) < float(sigmas["rnn.weight_hh_l0"].max()) <= 0.2 + 1e-6
    torch.testing.assert_close(sigmas["head.bias"], torch.full((11,), 0.5))
    torch.testing.assert_close(sigmas["embed.weight"], torch.full((11, 6), 0.01))
    for small in (1e-8, 1e-3, 5.0, 50.0):
        ((_, _, sigma),) = br.BayesByBackprop(nn.Linear(1, 1, bias=False), init_sigma=small).named_posteriors()
        assert float(sigma.detach()) == pytest.approx(small, rel=1e-4)


def test_bad_arguments_say_what_is_wrong():
    linear = nn.Linear(2, 2)
    for sigma in (0, -0.1, math.nan, math.inf, "big"):
        with pytest.raises(ValueError, match="init_sigma must be a positive number"):
            br.BayesByBackprop(linear, init_sigma=sigma)
    with pytest.raises(ValueError, match=r"no pattern for 'bias'"):
        br.BayesByBackprop(linear, init_sigma={"weight": 0.1})
    with pytest.raises(TypeError, match="or have a log_prob"):
        br.BayesByBackprop(linear, prior=0.1)


def test_a_prior_of_ones_own():
    class Wide:
        def log_prob(self, w, *, group_dim=None):
            return torch.distributions.Cauchy(0.0, 1.0).log_prob(w)

    q = br.BayesByBackprop(nn.Linear(3, 2), Wide())
    q(torch.ones(1, 3))
    br.kl(q).backward()
    assert q.posterior.rho["weight"].grad.any()


def test_works_under_autocast():
    q = br.BayesByBackprop(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), init_sigma=0.1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = q(torch.ones(2, 3)).float().sum() + br.kl(q)
    loss.backward()
    assert q.posterior.rho["0.weight"].grad.dtype == torch.float32


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("prior", [br.Normal(0.3), br.ScaleMixture(0.25, 1.0, 0.05)])
def test_a_held_draw_its_kl_and_its_gradients_survive_a_move_to_a_gpu(prior):
    torch.manual_seed(0)
    q = br.BayesByBackprop(LanguageModel(nn.LSTM(6, 5, num_layers=2)).double(), prior, init_sigma=(0.05, 0.3))
    x = torch.randint(11, (7, 3))
    with br.draw(q, seed=1):
        out = q(x)[0]
        (out.square().sum() + br.kl(q)).backward()
        here = [out.detach(), br.kl(q).detach(), *(p.grad.clone() for p in q.parameters())]
        q.zero_grad()
        q.cuda()
        out = q(x.cuda())[0]
        (out.square().sum() + br.kl(q)).backward()
        there = [out.detach(), br.kl(q).detach(), *(p.grad for p in q.parameters())]
    for a, b in zip(here, there, strict=True):
        torch.testing.assert_close(b.cpu(), a, rtol=1e-8, atol=1e-8)


def test_the_padding_row_of_an_embedding_has_no_noise():
    q = br.BayesByBackprop(torch.nn.Embedding(5, 3, padding_idx=2), init_sigma=0.5)
    assert torch.equal(q(torch.tensor([2])), torch.zeros(1, 3))
    assert q(torch.tensor([1])).abs().min() > 0


@pytest.mark.parametrize("options", [{"sparse": True}, {"max_norm": 1.0}])
def test_embeddings_that_cannot_be_random_are_refused(options):
    with pytest.raises(TypeError, match="max_norm or sparse=True"):
        br.BayesByBackprop(torch.nn.Embedding(5, 3, **options))


def test_a_prior_needs_no_more_than_log_prob():
    q = br.BayesByBackprop(torch.nn.Linear(3, 2), prior=torch.distributions.Normal(0.0, 1.0))
    with br.draw(q, seed=0):
        q(torch.ones(1, 3))
        estimate = br.kl(q)
    assert torch.isfinite(estimate)


def test_a_pattern_of_init_sigma_that_matches_nothing_is_named():
    with pytest.raises(ValueError, match=r"'rxx\.\*'"):
        br.BayesByBackprop(torch.nn.Linear(3, 2), init_sigma={"rxx.*": 0.1, "*": 0.1})


@pytest.mark.parametrize("sigma", [0.01, 0.02])
def test_the_kl_in_half_precision(sigma):
    q = br.BayesByBackprop(nn.Linear(6, 5), prior=br.Normal(0.1), init_sigma=sigma).train()
    x = torch.randn(3, 6)
    q(x)
    exact = br.kl(q).detach()
    half = q.half()
    half(x.half())
    assert float(br.kl(half).detach()) == pytest.approx(float(exact), rel=5e-3)


@pytest.mark.parametrize(
    ("spread", "message"),
    [
        ((0.2, 0.1), "write the smaller one first"),
        ((0.1, 0.2, 0.3), "a number or a pair"),
        ({"weight": (0.2, 0.1), "*": 0.1}, "write the smaller one first"),
        ((0.1, -0.2), "must be a positive number"),
    ],
)
def test_a_spread_of_first_sigmas_goes_from_low_to_high(spread, message):
    with pytest.raises(ValueError, match=f"init_sigma.*{message}"):
        br.BayesByBackprop(nn.Linear(2, 2), init_sigma=spread)
    q = br.BayesByBackprop(nn.Linear(2, 2), init_sigma=[0.1, 0.2])
    assert all(s.min() >= 0.1 and s.max() <= 0.2 for _, _, s in q.named_posteriors())
