import json
import sys
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from bayesrnn.errors import UserError
from bayesrnn.lab.cli import app
from bayesrnn.lab.engine.callbacks import LOGS, Callback, TensorBoard, WandB, logs
from bayesrnn.lab.engine.launch import launch
from bayesrnn.lab.engine.progress import Silent

STEPS = 7  # of an epoch: 50 examples in batches of 8


class Told(Callback):
    def __init__(self):
        self.calls = []

    def on_start(self, start):
        self.calls.append(("start", start.step, start.config["seed"]))

    def on_step(self, step, values):
        self.calls.append(("step", step, sorted(values)))

    def on_epoch(self, step, values):
        self.calls.append(("epoch", step, values["epoch"]))

    def on_end(self, record):
        self.calls.append(("end", record and record.metrics["best_epoch"]))


class Stopping(Callback):
    def __init__(self, step):
        self.at = step

    def on_epoch(self, step, values):
        if step == self.at:
            raise InterruptedError


def train(recipe, out, *callbacks, epochs=3, **kwargs):
    overrides = [f"epochs={epochs}"]
    return launch(
        str(recipe), out=out, reporter=Silent(), overrides=overrides, device="cpu", callbacks=callbacks, **kwargs
    )


def lines(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_a_callback_hears_every_epoch_and_the_end_also_of_a_run_that_stops(line_recipe, tmp_path):
    out, first, second = tmp_path / "r", Told(), Told()
    with pytest.raises(InterruptedError):
        train(line_recipe, out, first, Stopping(2 * STEPS))
    record = train(line_recipe, out, second, resume=True)
    assert first.calls[0] == ("start", 0, 1)
    assert [call[1:] for call in first.calls if call[0] == "epoch"] == [(7, 1), (14, 2)]
    assert first.calls[-1] == ("end", None)
    assert second.calls[0] == ("start", 14, 1)
    assert [call[1:] for call in second.calls if call[0] == "epoch"] == [(21, 3)]
    assert second.calls[-1] == ("end", record.metrics["best_epoch"])
    steps = [call[1] for call in (*first.calls, *second.calls) if call[0] == "step"]
    assert {7, 14, 21} <= set(steps)
    assert steps == sorted(steps)


def test_a_resumed_run_logs_as_before(line_recipe, tmp_path, monkeypatch):
    told = Told()
    monkeypatch.setitem(LOGS, "told", lambda: told)
    with pytest.raises(InterruptedError):
        train(line_recipe, tmp_path / "r", Stopping(2 * STEPS), log=["told"])
    train(line_recipe, tmp_path / "r", resume=True)
    assert [call[1] for call in told.calls if call[0] == "start"] == [0, 14]


def test_a_callback_that_cannot_start_ends_those_that_have(line_recipe, tmp_path):
    class Refusing(Callback):
        def on_start(self, start):
            raise UserError("no network.")

    told = Told()
    with pytest.raises(UserError, match="no network"):
        train(line_recipe, tmp_path / "r", told, Refusing())
    assert [call[0] for call in told.calls] == ["start", "end"]


def test_tensorboards_reader_finds_the_values_of_metrics_jsonl_also_after_resuming(line_recipe, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out = tmp_path / "r"
    train(line_recipe, out, TensorBoard(), epochs=5)  # replaced by the run below
    with pytest.raises(InterruptedError):
        train(line_recipe, out, TensorBoard(), Stopping(2 * STEPS), force=True)
    record = train(line_recipe, out, TensorBoard(), resume=True)
    read = EventAccumulator(str(out / "tensorboard"))
    read.Reload()

    def values(tag):
        return [(event.step, event.value) for event in read.Scalars(tag)]

    for tag, key in (("valid/rmse", "valid_rmse"), ("train/loss", "loss"), ("train/lr", "lr")):
        assert values(tag) == [(line["epoch"] * STEPS, pytest.approx(line[key], rel=1e-6)) for line in lines(out)]
    assert {21} == {step for step, _ in values("final/valid_rmse")}
    assert values("final/valid_rmse")[0][1] == pytest.approx(record.metrics["valid_rmse"], rel=1e-6)
    assert {7, 14, 21} <= {step for step, _ in values("step/train_nll")}


def test_weights_and_biases_receives_the_same_under_one_id(line_recipe, tmp_path, monkeypatch):
    runs = []

    def init(**about):
        run = SimpleNamespace(about=about, logged=[], summary={}, ended=None)
        run.define_metric = lambda name, step_metric: runs.append(run)
        run.log = run.logged.append
        run.finish = lambda exit_code: vars(run).update(ended=exit_code)
        return run

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    out = tmp_path / "r"
    with pytest.raises(InterruptedError):
        train(line_recipe, out, WandB(), Stopping(2 * STEPS))
    record = train(line_recipe, out, WandB(), resume=True)
    train(line_recipe, out, WandB(), force=True)
    first, second, third = runs
    assert first.about["id"] == second.about["id"] != third.about["id"]
    assert first.about["config"] == json.loads((out / "config.json").read_text())["settings"]
    assert [run.ended for run in runs] == [1, 0, 0]
    found = [line for run in (first, second) for line in run.logged if "valid/rmse" in line]
    assert [(line["step"], line["valid/rmse"]) for line in found] == [
        (line["epoch"] * STEPS, line["valid_rmse"]) for line in lines(out)
    ]
    assert second.summary["final/valid_rmse"] == record.metrics["valid_rmse"]
    assert first.summary == {}


def test_the_option_log_of_train_is_a_callback(line_recipe, tmp_path, monkeypatch):
    told = Told()
    monkeypatch.setitem(LOGS, "told", lambda: told)
    result = CliRunner().invoke(
        app, ["train", line_recipe, "--out", str(tmp_path / "r"), "--device", "cpu", "--log", "told"]
    )
    assert result.exit_code == 0, result.output
    assert (told.calls[0], told.calls[-1][0]) == (("start", 0, 1), "end")


def test_a_log_that_is_unknown_or_not_installed_is_one_line(monkeypatch):
    with pytest.raises(UserError, match="--log aim is unknown; choose tensorboard or wandb"):
        logs(["tensorboard", "aim"])
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match=r"wandb.*pip install 'bayesrnn\[wandb\]'"):
        logs(["wandb"])
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UserError, match=r"tensorboard.*pip install 'bayesrnn\[tensorboard\]'"):
        logs(["tensorboard"])
