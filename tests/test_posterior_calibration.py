"""Posteriors against the truth: exact posteriors, simulation-based calibration, coverage, the definition of the KL.

Each statistical test says what it would notice, and where it is cheap the same test is shown to fail on a posterior
that is wrong by that much.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import bayesrnn as br

NOISE, PRIOR = 0.5, 0.8  # standard deviations: of the targets, of the weights


@pytest.fixture(autouse=True)
def seeded():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def fit(q, x, y, *, steps, lr=0.05):
    """Full-batch Adam with a falling rate; means and rhos are averaged over the second half of the steps."""
    elbo = br.ELBO(q, br.Gaussian(sigma=NOISE, learn=False), num_data=y.numel())
    optimiser = torch.optim.Adam(elbo.parameters(), lr=lr, betas=(0.9, 0.99))
    averages = [torch.zeros_like(p) for p in q.parameters()]
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = lr * 0.01 ** (step / steps)
        optimiser.zero_grad()
        (elbo(q(x), y).loss * y.numel()).backward()
        optimiser.step()
        if step >= steps // 2:
            for average, p in zip(averages, q.parameters(), strict=True):
                average.add_(p.detach(), alpha=1 / (steps - steps // 2))
    with torch.no_grad():
        for p, average in zip(q.parameters(), averages, strict=True):
            p.copy_(average)
    return q


class Many(nn.Module):
    """R regressions side by side, each with weights of its own: inputs (..., R, D) to (..., R, 1)."""

    def __init__(self, count, inputs):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(count, inputs))

    def forward(self, x):
        return (x * self.weight).sum(-1, keepdim=True)


COPIES = 400


@pytest.fixture(scope="module")
def linear():
    """A regression with correlated inputs, its exact posterior, and the fitted q.

    It is fitted in 400 copies that share their gradients: 400 draws for each step.
    """
    with torch.random.fork_rng():
        torch.manual_seed(1)
        x = torch.randn(40, 4) + 0.8 * torch.randn(40, 1)
        y = x @ (PRIOR * torch.randn(4, 1)) + NOISE * torch.randn(40, 1)
        precision = (x.T @ x / NOISE**2 + torch.eye(4) / PRIOR**2).double()
        mean = torch.linalg.solve(precision, (x.T @ y / NOISE**2).double())[:, 0]
        q = br.BayesByBackprop(Many(COPIES, 4), prior=br.Normal(PRIOR), init_sigma=0.1)
        for p in q.parameters():
            p.register_hook(lambda g: g.mean(0, keepdim=True).expand_as(g))
        fit(q, x.unsqueeze(1), y.unsqueeze(1).expand(40, COPIES, 1), steps=400)
    return x, y, precision, mean, q


def test_the_posterior_is_the_best_diagonal_gaussian(linear):
    """Of all N(m, diag(s^2)) the nearest to N(mean, precision^-1) in KL(q || p) has m = mean and s^2 = 1 / diag.

    Tolerances: 3% of a posterior standard deviation for means, 3% for variances. The exact marginal variances are
    other numbers: a posterior that found those would fail here.
    """
    _, _, precision, exact, q = linear
    ((_, mean, sigma),) = q.named_posteriors()
    best = 1 / precision.diagonal()
    assert ((mean[0] - exact).abs() / best.sqrt()).max().item() < 0.03
    torch.testing.assert_close(sigma[0].double().square(), best, rtol=0.03, atol=0)
    marginal = torch.linalg.inv(precision).diagonal()
    assert (marginal / best).min().item() > 1.15


def test_the_bound_is_the_evidence_less_the_gap(linear):
    """E[loss] * N = -log p(y) + KL(q || posterior), both known here; the mean over 40,000 draws is within 4 errors."""
    x, y, precision, _, q = linear
    covariance = (PRIOR**2 * x @ x.T + NOISE**2 * torch.eye(len(x))).double()
    evidence = torch.distributions.MultivariateNormal(torch.zeros(len(x)).double(), covariance)
    gap = 0.5 * (precision.diagonal().log().sum() - torch.logdet(precision)).item()  # of the best diagonal Gaussian
    expected = gap - evidence.log_prob(y[:, 0].double()).item()
    elbo = br.ELBO(q, br.Gaussian(sigma=NOISE, learn=False), num_data=40 * COPIES)
    inputs, targets = x.unsqueeze(1), y.unsqueeze(1).expand(40, COPIES, 1)
    with torch.no_grad():
        values = torch.stack([elbo(q.train()(inputs), targets).loss * 40 for _ in range(100)]).double()
    error = values.std().item() / math.sqrt(len(values))
    assert gap > 20 * error  # so small an error that the gap could not be overlooked
    assert abs(values.mean().item() - expected) < 4 * error + 0.01


R, D, N = 1500, 2, 8


@pytest.fixture(scope="module")
def simulated():
    """1,500 data sets, each with true weights from the prior; inputs orthogonal, so that the posterior is diagonal."""
    with torch.random.fork_rng():
        torch.manual_seed(2)
        true = PRIOR * torch.randn(R, D)
        basis = torch.linalg.qr(torch.randn(R, N, D)).Q.transpose(0, 1)  # (N, R, D)
        x = basis * torch.tensor([1.0, 2.0])
        y = (x * true).sum(-1, keepdim=True) + NOISE * torch.randn(N, R, 1)
        q = fit(br.BayesByBackprop(Many(R, D), prior=br.Normal(PRIOR), init_sigma=0.3), x, y, steps=1000)
    return true, q.eval()


def ranks(q, true, draws):
    """How many of the draws of each weight lie below its true value: uniform on 0..draws for the exact posterior."""
    basis = torch.eye(D).unsqueeze(1).expand(D, R, D)  # row d picks weight d
    below = torch.zeros(R, D)
    with torch.no_grad():
        for seed in range(draws):
            with br.draw(q, seed=seed):
                below += (true - q(basis)[..., 0].T).gt(0).float()
    return below


def chi_square(values, bins, draws):
    counts = torch.histc(values.flatten(), bins, -0.5, draws + 0.5)
    expected = values.numel() / bins
    return ((counts - expected).square() / expected).sum().item()


@pytest.mark.slow
def test_simulation_based_calibration(simulated):
    """Ranks of the true weights among 31 draws are uniform (Talts et al., arXiv 1804.06788).

    3,000 ranks in 16 bins: chi-square with 15 degrees of freedom, 37.7 is exceeded once in 1,000 times. Sigmas that are
    15% too small or too large, or means off by a quarter of a sigma, are noticed, as the second half shows.
    """
    true, q = simulated
    assert chi_square(ranks(q, true, 31), 16, 31) < 37.7
    rho, mean = q.posterior.rho["weight"], q.means["weight"]
    kept = rho.detach().clone(), mean.detach().clone()
    try:
        for scale in (0.85, 1.15):
            with torch.no_grad():
                rho.copy_(torch.log(torch.expm1(scale * nn.functional.softplus(kept[0]))))
            assert chi_square(ranks(q, true, 31), 16, 31) > 37.7
        with torch.no_grad():
            rho.copy_(kept[0])
            mean.add_(0.25 * nn.functional.softplus(kept[0]))
        assert chi_square(ranks(q, true, 31), 16, 31) > 37.7
    finally:
        with torch.no_grad():
            rho.copy_(kept[0])
            mean.copy_(kept[1])


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_predictive_intervals_cover_what_they_say(simulated, level):
    """One new target for each of 1,500 data sets: the count inside is binomial, and within 4 standard errors.

    At 90% that is 3.1 points: intervals that really cover 85% are noticed in 98 of 100 cases, 84% in 99.9 (one-sided
    normal approximation); intervals without the weights' own spread are, as the last line shows.
    """
    true, q = simulated
    generator = torch.Generator().manual_seed(5)
    x = 2 * torch.randn(R, D, generator=generator)
    y = (x * true).sum(-1, keepdim=True) + NOISE * torch.randn(R, 1, generator=generator)
    p = br.predict(q, x, samples=200, seed=1, likelihood=br.Gaussian(sigma=NOISE, learn=False))
    low, high = p.interval(level)
    covered = br.uncertainty.interval_coverage(low, high, y)
    error = math.sqrt(level * (1 - level) / R)
    assert abs(float(covered) - level) < 4 * error
    half = NOISE * math.sqrt(2) * torch.erfinv(torch.tensor(level)).item()
    without = br.uncertainty.interval_coverage(p.mean - half, p.mean + half, y)
    assert float(without) < level - 4 * error


def mixture_kl(m, p, length_scale, s=1e-3):
    """KL(p N(0, s^2) + (1 - p) N(m, s^2) || N(0, 1 / l^2)) of one weight, by quadrature."""
    grid = torch.linspace(-8, 8, 4001, dtype=torch.float64) * s
    total = 0.0
    for centre, share in ((0.0, p), (m, 1 - p)):
        w = centre + grid
        density = torch.distributions.Normal(centre, s).log_prob(w).exp()
        parts = torch.stack(
            [
                math.log(p) + torch.distributions.Normal(0.0, s).log_prob(w),
                math.log(1 - p) + torch.distributions.Normal(m, s).log_prob(w),
            ]
        )
        ratio = parts.logsumexp(0) - torch.distributions.Normal(0.0, 1 / length_scale).log_prob(w)
        total += share * torch.trapezoid(density * ratio, w).item()
    return total


@pytest.mark.parametrize("p", [0.1, 0.5])
@pytest.mark.parametrize("length_scale", [1.0, 3.0])
def test_the_l2_form_of_dropout_is_its_kl(p, length_scale):
    """Up to a constant: the KL of a dropped weight, by quadrature at s = 0.001, differs between two weights m by
    (1 - p) l^2 / 2 (m1^2 - m2^2), which is what `br.kl` of two embeddings differs by (arXiv 1506.02142, Eq. 7)."""

    def ours(m):
        embed = br.Embedding(1, 1, word_dropout=p).double()
        with torch.no_grad():
            embed.weight.fill_(m)
        return br.kl(embed, length_scale=length_scale).item()

    for one, other in ((2.0, 0.5), (-1.0, 0.1)):
        exact = mixture_kl(one, p, length_scale) - mixture_kl(other, p, length_scale)
        assert ours(one) - ours(other) == pytest.approx(exact, rel=1e-6)


def test_the_l2_form_counts_every_dropped_matrix_once():
    """By hand: W_ih with the input's rate, W_hh with the recurrent and the weights' rates, the embedding's own."""
    model = nn.Sequential(br.Embedding(7, 5, word_dropout=0.3), br.LSTM(5, 4, 2, input_dropout=0.2,
                          recurrent_dropout=0.4, weight_dropout=0.1, bidirectional=True))  # fmt: skip
    keep = {"0.weight": 0.7, "weight_ih": 0.8, "weight_hh": 0.6 * 0.9}
    expected = sum(
        0.5 * 2.0**2 * next(k for n, k in keep.items() if n in name) * weight.square().sum()
        for name, weight in model.named_parameters()
        if any(n in name for n in keep)
    )
    torch.testing.assert_close(br.kl(model, length_scale=2.0), expected)
