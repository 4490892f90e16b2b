"""Distributions whose parameters the model says: densities, gradients, moments and quantiles against scipy, and use."""

import math

import numpy as np
import pytest
import torch
from scipy import special, stats
from torch import nn

import bayesrnn as br
from bayesrnn.likelihoods import Distribution, Likelihood
from bayesrnn.likelihoods.quantiles import betainc

torch.set_num_threads(1)
LEVELS = [0.05, 0.5, 0.95]
MADE = {
    "StudentT": lambda: br.StudentT(),
    "StudentT(4)": lambda: br.StudentT(df=4),
    "NegativeBinomial": lambda: br.NegativeBinomial(),
    "Quantiles": lambda: br.Quantiles(LEVELS),
    "Mixture": lambda: br.Mixture(br.Gaussian, components=3),
    "Mixture of t": lambda: br.Mixture(br.StudentT(df=5), components=2),
}
SIZES = {"StudentT": 3, "StudentT(4)": 2, "NegativeBinomial": 2, "Quantiles": 3, "Mixture": 9, "Mixture of t": 6}


def outputs(name, *shape, seed=0):
    source = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, SIZES[name], generator=source, dtype=torch.float64)


def targets(name, *shape, seed=1):
    y = 2 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return y.abs().floor() if name == "NegativeBinomial" else y


def scipy_of(name, output):
    """The distributions of scipy for one output vector."""
    o = output.numpy()
    if name.startswith("StudentT"):
        return stats.t(4.0 if name == "StudentT(4)" else np.exp(o[2]), loc=o[0], scale=np.exp(o[1]))
    r = np.exp(-o[1])
    return stats.nbinom(r, r / (r + np.exp(o[0])))


@pytest.mark.parametrize("name", ["StudentT", "StudentT(4)", "NegativeBinomial"])
def test_density_moments_and_distribution_function_are_scipy_s(name):
    likelihood, output, y = MADE[name](), outputs(name, 20), targets(name, 20)
    for i in range(20):
        one = scipy_of(name, output[i])
        density = one.logpmf if likelihood.discrete else one.logpdf
        assert float(likelihood.log_prob(output[i], y[i])) == pytest.approx(float(density(float(y[i]))), rel=1e-9)
        assert float(likelihood.cdf(output[i], y[i])) == pytest.approx(float(one.cdf(float(y[i]))), rel=1e-9, abs=1e-12)
        variance = float(one.var())
        if math.isfinite(variance):
            assert float(likelihood.variance(output[i])) == pytest.approx(variance, rel=1e-9)
            assert float(likelihood.mean(output[i])) == pytest.approx(float(one.mean()), rel=1e-9, abs=1e-12)
        else:
            assert float(likelihood.variance(output[i])) == math.inf
    total = -sum(float(likelihood.log_prob(output[i], y[i])) for i in range(20))
    assert float(likelihood.nll(output, y)) == pytest.approx(total)
    assert float(likelihood.nll(output, y.unsqueeze(-1))) == pytest.approx(total)
    assert likelihood.count(y) == likelihood.count(y.unsqueeze(-1)) == 20


@pytest.mark.parametrize("name", ["StudentT", "StudentT(4)", "NegativeBinomial"])
@pytest.mark.parametrize("q", [0.001, 0.05, 0.3, 0.5, 0.9, 0.995])
def test_quantiles_are_scipy_s(name, q):
    likelihood, output = MADE[name](), outputs(name, 30, seed=3)
    found = likelihood.quantile(output.unsqueeze(0), q)
    expected = [float(scipy_of(name, o).ppf(q)) for o in output]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("q", [0.01, 0.2, 0.5, 0.8, 0.97])
@pytest.mark.parametrize("name", MADE)
def test_quantiles_of_draws_invert_the_mixture_over_draws(name, q):
    likelihood, parameters = MADE[name](), outputs(name, 7, 5, seed=4)
    x = likelihood.quantile(parameters, q)

    def below(y):
        return likelihood.cdf(parameters, y.expand(7, 5)).mean(0)

    if likelihood.discrete:
        assert bool((below(x) >= q - 1e-9).all())
        assert bool((below(x - 1) < q).all())
    else:
        torch.testing.assert_close(below(x), torch.full((5,), q, dtype=torch.float64), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", MADE)
def test_gradients(name):
    likelihood, output, y = MADE[name](), outputs(name, 4, seed=5).requires_grad_(), targets(name, 4)
    assert torch.autograd.gradcheck(lambda o: likelihood.nll(o, y), output)
    if name not in ("NegativeBinomial", "Quantiles"):
        assert torch.autograd.gradcheck(lambda t: likelihood.nll(output.detach(), t), y.clone().requires_grad_())


@pytest.mark.parametrize("name", [n for n in MADE if n != "Quantiles"])
def test_densities_are_the_slope_of_the_distribution_function_and_add_up_to_one(name):
    likelihood, output, step = MADE[name](), outputs(name, 6, seed=6), 1e-5
    if likelihood.discrete:
        k = torch.arange(400, dtype=torch.float64).unsqueeze(1).expand(-1, 6)
        each = likelihood.log_prob(output.expand(400, -1, -1), k).exp()
        torch.testing.assert_close(each.cumsum(0)[:5], likelihood.cdf(output.expand(5, -1, -1), k[:5]))
        return
    y = targets(name, 6)
    slope = (likelihood.cdf(output, y + step) - likelihood.cdf(output, y - step)) / (2 * step)
    torch.testing.assert_close(likelihood.log_prob(output, y).exp(), slope, rtol=1e-5, atol=1e-8)


def integrated(likelihood, parameters, y, reach=4000.0):
    """CRPS by its definition, on a fine grid that reaches far."""
    if likelihood.discrete:
        x = torch.arange(-5, 4000, dtype=torch.float64)
    else:
        x = torch.sinh(torch.linspace(-math.asinh(reach), math.asinh(reach), 40_001, dtype=torch.float64)) + y
    below = likelihood.cdf(parameters.unsqueeze(1).expand(-1, len(x), -1), x.expand(len(parameters), -1)).mean(0)
    if likelihood.discrete:
        return float((below - (x >= y).double()).square().sum())
    half = len(x) // 2  # where x is y
    lower, upper = below[: half + 1].square(), (1 - below[half:]).square()
    return float(torch.trapezoid(lower, x[: half + 1]) + torch.trapezoid(upper, x[half:]))


@pytest.mark.parametrize("name", ["StudentT(4)", "NegativeBinomial", "Quantiles", "Mixture", "Mixture of t"])
def test_crps_is_the_integral(name):
    likelihood, parameters = MADE[name](), outputs(name, 3, 2, seed=7)
    for y in (0.0, 1.0, 12.0):
        found = likelihood.crps(parameters, torch.full((2,), y, dtype=torch.float64))
        expected = [integrated(likelihood, parameters[:, i], y) for i in range(2)]
        np.testing.assert_allclose(found.numpy(), expected, rtol=5e-3 if name == "Quantiles" else 1e-4)  # it has kinks


def test_crps_of_one_gaussian_is_the_textbook_form():
    m, s, y = 0.3, 0.7, 1.1
    z = (y - m) / s
    expected = s * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / math.sqrt(math.pi))
    output = torch.tensor([[0.0, m, math.log(s)]]).double()
    found = br.Mixture(br.Gaussian, components=1).crps(output, torch.tensor(y).double())
    assert float(found) == pytest.approx(expected, rel=1e-5)


def test_a_mixture_of_gaussians_is_torch_s():
    likelihood, output, y = br.Mixture(br.Gaussian, components=3), outputs("Mixture", 8), targets("Mixture", 8)
    parts = output[:, 3:].view(8, 3, 2)
    normal = torch.distributions.Normal(parts[..., 0], parts[..., 1].exp())
    same = torch.distributions.MixtureSameFamily(torch.distributions.Categorical(logits=output[:, :3]), normal)
    torch.testing.assert_close(likelihood.log_prob(output, y), same.log_prob(y))
    torch.testing.assert_close(likelihood.mean(output), same.mean)
    torch.testing.assert_close(likelihood.variance(output), same.variance)
    torch.testing.assert_close(likelihood.cdf(output, y), same.cdf(y))


def test_quantiles_are_the_outputs_sorted():
    likelihood = br.Quantiles(LEVELS)
    output = torch.tensor([[3.0, 1.0, 2.0], [1.0, 2.0, 3.0]]).double()
    for level, value in zip(LEVELS, (1.0, 2.0, 3.0), strict=True):
        torch.testing.assert_close(likelihood.quantile(output.unsqueeze(0), level), torch.full((2,), value).double())
    y = torch.tensor([0.5, 2.5]).double()
    error = y.unsqueeze(-1) - torch.tensor([1.0, 2.0, 3.0]).double()
    pinball = torch.where(error > 0, torch.tensor(LEVELS).double() * error, (torch.tensor(LEVELS).double() - 1) * error)
    torch.testing.assert_close(likelihood.nll(output, y), pinball.sum())


def test_the_pinball_loss_finds_quantiles():
    y = torch.randn(4000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    said = torch.tensor([-0.5, 0.0, 0.5], dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.Adam([said], lr=0.02)
    for _ in range(400):
        optimiser.zero_grad()
        (br.Quantiles(LEVELS).nll(said.expand(4000, 3), y) / 4000).backward()
        optimiser.step()
    np.testing.assert_allclose(said.detach().numpy(), np.quantile(y.numpy(), LEVELS), atol=0.05)


def test_small_dispersion_is_poisson_s():
    output = torch.tensor([[1.2, -40.0]] * 8, dtype=torch.float32, requires_grad=True)
    y = torch.arange(8.0)
    expected = torch.from_numpy(stats.poisson(math.exp(1.2)).logpmf(np.arange(8))).float()
    found = br.NegativeBinomial().log_prob(output, y)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    found.sum().backward()
    assert bool(output.grad.isfinite().all())


def test_the_incomplete_beta_function_is_scipy_s():
    source = np.random.default_rng(0)
    a, b, x = 10 ** source.uniform(-2, 4, 500), 10 ** source.uniform(-2, 4, 500), source.uniform(0, 1, 500)
    x[:2] = 0.0, 1.0
    found = betainc(*(torch.from_numpy(v) for v in (a, b, x))).numpy()
    np.testing.assert_allclose(found, special.betainc(a, b, x), rtol=1e-7, atol=1e-12)


class Network(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.rnn, self.head = br.GRU(1, 8, recurrent_dropout=0.2), nn.Linear(8, size)

    def forward(self, x):
        return self.head(self.rnn(x)[0])


@pytest.mark.parametrize("name", MADE)
def test_training_and_prediction(name):
    """A loss that falls, and the parts of a prediction, with draws of dropout."""
    torch.manual_seed(0)
    likelihood, model = MADE[name](), Network(SIZES[name])
    x, y = torch.randn(5, 16, 1), targets(name, 5, 16).float()
    elbo = br.ELBO(model, likelihood, num_data=y.numel())
    optimiser = torch.optim.Adam(elbo.parameters(), lr=0.02)
    losses = []
    for _ in range(30):
        optimiser.zero_grad()
        loss = elbo(model(x), y).loss
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert np.mean(losses[-5:]) < losses[0]
    found = br.predict(model, x, samples=6, seed=1, likelihood=likelihood)
    assert isinstance(found, br.Prediction)
    assert found.mean.shape == found.variance.shape == (5, 16)
    assert found.samples.shape == (6, 5, 16)
    torch.testing.assert_close(found.mean, found.samples.mean(0))
    torch.testing.assert_close(found.variance, found.aleatoric + found.epistemic)
    torch.testing.assert_close(found.aleatoric, likelihood.variance(found.parameters).mean(0))
    low, high = found.interval(0.8)
    assert bool((low <= found.quantile(0.5)).all())
    assert bool((found.quantile(0.5) <= high).all())
    assert low.dtype == found.mean.dtype == torch.float32
    crps = found.crps(y)
    torch.testing.assert_close(crps, found.crps(y.unsqueeze(-1)))
    assert crps.shape == (5, 16)
    assert bool((crps >= 0).all())
    whole = br.predict(model, x, samples=6, seed=1, likelihood=likelihood, memory_limit=1)
    torch.testing.assert_close(whole.mean, found.mean, rtol=1e-4, atol=1e-5)
    lean = br.predict(model, x, samples=6, seed=1, likelihood=likelihood, keep_samples=False)
    torch.testing.assert_close(lean.aleatoric, found.aleatoric)
    with pytest.raises(RuntimeError, match="keep_samples=True"):
        lean.interval(0.9)


def test_intervals_of_a_fitted_model_cover():
    """Student's t with learnt parameters, 4,000 targets: 90% intervals hold 90%, within 4 standard errors."""
    torch.manual_seed(0)
    y = torch.distributions.StudentT(3.0, 1.0, 2.0).sample((4000,))
    said = nn.Parameter(torch.zeros(3))
    optimiser = torch.optim.Adam([said], lr=0.05)
    for _ in range(300):
        optimiser.zero_grad()
        (br.StudentT().nll(said.expand(4000, 3), y) / 4000).backward()
        optimiser.step()
    low, high = (br.StudentT().quantile(said.detach().expand(1, 1, 3), q) for q in (0.05, 0.95))
    covered = float(((y >= low) & (y <= high)).double().mean())
    assert covered == pytest.approx(0.9, abs=4 * math.sqrt(0.09 / 4000))


class Exponential(Distribution):
    """Of somebody else: the output is the log of the mean."""

    size = 1

    def log_prob(self, output, y):
        return -output[..., 0] - y * torch.exp(-output[..., 0])

    def mean(self, output):
        return output[..., 0].exp()

    def variance(self, output):
        return self.mean(output).square()

    def cdf(self, output, y):
        return 1 - torch.exp(-y.clamp_min(0) * torch.exp(-output[..., 0]))

    def reach(self, output):
        return torch.zeros_like(output[..., 0]), 5 * self.mean(output)


def test_a_likelihood_from_outside_is_one_class():
    torch.manual_seed(0)
    likelihood, model, x = Exponential(), Network(1), torch.randn(5, 16, 1)
    assert isinstance(likelihood, Likelihood)
    y = torch.rand(5, 16, 1)
    br.ELBO(model, likelihood, num_data=80)(model(x), y).loss.backward()
    found = br.predict(model, x, samples=4, seed=0, likelihood=likelihood)
    one = br.predict(model, x, samples=1, seed=0, likelihood=likelihood)
    torch.testing.assert_close(one.quantile(0.9), -math.log(0.1) * one.mean)
    torch.testing.assert_close(one.variance, one.mean.square())
    assert found.crps(y).shape == (5, 16)
    mixed = br.Mixture(Exponential, components=2)
    assert mixed.nll(torch.zeros(3, 4), torch.ones(3)).isfinite()


def test_what_is_refused():
    for make, words in (
        (lambda: br.StudentT(df=0), "df must be a positive number"),
        (lambda: br.StudentT(df=math.inf), "df must be a positive number"),
        (lambda: br.StudentT(df="4"), "df must be a positive number"),
        (lambda: br.NegativeBinomial().nll(torch.zeros(1, 2), torch.tensor([math.inf])), "counts, .*got inf"),
        (lambda: br.StudentT(4).nll(torch.zeros(1, 2), torch.tensor([True])), "targets of br.StudentT are numbers"),
        (lambda: br.Quantiles([0.5]), "at least two probabilities"),
        (lambda: br.Quantiles([0.9, 0.1]), "in rising order"),
        (lambda: br.Quantiles([0.0, 0.5]), "between 0 and 1"),
        (lambda: br.Mixture(br.Gaussian, components=0), "components must be a whole number"),
        (lambda: br.StudentT(4).nll(torch.zeros(5, 3), torch.zeros(5)), "br.StudentT reads 2 parameters"),
        (lambda: br.StudentT(4).nll(torch.zeros(5, 2), torch.zeros(4)), r"target must have the shape \(5,\)"),
        (lambda: br.NegativeBinomial().nll(torch.zeros(2, 2), torch.tensor([1.0, -1.0])), "counts, .*got -1"),
        (lambda: br.NegativeBinomial().nll(torch.zeros(2, 2), torch.tensor([1.0, 0.5])), "counts, .*got 0.5"),
        (lambda: br.predict(nn.Linear(2, 3), torch.zeros(4, 2), likelihood=br.StudentT(4)), "reads 2 parameters"),
    ):
        with pytest.raises(ValueError, match=words):
            make()
    for wrong in (br.Categorical, nn.Linear(1, 1), br.Mixture()):
        with pytest.raises(TypeError, match=r"component must be br\.Gaussian or a distribution"):
            br.Mixture(wrong, components=2)
    found = br.predict(nn.Linear(2, 2), torch.zeros(4, 2), samples=1, likelihood=br.StudentT(4))
    with pytest.raises(ValueError, match="q must be between 0 and 1"):
        found.quantile(1.0)
    with pytest.raises(ValueError, match="level must be between 0 and 1"):
        found.interval(95)


@pytest.mark.parametrize("mean", [1.0, 1e4, 1e6])
@pytest.mark.parametrize("log_dispersion", [-20.0, -50.0])
def test_large_counts_of_small_dispersion(mean, log_dispersion):
    likelihood, output = br.NegativeBinomial(), torch.tensor([math.log(mean), log_dispersion]).double()
    r = math.exp(-max(log_dispersion, -30.0))
    steps = np.floor(mean + np.array([-2, 0, 3]) * math.sqrt(mean)).clip(0)
    rate = np.exp(output[0].item())
    one = stats.poisson(rate) if log_dispersion < -30 else stats.nbinom(r, r / (r + rate))
    found = likelihood.log_prob(output.expand(3, 2), torch.tensor(steps))
    np.testing.assert_allclose(found.numpy(), one.logpmf(steps), rtol=1e-5)
    found = likelihood.cdf(output.expand(3, 2), torch.tensor(steps))
    np.testing.assert_allclose(found.numpy(), one.cdf(steps), rtol=1e-5)
    deviation = float(likelihood.quantile(output[None, None], 0.975) - likelihood.quantile(output[None, None], 0.025))
    if mean > 1:
        assert deviation / 3.92 == pytest.approx(float(likelihood.variance(output)) ** 0.5, rel=0.02)


def test_many_degrees_of_freedom_in_single_precision_are_gaussian():
    output, y = torch.tensor([[0.0, 0.3, 14.0]], requires_grad=True), torch.tensor([1.3])
    loss = br.StudentT().nll(output, y)
    assert loss.item() == pytest.approx(-stats.norm.logpdf(1.3, scale=math.exp(0.3)), rel=1e-5)
    assert torch.autograd.grad(loss, output)[0].isfinite().all()
