"""Scores of predictive distributions against numerical integration, sampling and definitions."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bayesrnn.forecasting.mixture import Mixture, histogram, running_scale, together


def mixture(log=False, draws=5, shape=(4, 3), seed=0):
    source = torch.Generator().manual_seed(seed)
    means = torch.randn(draws, *shape, generator=source, dtype=torch.float64)
    sigmas = 0.2 + torch.rand(draws, *shape, generator=source, dtype=torch.float64)
    return Mixture(means, sigmas * (0.5 if log else 1.0), log)


def integrated(one: Mixture, y: float) -> float:
    """CRPS by its definition: the integral of (F(x) - 1[x >= y])^2, of a mixture for one quantity."""
    low, high = (1e-9, 400.0) if one.log else (-15.0, 15.0)
    if one.log:  # x = e^u
        u = torch.linspace(math.log(low), math.log(high), 400_001, dtype=torch.float64)
        x, weight = u.exp(), u.exp()
    else:
        u = torch.linspace(low, high, 400_001, dtype=torch.float64)
        x, weight = u, torch.ones_like(u)
    wide = Mixture(one.means.expand(-1, len(x)), one.sigmas.expand(-1, len(x)), one.log)
    return float(torch.trapezoid((wide.cdf(x) - (x >= y).double()).square() * weight, u))


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("draws", [1, 2, 7])
def test_crps_is_the_integral(log, draws):
    many = mixture(log, draws, (1, 1))
    one = Mixture(many.means[:, 0], many.sigmas[:, 0], log)
    for y in (0.05, 0.7, 3.0) if log else (-2.0, 0.1, 1.5):
        assert float(one.crps(torch.tensor([y]).double())) == pytest.approx(integrated(one, y), rel=2e-4)


def test_crps_of_one_gaussian_is_the_textbook_form():
    m, s, y = 0.3, 0.7, 1.1
    z = (y - m) / s
    normal = torch.distributions.Normal(0.0, 1.0)
    phi = math.exp(float(normal.log_prob(torch.tensor(z))))
    expected = s * (z * (2 * float(normal.cdf(torch.tensor(z))) - 1) + 2 * phi - 1 / math.sqrt(math.pi))
    one = Mixture(torch.tensor([[m]]).double(), torch.tensor([[s]]).double())
    assert float(one.crps(torch.tensor([y]).double())) == pytest.approx(expected, rel=1e-6)


def test_crps_is_least_on_average_for_the_true_distribution():
    """A proper score: over 4,000 values from N(0, 1), sigmas and means that are off score worse."""
    y = torch.randn(4000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def score(m, s):
        return float(Mixture(torch.full((1, 4000), m).double(), torch.full((1, 4000), s).double()).crps(y).mean())

    best = score(0.0, 1.0)
    assert all(best < other for other in (score(0.0, 0.7), score(0.0, 1.4), score(0.3, 1.0), score(-0.3, 1.0)))


def test_crps_goes_to_the_absolute_error():
    m = torch.tensor([[2.0]]).double()
    narrow = Mixture(m, torch.full_like(m, 1e-9))
    torch.testing.assert_close(narrow.crps(torch.tensor([5.0]).double()), torch.tensor([3.0]).double())


def bisected(one: Mixture, q: float) -> torch.Tensor:
    """The same quantile by sixty bisections."""
    low, high = (one.means - 12 * one.sigmas).amin(0), (one.means + 12 * one.sigmas).amax(0)
    for _ in range(60):
        middle = (low + high) / 2
        below = torch.special.ndtr((middle - one.means) / one.sigmas).mean(0) < q
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return low.exp() if one.log else low


class Evaluations(TorchDispatchMode):
    """Counts values of the distribution function, single precision as half of one."""

    def __init__(self):
        super().__init__()
        self.count = 0.0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function.overloadpacket in (torch.ops.aten.erfc, torch.ops.aten.erf, torch.ops.aten.special_ndtr):
            self.count += result.numel() * result.element_size() / 8
        return result


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("spread", [0.0, 0.2, 1.0, 4.0, 300.0])
def test_quantiles_are_those_of_bisection_with_a_twentieth_of_the_work(log, spread):
    """Components that agree, overlap, or lie far apart. Bisection takes 60 evaluations; only the last may take more."""
    source = torch.Generator().manual_seed(5)
    means = spread * (0.01 if log else 1) * torch.randn(50, 40, 6, generator=source, dtype=torch.float64)
    sigmas = (0.05 if log else 1.0) * (0.5 + torch.rand(50, 40, 6, generator=source, dtype=torch.float64))
    many = Mixture(means, sigmas, log)
    for q in (0.001, 0.025, 0.313, 0.495, 0.907, 0.975):
        with Evaluations() as made:
            found = many.quantile(q)
        torch.testing.assert_close(found, bisected(many, q), rtol=1e-7, atol=1e-7)
        assert made.count / means.numel() <= (3 if spread <= 1 else 20)


def test_quantiles_of_components_far_apart_are_on_the_right_side():
    """Two of five below 0, three above 1,000, all narrow: the distribution function is flat in between."""
    means = torch.tensor([-2.0, -1.0, 1000.0, 1001.0, 1002.0]).double().unsqueeze(1)
    many = Mixture(means, torch.full_like(means, 1e-3))
    assert float(many.quantile(0.39)) == pytest.approx(-1.0, abs=0.01)
    assert float(many.quantile(0.41)) == pytest.approx(1000.0, abs=0.01)
    for q in (0.01, 0.39, 0.41, 0.77):
        assert float(many.cdf(many.quantile(q))) == pytest.approx(q, abs=1e-7)


def test_the_score_by_integration_is_that_of_all_pairs():
    for log, draws in ((False, 40), (True, 60)):
        many, y = mixture(log, draws, seed=3), torch.full((4, 3), 0.7).double()
        flat = [t.flatten(1) for t in (many.means, many.sigmas)]
        torch.testing.assert_close(many._spread(), many._pairs(*flat).view(4, 3), rtol=1e-5, atol=0)
        assert bool((many.crps(y) > 0).all())


def test_blocks_change_nothing(monkeypatch):
    many, y = mixture(draws=9), torch.zeros(4, 3).double()
    whole, middle = many.crps(y), many.quantile(0.5)
    monkeypatch.setattr("bayesrnn.forecasting.mixture._BLOCK", 1)
    monkeypatch.setattr("bayesrnn.likelihoods.quantiles._BLOCK", 1)
    torch.testing.assert_close(many.crps(y), whole)
    torch.testing.assert_close(many.quantile(0.5), middle)


def crps_of_samples(samples, y):
    """The score of an empirical distribution: E|X - y| - E|X - X'| / 2 over all pairs of samples (S, ...)."""
    count = len(samples)
    ranks = torch.arange(1, count + 1, dtype=samples.dtype, device=samples.device)
    weights = (2 * ranks - count - 1).reshape(-1, *[1] * (samples.dim() - 1))
    spread = (weights * samples.sort(0).values).sum(0) * (2 / count**2)
    return (samples - y).abs().mean(0) - 0.5 * spread


def test_crps_of_samples_is_the_integral_and_the_pairs():
    samples = torch.tensor([1.0, 4.0, 2.0, 2.0]).double()
    y = 2.5
    pairs = (samples - y).abs().mean() - 0.5 * (samples[:, None] - samples).abs().mean()
    x = torch.linspace(0, 6, 600_001, dtype=torch.float64)
    step = (samples[:, None] <= x).double().mean(0)
    integral = torch.trapezoid((step - (x >= y).double()).square(), x)
    found = crps_of_samples(samples.unsqueeze(1), torch.tensor([y]).double())
    torch.testing.assert_close(found[0], pairs)
    assert float(found[0]) == pytest.approx(float(integral), abs=1e-4)


@pytest.mark.parametrize("log", [False, True])
def test_samples_agree_with_the_closed_forms(log):
    """20,000 samples: moments and score within 4 standard errors of the closed forms."""
    many = mixture(log, 3, (1, 1))
    source, count = torch.Generator().manual_seed(2), 20_000
    which = torch.randint(3, (count,), generator=source)
    noise = torch.randn(count, generator=source, dtype=torch.float64)
    drawn = many.means[which, 0, 0] + many.sigmas[which, 0, 0] * noise
    drawn = drawn.exp() if log else drawn
    error = float(drawn.std() / math.sqrt(count))
    assert float(many.mean) == pytest.approx(float(drawn.mean()), abs=4 * error)
    fourth = float((drawn - drawn.mean()).square().std() / math.sqrt(count))
    assert float(many.variance) == pytest.approx(float(drawn.var()), abs=4 * fourth)
    y = torch.tensor([[1.2]]).double()
    sampled = float(crps_of_samples(drawn.unsqueeze(1), y[0])[0])
    assert float(many.crps(y)) == pytest.approx(sampled, abs=4 * error)
    torch.testing.assert_close(many.variance, many.aleatoric + many.epistemic)


@pytest.mark.parametrize("log", [False, True])
def test_quantiles_invert_the_distribution_function(log):
    many = mixture(log)
    for q in (1e-4, 0.025, 0.5, 0.9):
        torch.testing.assert_close(many.cdf(many.quantile(q)), torch.full((4, 3), q).double())
    low, high = many.interval(0.8)
    torch.testing.assert_close(many.cdf(high) - many.cdf(low), torch.full((4, 3), 0.8).double())


@pytest.mark.parametrize("log", [False, True])
def test_density_is_the_slope_of_the_distribution_function(log):
    many, y, step = mixture(log), torch.full((4, 3), 0.8).double(), 1e-5
    slope = (many.cdf(y + step) - many.cdf(y - step)) / (2 * step)
    torch.testing.assert_close(many.log_density(y).exp(), slope, rtol=1e-6, atol=1e-8)


def test_scaling_widens_both_parts_about_the_mean():
    many = mixture()
    wide = many.scaled(1.5)
    torch.testing.assert_close(wide.mean, many.mean)
    torch.testing.assert_close(wide.aleatoric, 2.25 * many.aleatoric)
    torch.testing.assert_close(wide.epistemic, 2.25 * many.epistemic)
    y = torch.zeros(4, 3).double()
    torch.testing.assert_close(wide.standardised(y), many.standardised(y) / 1.5)


def test_rows_of_a_mixture():
    many = mixture()
    torch.testing.assert_close(many[1:3].mean, many.mean[1:3])


def test_mixtures_together():
    """Moments of the whole by the law of total variance."""
    one, other = mixture(seed=1), mixture(seed=2)
    both = together([one, other])
    torch.testing.assert_close(both.mean, (one.mean + other.mean) / 2)
    between = ((one.mean - other.mean) / 2).square()
    torch.testing.assert_close(both.variance, (one.variance + other.variance) / 2 + between)
    torch.testing.assert_close(both.cdf(one.mean), (one.cdf(one.mean) + other.cdf(one.mean)) / 2)


def test_the_running_scale_uses_only_errors_that_are_known():
    """An error of the forecast made at t = 5 for h steps ahead changes the scale from t = 5 + h on, and not before."""
    z = torch.ones(12, 3).double()
    changed = z.clone()
    changed[5] = 4.0
    difference = running_scale(changed, memory=20) - running_scale(z, memory=20)
    for h in (1, 2, 3):
        assert not difference[: 5 + h, h - 1].any()
        assert bool((difference[5 + h :, h - 1] > 0).all())


def test_the_running_scale_by_hand():
    z = torch.tensor([[2.0], [1.0], [math.nan]]).double()
    keep = math.exp(-1 / 5)
    first = (10 * keep + 4) / (10 * keep + 1)
    second = ((10 * keep + 4) * keep + 1) / ((10 * keep + 1) * keep + 1)
    expected = torch.tensor([[1.0], [math.sqrt(first)], [math.sqrt(second)]]).double()
    torch.testing.assert_close(running_scale(z, memory=5), expected)


def test_the_running_scale_finds_the_size_of_the_errors():
    """Of 2,000 errors with standard deviation 3, all alike: the root mean square, with an error of 3 / sqrt(4000)."""
    z = 3 * torch.randn(2000, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    assert running_scale(z, memory=math.inf)[-1].tolist() == pytest.approx([3.0, 3.0], abs=5 * 3 / math.sqrt(4000))


def test_histogram():
    assert histogram(torch.tensor([0.0, 0.05, 0.55, 1.0]), bins=2) == [0.5, 0.5]
    assert sum(histogram(torch.rand(100))) == pytest.approx(1.0)


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="they must be alike"):
        Mixture(torch.zeros(2, 3), torch.ones(2, 4))
    with pytest.raises(ValueError, match="between 0 and 1"):
        mixture().interval(95)
    with pytest.raises(ValueError, match="between 0 and 1"):
        mixture().quantile(0.0)
