"""Forecasting runs: the task and its files, whole runs of every recipe, the command."""

import json
import math
import os

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import bayesrnn as br
from bayesrnn.errors import UserError
from bayesrnn.forecasting.mixture import Mixture
from bayesrnn.lab import recipes
from bayesrnn.lab.cli import app
from bayesrnn.lab.engine.launch import launch
from bayesrnn.lab.engine.sweep import sweep
from bayesrnn.lab.runs.opening import open_run
from bayesrnn.lab.tasks.forecast import task as task_file
from bayesrnn.lab.tasks.forecast.model import GaussianHeads, prior_cost
from bayesrnn.lab.tasks.forecast.plan import Plan, kept_series
from bayesrnn.lab.tasks.forecast.task import Forecast

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
        for name in set(RECIPES) - {"forecast-mixture"}:  # its loss is below
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

    @pytest.mark.parametrize("log", ["false", "true"])
    def test_losses_of_training_and_validation_have_one_unit(self, tmp_path, log):
        """-log p in the units of the series: that of a batch is what the forecaster says of the same windows."""
        values = 50 + 20 * wave()
        task = Forecast(
            recipes.override(recipes.load("forecast-plain"), [*SMALL, f"log={log}", "batch_size=10000"]),
            str(csv_of(tmp_path / "s.csv", values)),
            CPU,
        )
        torch.manual_seed(0)
        task.attach(task.build(task.recipe, task.files()))
        assert task.steps == 1
        with torch.no_grad():
            _, terms, _ = task.objective(task.batch(torch.tensor(0)), ())
        found = task.training({"nll": float(terms.nll), "kl": 0.0})["train_nll"]
        origins = task.cut.origins("train", first=task.frame.first, horizon=task.frame.horizon)
        steps = torch.tensor(origins).unsqueeze(1) + torch.arange(1, task.frame.horizon + 1)
        said = task.forecaster.distribution(origins, samples=1, seed=0)
        expected = float(-said.log_density(task.forecaster.actual[steps]).mean())
        assert found == pytest.approx(expected, abs=1e-4)
        assert abs(found - float(terms.nll) / task.examples_per_step) > 0.5

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
        torch.testing.assert_close(loss - terms.nll / task.examples_per_step, cost / task.num_data)

    def test_the_loss_of_components_is_the_mean_of_theirs(self, series):
        recipe = recipes.override(recipes.load("forecast"), [*SMALL, "prior_sigma=0.5", "components=3"])
        task = Forecast(recipe, series, CPU)
        task.attach(task.build(task.recipe, task.files()).train())
        batch = task.batch(torch.tensor(0))
        with br.mean(task.model):
            loss, terms, _ = task.objective(batch, ())
            nlls = [GaussianHeads().nll(network(batch[0]), batch[1]) for network in task.model.networks]
        costs = [prior_cost(network, 0.5) for network in task.model.networks]
        torch.testing.assert_close(terms.nll, torch.stack(nlls).mean())
        expected = torch.stack(nlls).mean() / 96 + torch.stack(costs).mean() / task.num_data
        torch.testing.assert_close(loss, expected)
        assert len({float(network.mean.weight.detach().sum()) for network in task.model.networks}) == 3

    def test_components_are_of_dropout_models(self, series):
        recipe = recipes.override(recipes.load("forecast-bbb"), [*SMALL, "components=2"])
        with pytest.raises(UserError, match=r"model.components is for dropout models; .* set it to 1"):
            Forecast(recipe, series, CPU)

    def test_a_posterior_has_a_prior_of_its_own(self, series):
        recipe = recipes.override(recipes.load("forecast-bbb"), [*SMALL, "prior_sigma=0.5"])
        with pytest.raises(UserError, match=r"model.prior_sigma is for dropout models; .* set it to 0"):
            Forecast(recipe, series, CPU)

    def test_it_learns(self, tmp_path):
        """On a wave with noise of 0.4: better than the last season, and near the best score, 0.4 / sqrt(pi)."""
        path = csv_of(tmp_path / "wave.csv", wave(400))
        _, record = train("forecast", path, tmp_path / "run", "epochs=20", "difference=none")
        found = record.metrics
        assert found["test_crps"] < 0.85 * found["seasonal_naive_crps"] < found["naive_crps"]
        assert found["test_crps"] < 1.25 * 0.4 / math.sqrt(math.pi)
        assert 0.88 < found["test_coverage"] < 1.0


class TestRuns:
    @pytest.mark.parametrize("name", RECIPES)
    def test_the_record(self, runs, name):
        out, record = runs[name]
        found = record.metrics
        for key in ("valid_crps", "test_crps", "test_coverage", "test_width", "naive_crps", "seasonal_naive_crps"):
            assert math.isfinite(found[key])
        assert found["samples"] == (1 if name == "forecast-plain" else 8)
        assert found.get("draws_seed") == (None if name == "forecast-plain" else 1)
        assert (found["epistemic_share"] > 0) == (name != "forecast-plain")
        assert len(found["walk"]["date"]) == len(found["walk"]["mean"]) == 160 - 136 - 3 + 1
        assert found["walk"]["date"][0] == "1936"
        assert record.extra["series"]["columns"] == ["level"]
        assert json.loads((out / "record.json").read_text())["metrics"]["test_crps"] == found["test_crps"]

    def test_evaluating_again_gives_the_same(self, runs):
        out, record = runs["forecast"]
        result = CliRunner().invoke(app, ["evaluate", str(out), "--device", "cpu"])
        assert result.exit_code == 0, result.output
        again = json.loads((out / "evaluation.json").read_text())
        assert again["test_crps"] == pytest.approx(record.metrics["test_crps"], rel=1e-6)
        widths = []
        for level in ("0.5", "50"):
            arguments = ["--device", "cpu", "--level", level, "--samples", "4"]
            result = CliRunner().invoke(app, ["evaluate", str(out), *arguments])
            assert result.exit_code == 0, result.output
            widths.append(json.loads((out / "evaluation.json").read_text())["test_width"])
        assert widths[0] == widths[1] < 0.6 * record.metrics["test_width"]
        result = CliRunner().invoke(app, ["evaluate", str(out), "--level", "100"])
        assert result.exit_code == 2
        assert "--level is 100; it must be between 0 and 100%, such as 80 or 0.8." in result.output
        result = CliRunner().invoke(app, ["evaluate", str(out), "--device", "cpu", "--samples", "0"])
        assert result.exit_code == 2
        assert "--samples is 0; a forecast is a mixture over draws, so at least 1." in result.output

    def test_forecasts_of_the_walk_are_written_as_a_table(self, runs, tmp_path):
        out, record = runs["forecast"]
        arguments = ["evaluate", str(out), "--device", "cpu", "--table"]
        result = CliRunner().invoke(app, [*arguments, str(tmp_path / "walk.csv")])
        assert result.exit_code == 0, result.output
        table = pd.read_csv(tmp_path / "walk.csv")
        assert table["step"].tolist()[:4] == [1, 2, 3, 1]
        last = table[(table["step"] == 1) & table["y"].notna()]
        shown = record.metric("walk")
        first = last[pd.to_datetime(last["ds"]).dt.year == int(shown["date"][0])].iloc[0]
        assert first["mean"] == pytest.approx(shown["mean"][0], rel=1e-5)
        assert first["hi-95"] == pytest.approx(shown["high"][0], rel=1e-5)
        result = CliRunner().invoke(app, [*arguments, str(tmp_path / "no" / "walk.csv")])
        assert result.exit_code == 2
        assert "--table names a .csv file in a folder that exists" in result.output.replace("\n", " ")

    def test_a_series_with_gaps_is_trained_evaluated_and_forecast(self, tmp_path):
        """A third of the values is missing in stretches; the kept series has the same gaps."""
        values = wave(300)
        for start in range(10, 290, 30):
            values[start : start + 10] = np.nan
        path = tmp_path / "gaps.csv"
        path.write_text(
            "year,level\n" + "".join(f"{1700 + i},{'' if np.isnan(v) else v}\n" for i, v in enumerate(values[:, 0]))
        )
        out, record = train("forecast", str(path), tmp_path / "run", "epochs=10")
        assert record.extra["series"]["notes"] == [
            "100 missing values of level (longest gap: 10) are masked: they are neither learnt from nor scored."
        ]
        found = record.metrics
        assert found["test_crps"] < 1.2 * found["seasonal_naive_crps"]
        assert 0.8 < found["test_coverage"] <= 1
        trained = open_run(out, CPU)
        kept = kept_series(trained.files, Plan.from_json(trained.files["frame.json"]), name="gaps")
        np.testing.assert_array_equal(kept.values, values)
        result = CliRunner().invoke(app, ["forecast", str(out), "--steps", "5", "--json"])
        assert result.exit_code == 0, result.output
        assert all(math.isfinite(row["mean"]) for row in json.loads(result.output)["rows"])

    def test_draws_of_a_model_that_has_none_are_refused(self, runs):
        out, _ = runs["forecast-plain"]
        result = CliRunner().invoke(app, ["evaluate", str(out), "--device", "cpu", "--samples", "4"])
        assert result.exit_code == 2
        assert "--samples is for draws, and this run has none: its model has no noise" in result.output

    @pytest.mark.parametrize("name", ["forecast", "forecast-mixture"])
    def test_a_run_is_resumed(self, series, tmp_path, name):
        """Stopped after two epochs and gone on with, it is as if it had not been stopped."""
        whole, _ = train(name, series, tmp_path / "whole", "epochs=4")

        class Stop(Quiet):
            def epoch(self, line, epochs):
                if line["epoch"] == 2:
                    raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            launch(name, out=tmp_path / "part", reporter=Stop(), data=series, overrides=[*SMALL, "epochs=4"])
        launch(
            name,
            out=tmp_path / "part",
            reporter=Quiet(),
            data=series,
            overrides=[*SMALL, "epochs=4"],
            resume=True,
        )
        a, b = (json.loads((p / "record.json").read_text())["curves"]["valid_crps"] for p in (whole, tmp_path / "part"))
        assert a == b

    def test_components_are_stopped_one_by_one(self, series, tmp_path):
        """What is kept of each is its weights at the epoch of its own lowest score; the metric never rises."""
        out, record = train("forecast-mixture", series, tmp_path / "run", "components=2", "epochs=6", "lr=0.05")
        curve = record.curves["valid_crps"]
        assert curve == sorted(curve, reverse=True)
        trained = open_run(out, CPU)
        task = Forecast(trained.recipe, series, CPU)
        origins = task.cut.origins("valid", first=task.frame.first, horizon=3)
        actual = task.values[:, 0, 0][torch.tensor(origins).unsqueeze(1) + torch.arange(1, 4)]
        for kept, best in zip(trained.model.kept, trained.model.best, strict=True):
            one = task_file.forecaster(kept, task.plan, task.values, trained.recipe.evaluate)
            score = one.distribution(origins, samples=1, seed=0).crps(actual).mean()
            assert float(score) == pytest.approx(float(best), rel=1e-5)
        assert min(curve) == pytest.approx(float(trained.model.best.mean()), rel=1e-6)
        parts = [task_file.forecaster(n, task.plan, task.values, trained.recipe.evaluate) for n in trained.model.kept]
        said = [one.distribution(origins, samples=1, seed=0) for one in parts]
        both = Mixture(torch.cat([m.means for m in said]), torch.cat([m.sigmas for m in said]), said[0].log)
        at = record.metrics["best_epoch"] - 1
        own = record.curves["valid_crps_mixture"]
        assert own[at] == pytest.approx(float(both.crps(actual).mean()), rel=1e-5)
        assert own[at] < curve[at]  # CRPS is convex

    def test_a_sweep_compares_mixtures_and_not_their_parts(self, series, tmp_path):
        """Each run's figure is that of what it kept; where a setting makes one network, its own."""
        pytest.importorskip("optuna")
        found = sweep(
            "forecast-mixture", out=tmp_path, say=lambda text: None, grid=["components=1,3"], data=series,
            overrides=[*SMALL, "epochs=3", "lr=0.02"], device="cpu",
        )  # fmt: skip
        assert found["metric"] == "valid_crps_mixture"
        for row in found["trials"]:
            run = json.loads((tmp_path / row["folder"] / "record.json").read_text())
            key = "valid_crps_mixture" if row["settings"]["model.components"] == 3 else "valid_crps"
            assert row["value"] == run["curves"][key][run["metrics"]["best_epoch"] - 1]
            assert (row["value"] < min(run["curves"]["valid_crps"])) == (key == "valid_crps_mixture")

    def test_covariates(self, tmp_path):
        path = csv_of(tmp_path / "two.csv", wave(columns=2))
        _, record = train("forecast-plain", path, tmp_path / "run", "covariates=all", "epochs=1")
        assert record.extra["series"]["columns"] == ["level", "lead"]
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

    def test_files(self, runs, tmp_path):
        whole = json.loads(self.forecast(runs["forecast"][0], "--json")[1])
        for name in ("a.csv", "a.json"):
            assert self.forecast(runs["forecast"][0], "--out", tmp_path / name) == (0, "")
        assert json.loads((tmp_path / "a.json").read_text()) == whole
        rows = pd.read_csv(tmp_path / "a.csv")
        assert rows["mean"].tolist() == pytest.approx([row["mean"] for row in whole["rows"]])
        status, text = self.forecast(runs["forecast"][0], "--out", tmp_path / "a.txt")
        assert status == 2
        assert "--out names a .csv or .json file" in text.replace("\n", " ")

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
        os.mkfifo(tmp_path / "pipe.png")
        for arguments, words in (
            ([out, "--plot", tmp_path / "pipe.png"], "pipe.png is not a regular file; choose another --plot."),
            ([out, "--level", 100], "--level is 100; it must be between 0 and 100%, such as 80 or 0.8."),
            ([out, "--level", 80, "--level", 95], "A run's forecast has one interval; give --level once."),
            (
                [out, "--walk", 3],
                "--walk: for a file, not for a run; omit it (bayesrnn evaluate RUN --table walks a run).",
            ),
            ([out, "--horizon", 3], "omit it (--steps sets the steps of a run)."),
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
            ([tmp_path], "is not a run of bayesrnn train"),
        ):
            status, text = self.forecast(*arguments)
            assert status == 2
            assert words in text.replace("\n", " ")


def test_a_finished_run_is_opened_without_its_data(runs):
    out, _ = runs["forecast-bbb"]
    trained = open_run(out, CPU)
    assert Plan.from_json(trained.files["frame.json"]).frame.horizon == 3
    assert task_file.Forecast.default_data == "mauna_loa"
