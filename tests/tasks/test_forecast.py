"""Forecasts: the model's two heads, distributions at any origin, walking forward, roll-outs, whole runs."""

import json
import math

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import bayesrnn as br
from bayesrnn import recipes
from bayesrnn.cli import app
from bayesrnn.data.frames import Cut, Frame
from bayesrnn.errors import UserError
from bayesrnn.tasks import forecast as task_file
from bayesrnn.tasks import forecaster
from bayesrnn.tasks.forecast import Forecast, ForecastModel, GaussianHeads, Model, Plan, prior_cost
from bayesrnn.tasks.forecast_plan import kept_series
from bayesrnn.tasks.forecaster import (
    Forecaster,
    _summary,
    by_horizon,
    is_random,
    measures,
    one_draw_for_the_batch,
    reliability,
)
from bayesrnn.tasks.mixture import Mixture
from bayesrnn.tasks.trained import open_run
from bayesrnn.train.launch import launch

CPU = torch.device("cpu")
RECIPES = [name for name in recipes.names() if recipes.load(name).task == "forecast"]
SMALL = ["hidden=6", "window=8", "horizon=3", "epochs=3", "evaluate.samples=8"]
torch.set_num_threads(1)


class Quiet:
    def say(self, text): ...
    def step(self, progress): ...
    def epoch(self, line, epochs): ...


def wave(n=160, seed=0, columns=1):
    """A season of 8 steps with noise; a covariate that is the same wave one step earlier."""
    source = np.random.default_rng(seed)
    steps = np.arange(n + 1)
    clean = 10 + 3 * np.sin(2 * np.pi * steps / 8) + 0.4 * source.standard_normal(n + 1)
    return np.column_stack([clean[:-1], clean[1:]])[:, :columns]


def csv_of(path, values, names=("level", "lead"), first=1800):
    lines = [",".join(["year", *names[: values.shape[1]]])]
    lines += [",".join([str(first + i), *(f"{v:.6f}" for v in row)]) for i, row in enumerate(values)]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    return csv_of(tmp_path_factory.mktemp("series") / "wave.csv", wave())


@pytest.fixture(scope="module")
def runs(tmp_path_factory, series):
    """One short run of every recipe."""
    folder = tmp_path_factory.mktemp("runs")
    return {name: train(name, series, folder / name) for name in RECIPES}


def train(name, data, out, *changes, **options):
    record = launch(name, out=out, reporter=Quiet(), data=data, overrides=[*SMALL, *changes], device="cpu", **options)
    return out, record


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
        monkeypatch.setattr("bayesrnn.tasks.forecaster._ROWS", 4)
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
        torch.testing.assert_close(ahead.aleatoric, variance.sqrt(), rtol=5 / math.sqrt(2 * 20_000), atol=0)
        assert not ahead.epistemic.any()
        reach = 1.6448536 * variance.sqrt()
        torch.testing.assert_close(ahead.high - ahead.low, 2 * reach, rtol=0.05, atol=0)

    def test_roll_outs_of_uncertain_weights(self):
        """phi ~ N(0.5, 0.1^2): the model's part of the variance is that of the mean, E phi^2h - (E phi^h)^2."""
        q = br.BayesByBackprop(AutoRegression(0.5, 0.3), prior=br.Normal(1.0), init_sigma=0.1)
        ahead = self.unscaled(q, 4.0).ahead(3, samples=600, seed=0)
        phi = 0.5 + 0.1 * torch.randn(200_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        expected = torch.stack([(4.0 * phi**h).std() for h in (1, 2, 3)])
        torch.testing.assert_close(ahead.epistemic, expected, rtol=0.15, atol=0)
        assert float(ahead.aleatoric[0]) == pytest.approx(0.3, rel=1e-3)

    @pytest.mark.parametrize("seed", [0, 1, 2])
    def test_a_small_part_of_the_model_is_seen_through_large_noise(self, seed):
        """phi ~ N(0.9, 0.01^2), noise up to 25 times as large: within 4 standard errors of 200 draws at every step."""
        q = br.BayesByBackprop(AutoRegression(0.9, 1.0), prior=br.Normal(1.0), init_sigma=0.01)
        one = self.unscaled(q, 4.0)
        phi = 0.9 + 0.01 * torch.randn(200_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        expected = torch.stack([(4.0 * phi**h).std() for h in range(1, 13)])
        found = one.ahead(12, samples=200, seed=seed)
        torch.testing.assert_close(found.epistemic, expected, rtol=4 / math.sqrt(2 * 200), atol=0)
        steps = torch.arange(1, 13, dtype=torch.float64)
        noise = ((1 - 0.9 ** (2 * steps)) / (1 - 0.9**2)).sqrt()
        torch.testing.assert_close(found.aleatoric, noise, rtol=0.06, atol=0)

    @pytest.mark.parametrize("twins", [1, 2])
    def test_the_two_variances_of_futures_are_not_biased(self, twins):
        """Draws' means of variance 1 and noise of variance 4, over 4,000 repetitions (as steps): 5 standard errors."""
        source = torch.Generator().manual_seed(3)
        means = torch.randn(5, 1, 1, 4000, generator=source, dtype=torch.float64)
        noise = 2 * torch.randn(5, 4, 1, 4000, generator=source, dtype=torch.float64)
        futures = means + (torch.cat([noise, -noise], 2) if twins == 2 else noise)
        *_, aleatoric, epistemic = _summary(futures, torch.tensor(1.0).double(), 0.9, False)
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
        torch.testing.assert_close(ahead.epistemic, walk.forecast.epistemic[-1, :2].sqrt())
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


class TestTask:
    def test_the_series_of_the_library(self):
        task = Forecast(recipes.load("forecast"), None, CPU)
        assert task.series.name == "mauna_loa"
        assert (task.plan.season, task.frame.lag, task.frame.window) == (12, 1, 24)
        assert "train 1958-03 to" in task.describe()
        assert "as changes from the last value" in task.describe()

    def test_a_plan_is_written_and_read(self, series):
        task = Forecast(recipes.override(recipes.load("forecast"), SMALL), series, CPU)
        again = Plan.from_json(task.plan.to_json().encode())
        assert again == task.plan
        assert task.plan.season == 8
        files = task.files()
        assert set(files) == {"frame.json", "series.csv"}
        assert Plan.from_json(files["frame.json"]) == task.plan

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"season": 0}, "season should be a number of steps, not 0"),
            ({"cut": [1, 2]}, "cut should be three steps"),
            ({"cut": [80, 70, 90]}, "cut should be three steps"),
            ({"cut": 5}, "cut should be three steps"),
            ({"columns": []}, "columns should be a list of names"),
            ({"columns": ["level", "more"]}, "frame.center should be 2 numbers"),
            ({"nope": 1}, "it should have columns, cut, season and frame"),
            ({"frame": [1]}, "frame should have window, horizon, lag, log, center"),
            ({"frame.window": 0}, "frame.window should be a whole number of at least 1, not 0"),
            ({"frame.horizon": True}, "frame.horizon should be a whole number of at least 1, not True"),
            ({"frame.lag": 10**6}, "together are longer than the training part"),
            ({"frame.log": "yes"}, "frame.log should be true or false"),
            ({"frame.spread": [0.0]}, "frame.spread should be above 0"),
            ({"frame.target_center": [math.nan] * 3}, "frame.target_center should be 3 numbers"),
        ],
    )
    def test_a_damaged_plan_is_named(self, series, change, said):
        about = json.loads(
            Forecast(recipes.override(recipes.load("forecast"), SMALL), series, CPU).files()["frame.json"]
        )
        for key, value in change.items():
            section, _, name = key.rpartition(".")
            (about[section] if section else about)[name] = value
        with pytest.raises(UserError, match=f"^frame.json of this run is damaged .*{said}.*train again.$"):
            Plan.from_json(json.dumps(about).encode())

    @pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff\xfe\x00", b"[" * 999, b'{"a": 1, "a": 2}'])
    def test_a_plan_that_is_none(self, text):
        with pytest.raises(UserError, match=r"^frame.json of this run is damaged \(it "):
            Plan.from_json(text)

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            (b"", "it is empty"),
            (b"\xff\x00", "not UTF-8"),
            (None, "it has 40 steps of level, and frame.json is for 160"),
        ],
    )
    def test_a_damaged_series_is_named(self, series, content, said):
        task = Forecast(recipes.override(recipes.load("forecast"), SMALL), series, CPU)
        whole = task.files()
        assert kept_series(whole, task.plan, name="wave").name == "wave"
        half = b"\n".join(whole["series.csv"].splitlines()[:41])
        with pytest.raises(UserError, match=f"^series.csv of this run is damaged .*{said}"):
            kept_series({**whole, "series.csv": half if content is None else content}, task.plan, name="wave")

    @pytest.mark.parametrize(("difference", "lag"), [("none", 0), ("last", 1), ("season", 8)])
    def test_differences(self, series, difference, lag):
        recipe = recipes.override(recipes.load("forecast"), [*SMALL, f"difference={difference}"])
        assert Forecast(recipe, series, CPU).frame.lag == lag

    def test_batches_are_windows_and_targets(self, series):
        task = Forecast(recipes.override(recipes.load("forecast"), SMALL), series, CPU)
        x, y = task.batch(torch.tensor(0))
        assert (x.shape, y.shape) == ((8, 32, 1), (32, 3))
        origins = task.minibatches.order[0] + task.frame.first
        torch.testing.assert_close(y, task.frame.targets(task.values, origins).float())
        torch.testing.assert_close(x, task.frame.windows(task.values, origins).float())

    def test_the_loss_of_each_recipe(self, series):
        for name in RECIPES:
            task = Forecast(recipes.override(recipes.load(name), SMALL), series, CPU)
            torch.manual_seed(0)
            task.attach(task.build(task.recipe, task.files()).train())
            batch = task.batch(torch.tensor(0))
            with br.mean(task.model):
                loss, _, _ = task.objective(batch, ())
                output = task.model(batch[0])
            expected = GaussianHeads().nll(output, batch[1]) / 96
            if task.recipe.model.prior_sigma:
                expected = expected + prior_cost(task.model, task.recipe.model.prior_sigma) / task.num_data
            if name == "forecast-bbb":
                expected = expected + br.kl(task.model) / task.num_data
                assert "log_sigma" not in {n for n, _, _ in task.model.named_posteriors()}
            torch.testing.assert_close(loss, expected)

    def test_a_prior_counts_like_a_kl(self, series):
        """Its cost is torch's -log N(w; 0, sigma^2), less a constant, over windows times steps ahead."""
        task = Forecast(recipes.override(recipes.load("forecast"), [*SMALL, "prior_sigma=0.5"]), series, CPU)
        task.attach(task.build(task.recipe, task.files()).train())
        assert task.num_data == 3 * len(task.cut.origins("train", first=task.frame.first, horizon=3))
        with br.mean(task.model):
            loss, terms, _ = task.objective(task.batch(torch.tensor(0)), ())
        weights = torch.cat([w.flatten() for name, w in task.model.named_parameters() if name != "log_sigma"])
        normal = torch.distributions.Normal(0.0, 0.5)
        cost = (normal.log_prob(torch.zeros(())) - normal.log_prob(weights)).sum()
        torch.testing.assert_close(loss - terms.loss, cost / task.num_data)

    def test_a_posterior_has_a_prior_of_its_own(self, series):
        recipe = recipes.override(recipes.load("forecast-bbb"), [*SMALL, "prior_sigma=0.5"])
        with pytest.raises(UserError, match=r"model.prior_sigma is for dropout models; .* set it to 0"):
            Forecast(recipe, series, CPU)

    def test_it_learns(self, tmp_path):
        """On a wave with noise of 0.4: better than the last season, and near the best score, 0.4 / sqrt(pi)."""
        path = csv_of(tmp_path / "wave.csv", wave(400))
        _, record = train("forecast", path, tmp_path / "run", "epochs=20", "difference=none")
        found = record["metrics"]
        assert found["test_crps"] < 0.85 * found["seasonal_naive_crps"] < found["naive_crps"]
        assert found["test_crps"] < 1.25 * 0.4 / math.sqrt(math.pi)
        assert 0.88 < found["test_coverage"] < 1.0


class TestRuns:
    @pytest.mark.parametrize("name", RECIPES)
    def test_the_record(self, runs, name):
        out, record = runs[name]
        found = record["metrics"]
        for key in ("valid_crps", "test_crps", "test_coverage", "test_width", "naive_crps", "seasonal_naive_crps"):
            assert math.isfinite(found[key])
        assert found["samples"] == (1 if name == "forecast-plain" else 8)
        assert (found["epistemic_share"] > 0) == (name != "forecast-plain")
        assert len(found["walk"]["date"]) == len(found["walk"]["mean"]) == 160 - 136 - 3 + 1
        assert found["walk"]["date"][0] == "1936"
        assert record["series"]["columns"] == ["level"]
        assert json.loads((out / "record.json").read_text())["metrics"]["test_crps"] == found["test_crps"]

    def test_evaluating_again_gives_the_same(self, runs):
        out, record = runs["forecast"]
        result = CliRunner().invoke(app, ["evaluate", str(out), "--device", "cpu"])
        assert result.exit_code == 0, result.output
        again = json.loads((out / "evaluation.json").read_text())
        assert again["test_crps"] == pytest.approx(record["metrics"]["test_crps"], rel=1e-6)
        result = CliRunner().invoke(app, ["evaluate", str(out), "--device", "cpu", "--level", "0.5", "--samples", "4"])
        assert result.exit_code == 0, result.output
        wide, half = record["metrics"]["test_width"], json.loads((out / "evaluation.json").read_text())["test_width"]
        assert half < 0.6 * wide
        result = CliRunner().invoke(app, ["evaluate", str(out), "--level", "95"])
        assert result.exit_code == 2
        assert "--level is 95.0; it must be between 0 and 1, such as 0.95." in result.output
        result = CliRunner().invoke(app, ["evaluate", str(out), "--device", "cpu", "--samples", "0"])
        assert result.exit_code == 2
        assert "--samples is 0; a forecast is a mixture over draws, so at least 1." in result.output

    def test_a_run_is_resumed(self, series, tmp_path):
        """Stopped after two epochs and gone on with, it is as if it had not been stopped."""
        whole, _ = train("forecast", series, tmp_path / "whole", "epochs=4")

        class Stop(Quiet):
            def epoch(self, line, epochs):
                if line["epoch"] == 2:
                    raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            launch("forecast", out=tmp_path / "part", reporter=Stop(), data=series, overrides=[*SMALL, "epochs=4"])
        launch(
            "forecast",
            out=tmp_path / "part",
            reporter=Quiet(),
            data=series,
            overrides=[*SMALL, "epochs=4"],
            resume=True,
        )
        a, b = (json.loads((p / "record.json").read_text())["curves"]["valid_crps"] for p in (whole, tmp_path / "part"))
        assert a == b

    def test_covariates(self, tmp_path):
        path = csv_of(tmp_path / "two.csv", wave(columns=2))
        _, record = train("forecast-plain", path, tmp_path / "run", "covariates=all", "epochs=1")
        assert record["series"]["columns"] == ["level", "lead"]
        result = CliRunner().invoke(app, ["forecast", str(tmp_path / "run"), "--steps", "4"])
        assert result.exit_code == 2
        assert "The model has covariates" in result.output

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            (["data.test=0.6"], "wave.csv: The test part (60%) is longer than the training part"),
            (["window=150"], "wave.csv: The series is too short"),
            (["target=missing"], "wave.csv: There is no column 'missing' to forecast"),
            (["horizon=0"], "data.horizon is 0; it must be more than 0"),
            (["noise=some"], "model.noise is 'some'; it must be one of same, varying"),
        ],
    )
    def test_what_is_refused(self, series, tmp_path, changes, words):
        result = CliRunner().invoke(
            app, ["train", "forecast", "--data", series, "--out", str(tmp_path / "run"), *SMALL, *changes]
        )
        assert result.exit_code == 2
        assert words in result.output.replace("\n", " ")
        assert not (tmp_path / "run").exists()


class TestCommand:
    def forecast(self, *arguments):
        result = CliRunner().invoke(app, ["forecast", *map(str, arguments)])
        return result.exit_code, result.output

    @pytest.mark.parametrize("name", RECIPES)
    def test_a_table(self, runs, name):
        status, text = self.forecast(runs[name][0])
        assert status == 0, text
        assert all(year in text for year in ("1960", "1961", "1962"))
        assert "1963" not in text

    def test_json_and_roll_outs(self, runs):
        status, text = self.forecast(runs["forecast"][0], "--steps", 10, "--json", "--level", 0.8)
        found = json.loads(text)
        assert status == 0
        assert [row["date"] for row in found["rows"]] == [str(y) for y in range(1960, 1970)]
        assert [row["method"] for row in found["rows"]] == ["direct"] * 3 + ["rollout"] * 7
        assert all(row["low"] < row["mean"] < row["high"] for row in found["rows"])
        assert (found["target"], found["level"]) == ("level", 0.8)
        again = json.loads(self.forecast(runs["forecast"][0], "--steps", 10, "--json", "--level", 0.8)[1])
        assert again == found  # the same seed
        other = json.loads(self.forecast(runs["forecast"][0], "--steps", 10, "--json", "--seed", 5)[1])
        assert other["rows"][0]["mean"] != found["rows"][0]["mean"]

    def test_a_plot(self, runs, tmp_path):
        status, _ = self.forecast(runs["forecast"][0], "--steps", 6, "--plot", tmp_path / "a.png")
        assert status == 0
        assert (tmp_path / "a.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"

    def test_newer_data_moves_the_end(self, runs, tmp_path):
        longer = csv_of(tmp_path / "longer.csv", wave(200))
        status, text = self.forecast(runs["forecast"][0], "--data", longer, "--json")
        assert status == 0
        assert json.loads(text)["rows"][0]["date"] == "2000"

    def test_a_file_may_begin_later(self, runs, tmp_path):
        """Without its first 30 rows the same is forecast: errors count from the same date on."""
        whole = json.loads(self.forecast(runs["forecast"][0], "--json")[1])
        later = csv_of(tmp_path / "later.csv", wave()[30:], first=1830)
        found = json.loads(self.forecast(runs["forecast"][0], "--data", later, "--json")[1])
        for a, b in zip(whole["rows"], found["rows"], strict=True):
            assert a["date"] == b["date"]
            assert b["low"] == pytest.approx(a["low"], rel=1e-5)
            assert b["mean"] == pytest.approx(a["mean"], rel=1e-5)

    def test_a_file_may_end_before_the_training_part(self, runs, tmp_path):
        early = csv_of(tmp_path / "early.csv", wave()[:40])
        status, text = self.forecast(runs["forecast"][0], "--data", early, "--json")
        assert status == 0, text
        assert json.loads(text)["rows"][0]["date"] == "1840"

    def test_what_is_refused(self, runs, tmp_path, text_folder):
        out = runs["forecast"][0]
        monthly = tmp_path / "monthly.csv"
        monthly.write_text("month,level\n" + "".join(f"{1990 + i // 12}-{i % 12 + 1:02},{i % 5}\n" for i in range(60)))
        other = csv_of(tmp_path / "other.csv", wave(), names=("height",))
        short = csv_of(tmp_path / "short.csv", wave(6))
        launch("small-plain", out=tmp_path / "text", reporter=Quiet(), data=str(text_folder), device="cpu",
               overrides=["hidden=4", "batch_size=2", "window=3", "epochs=1"])  # fmt: skip
        for arguments, words in (
            ([out, "--level", 95], "--level is 95.0; it must be between 0 and 1"),
            ([out, "--samples", 10**12], "Input should be less than or equal to 100000"),
            ([out, "--plot", tmp_path / "no" / "a.png"], "--plot names a .png file in a folder that exists"),
            ([out, "--plot", tmp_path / "a.pdf"], "--plot names a .png file"),
            ([out, "--data", other], "other.csv: The run was trained on level; the file has height."),
            ([out, "--data", short], "short.csv: The series has 6 steps; the model looks back on 8."),
            (
                [out, "--data", monthly],
                "monthly.csv: The run was trained on steps of one year; the file's are one month.",
            ),
            ([out, "--data", tmp_path], "is a folder; --data names a CSV file, such as"),
            ([tmp_path / "text"], "is a language run; this command is for forecasts"),
            ([tmp_path], "is no run of bayesrnn train"),
        ):
            status, text = self.forecast(*arguments)
            assert status == 2
            assert words in text.replace("\n", " ")


def test_a_finished_run_is_opened_without_its_data(runs):
    out, _ = runs["forecast-bbb"]
    trained = open_run(out, CPU)
    assert Plan.from_json(trained.files["frame.json"]).frame.horizon == 3
    assert task_file.Forecast.default_data == "mauna_loa"


def test_forecasts_that_no_memory_holds_are_refused(monkeypatch):
    monkeypatch.setattr(forecaster, "machine_memory", lambda: 10_000_000_000)
    forecaster._check_memory(50, 9_999_999_999)
    with pytest.raises(UserError, match=r"Forecasts of 50 draws take 20 GB, and this machine has 10"):
        forecaster._check_memory(50, 20_000_000_000)
