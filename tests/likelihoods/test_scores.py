"""The continuous ranked probability score against closed forms."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

import bayesrnn as br

torch.set_num_threads(1)


def spread(m, s):
    """E|X| of N(m, s^2)."""
    return 2 * s * stats.norm.pdf(m / s) + m * (2 * stats.norm.cdf(m / s) - 1)


@pytest.mark.parametrize("sigma", [(1.0, 1.0), (0.01, 0.01), (0.001, 5.0)])
@pytest.mark.parametrize("y", [0.0, 5.0, -30.0])
def test_parts_that_lie_far_apart_count(sigma, y):
    """Grimit et al. 2006: the CRPS of a mixture of Gaussians in closed form."""
    means, weights = (-5.0, 5.0), (0.3, 0.7)
    parts = list(zip(weights, means, sigma, strict=True))
    expected = sum(w * spread(y - m, s) for w, m, s in parts) - 0.5 * sum(
        v * w * spread(a - b, math.hypot(s, t)) for v, a, s in parts for w, b, t in parts
    )
    output = [*np.log(weights), means[0], math.log(sigma[0]), means[1], math.log(sigma[1])]
    found = br.Mixture(br.Gaussian, components=2).crps(torch.tensor([[output]]).double(), torch.tensor([y]).double())
    assert float(found) == pytest.approx(expected, rel=1e-6)


def test_small_counts_beside_large_ones_keep_their_score():
    means, dispersions, y = [3.0, 1e5, 1e4], [-1.0, -9.0, 2.0], [4.0, 100_300.0, 100.0]
    output = torch.tensor(np.array([np.log(means), dispersions])).T
    found = br.NegativeBinomial().crps(output[None], torch.tensor(y).double())
    for k in range(3):
        r = math.exp(-dispersions[k])
        one = stats.nbinom(r, r / (r + means[k]))
        steps = np.arange(max(one.ppf(1 - 1e-10), y[k]) + 2)
        expected = np.square(one.cdf(steps) - (steps >= y[k])).sum()
        assert float(found[k]) == pytest.approx(expected, rel=1e-12 if k == 0 else 3e-4)


def test_quantiles_are_scored_exactly():
    """Between levels the distribution function is a line, so the integral is a sum."""
    likelihood, output, y = br.Quantiles([0.05, 0.25, 0.5, 0.95]), torch.tensor([[0.0, 0.001, 1.0, 50.0]]).double(), 0.5
    at, share = (k.flatten().numpy() for k in likelihood.knots(output))
    x = np.sort(np.append(at, y))
    ends, step = np.interp(x, at, share), (x[:-1] >= y).astype(float)
    low, high = ends[:-1] - step, ends[1:] - step
    expected = (np.diff(x) * (low * low + low * high + high * high) / 3).sum()
    assert float(likelihood.crps(output[None], torch.tensor([y]).double())) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("df", [0.505, 0.51, 0.55, 0.6, 0.8, 1.0, 2.0, 5.0, 50.0])
def test_heavy_tails_count_to_the_end(df):
    """By quadrature in log t, where tails that fall as a power are exponentials."""
    t, far = stats.t(df), 30 * math.exp(30)
    near = [(t.cdf, -30, 0), (t.cdf, 0, 0.7), (t.sf, 0.7, 30)]
    expected = sum(integrate.quad(lambda x, f=f: f(x) ** 2, a, b, limit=200)[0] for f, a, b in near)
    tail = integrate.quad(lambda u: t.cdf(-30 * math.exp(u)) ** 2 * 30 * math.exp(u), 0, 30)[0]
    expected += 2 * (tail + t.cdf(-far) ** 2 * far / (2 * df - 1))
    found = br.StudentT(df=df).crps(torch.zeros(1, 1, 2).double(), torch.tensor([0.7]).double())
    assert float(found) == pytest.approx(expected, rel=1e-4)


def test_heavy_tails_of_draws():
    """The score of draws of one distribution is its own; it is infinite where a draw's is."""
    output = torch.tensor([[[0.0, 0.0, math.log(df)]] for df in (0.55, 0.55, 3.0)]).double()
    y = torch.zeros(1).double()
    one = br.StudentT(df=0.55).crps(output[:1, :, :2], y)
    torch.testing.assert_close(br.StudentT().crps(output[:2], y), one, rtol=1e-5, atol=0)
    # The heavy tails of two thirds of the mass, and little beside them.
    assert 4 / 9 * one < br.StudentT().crps(output, y) < one
    output[2, 0, 2] = math.log(0.4)
    assert torch.isinf(br.StudentT().crps(output, y)).all()
    assert torch.isinf(br.StudentT(df=0.3).crps(output[..., :2], y)).all()
