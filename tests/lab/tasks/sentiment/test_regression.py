import math

import pytest
import torch

from bayesrnn.lab.tasks.sentiment import regression as r


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


class TestRmse:
    def test_value(self):
        assert r.rmse(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0])) == pytest.approx(math.sqrt(2))

    def test_no_broadcasting(self):
        with pytest.raises(ValueError, match="differ in shape"):
            r.rmse(torch.zeros(3, 1), torch.zeros(3))


def test_slope(generator):
    """Too bold, just right, too timid; and nothing to say of a constant."""
    rating = torch.randn(500, generator=generator)
    for times in (2.0, 1.0, 0.25):
        assert r.slope(3 + times * rating, rating) == pytest.approx(1 / times)
    noise = torch.randn(500, generator=generator)
    expected = float(torch.linalg.lstsq(torch.stack([noise + rating, torch.ones(500)], 1), rating).solution[0])
    assert r.slope(noise + rating, rating) == pytest.approx(expected, rel=1e-4)
    assert r.slope(torch.ones(500), rating) is None


class TestNoise:
    def test_of_one_draw_it_is_the_rmse(self, generator):
        """Closed form: the best sigma of a single Gaussian."""
        draws, y = torch.randn(1, 300, generator=generator), torch.randn(300, generator=generator)
        assert r.fit_noise(draws, y) == pytest.approx(r.rmse(draws[0], y), rel=1e-3)

    @pytest.mark.parametrize("sigma", [0.3, 2.0])
    def test_recovers_the_noise(self, generator, sigma):
        """Targets are one more draw plus noise; of 3,000 the estimate's standard error is below 2%."""
        centre = torch.randn(3000, generator=generator)
        draws = centre + 0.2 * torch.randn(30, 3000, generator=generator)
        y = centre + 0.2 * torch.randn(3000, generator=generator) + sigma * torch.randn(3000, generator=generator)
        assert r.fit_noise(draws, y) == pytest.approx(sigma, rel=0.1)

    def test_is_a_maximum(self, generator):
        draws, y = torch.randn(7, 200, generator=generator), torch.randn(200, generator=generator)
        best = r.fit_noise(draws, y)
        at = r.log_likelihood(draws, y, best)
        assert all(r.log_likelihood(draws, y, best * f) < at for f in (0.5, 0.9, 0.98, 1.02, 1.1, 2.0))

    def test_scales_with_the_data(self, generator):
        draws, y = torch.randn(7, 200, generator=generator), torch.randn(200, generator=generator)
        assert r.fit_noise(50 * draws, 50 * y) == pytest.approx(50 * r.fit_noise(draws, y), rel=1e-6)

    def test_nothing_to_fit(self):
        with pytest.raises(ValueError, match="no noise to fit"):
            r.fit_noise(torch.zeros(2, 3), torch.zeros(3))

    def test_log_likelihood_of_one_gaussian(self):
        draws, y = torch.zeros(1, 2), torch.tensor([0.5, -1.0])
        expected = torch.distributions.Normal(0.0, 0.7).log_prob(y).mean()
        assert r.log_likelihood(draws, y, 0.7) == pytest.approx(float(expected), rel=1e-6)

    def test_log_likelihood_of_a_mixture(self, generator):
        draws, y = torch.randn(5, 9, generator=generator), torch.randn(9, generator=generator)
        parts = torch.distributions.Normal(draws, 0.4).log_prob(y)
        assert r.log_likelihood(draws, y, 0.4) == pytest.approx(float((parts.exp().mean(0)).log().mean()), rel=1e-5)


class TestIntervals:
    def test_of_one_gaussian(self):
        low, high = r.intervals(torch.tensor([[1.0, 2.0]]), 0.5, 0.9)
        assert torch.allclose(high, torch.tensor([1.0, 2.0]).double() + 0.5 * 1.6448536, atol=1e-6)
        assert torch.allclose(low, torch.tensor([1.0, 2.0]).double() - 0.5 * 1.6448536, atol=1e-6)

    def test_cover_what_they_say(self, generator):
        """3,000 targets from the model itself: the standard error of a coverage is at most 0.0092; 4 of them."""
        n, sigma = 3000, 0.3
        centre = torch.randn(n, generator=generator)
        scale = 0.1 + torch.rand(n, generator=generator)
        draws = centre + scale * torch.randn(20, n, generator=generator)
        pick = torch.randint(20, (n,), generator=generator)
        y = draws[pick, torch.arange(n)] + sigma * torch.randn(n, generator=generator)
        figures = r.interval_metrics(draws, y, sigma)
        for figure in figures:
            assert figure["coverage"] == pytest.approx(figure["level"], abs=0.037)
        widths = [figure["width"] for figure in figures]
        assert widths == sorted(widths)


class TestUncertainty:
    def test_an_informative_spread(self, generator):
        scale = 0.1 + torch.rand(4000, generator=generator)
        draws = scale * torch.randn(50, 4000, generator=generator)
        y = draws.mean(0) + scale * torch.randn(4000, generator=generator)
        found = r.selective_risk(draws, y)
        assert found["risk"]["coverage"][-1] == 1
        assert found["risk"]["rmse"][-1] == pytest.approx(r.rmse(draws.mean(0), y))
        assert found["risk"]["rmse"][4] < 0.6 * found["risk"]["rmse"][-1]

    def test_a_spread_that_says_nothing(self, generator):
        draws, y = torch.randn(50, 4000, generator=generator), torch.randn(4000, generator=generator)
        risk = r.selective_risk(draws, y)["risk"]["rmse"]
        assert risk[4] == pytest.approx(risk[-1], rel=0.12)  # 1000 of 4000: 5 standard errors

    def test_no_spread(self):
        assert r.selective_risk(torch.zeros(1, 5), torch.ones(5)) is None
        assert r.selective_risk(torch.zeros(4, 5), torch.ones(5)) is None
