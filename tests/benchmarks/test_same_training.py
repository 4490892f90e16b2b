"""benchmarks/same_training.py: pairs of runs that differ in the recurrent kernel's path."""

import importlib
import math
import random
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from bayesrnn import kernels
from bayesrnn.errors import UserError
from bayesrnn.lab import recipes
from bayesrnn.lab.engine.loop import Run
from bayesrnn.lab.engine.progress import Silent
from bayesrnn.lab.registry import task_class
from bayesrnn.lab.runs.record import read

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
SMALL = ["hidden=8", "batch_size=4", "window=10"]
no_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
on_gpu = pytest.param("cuda", marks=[pytest.mark.gpu, no_gpu])


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module("same_training")
    for name in ("same_training", "comparison"):
        sys.modules.pop(name, None)


@pytest.fixture
def words(tmp_path):
    folder, choose = tmp_path / "text", random.Random(0)
    folder.mkdir()
    for split, lines in (("train", 60), ("valid", 20), ("test", 20)):
        rows = [" ".join(f"w{choose.randrange(30)}" for _ in range(9)) for _ in range(lines)]
        (folder / f"{split}.txt").write_text("\n".join(rows) + "\n")
    return [*SMALL, "--data", str(folder), "--epochs", "3", "--seeds", "2", "--out", str(tmp_path / "out")]


@pytest.mark.parametrize("device", ["cpu", on_gpu])
@pytest.mark.parametrize("name", ["brnn-medium", "variational-tied-medium"])
def test_pairs_have_the_same_noise(script, words, name, device):
    """Without learning, rounding does not add up: what is left of a difference would be the noise."""
    sizes = [*SMALL, "model.init=1", "train.lr=1e-12"]
    recipe = recipes.override(recipes.load(name), sizes)
    task = task_class(recipe.task)(recipe, words[words.index("--data") + 1], torch.device(device))
    arms = [script.Arm(task, [1, 2], path, branches=path == "cells") for path in script.PATHS[device]]
    for epoch in (1, 2):
        for arm in arms:
            arm.epoch(epoch)
    first, second = (torch.tensor(arm.train) for arm in arms)
    assert torch.allclose(first, second, rtol=1e-3, atol=0)
    assert (first[:, 0] / first[:, 1] - 1).abs().min() > 3e-3  # as other noise does


@pytest.mark.parametrize("device", ["cpu", on_gpu])
@pytest.mark.parametrize("case", ["brnn-200", "variational-200"])
def test_pairs_and_their_record(script, words, tmp_path, capsys, case, device):
    script.main([*words, "--only", case, "--device", device])
    found, (first, second) = read(tmp_path / f"out/{case}.json"), script.PATHS[device]
    assert found.kernel == f"{first} over {second}"
    assert found.metrics["pairs"] == 2
    runs = found.extra["runs"]
    for split in ("valid", "train"):
        each = zip(runs[first][split], runs[second][split], strict=True)
        ends = [100 * (a[-1] / b[-1] - 1) for a, b in each]
        assert found.metrics[f"{split}_each"] == pytest.approx(ends)
        assert all(abs(difference) < 0.5 for difference in ends)  # the two paths compute the same
        one, other = runs[first][split]
        assert abs(one[-1] / other[-1] - 1) > 1e-4  # seeds differ
        assert len(found.curves[f"{split}_percent"]) == 3
    assert f"{case}: epoch 3/3, validation {first}" in capsys.readouterr().out


def test_an_arm_trains_as_the_engine_does(script, words, tmp_path):
    """One run by itself, with the engine's noise: the same losses, on the forced path."""
    folder = words[words.index("--data") + 1]
    settings = [*SMALL, *script.squeezed("variational-tied-medium", 3)]
    recipe = recipes.override(recipes.load("variational-tied-medium"), settings)
    task = task_class(recipe.task)(recipe, folder, torch.device("cpu"))
    arm = script.Arm(task, [1], "reference", branches=False)
    run = Run(task_class(recipe.task)(recipe, folder, torch.device("cpu")), seed=1, folder=None, reporter=Silent())
    torch.set_rng_state(arm._noise[0])
    for epoch in (1, 2):
        arm.epoch(epoch)
    torch.manual_seed(0)
    totals = []
    with kernels.force("reference"):
        for epoch in (1, 2):
            run.step.lr.fill_(script.schedule.rate(recipe.train, epoch))
            run.step.start_epoch()
            for _ in range(run.task.steps):
                run.step()
            totals.append(run.task.training(run.step.read_totals())["train_perplexity"])
    assert arm.train[0] == totals


def test_the_interval_is_student_s(script):
    def arm(values):
        return SimpleNamespace(valid=[[2 * v, v] for v in values], train=[[2 * v, v] for v in values])

    arms = [arm([101.0, 102.0, 103.0, 104.0, math.inf]), arm([100.0] * 5)]
    found = script.differences(arms)
    assert (found["pairs"], found["diverged"]) == (4, 1)
    for split in ("valid", "train"):
        assert found[f"{split}_percent"] == pytest.approx(2.5)
        assert found[f"{split}_high"] - 2.5 == pytest.approx(3.182 * 1.290994 / 2, rel=1e-4)
        assert found[f"{split}_low"] == pytest.approx(5 - found[f"{split}_high"])
    assert "valid_low" not in script.differences([arm([101.0]), arm([100.0])])
    for free, wanted in ((7, 2.3646), (15, 2.1314), (17, 2.1098), (40, 2.0211)):
        assert script._quantile(free) == pytest.approx(wanted, rel=5e-4)


def test_what_is_there_stays_there(script, words, tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "variational-200.json").write_text("mine")
    with pytest.raises(UserError, match=r"variational-200\.json exists already; replace it with --force"):
        script.main([*words, "--device", "cpu"])
    assert [path.name for path in folder.iterdir()] == ["variational-200.json"]  # refused before any training
    place = words.index("--out") + 1
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match=r"file cannot be made .*; choose another --out"):
        script.main([*words[:place], str(tmp_path / "file"), *words[place + 1 :]])


@pytest.mark.parametrize("setting", ["data.vary=3", "data.shift=true", "train.epochs=9", "posterior.kind=none"])
def test_settings_that_would_not_be_compared(script, words, setting):
    with pytest.raises(UserError, match=f"{setting.partition('=')[0]} is not to be changed here"):
        script.main([*words, "--only", "brnn-200", "--device", "cpu", setting])


def test_runs_that_all_diverge_are_no_record(script, words, tmp_path):
    words = [*words, "--only", "variational-200", "--device", "cpu", "model.init=1e38"]
    with pytest.raises(UserError, match="a run of every pair diverged"):
        script.main(words)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--epochs", "0"], "--epochs is 0; it must be at least 1"),
        (["--seeds", "-1"], "--seeds is -1; it must be at least 1"),
        (["--only", "brnn-100"], "invalid choice: 'brnn-100'"),
    ],
)
def test_wrong_options(script, words, message, capsys):
    with pytest.raises(SystemExit):
        script.main(["--data", "ptb", *words])
    assert message in capsys.readouterr().err
