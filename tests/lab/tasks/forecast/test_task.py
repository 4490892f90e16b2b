"""Forecasting runs: the task and its files, whole runs of every recipe, the command."""

import json
import math
import os
import re

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from bayesrnn.errors import UserError
from bayesrnn.forecasting import Forecaster
from bayesrnn.lab import recipes
from bayesrnn.lab.cli import app
from bayesrnn.lab.engine.launch import launch
from bayesrnn.lab.engine.sweep import sweep
from bayesrnn.lab.runs import sizes
from bayesrnn.lab.runs.opening import open_run
from bayesrnn.lab.tasks.forecast.plan import PLAN, SERIES, Plan, cutoffs
from bayesrnn.lab.tasks.forecast.task import Forecast, opened

CPU = torch.device("cpu")
RECIPES = [name for name in recipes.names() if recipes.load(name).task == "forecast"]
SMALL = ["hidden=6", "window=16", "horizon=3", "epochs=2", "evaluate.samples=4", "data.season=8", "transform=none",
         "scaling=standard"]  # fmt: skip
LENGTH = 440
HELD = 66  # 15%
torch.set_num_threads(1)


class Quiet:
    def say(self, text): ...
    def step(self, progress): ...
    def epoch(self, line, epochs): ...


def wave(n=LENGTH, seed=0):
    """A season of 8 steps with noise, and a column that is the same wave one step earlier."""
    source = np.random.default_rng(seed)
    clean = 10 + 3 * np.sin(2 * np.pi * np.arange(n + 1) / 8) + 0.4 * source.standard_normal(n + 1)
    return pd.DataFrame({"step": np.arange(n), "level": clean[:-1], "lead": clean[1:]})


def csv_of(path, frame):
    frame.to_csv(path, index=False)
    return str(path)


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    return csv_of(tmp_path_factory.mktemp("series") / "wave.csv", wave()[["step", "level"]])


@pytest.fixture(scope="module")
def runs(tmp_path_factory, series):
    """One short run of every recipe."""
    folder = tmp_path_factory.mktemp("runs")
    return {name: train(name, series, folder / name) for name in RECIPES}


def train(name, data, out, *changes, reporter=None, **options):
    overrides = [*SMALL, "data.date=step", *changes]
    record = launch(
        name, out=out, reporter=reporter or Quiet(), data=data, overrides=overrides, device="cpu", **options
    )
    return out, record


def made(series, *changes, name="forecast"):
    recipe = recipes.override(recipes.load(name), [*SMALL, "data.date=step", *changes])
    return Forecast(recipe, series, CPU)


def attached(task):
    torch.manual_seed(1)
    task.attach(task.build(task.recipe, task.files()))
    return task


def run(*arguments):
    result = CliRunner().invoke(app, [*map(str, arguments)])
    return result.exit_code, result.output.replace("\n", " ") if result.exit_code else result.output


class TestTask:
    def test_the_series_of_the_library(self):
        task = Forecast(recipes.load("forecast"), None, CPU)
        assert (task.plan.panel.ids, len(task.plan.panel.y)) == (["co2"], 526)
        assert task.describe().startswith("co2: 526 rows of one month, 1958-03-01 to 2001-12-01; of each series the")
        assert "5 values missing" in task.describe()

    def test_a_plan_is_written_and_read(self, series):
        task = made(series)
        again = Plan.read(task.files())
        assert again.about == json.loads(task.files()[PLAN])
        np.testing.assert_array_equal(again.panel.y, wave()["level"])
        assert again.ends.tolist() == [LENGTH - HELD]

    @pytest.mark.parametrize(
        "change",
        [
            {"bases": []}, {"windows": "many"}, {"trained": {}}, {"columns": {}}, {"ids": ["other", "more"]},
            {"arrays": {"weights": [[-1], "float64"]}}, {"members": [{"likelihood": "none"}]}, {"settings": {}},
        ],
    )  # fmt: skip
    def test_a_damaged_plan_is_one_line(self, runs, tmp_path, change):
        out, _ = runs["forecast-plain"]
        trained = open_run(out, CPU)
        files = {**trained.files, PLAN: json.dumps({**json.loads(trained.files[PLAN]), **change}).encode()}
        with pytest.raises(UserError) as error:
            sizes.outline(Forecast, trained.recipe, files, where="run")
            Forecast.for_run(trained.recipe, None, CPU, files).attach(trained.model)
        assert "\n" not in str(error.value)

    def test_a_last_step_beyond_64_bits_is_refused(self, series):
        plan = Plan.read(made(series).files())
        huge = Plan({**plan.about, "trained": dict.fromkeys(plan.panel.ids, -(2**70))}, plan.series)
        with pytest.raises(UserError, match=rf"{PLAN} of this run is damaged"):
            _ = huge.ends

    @pytest.mark.parametrize("content", [b"", b"{}", b"\x00" * 40])
    def test_a_damaged_series_is_named(self, runs, content):
        trained = open_run(runs["forecast-plain"][0], CPU)
        with pytest.raises(UserError, match=rf"{SERIES} of this run is missing or damaged"):
            Plan.read({**trained.files, SERIES: content})

    def test_nothing_of_the_test_part_is_used(self, series, tmp_path):
        """Neither by the bases, nor by batches, nor by validation."""
        frame = wave()[["step", "level"]]
        frame.loc[LENGTH - HELD :, "level"] = 1000.0
        one, other = attached(made(series)), attached(made(csv_of(tmp_path / "other.csv", frame)))
        assert one.plan.about == other.plan.about
        for key, value in one.plan.arrays.items():
            np.testing.assert_array_equal(value, other.plan.arrays[key])
        one.fetch(3)
        other.fetch(3)
        for a, b in zip(one.examples[0], other.examples[0], strict=True):
            assert torch.equal(a, b)
        assert one.validate() == other.validate()
        assert one.digest() != other.digest()

    def test_forecasts_do_not_look_ahead(self, runs, series, tmp_path):
        """What comes after a cutoff changes nothing of what was forecast by then."""
        frame = wave()[["step", "level"]]
        frame.loc[LENGTH - 20 :, "level"] += 100.0
        trained = open_run(runs["forecast"][0], CPU)
        tables = []
        for data in (series, csv_of(tmp_path / "other.csv", frame)):
            task = Forecast.for_run(trained.recipe, data, CPU, trained.files)
            task.attach(trained.model)
            tables.append(task.walk(task.finished(), 95.0))
        early = tables[0]["cutoff"] < LENGTH - 20
        assert early.any()
        for column in ("mean", "lo-95", "hi-95"):
            np.testing.assert_array_equal(tables[0][column][early], tables[1][column][early])
        assert not np.array_equal(tables[0]["hi-95"], tables[1]["hi-95"])

    def test_missing_targets_have_no_part_in_the_loss(self, series):
        task = attached(made(series, name="forecast-plain"))
        example = [part.clone() for part in task.examples[0]]
        example[3][:, 1] = math.nan
        known = [part.clone() for part in example]
        known[3] = torch.where(example[3].isnan(), torch.full_like(example[3], 7.0), example[3])
        member, elbo = task.trained[0], task.elbos[0]
        with torch.no_grad():
            terms = member.loss(elbo, example)
        parts = -member.head.likelihood.log_prob(
            member.head.parameters(task.model.networks[0](*known[:3]), known[4]), known[3]
        ).detach()
        assert float(terms.nll) == pytest.approx(float(parts[:, [0, 2]].sum()), rel=1e-5)
        assert float(terms.loss) == pytest.approx(float(parts[:, [0, 2]].mean()), rel=1e-5)

    def test_the_loss_of_components_is_the_mean_of_theirs(self, series):
        task = attached(made(series, "components=3", "dropout=0.0", name="forecast-mixture"))
        with torch.no_grad():
            loss, terms, _ = task.objective(task.batch(torch.tensor(0)), ())
        own = [m.loss(e, x).loss for m, e, x in zip(task.trained, task.elbos, task.examples, strict=True)]
        assert float(loss) == pytest.approx(float(torch.stack(own).mean().detach()), rel=1e-6)
        assert [m.likelihood for m in task.trained] == ["student", "quantiles", "student"]
        assert terms.kl == 0

    def test_the_kl_of_a_posterior_counts_once(self, series):
        task = attached(made(series, name="forecast-bbb"))
        with torch.no_grad():
            loss, terms, _ = task.objective(task.batch(torch.tensor(0)), ())
        known = int((~task.examples[0][3].isnan()).sum())
        targets = task.plan.about["windows"] * 3
        assert float(loss) == pytest.approx(float(terms.nll) / known + float(terms.kl) / targets, rel=1e-5)
        assert terms.kl > 0

    def test_parts_of_a_batch_are_those_of_several_processes(self, series):
        whole, part = attached(made(series)), made(series)
        part.split(slice(4, 9))
        attached(part)
        assert torch.equal(part.examples[0][0], whole.examples[0][0][:, 4:9])
        assert torch.equal(part.examples[0][3], whole.examples[0][3][4:9])

    def test_test_parts_of_several_series(self, tmp_path):
        frame = pd.concat([wave(n, n)[["step", "level"]].assign(unique_id=f"s{n}") for n in (300, 400)])
        task = made(csv_of(tmp_path / "two.csv", frame), "target=level")
        assert task.plan.ends.tolist() == [255, 355]
        first, count, step = cutoffs(task.plan.panel, 3, 0.15)
        assert (first >= task.plan.ends).all()
        assert (first + (count - 1) * step + 3 == [300, 400]).all()

    def test_short_series_have_no_network(self, tmp_path):
        """The run ends with a forecaster all the same."""
        path = csv_of(tmp_path / "short.csv", wave(60)[["step", "level"]])
        said = []

        class Told(Quiet):
            def say(self, text):
                said.append(text)

        out, record = train("forecast-bbb", path, tmp_path / "run", reporter=Told())
        assert any("Too few rows for networks: a trend and seasons in closed form" in text for text in said)
        assert record.metrics["test_crps"] < record.metrics["naive_crps"]
        assert run("forecast", out)[1].count("\n") == 4
        assert run("report", out, "--out", tmp_path / "page")[0] == 0
        assert "Doubt over time" in (tmp_path / "page" / "index.html").read_text()
        status, text = run("export", out)
        assert status == 2
        assert "no network" in text


class TestRuns:
    @pytest.mark.parametrize("name", RECIPES)
    def test_the_record(self, runs, name):
        out, record = runs[name]
        found = record.metrics
        for key in ("valid_crps", "test_crps", "test_coverage", "test_width", "naive_crps", "seasonal_naive_crps"):
            assert math.isfinite(found[key])
        assert found["test_crps"] < found["naive_crps"]
        assert 0.8 < found["test_coverage"] <= 1
        assert found["samples"] == (1 if name == "forecast-plain" else 4)
        assert found.get("draws_seed") == (None if name == "forecast-plain" else 1)
        assert len(found["by_horizon"]["crps"]) == 3
        assert sum(found["weights"].values()) == pytest.approx(1, abs=1e-4)
        assert len(found["weights"]) - (4 if name == "forecast-mixture" else 1) in (1, 2)
        assert record.extra["series"]["names"] == ["level"]
        assert json.loads((out / "record.json").read_text())["metrics"]["test_crps"] == found["test_crps"]

    def test_evaluating_again_gives_the_same(self, runs):
        out, record = runs["forecast"]
        status, text = run("evaluate", out, "--device", "cpu")
        assert status == 0, text
        again = json.loads((out / "evaluation.json").read_text())
        assert again["test_crps"] == pytest.approx(record.metrics["test_crps"], rel=1e-6)
        widths = []
        for level in ("0.5", "50"):
            assert run("evaluate", out, "--device", "cpu", "--level", level, "--samples", 3)[0] == 0
            widths.append(json.loads((out / "evaluation.json").read_text())["test_width"])
        assert widths[0] == widths[1] < 0.6 * record.metrics["test_width"]
        for arguments, words in (
            (("--level", 100), "--level is 100; it must be between 0 and 100%, such as 80 or 0.8."),
            (("--samples", 0), "--samples is 0; a forecast is a mixture over draws, so at least 1."),
        ):
            status, text = run("evaluate", out, "--device", "cpu", *arguments)
            assert status == 2
            assert words in text

    def test_forecasts_of_the_walk_are_written_as_a_table(self, runs, tmp_path):
        out, record = runs["forecast-bbb"]
        status, text = run("evaluate", out, "--device", "cpu", "--table", tmp_path / "walk.csv")
        assert status == 0, text
        table = pd.read_csv(tmp_path / "walk.csv")
        assert len(table) == 3 * (HELD - 2)
        assert table["step"].tolist()[:4] == [1, 2, 3, 1]
        assert (table["ds"] == table["cutoff"] + table["step"]).all()
        assert table["crps"].mean() == pytest.approx(record.metrics["test_crps"], rel=1e-5)
        status, text = run("evaluate", out, "--device", "cpu", "--table", tmp_path / "no" / "walk.csv")
        assert status == 2
        assert "--table names a .csv file in a folder that exists" in text

    def test_a_series_with_gaps(self, tmp_path):
        """A third of the values is missing in stretches; the run keeps the same gaps."""
        frame = wave(600)[["step", "level"]]
        for start in range(10, 590, 30):
            frame.loc[start : start + 9, "level"] = np.nan
        out, record = train("forecast", csv_of(tmp_path / "gaps.csv", frame), tmp_path / "run", "epochs=6")
        found = record.metrics
        assert found["test_crps"] < 1.2 * found["seasonal_naive_crps"]
        assert 0.8 < found["test_coverage"] <= 1
        kept = Plan.read(open_run(out, CPU).files).panel.y
        np.testing.assert_allclose(kept, frame["level"], rtol=1e-12)
        status, text = run("forecast", out, "--json")
        assert status == 0, text
        assert all(math.isfinite(row["mean"]) for row in json.loads(text))

    def test_draws_of_a_model_that_has_none_are_refused(self, runs):
        status, text = run("evaluate", runs["forecast-plain"][0], "--device", "cpu", "--samples", 4)
        assert status == 2
        assert "--samples is for draws, and this run has none: its model has no noise" in text

    @pytest.mark.parametrize("changes", [[], ["save_every=7"]])
    def test_a_run_is_resumed_exactly(self, series, tmp_path, changes):
        """Stopped after an epoch, or inside one, and gone on with, it is as if it had not been stopped."""
        changes = ["epochs=3", *changes]
        _, record = train("forecast-mixture", series, tmp_path / "whole", "components=2", *changes)

        class Stop(Quiet):
            def epoch(self, line, epochs):
                if line["epoch"] == 2 and not changes[1:]:
                    raise KeyboardInterrupt

            def step(self, progress):
                if changes[1:] and progress.epoch == 2 and progress.step > 20:
                    raise KeyboardInterrupt

        part = tmp_path / "part"
        with pytest.raises(KeyboardInterrupt):
            train("forecast-mixture", series, part, "components=2", *changes, reporter=Stop())
        train("forecast-mixture", series, part, "components=2", *changes, resume=True)
        again = json.loads((part / "record.json").read_text())
        assert again["curves"]["valid_crps"] == record.curves["valid_crps"]
        assert again["metrics"]["test_crps"] == record.metrics["test_crps"]

    def test_a_sweep(self, series, tmp_path):
        pytest.importorskip("optuna")
        found = sweep(
            "forecast", out=tmp_path, say=lambda text: None, grid=["dropout=0.1,0.3"], data=series,
            overrides=[*SMALL, "data.date=step", "epochs=1"], device="cpu",
        )  # fmt: skip
        assert found["metric"] == "valid_crps"
        for row in found["trials"]:
            record = json.loads((tmp_path / row["folder"] / "record.json").read_text())
            assert row["value"] == min(record["curves"]["valid_crps"])

    def test_covariates(self, tmp_path):
        """A column that leads by one step makes the first step easy."""
        path = csv_of(tmp_path / "two.csv", wave())
        scores = {}
        for name in ("none", "lead"):
            changes = ["target=level", f"covariates={name}", "epochs=1"]
            _, record = train("forecast-plain", path, tmp_path / f"run{name}", *changes)
            scores[name] = record.metrics["by_horizon"]["crps"][0]
        assert scores["lead"] < 0.7 * scores["none"]

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            (["horizon=300"], "a horizon of 300 needs at least 304; use a shorter horizon or a longer history."),
            (["target=missing"], "wave.csv has no column 'missing'; data.target is one of step, level."),
            (["data.date=when"], "wave.csv has no column 'when'; data.date is one of step, level."),
            (["covariates=lead"], "data.covariates needs data.target, the column that is forecast."),
            (["target=level", "covariates=lead"], "has no column 'lead'"),
            (["horizon=0"], "data.horizon is 0; it must be more than 0"),
            (["likelihood=some"], "model.likelihood is 'some'; it must be one of auto, student"),
            (["posterior.kind=sharpened"], "posterior.kind is sharpened, which forecasts do not have"),
            (["posterior.kind=bayes_by_backprop"], "model.dropout is for networks without a posterior over weights"),
            (["noise=varying"], "There is no key noise"),
        ],
    )
    def test_what_is_refused(self, series, tmp_path, changes, words):
        options = ["data.date=step", *changes]
        status, text = run("train", "forecast", "--data", series, "--out", tmp_path / "run", *SMALL, *options)
        assert status == 2
        assert words in text
        assert not (tmp_path / "run").exists()

    def test_runs_of_earlier_versions(self, runs, tmp_path):
        """Their settings are not known any more: one line, and no traceback."""
        out = tmp_path / "old"
        out.mkdir()
        config = json.loads((runs["forecast"][0] / "config.json").read_text())
        config["settings"]["model"] |= {"linear": True, "noise": "varying"}
        (out / "config.json").write_text(json.dumps({**config, "files": ["frame.json", "series.csv"]}))
        for command in ("evaluate", "forecast", "explore"):
            status, text = run(command, out)
            assert status == 2
            assert "is no run of this version of bayesrnn" in text
            assert "train again." in text


class TestCommand:
    @pytest.mark.parametrize("name", RECIPES)
    def test_a_table(self, runs, name):
        status, text = run("forecast", runs[name][0])
        assert status == 0, text
        rows = [line.split(",") for line in text.splitlines()]
        assert rows[0][:4] == ["unique_id", "ds", "mean", "median"]
        assert [row[1] for row in rows[1:]] == ["440", "441", "442"]

    def test_it_is_the_forecaster_of_the_run(self, runs, tmp_path):
        """The run's forecaster can be saved, and says the same then."""
        task = opened(open_run(runs["forecast"][0], CPU))
        forecaster = task.finished(seed=1).update(task.whole)
        same = Forecaster.load(forecaster.save(tmp_path / "saved"))
        for name, source in (("a", runs["forecast"][0]), ("b", tmp_path / "saved")):
            assert run("forecast", source, "--out", tmp_path / f"{name}.csv") == (0, "")
        found, said = (pd.read_csv(tmp_path / f"{name}.csv") for name in ("a", "b"))
        pd.testing.assert_frame_equal(found, said)
        np.testing.assert_allclose(same.predict()["mean"], found["mean"], rtol=1e-6)

    def test_options(self, runs, tmp_path):
        out = runs["forecast"][0]
        found = json.loads(run("forecast", out, "--steps", 2, "--json", "--level", 0.8)[1])
        assert len(found) == 2
        assert all(row["lo-80"] < row["mean"] < row["hi-80"] for row in found)
        assert json.loads(run("forecast", out, "--steps", 2, "--json", "--level", 0.8)[1]) == found
        assert json.loads(run("forecast", out, "--json", "--seed", 5)[1])[0]["mean"] != found[0]["mean"]
        assert run("forecast", out, "--plot", tmp_path / "a.png")[0] == 0
        assert (tmp_path / "a.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
        assert "probability" in run("forecast", out, "--above", 12)[1]

    def test_newer_data_moves_the_end(self, runs, tmp_path):
        longer = wave(500)[["step", "level"]]
        for first in (0, 400):
            path = csv_of(tmp_path / "longer.csv", longer.iloc[first:])
            status, text = run("forecast", runs["forecast"][0], "--data", path, "--json")
            assert status == 0, text
            assert json.loads(text)[0]["ds"] == 500
        longer.loc[3, "level"] = 0
        status, text = run("forecast", runs["forecast"][0], "--data", csv_of(tmp_path / "longer.csv", longer))
        assert status == 2
        assert "pass only new rows" in text

    def test_what_is_refused(self, runs, tmp_path, text_folder):
        out = runs["forecast"][0]
        monthly = tmp_path / "monthly.csv"
        monthly.write_text("step,level\n" + "".join(f"{1990 + i // 12}-{i % 12 + 1:02},{i % 5}\n" for i in range(60)))
        launch("small-plain", out=tmp_path / "text", reporter=Quiet(), data=str(text_folder), device="cpu",
               overrides=["hidden=4", "batch_size=2", "window=3", "epochs=1"])  # fmt: skip
        os.mkfifo(tmp_path / "pipe.png")
        for arguments, words in (
            ([out, "--plot", tmp_path / "pipe.png"], "pipe.png is not a regular file; choose another --plot."),
            ([out, "--level", 100], "--level is 100; it must be between 0 and 100%, such as 80 or 0.8."),
            ([out, "--walk", 3], "--walk: for a file, not for a run; omit it (bayesrnn evaluate RUN --table walks a"),
            ([out, "--horizon", 3], "omit it (a run has the horizon that it was trained with)."),
            ([out, "--steps", 4], "--steps is 4, and the model forecasts 3 steps; train with a larger horizon."),
            ([out, "--samples", 10**12], "Input should be less than or equal to 100000"),
            ([out, "--plot", tmp_path / "no" / "a.png"], "--plot names a .png file in a folder that exists"),
            ([out, "--plot", tmp_path / "a.pdf"], "--plot names a .png file"),
            ([out, "--data", monthly], "stamps"),
            ([out, "--data", tmp_path], "is a folder; --data names a CSV, CSV.gz or Parquet file."),
            ([out, "--data", tmp_path / "none.csv"], "There is no file"),
            ([tmp_path / "text"], "is a language run; this command is for forecasts"),
            ([tmp_path], "is not a run of bayesrnn train"),
        ):
            status, text = run("forecast", *arguments)
            assert (status, words in text) == (2, True), text


def test_the_line_at_the_end_names_units_and_a_run_without_networks(tmp_path):
    short = csv_of(tmp_path / "short.csv", wave(30)[["step", "level"]])
    status, text = run("train", "forecast", "--data", short, "--out", tmp_path / "run", "data.date=step", "horizon=3")
    assert status == 0, text
    last = text.strip().splitlines()[-1]
    assert re.search(r"crps [\d.]+ scaled validation, [\d.]+ test", last)
    assert "No network is used: the linear forecast is better without." in last


def test_new_rows_of_a_run_with_numbered_rows(tmp_path):
    """They go on with the numbers; text of dates is no covariate."""
    frame = wave(40)[["level"]].assign(day=[f"day {k}" for k in range(40)])
    old, new = (csv_of(tmp_path / f"{n}.csv", part) for n, part in (("old", frame[:35]), ("new", frame[35:])))
    status, text = run("train", "forecast", "--data", old, "--out", tmp_path / "run", "data.date=none", "horizon=3")
    assert status == 0, text
    for options, first in (([], 35), (["--data", new], 40)):
        status, text = run("forecast", tmp_path / "run", "--json", *options)
        assert status == 0, text
        assert json.loads(text)[0]["ds"] == first
    assert "alarm" in run("forecast", tmp_path / "run", "--anomalies", new)[1]


def test_a_finished_run_needs_no_data(series, tmp_path):
    path = csv_of(tmp_path / "gone.csv", wave()[["step", "level"]])
    out, _ = train("forecast-bbb", path, tmp_path / "run")
    os.remove(path)
    for command in ("evaluate", "forecast"):
        assert run(command, out, "--device", "cpu")[0] == 0


def test_reports_use_the_draws_of_the_test(runs):
    out, record = runs["forecast"]
    table = Forecast.analyse(open_run(out, CPU), {}, lambda text: None)["table"]
    assert table["crps"].mean() == pytest.approx(record.metrics["test_crps"], rel=1e-9)


def test_columns_that_are_not_used_are_named(tmp_path):
    hours = pd.date_range("2024-01-01", periods=300, freq="h")
    frame = pd.DataFrame({"ds": hours, "y": np.random.default_rng(0).normal(20, 1, 300), "temp": np.arange(300.0)})
    frame.to_csv(tmp_path / "a.csv", index=False)
    for settings, named in (([], True), (["data.covariates=all"], False)):
        recipe = recipes.override(recipes.load("forecast"), ["data.horizon=4", "model.hidden=4", *settings])
        task = Forecast(recipe, str(tmp_path / "a.csv"), CPU)
        assert ("Not used: temp; data.covariates=all" in task.describe()) == named


def test_held_out_covariates_do_not_reach_the_training(tmp_path):
    """Scales and categories are those of the rows before the test part: other values there change nothing."""
    source, hours = np.random.default_rng(0), pd.date_range("2024-01-01", periods=400, freq="h")
    frame = pd.DataFrame({"ds": hours, "y": source.normal(20, 1, 400), "temp": source.normal(size=400), "wind": "N"})
    plans = []
    for name, temp, wind in (("a", 0.0, "N"), ("b", -77.0, "S")):
        frame.loc[frame.index[-60:], ["temp", "wind"]] = [temp, wind]
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
        changes = ["data.horizon=4", "model.hidden=4", "data.covariates=all", "data.test=0.15"]
        recipe = recipes.override(recipes.load("forecast"), changes)
        plans.append(Forecast(recipe, str(tmp_path / f"{name}.csv"), CPU).plan)
    one, two = plans
    assert one.panel.columns == two.panel.columns
    assert one.arrays.keys() == two.arrays.keys()
    for key in one.arrays:
        np.testing.assert_array_equal(one.arrays[key], two.arrays[key])
