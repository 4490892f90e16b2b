import itertools
import json
import shutil
import signal
import subprocess
import sys
import time
from contextlib import nullcontext

import pytest
import torch

from bayesrnn.errors import UserError
from bayesrnn.lab.engine import sweep as module
from bayesrnn.lab.engine.sweep import sweep
from bayesrnn.lab.tasks.base import TASKS

optuna = pytest.importorskip("optuna")


@pytest.fixture
def swept(line_recipe, tmp_path):
    """A sweep of the line task, and what it said."""

    def made(out="out", **options):
        said = []
        record = sweep(line_recipe, out=tmp_path / out, say=said.append, device="cpu", **options)
        return record, said

    return made


GRID = ["model.hidden=2,5", "train.lr=1e-3,0.01"]


def points(record):
    return sorted((row["settings"]["model.hidden"], row["settings"]["train.lr"]) for row in record["trials"])


def figures(record):
    return {tuple(row["settings"].values()): row["value"] for row in record["trials"]}


@pytest.mark.slow
def test_a_grid_tries_every_point_and_keeps_the_best_validation_figure(swept, tmp_path):
    record, said = swept(grid=GRID)
    assert points(record) == sorted(itertools.product((2, 5), (0.001, 0.01)))
    assert json.loads((tmp_path / "out" / "sweep.json").read_text()) == record
    values = [row["value"] for row in record["trials"]]
    assert values == sorted(values)
    assert record["best"] == record["trials"][0]
    assert len(said) == 8
    for row in record["trials"]:
        run = json.loads((tmp_path / "out" / row["folder"] / "record.json").read_text())
        assert row["value"] == min(run["curves"]["valid_rmse"])
        assert run["settings"]["model"]["hidden"] == row["settings"]["model.hidden"]
        assert run["seed"] == record["seed"] == 1
    assert swept(grid=GRID)[1] == []  # there is nothing left to do
    assert (record["metric"], record["kind"], record["task"]) == ("valid_rmse", "grid", "line")


def test_the_test_data_is_never_looked_at(swept, monkeypatch):
    def final(self):
        raise AssertionError("measured at the end")

    monkeypatch.setattr(TASKS["line"], "final", final)
    record, _ = swept(grid=["hidden=2,3"])
    assert not [key for row in record["trials"] for key in row if "test" in key]


@pytest.mark.slow
def test_a_search_is_the_same_for_a_seed(swept):
    options = {"search": ["train.lr=1e-4:1e-1:log", "hidden=2:6"], "trials": 3}
    first, second, third = swept("a", **options)[0], swept("b", **options)[0], swept("c", seed=2, **options)[0]
    assert len(first["trials"]) == 3
    assert figures(first) == figures(second)
    assert figures(first).keys().isdisjoint(figures(third))
    for row in first["trials"]:
        assert 1e-4 <= row["settings"]["train.lr"] <= 1e-1
        assert row["settings"]["model.hidden"] in range(2, 7)
    assert len({row["settings"]["train.lr"] for row in first["trials"]}) == 3
    more, said = swept("a", **{**options, "trials": 4})
    assert len(more["trials"]) == 4
    assert len(said) == 2  # one more run
    assert figures(first).items() <= figures(more).items()


def test_a_run_that_diverges_is_a_result(swept):
    record, said = swept(grid=["lr=0.001,1e30"], overrides=["clip=null"])
    good, bad = record["trials"]
    assert (good["state"], bad["state"]) == ("complete", "fail")
    assert "The loss is not a number" in bad["error"]
    assert any("The loss is not a number" in text for text in said)
    assert record["best"] == good
    assert swept(grid=["lr=0.001,1e30"], overrides=["clip=null"])[1] == []  # and is not tried again


@pytest.mark.slow
def test_hopeless_runs_are_given_up(swept):
    # Five good rates, then one that learns nothing: behind the median from the first epoch on.
    grid = ["lr=0.01,0.011,0.012,0.013,0.014,1e-9"]
    pruned, _ = swept("pruned", grid=grid, prune=True)
    by_rate = {row["settings"]["train.lr"]: row for row in pruned["trials"]}
    hopeless = by_rate.pop(1e-9)
    assert (hopeless["state"], hopeless["epochs"]) == ("pruned", 1)
    assert pruned["best"]["value"] == min(row["value"] for row in by_rate.values() if row["state"] == "complete")
    alone, _ = swept("alone", grid=["lr=1e-9"], prune=True)  # with nothing to compare with it runs to the end
    assert (alone["trials"][0]["state"], alone["trials"][0]["epochs"]) == ("complete", 3)


@pytest.mark.slow
def test_an_interrupted_run_goes_on(swept, line_recipe, monkeypatch, tmp_path):
    expected, _ = swept("whole", grid=GRID)
    real, seen = module._TrialReporter.epoch, []

    def epoch(self, line, epochs):
        real(self, line, epochs)
        seen.append(line["epoch"])
        if len(seen) == 5:  # in the second epoch of the second run
            raise KeyboardInterrupt

    monkeypatch.setattr(module._TrialReporter, "epoch", epoch)
    with pytest.raises(KeyboardInterrupt):
        swept("stopped", grid=GRID)
    record, said = swept("stopped", grid=GRID)
    assert figures(record) == figures(expected)
    assert len(said) == 6  # three runs, one of them for the second time
    assert seen[5:].count(3) == 3
    assert len(seen) == 12  # three epochs of four runs: none was run twice
    again = next(row for row in record["trials"] if row["folder"] == "trials/0001" and row["state"] == "complete")
    assert again["epochs"] == 3


def test_a_finished_run_that_was_not_told_of_is_not_run_again(swept, monkeypatch):
    real = module.launch

    def launch(*args, **kwargs):
        real(*args, **kwargs)
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "launch", launch)
    with pytest.raises(KeyboardInterrupt):
        swept(grid=["hidden=2"])
    monkeypatch.setattr(module, "launch", None)
    record, _ = swept(grid=["hidden=2"])
    assert record["best"]["epochs"] == 3


@pytest.mark.slow
def test_processes_share_the_work_and_a_killed_one_is_replaced(text_folder, tmp_path):
    """Two commands on one folder; one is killed with a run under way. Every point is there once, as if undisturbed."""
    options = ["hidden=8", "batch_size=8", "window=12", "epochs=2", "save_every=5"]
    grid = ["model.step_dropout=0,0.2,0.4"]
    command = [sys.executable, "-m", "bayesrnn", "sweep", "small-plain", *options, "--data", str(text_folder)]
    command += ["--device", "cpu", "--grid", *grid, "--out", str(tmp_path / "shared")]

    def start():
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    one, two = start(), start()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and one.poll() is None:
        if list((tmp_path / "shared").glob("trials/*/last.safetensors")):
            break
        time.sleep(0.005)
    one.send_signal(signal.SIGKILL)
    assert one.wait() == -signal.SIGKILL, "it was over before it could be killed"
    assert two.wait(60) == 0
    common = {"say": lambda text: None, "grid": grid, "data": str(text_folder), "overrides": options, "device": "cpu"}
    record = sweep("small-plain", out=tmp_path / "shared", **common)
    alone = sweep("small-plain", out=tmp_path / "alone", **common)
    assert [row["state"] for row in record["trials"]] == ["complete"] * 3
    assert figures(record) == figures(alone)
    assert len(figures(record)) == 3


def test_what_is_asked_for_must_fit(swept, tmp_path, monkeypatch):
    with pytest.raises(UserError, match="either --grid or --search"):
        swept()
    with pytest.raises(UserError, match="either --grid or --search"):
        swept(grid=["hidden=2"], search=["lr=1:2"])
    with pytest.raises(UserError, match="needs --trials"):
        swept(search=["lr=1:2"])
    with pytest.raises(UserError, match="--trials is for a search; a grid runs all its points"):
        swept(grid=["hidden=2"], trials=1)
    swept(grid=["hidden=2"])
    with pytest.raises(
        UserError, match=r"out holds a sweep that was started with other values to try; choose another --o"
    ):
        swept(grid=["hidden=3"])
    with pytest.raises(UserError, match=r"was started with other settings \(train\.epochs=\d+, not 2\); choose"):
        swept(grid=["hidden=2"], overrides=["epochs=2"])
    with pytest.raises(UserError, match=r"was started with other settings \(train\.clip=5\.0, not null\); choose"):
        swept(grid=["hidden=2"], overrides=["clip=null"])
    with pytest.raises(UserError, match="was started as a grid, not as a search; choose"):
        swept(search=["lr=1:2"], trials=1)
    with pytest.raises(UserError, match="was started with another seed; choose"):
        swept(grid=["hidden=2"], seed=2)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file/trials cannot be made \(Not a directory\); choose another --out"):
        swept("file", grid=["hidden=2"])
    with pytest.raises(UserError, match="repeats a setting or value"):
        swept("double", grid=["lr=1,0.5,1.0"])
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match="--search and --prune need optuna; pip install"):
        swept("searched", search=["lr=1:2"], trials=1)
    assert swept(grid=["hidden=2"])[0]["best"] is not None  # a grid needs no optuna


def test_data_that_are_wrong_leave_no_sweep_behind(text_folder, tmp_path):
    """With the right ones the same command begins; a sweep that has a run is kept, and refuses other data."""
    common = {"say": lambda text: None, "grid": ["hidden=2,3"], "device": "cpu"}
    common["overrides"] = ["batch_size=4", "window=6", "epochs=1"]
    for data in ("nowhere", str(text_folder)):
        with pytest.raises(UserError, match="nowhere is not a folder") if data == "nowhere" else nullcontext():
            record = sweep("small-plain", out=tmp_path, data=data, **common)
    assert [row["state"] for row in record["trials"]] == ["complete"] * 2
    (tmp_path / "alt").symlink_to(text_folder)
    with pytest.raises(UserError, match="was started with other data; choose another"):
        sweep("small-plain", out=tmp_path, data=str(tmp_path / "alt"), **common)


def test_a_device_that_is_full_is_a_result(swept, monkeypatch):
    real = module.launch

    def launch(*args, overrides, **kwargs):
        if "model.hidden=5" in overrides:
            raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate")
        return real(*args, overrides=overrides, **kwargs)

    monkeypatch.setattr(module, "launch", launch)
    record, _ = swept(grid=["hidden=2,5"])
    assert record["trials"][1]["error"] == "CUDA out of memory."


def test_a_run_that_another_process_writes_is_left_to_it(swept, tmp_path, monkeypatch):
    """The others are run; the table says that one is running."""
    from bayesrnn.lab.runs.folder import RunFolder

    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(module, "launch", stop)
        swept(grid=["lr=0.01,0.02"])
    with RunFolder(tmp_path / "out" / "trials" / "0000", files=[], force=True):
        record, _ = swept(grid=["lr=0.01,0.02"])
    assert [(row["state"], row["folder"]) for row in record["trials"]] == [
        ("complete", "trials/0001"),
        ("running", "trials/0000"),
    ]
    assert {row["state"] for row in swept(grid=["lr=0.01,0.02"])[0]["trials"]} == {"complete"}


def test_a_folder_is_for_one_sweep(swept, tmp_path):
    """The runs of one are not taken for another's, and its table stays."""
    swept(grid=["hidden=2"])
    table = (tmp_path / "out" / "sweep.json").read_bytes()
    for options in ({"grid": ["hidden=3"]}, {"grid": ["hidden=2"], "seed": 2}):
        with pytest.raises(UserError, match=r"out holds a sweep that was started with .*; choose another --out\.$"):
            swept(**options)
    assert (tmp_path / "out" / "sweep.json").read_bytes() == table
    (tmp_path / "out" / "sweep.json").write_text(json.dumps({**json.loads(table), "settings": [1]}))
    with pytest.raises(UserError, match="with other settings"):
        swept(grid=["hidden=2"])
    (tmp_path / "out" / "sweep.json").write_text("{}")
    with pytest.raises(UserError, match=r"sweep\.json is not a table of bayesrnn sweep and will not be replaced"):
        swept(grid=["hidden=2"])


def test_a_folder_belongs_to_a_sweep_before_its_first_run_has_ended(swept, monkeypatch):
    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(module, "launch", stop)
        swept(grid=["hidden=2"])
    with pytest.raises(UserError, match="out holds a sweep that was started with other values to try"):
        swept(grid=["hidden=3"])
    assert swept(grid=["hidden=2"])[0]["best"]["epochs"] == 3


def test_a_run_without_its_trial_is_not_taken_for_one(swept, tmp_path):
    swept(grid=["hidden=2"])
    out = tmp_path / "out"
    for path in (out / "sweep.json", *out.glob("trials/*/trial.json")):
        path.unlink()
    with pytest.raises(UserError) as refused:
        swept(grid=["hidden=2"])
    assert str(refused.value) == f"{out}/trials/0000 holds a run of no sweep; choose another --out."
    assert not (out / "sweep.json").exists()


@pytest.fixture
def texts(text_folder, tmp_path):
    """Two texts of one name and vocabulary."""
    for name, end in (("one", ""), ("two", "w0 w0 w1 w1\n" * 40)):
        folder = tmp_path / name / "text"
        folder.mkdir(parents=True)
        for split in ("train", "valid", "test"):
            (folder / f"{split}.txt").write_text((text_folder / f"{split}.txt").read_text() + end)
    return tmp_path / "one" / "text", tmp_path / "two" / "text"


def test_two_texts_of_one_name_are_two(texts, tmp_path):
    one, two = map(str, texts)
    common = {"say": lambda text: None, "search": ["lr=0.1:1"], "device": "cpu"}
    common["overrides"] = ["hidden=4", "batch_size=4", "window=10", "epochs=1"]
    out = tmp_path / "out"
    first = sweep("small-plain", out=out, data=one, trials=1, **common)
    with pytest.raises(UserError, match=r"out holds a sweep .* with data of the same name and other content; choose"):
        sweep("small-plain", out=out, data=two, trials=2, **common)
    (tmp_path / "moved").mkdir()
    moved = shutil.copytree(one, tmp_path / "moved" / "text")
    assert sweep("small-plain", out=out, data=str(moved), trials=1, **common)["best"] == first["best"]
    table = json.loads((out / "sweep.json").read_text())
    del table["data_digest"]  # as earlier versions wrote it
    (out / "sweep.json").write_text(json.dumps(table))
    assert len(sweep("small-plain", out=out, data=one, trials=2, **common)["trials"]) == 2


def test_damaged_checkpoints_name_the_folder_to_remove(swept, tmp_path, monkeypatch):
    """The way out of `bayesrnn train`, --force, is none of a sweep."""

    def stop(self, line, epochs):
        if line["epoch"] == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(module._TrialReporter, "epoch", stop)
        swept(grid=["hidden=2"])
    folder = tmp_path / "out" / "trials" / "0000"
    for path in folder.glob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"A sweep has no --force: remove .*out/trials/0000, and start the sweep again"):
        swept(grid=["hidden=2"])
    shutil.rmtree(folder)
    assert swept(grid=["hidden=2"])[0]["best"]["epochs"] == 3
