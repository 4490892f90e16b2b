"""A forecasting model and its forecasts: two heads, distributions at any origin, walking forward, roll-outs."""

import math
from datetime import datetime

import numpy as np
import pandas as pd
import pytest
import torch

import bayesrnn as br
from bayesrnn.errors import UserError
from bayesrnn.forecasting import scores
from bayesrnn.forecasting.dates import Grid
from bayesrnn.forecasting.mixture import Mixture, by_horizon, measures, reliability, summary_of_paths
from bayesrnn.forecasting.scores import pit
from bayesrnn.forecasting.series import Series
from bayesrnn.lab.tasks.forecast import forecaster
from bayesrnn.lab.tasks.forecast.forecaster import Forecaster, is_random, one_draw_for_the_batch
from bayesrnn.lab.tasks.forecast.frames import Cut, Frame
from bayesrnn.lab.tasks.forecast.model import Components, ForecastModel, GaussianHeads
from bayesrnn.lab.tasks.forecast.settings import Model

torch.set_num_threads(1)


def wave(n=160, seed=0, columns=1):
    """A season of 8 steps with noise; a covariate that is the same wave one step earlier."""
    source = np.random.default_rng(seed)
    steps = np.arange(n + 1)
    clean = 10 + 3 * np.sin(2 * np.pi * steps / 8) + 0.4 * source.standard_normal(n + 1)
    return np.column_stack([clean[:-1], clean[1:]])[:, :columns]


def made(model, values, *, window=8, horizon=3, lag=0, log=False, memory=None):
    """A forecaster of these values."""
    tensor = torch.from_numpy(values).unsqueeze(1)
    cut = Cut.of(len(values), valid=0.2, test=0.2, window=window, horizon=horizon)
    frame = Frame.fit(tensor, cut, window=window, horizon=horizon, lag=lag, log=log)
    return Forecaster(model.eval(), frame, tensor, cut, memory=memory)


def network(seed=0, columns=1, **settings):
    torch.manual_seed(seed)
    return ForecastModel(columns, 8, 3, Model(hidden=6, **settings))


class TestModel:
    def test_outputs_are_a_mean_and_a_log_sigma_for_each_step_ahead(self):
        x = torch.randn(8, 5, 2)
        for noise in ("same", "varying"):
            model = network(columns=2, noise=noise)
            with torch.no_grad():
                model.log_sigma.copy_(torch.tensor([0.1, 0.2, 0.3]))
                output = model(x)
            assert output.shape == (5, 3, 2)
            torch.testing.assert_close(output[..., 1], torch.tensor([0.1, 0.2, 0.3]).expand(5, 3))

    def test_only_varying_noise_depends_on_the_window(self):
        model, x = network(noise="varying"), torch.randn(8, 5, 1)
        torch.nn.init.normal_(model.spread.weight)
        assert float(model(x)[..., 1].std(0).min().detach()) > 0
        torch.nn.init.constant_(model.spread.bias, 1e6)
        torch.testing.assert_close(model(x)[..., 1], torch.full((5, 3), 3.0))  # held to e^3
        assert network(noise="same").spread is None

    def test_the_linear_part_is_added_to_the_means(self):
        model, x = network(), torch.randn(8, 5, 1)
        bare = model(x)
        with torch.no_grad():
            model.linear.weight[1, 7] = 2.0  # of the last step, for two steps ahead
        torch.testing.assert_close(
            model(x)[..., 0], bare[..., 0] + torch.stack([0 * x[7], 2 * x[7], 0 * x[7]], 1)[..., 0]
        )
        assert network(linear=False).linear is None

    def test_dropout_makes_draws_differ_everywhere(self):
        x = torch.randn(8, 5, 1)
        for rates in ({"recurrent_dropout": 0.5}, {"output_dropout": 0.5}, {"linear_dropout": 0.5}):
            model = network(**rates)
            torch.nn.init.normal_(model.linear.weight)
            spread = br.predict(model, x, samples=8, seed=0, likelihood=br.Gaussian(1.0)).epistemic
            assert bool((spread[..., 0] > 0).all())
            assert is_random(model)
        assert not is_random(network())
        assert is_random(br.BayesByBackprop(network(), prior=br.Normal(0.1)))

    def test_the_likelihood_is_torch_s(self):
        output = torch.randn(4, 3, 2, dtype=torch.float64, requires_grad=True)
        target = torch.randn(4, 3, dtype=torch.float64)
        expected = -torch.distributions.Normal(output[..., 0], output[..., 1].exp()).log_prob(target).sum()
        torch.testing.assert_close(GaussianHeads().nll(output, target), expected)
        assert torch.autograd.gradcheck(lambda o: GaussianHeads().nll(o, target), output)
        assert GaussianHeads().count(target) == 12


class TestComponents:
    def mixed(self, count=3, **rates):
        return Components([network(seed, **rates) for seed in range(count)]).eval()

    def test_without_a_draw_it_is_the_gaussian_of_the_mixture_s_moments(self):
        model, x = self.mixed(), torch.randn(8, 5, 1)
        with torch.no_grad():
            mean, log_sigma = model(x).double().unbind(-1)
            each = torch.stack([network(x) for network in model.networks]).double()
        mixture = Mixture(each[..., 0], each[..., 1].exp())
        torch.testing.assert_close(mean, mixture.mean, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(log_sigma.exp(), mixture.variance.sqrt(), rtol=1e-5, atol=1e-6)

    def test_draws_are_of_one_network_each_and_all_as_often(self):
        """2,000 draws of 5 rows: every output is some network's, in shares within 5 standard errors of a third."""
        model, x = self.mixed(), torch.randn(8, 5, 1)
        with torch.no_grad():
            each = torch.stack([network(x) for network in model.networks])
        found = br.predict(model, x, samples=2000, seed=0, likelihood=br.Gaussian(1.0), batch_dim=1).samples
        is_of = torch.isclose(found.unsqueeze(1), each, rtol=1e-4, atol=1e-5).all(-1).all(-1)  # (2000, 3, 5)
        assert bool((is_of.sum(1) == 1).all())
        shares = is_of.double().mean((0, 2))
        assert float((shares - 1 / 3).abs().max()) < 5 * math.sqrt(2 / 9 / 10_000)
        assert is_random(model)

    def test_rows_choose_by_themselves_or_together(self):
        model, x = self.mixed(recurrent_dropout=0.3), torch.randn(8, 1, 1).expand(-1, 64, 1)
        with torch.no_grad(), br.draw(model, seed=0):
            apart, again = model(x), model(x)
        torch.testing.assert_close(apart, again)
        assert len(apart[:, 0, 0].unique()) > 3  # networks, and masks within them
        with torch.no_grad(), one_draw_for_the_batch(model), br.draw(model, seed=0):
            together = model(x)
        torch.testing.assert_close(together, together[:1].expand(64, -1, -1))
        assert model.share == "sequence"

    def test_each_network_s_best_weights_are_kept(self):
        """OpenedRun weights are used in train mode, kept ones in eval mode; a score that is no lower keeps nothing."""
        model, x = self.mixed(2), torch.randn(8, 5, 1)

        def moved(by):
            with torch.no_grad():
                for network in model.networks:
                    network.mean.bias.add_(by)

        before = model.each(x)
        model.keep([1.0, 1.0])
        moved(1.0)
        model.keep([0.5, 1.0])
        moved(1.0)
        model.keep([0.7, 0.1], patience=1)  # the second has waited for one epoch: it has stopped
        shift = model.each(x)[..., 0] - before[..., 0]
        torch.testing.assert_close(shift[0], torch.ones(5, 3), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(shift[1], torch.zeros(5, 3), rtol=1e-5, atol=1e-5)
        assert (model.best.tolist(), model.since.tolist()) == ([0.5, 1.0], [1.0, 2.0])
        trained = model.train().each(x)[..., 0] - before[..., 0]
        torch.testing.assert_close(trained.detach(), torch.full((2, 5, 3), 2.0), rtol=1e-5, atol=1e-5)
        assert not any(weight.requires_grad for weight in model.kept.parameters())

    def test_its_score_is_no_worse_than_the_mean_of_its_parts(self):
        values = wave()
        forecasters = [made(network(seed), values) for seed in range(3)]
        whole = made(Components([f.model for f in forecasters]), values)
        origins = range(50, 80)
        actual = whole.actual[torch.tensor(origins).unsqueeze(1) + torch.arange(1, 4)]
        parts = [f.distribution(origins, samples=1, seed=0) for f in forecasters]
        even = Mixture(torch.cat([p.means for p in parts]), torch.cat([p.sigmas for p in parts]))
        mean = torch.stack([p.crps(actual) for p in parts]).mean(0)
        assert bool((even.crps(actual) <= mean + 1e-12).all())
        drawn = whole.distribution(range(50, 54), samples=1000, seed=0).cdf(actual[:4])  # within 5 standard errors
        torch.testing.assert_close(drawn, even[:4].cdf(actual[:4]), rtol=0, atol=5 * math.sqrt(0.25 / 1000))


class TestDistributions:
    def test_a_plain_model_by_hand(self):
        """Levels are mean * spread + centre of the training part."""
        values, model = wave(), network()
        one = made(model, values)
        found = one.distribution(range(50, 60), samples=7, seed=0)
        assert found.means.shape == (1, 10, 3)  # nothing is random: one draw
        level = torch.from_numpy(values[:, 0])
        train = level[:96]
        x = ((level - train.mean()) / train.std(correction=0)).float()
        windows = torch.stack([x[t - 7 : t + 1] for t in range(50, 60)], 1).unsqueeze(-1)
        with torch.no_grad():
            output = model(windows).double()
        centre, spread = (
            torch.tensor(v, dtype=torch.float64) for v in (one.frame.target_center, one.frame.target_spread)
        )
        torch.testing.assert_close(found.means[0], centre + spread * output[..., 0], rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(found.sigmas[0], spread * output[..., 1].exp(), rtol=1e-6, atol=1e-6)

    @pytest.mark.parametrize("kind", ["dropout", "bayes"])
    def test_parts_of_the_uncertainty_are_those_of_predict(self, kind):
        model = network(recurrent_dropout=0.3, output_dropout=0.3) if kind == "dropout" else network()
        if kind == "bayes":
            model = br.BayesByBackprop(model, prior=br.Normal(0.3), init_sigma=0.1, exclude="log_sigma")
        one = made(model, wave())
        found = one.distribution(range(50, 60), samples=6, seed=3)
        assert found.means.shape == (6, 10, 3)
        x = one.frame.windows(one.values, torch.arange(50, 60)).float()
        same = br.predict(model, x, samples=6, seed=3, likelihood=br.Gaussian(1.0), batch_dim=1)
        spread = torch.tensor(one.frame.target_spread, dtype=torch.float64)
        torch.testing.assert_close(found.epistemic, spread**2 * same.epistemic[..., 0].double(), rtol=1e-4, atol=1e-7)
        torch.testing.assert_close(found.variance, found.aleatoric + found.epistemic)

    def test_blocks_of_rows_change_nothing(self, monkeypatch):
        model = br.BayesByBackprop(network(), prior=br.Normal(0.3), init_sigma=0.1, exclude="log_sigma")
        one = made(model, wave())
        whole = one.distribution(range(50, 60), samples=3, seed=3)
        monkeypatch.setattr("bayesrnn.lab.tasks.forecast.forecaster._ROWS", 4)
        torch.testing.assert_close(one.distribution(range(50, 60), samples=3, seed=3).means, whole.means)

    @pytest.mark.parametrize("lag", [0, 1, 8])
    def test_with_logarithms(self, lag):
        one = made(network(), wave(), lag=lag, log=True)
        found = one.distribution(range(50, 60), samples=1, seed=0)
        assert found.log
        torch.testing.assert_close(one.actual, torch.from_numpy(wave()[:, 0]))
        assert bool((found.quantile(0.001) > 0).all())

    def test_nothing_of_the_future_is_used(self):
        """Steps after t change no forecast and no scale at origins up to t."""
        values, model = wave(), network()
        changed = values.copy()
        changed[130:] += 40
        before = made(model, values, memory=20).walk(samples=1, seed=0)
        after = made(model, changed, memory=20).walk(samples=1, seed=0)
        last = 129 - before.origins.start + 1  # forecasts made at step 129 at the latest
        torch.testing.assert_close(before.forecast[:last].means, after.forecast[:last].means)
        torch.testing.assert_close(before.scale[:last], after.scale[:last])
        assert not torch.allclose(before.scale[last:], after.scale[last:])


class TestWalk:
    def test_origins_and_what_came(self):
        one = made(network(), wave(), memory=30)
        walk = one.walk(samples=1, seed=0)
        assert walk.origins == range(95, 160)  # from the last step of train to the last of all
        assert walk.actual.isnan().sum() == 1 + 2 + 3
        torch.testing.assert_close(walk.actual[10], one.actual[106:109])
        test = walk.rows(one.cut.origins("test", first=one.frame.first, horizon=3))
        assert test == slice(32, 62)
        assert not walk.actual[test].isnan().any()
        torch.testing.assert_close(walk.forecast.sigmas, walk.raw.sigmas * walk.scale)

    def test_without_memory_forecasts_stay_as_they_are(self):
        walk = made(network(), wave(), memory=None).walk(samples=1, seed=0)
        torch.testing.assert_close(walk.forecast.means, walk.raw.means)

    def test_errors_that_are_too_large_make_forecasts_wider(self):
        """A model that says sigma = 0.05 where errors are of size 1 ends near the right width."""
        model = network()
        with torch.no_grad():
            model.log_sigma.fill_(math.log(0.05))
        one = made(model, np.random.default_rng(0).standard_normal((600, 1)), memory=50)
        walk = one.walk(samples=1, seed=0)
        rows = walk.rows(one.cut.origins("test", first=one.frame.first, horizon=3))
        raw, found = (measures(m[rows], walk.actual[rows]) for m in (walk.raw, walk.forecast))
        assert raw["coverage"] < 0.4
        assert 0.9 < found["coverage"] < 0.99
        assert found["crps"] < raw["crps"]

    def test_naive_forecasts_by_hand(self):
        one = made(network(), wave())
        for lag in (1, 8):
            walk = one.naive(lag)
            t = walk.origins[40]
            back = [t + h - lag * math.ceil(h / lag) for h in (1, 2, 3)]
            torch.testing.assert_close(walk.raw.means[0, 40], one.actual[back])
            train = one.actual[:96]
            errors = torch.stack([train[s + 2] - train[s + 2 - lag * math.ceil(2 / lag)] for s in range(lag, 93)])
            assert float(walk.raw.sigmas[0, 0, 1]) == pytest.approx(float(errors.square().mean().sqrt()))
        seasonal, last = (measures(one.naive(k).raw[:50], one.naive(k).actual[:50])["crps"] for k in (8, 1))
        assert seasonal < 0.5 * last

    def test_measures_of_the_true_distribution(self):
        """Of 20,000 values from their own mixture: coverage within 4 standard errors, everything else as computed."""
        source = torch.Generator().manual_seed(0)
        means = torch.randn(2, 1, 1, generator=source, dtype=torch.float64).expand(-1, 20_000, 1)
        mixture = Mixture(means, torch.full_like(means, 0.5))
        which = torch.randint(2, (20_000,), generator=source)
        y = mixture.means[which, 0] + 0.5 * torch.randn(20_000, 1, generator=source, dtype=torch.float64)
        found = measures(mixture, y, level=0.9)
        assert found["coverage"] == pytest.approx(0.9, abs=4 * math.sqrt(0.09 / 20_000))
        low, high = mixture.interval(0.9)
        assert found["width"] == pytest.approx(float((high - low).mean()))
        assert found["crps"] == pytest.approx(float(mixture.crps(y).mean()))
        assert found["rmse"] == pytest.approx(float((mixture.mean - y).square().mean().sqrt()))
        assert found["nll"] == pytest.approx(-float(mixture.log_density(y).mean()))
        flat = reliability(mixture, y)
        assert flat["pit"] == pytest.approx([0.1] * 10, abs=5 * math.sqrt(0.09 / 20_000))
        assert flat["coverage"] == pytest.approx(flat["levels"], abs=0.015)
        each = by_horizon(mixture, y, level=0.9)
        assert each["coverage"] == pytest.approx([found["coverage"]])
        assert each["crps"] == pytest.approx([found["crps"]])


class AutoRegression(torch.nn.Module):
    """y[t+1] = phi y[t] + sigma e, in the model's own form: (T, B, 1) to (B, 1, 2)."""

    def __init__(self, phi, sigma):
        super().__init__()
        self.phi, self.log_sigma = torch.nn.Parameter(torch.tensor(phi)), math.log(sigma)

    def forward(self, x):
        mean = self.phi * x[-1]
        return torch.stack([mean, torch.full_like(mean, self.log_sigma)], -1)


class TestAhead:
    def unscaled(self, model, last, log=False):
        """A forecaster whose scaling does nothing, of a series that is ``last`` throughout."""
        values = torch.full((60, 1, 1), last, dtype=torch.float64)
        frame = Frame(2, 1, 0, log, (0.0,), (1.0,), (0.0,), (1.0,))
        return Forecaster(model.eval(), frame, values, Cut(40, 50, 60), memory=None)

    def test_roll_outs_of_an_autoregression_are_its_closed_form(self):
        """Mean phi^h y, variance sigma^2 (1 - phi^2h) / (1 - phi^2): 20,000 paths, within 5 standard errors."""
        phi, sigma, last = 0.8, 0.5, 3.0
        one = self.unscaled(AutoRegression(phi, sigma), last)
        ahead = one.ahead(12, samples=1000, seed=1, level=0.9)
        assert ahead.direct == 1
        steps = torch.arange(1, 13, dtype=torch.float64)
        variance = sigma**2 * (1 - phi ** (2 * steps)) / (1 - phi**2)
        error = (variance / 20_000).sqrt()
        assert bool(((ahead.mean - last * phi**steps).abs() < 5 * error).all())
        torch.testing.assert_close(ahead.aleatoric_std, variance.sqrt(), rtol=5 / math.sqrt(2 * 20_000), atol=0)
        assert not ahead.epistemic_std.any()
        reach = 1.6448536 * variance.sqrt()
        torch.testing.assert_close(ahead.high - ahead.low, 2 * reach, rtol=0.05, atol=0)

    def test_roll_outs_of_uncertain_weights(self):
        """phi ~ N(0.5, 0.1^2): the model's part of the variance is that of the mean, E phi^2h - (E phi^h)^2."""
        q = br.BayesByBackprop(AutoRegression(0.5, 0.3), prior=br.Normal(1.0), init_sigma=0.1)
        ahead = self.unscaled(q, 4.0).ahead(3, samples=600, seed=0)
        phi = 0.5 + 0.1 * torch.randn(200_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        expected = torch.stack([(4.0 * phi**h).std() for h in (1, 2, 3)])
        torch.testing.assert_close(ahead.epistemic_std, expected, rtol=0.15, atol=0)
        assert float(ahead.aleatoric_std[0]) == pytest.approx(0.3, rel=1e-3)

    def test_a_small_part_of_the_model_is_seen_through_large_noise(self):
        """phi ~ N(0.9, 0.01^2), noise up to 25 times as large: within 4 standard errors of 200 draws at every step."""
        q = br.BayesByBackprop(AutoRegression(0.9, 1.0), prior=br.Normal(1.0), init_sigma=0.01)
        one = self.unscaled(q, 4.0)
        phi = 0.9 + 0.01 * torch.randn(200_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        expected = torch.stack([(4.0 * phi**h).std() for h in range(1, 13)])
        found = one.ahead(12, samples=200, seed=0)
        torch.testing.assert_close(found.epistemic_std, expected, rtol=4 / math.sqrt(2 * 200), atol=0)
        steps = torch.arange(1, 13, dtype=torch.float64)
        noise = ((1 - 0.9 ** (2 * steps)) / (1 - 0.9**2)).sqrt()
        torch.testing.assert_close(found.aleatoric_std, noise, rtol=0.06, atol=0)

    @pytest.mark.parametrize("twins", [1, 2])
    def test_the_two_variances_of_futures_are_not_biased(self, twins):
        """Draws' means of variance 1 and noise of variance 4, over 4,000 repetitions (as steps): 5 standard errors."""
        source = torch.Generator().manual_seed(3)
        means = torch.randn(5, 1, 1, 4000, generator=source, dtype=torch.float64)
        noise = 2 * torch.randn(5, 4, 1, 4000, generator=source, dtype=torch.float64)
        futures = means + (torch.cat([noise, -noise], 2) if twins == 2 else noise)
        *_, aleatoric, epistemic = summary_of_paths(futures, torch.tensor(1.0).double(), 0.9, False)
        variances = aleatoric.square()
        assert abs(float(variances.mean()) - 4) < 5 * float(variances.std()) / math.sqrt(4000)
        if twins == 1:  # as the variance within draws is usually estimated
            torch.testing.assert_close(variances, futures[:, :, 0].var(1).mean(0))
            between = futures.mean((1, 2)).var(0) - variances / 4
        else:
            between = means[:, 0, 0].var(0)
        torch.testing.assert_close(epistemic.square(), between.clamp_min(0))

    def test_calibration_and_logarithms_go_on_beyond_the_horizon(self):
        one = self.unscaled(AutoRegression(1.0, 0.1), 5.0, log=True)
        ahead = one.ahead(4, samples=1000, seed=0)
        sigma = 0.1 * torch.tensor([1.0, 2.0, 3.0, 4.0]).double().sqrt()
        torch.testing.assert_close(ahead.mean, 5.0 * (sigma**2 / 2).exp(), rtol=0.02, atol=0)
        one.memory = 50.0  # the constant series is far better forecast than sigma says: narrower
        narrow = one.ahead(4, samples=1000, seed=0)
        assert bool(((narrow.high - narrow.low) < 0.9 * (ahead.high - ahead.low)).all())

    def test_direct_steps_are_the_walk_s_last(self):
        one = made(network(recurrent_dropout=0.3), wave(), memory=30)
        ahead, walk = one.ahead(2, samples=5, seed=2), one.walk(samples=5, seed=2)
        torch.testing.assert_close(ahead.mean, walk.forecast.mean[-1, :2])
        torch.testing.assert_close(ahead.epistemic_std, walk.forecast.epistemic[-1, :2].sqrt())
        assert ahead.direct == 2

    def test_a_future_keeps_its_draw(self):
        """Masks are shared by the paths of a draw, held over its blocks, and as before afterwards."""
        model = network(recurrent_dropout=0.5, output_dropout=0.5)
        x = torch.randn(8, 1, 1).expand(-1, 4, 1)
        with one_draw_for_the_batch(model), br.draw(model, seed=0), torch.no_grad():
            first, again = model(x), model(x)
        torch.testing.assert_close(first, again)
        torch.testing.assert_close(first, first[:1].expand(4, -1, -1))
        assert (model.rnn.rates.share, model.drop.share) == ("sequence", "sequence")

    def test_covariates_have_no_known_future(self):
        one = made(network(columns=2), wave(columns=2))
        assert len(one.ahead(3, samples=2, seed=0).mean) == 3
        with pytest.raises(UserError, match="whose future is not known, so it forecasts at most 3 steps"):
            one.ahead(4, samples=2, seed=0)


def test_forecasts_that_no_memory_holds_are_refused(monkeypatch):
    monkeypatch.setattr(forecaster, "machine_memory", lambda: 10_000_000_000)
    forecaster._check_memory(50, 9_999_999_999)
    with pytest.raises(UserError, match=r"Forecasts of 50 draws take 20 GB, and this machine has 10"):
        forecaster._check_memory(50, 20_000_000_000)


class TestGaps:
    def gappy(self, n=200):
        values = wave(n)
        for start in range(20, n - 10, 30):
            values[start : start + 9] = np.nan
        return values

    def test_values_that_are_missing_are_not_scored(self):
        values = self.gappy()
        torch.manual_seed(0)
        model = ForecastModel(2, 8, 3, Model(hidden=6, recurrent_dropout=0.3))
        one = made(model, values, memory=50.0)
        walk = one.walk(samples=5, seed=0)
        steps = torch.tensor(walk.origins).unsqueeze(1) + torch.arange(1, 4)
        known = (steps < 200) & ~torch.from_numpy(np.isnan(values[:, 0]))[steps.clamp(max=199)]
        torch.testing.assert_close(~walk.actual.isnan(), known)
        found = measures(walk.forecast, walk.actual)
        assert all(math.isfinite(v) for v in found.values())
        low, high = walk.forecast.interval(0.95)
        inside = ((walk.actual >= low) & (walk.actual <= high))[known].double().mean()
        assert found["coverage"] == pytest.approx(float(inside))
        assert found["crps"] == pytest.approx(float(walk.forecast.crps(walk.actual)[known].mean()))
        assert sum(reliability(walk.forecast, walk.actual)["pit"]) == pytest.approx(1.0)
        assert all(math.isfinite(v) for v in by_horizon(walk.forecast, walk.actual)["crps"])
        naive = one.naive(8)
        assert math.isfinite(measures(naive.forecast, naive.actual)["crps"])

    @pytest.mark.parametrize("lag", [0, 1, 8])
    def test_roll_outs_begin_after_a_gap(self, lag):
        values = self.gappy()
        values[190:199] = np.nan
        torch.manual_seed(0)
        one = made(ForecastModel(2, 8, 3, Model(hidden=6)), values, lag=lag)
        ahead = one.ahead(10, samples=3, seed=0)
        assert bool(torch.stack([ahead.mean, ahead.low, ahead.high]).isfinite().all())

    def test_missing_targets_have_no_part_in_the_likelihood(self):
        output = torch.randn(4, 3, 2, dtype=torch.float64, requires_grad=True)
        target = torch.randn(4, 3, dtype=torch.float64)
        target[1] = math.nan
        rest = [0, 2, 3]
        nll = GaussianHeads().nll(output, target)
        torch.testing.assert_close(nll, GaussianHeads().nll(output[rest], target[rest]))
        (gradient,) = torch.autograd.grad(nll, output)
        assert not gradient[1].any()
        assert bool(gradient.isfinite().all())
        assert GaussianHeads().count(target) == 9


def test_the_table_of_a_walk():
    one = made(network(recurrent_dropout=0.3), wave(), memory=30)
    walk = one.walk(samples=5, seed=2)
    series = Series("file", ["level"], wave(), Grid("month", 1, datetime(2000, 1, 1)))
    table = walk.table(series, level=0.9)
    assert len(table) == len(walk.origins) * 3
    row = table.iloc[7]  # of the third origin, two steps ahead
    first = walk.origins[2]
    start = pd.Timestamp("2000-01-01")
    assert row["cutoff"] == start + pd.DateOffset(months=first)
    assert (row["step"], row["ds"]) == (2, start + pd.DateOffset(months=first + 2))
    assert row["hi-90"] == float(walk.forecast.interval(0.9)[1][2, 1])
    assert row["y"] == float(one.actual[first + 2])
    part = walk.origins[5:9]
    pd.testing.assert_frame_equal(walk.table(series, part, 0.9), table.iloc[15:27].reset_index(drop=True))
    # The library scores it like a table of its own.
    whole, expected = scores(table).iloc[0], measures(walk.forecast, walk.actual, 0.9)
    for key, name in (("crps", "crps"), ("coverage-90", "coverage"), ("width-90", "width"), ("mae", "mae")):
        assert whole[key] == pytest.approx(expected[name], rel=1e-9), key
    assert sum(pit(table)[1]) == pytest.approx(1)
    rows = Series("file", ["level"], wave(), Grid("row", 1, datetime(1, 1, 1)))
    assert walk.table(rows)["ds"].iloc[0] == walk.origins[0] + 2  # rows count from 1


def test_forecasts_ahead_walk_only_as_far_as_errors_count():
    """The widths beyond the end are those of the whole walk, to e^-25."""
    one = made(network(), wave(800), memory=4.0)
    whole, recent = one.walk(samples=1, seed=0), one.walk(samples=1, seed=0, recent=True)
    assert len(recent.origins) == 103 < len(whole.origins)
    torch.testing.assert_close(recent.scale[-1], whole.scale[-1], rtol=1e-9, atol=0)
    torch.testing.assert_close(recent.forecast.mean[-1], whole.forecast.mean[-1], rtol=1e-5, atol=1e-5)


def test_progress_is_told_of_all_draws():
    told = []
    made(network(recurrent_dropout=0.3), wave()).walk(samples=6, seed=0, progress=lambda a, b: told.append((a, b)))
    assert told[-1] == (6, 6)
    assert told == sorted(told)


def test_errors_that_grow_with_the_level():
    """A wave whose height grows twentyfold: the naive forecast of logarithms scores far better."""
    steps = np.arange(400)
    values = np.exp(0.0075 * steps) * (2 + np.sin(2 * np.pi * steps / 8)) * np.exp(0.05 * np.sin(steps**2))
    one = made(network(), values[:, None])
    plain, log = (one.naive(8, log=way) for way in (False, True))
    assert log.forecast.log
    assert measures(log.forecast, log.actual)["crps"] < 0.9 * measures(plain.forecast, plain.actual)["crps"]
