import json
import re
import shutil

import pytest
from typer.testing import CliRunner

from bayesrnn.errors import UserError
from bayesrnn.lab.cli import app
from bayesrnn.lab.engine.launch import _request, launch
from bayesrnn.lab.engine.progress import duration

TINY = ["hidden=8", "batch_size=4", "window=6", "epochs=3", "decay_after=1"]
CHANGED = {"model.hidden": 8, "data.batch_size": 4, "data.window": 6, "train.epochs": 3, "train.decay_after": 1}


class Told:
    """A reporter that ends the run after some epochs."""

    def __init__(self, stop=None):
        self.said, self.stop, self.lines = [], stop, []

    def say(self, text):
        self.said.append(text)

    def step(self, progress):
        pass

    def epoch(self, line, epochs):
        self.lines.append(line)
        if len(self.lines) == self.stop:
            raise InterruptedError


@pytest.fixture(scope="module")
def runs(text_folder, tmp_path_factory):
    options = {"data": str(text_folder), "overrides": TINY, "seed": 4, "device": "cpu", "command": "bayesrnn first"}
    out = tmp_path_factory.mktemp("runs")
    whole = launch("variational-tied-medium", out=out / "whole", reporter=Told(), **options)
    with pytest.raises(InterruptedError):
        launch("variational-tied-medium", out=out / "run", reporter=Told(stop=1), **options)
    return out / "run", whole


@pytest.fixture
def stopped(runs, tmp_path):
    """A run that was stopped after its first epoch, and the record of the same run when it is not."""
    return shutil.copytree(runs[0], tmp_path / "run"), runs[1]


def invoke(*words):
    return CliRunner().invoke(app, list(map(str, words)))


@pytest.mark.parametrize("how", ["folder", "recipe", "repeated"])
def test_resume_alone_continues_with_the_runs_own_settings(stopped, text_folder, how):
    """The recipe's own values (39 epochs, 650 units, seed 1) are not the run's."""
    run, whole = stopped
    words = {
        "folder": ["--resume", run],
        "recipe": ["variational-tied-medium", "--out", run, "--resume"],
        "repeated": ["variational-tied-medium", *TINY, "--out", run, "--resume", "--seed", 4, "--data", text_folder],
    }[how]
    result = invoke("train", *words, "--device", "cpu")
    assert result.exit_code == 0, result.output
    record = json.loads((run / "record.json").read_text())
    assert record["curves"] == whole.curves
    assert (record["recipe"], record["seed"], record["data"]) == ("variational-tied-medium", 4, text_folder.name)
    assert (record["command"], record["overrides"]) == ("bayesrnn first", TINY)
    told = "Continued with the run's own settings: model.hidden=8 (recipe: 650)"
    assert (told in result.stdout) is (how != "folder")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "train.epochs=5"], "was started with train.epochs=3, not 5; resume with the same, or start over"),
        (["epochs=5"], "was started with train.epochs=3, not 5"),
        (["--seed", "5"], "was started with seed 4, not 5."),
        (["--set", "train.epoch=5"], "There is no key train.epoch; did you mean train.epochs?"),
    ],
)
def test_what_contradicts_the_run_is_refused_by_name(stopped, words, message):
    run, _ = stopped
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    result = invoke("train", "variational-tied-medium", *words, "--out", run, "--resume", "--device", "cpu")
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


def test_changed_settings_of_a_run_folder_of_earlier_versions(stopped):
    run, _ = stopped
    config = json.loads((run / "config.json").read_text())
    del config["start"]
    found = _request(None, [], None, None, config, run).overrides
    assert found == [f"{key}={value}" for key, value in CHANGED.items()]


def test_another_recipe_is_refused_before_its_data_is_read(stopped):
    run, _ = stopped
    result = invoke("train", "digits-bbb-400", "--data", "/nowhere", "--out", run, "--resume")
    assert result.exit_code == 2
    assert "was started with recipe variational-tied-medium, not digits-bbb-400." in result.stderr


def test_data_that_has_moved(stopped, text_folder, tmp_path):
    run, whole = stopped
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "data": str(tmp_path / "gone")}))
    with pytest.raises(UserError, match=r"was started on .*gone: .* Name the data with --data\."):
        launch(None, out=run, reporter=Told(), resume=True, device="cpu")
    (run / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    moved = shutil.copytree(text_folder, tmp_path / "moved")
    record = launch(None, out=run, reporter=Told(), data=str(moved), resume=True, device="cpu")
    assert record.curves == whole.curves


def test_folders_without_a_run(tmp_path):
    for words, message in (
        (["--resume", tmp_path], f"{tmp_path} holds no run to resume"),
        (["--resume", tmp_path, "--out", "b"], f"{tmp_path} is a folder, and --out names another"),
        ([tmp_path], f"{tmp_path} is a folder; to continue the run in it: bayesrnn train {tmp_path} --resume"),
    ):
        result = invoke("train", *words)
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
        assert message in result.stderr


@pytest.mark.parametrize("damage", [None, b"\xff{", b"{"])
def test_a_lost_record_is_made_again(runs, text_folder, tmp_path, damage):
    run = shutil.copytree(runs[0].parent / "whole", tmp_path / "run")
    before = json.loads((run / "record.json").read_text())
    (run / "record.json").unlink() if damage is None else (run / "record.json").write_bytes(damage)
    refused = invoke("train", "variational-tied-medium", "--out", run)
    assert "holds a run whose record.json is missing or damaged; make the record again with --resume" in refused.stderr
    measured = invoke("evaluate", run, "--samples", 0)
    assert f"To make it again: bayesrnn train {run} --resume" in measured.stdout.replace("\n", " ")
    result = invoke("train", run, "--resume", "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert "All epochs are done." in result.stdout
    after = json.loads((run / "record.json").read_text())
    changed = {key for key in before if before[key] != after.get(key)}
    assert changed <= {"started"}
    assert not (run / ".unfinished").exists()


def test_a_damaged_description_is_called_damaged(stopped):
    run, _ = stopped
    (run / "config.json").write_bytes(b"\xff\xfe")
    for words in (["train", run, "--resume"], ["evaluate", run]):
        said = invoke(*words).stderr
        assert "damaged; restore it from a backup" in said
        assert said.count("\n") == 1


def test_the_first_lines_say_how_long_it_will_take(text_folder, tmp_path):
    """Once per start, before the first epoch ends; a resumed run counts what is left."""
    told, pattern = Told(stop=2), r"3 epochs of \d+ steps, \S+ s each on this cpu: about .* left, with validation\."
    options = {"data": str(text_folder), "overrides": TINY, "device": "cpu"}
    with pytest.raises(InterruptedError):
        launch("variational-tied-medium", out=tmp_path / "run", reporter=told, **options)
    assert [bool(re.fullmatch(pattern, text)) for text in told.said] == [False, False, True]
    told = Told()
    launch("variational-tied-medium", out=tmp_path / "run", reporter=told, resume=True, **options)
    assert sum(bool(re.fullmatch(pattern, text)) for text in told.said) == 1
    told = Told()
    options["overrides"] = [*TINY, "patience=2"]
    launch("variational-tied-medium", out=tmp_path / "more", reporter=told, **options)
    assert any("at most about" in text for text in told.said)


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.2, "1 s"), (99, "99 s"), (100, "2 min"), (5000, "83 min"), (7800, "2 h 10 min")]
)
def test_durations(seconds, words):
    assert duration(seconds) == words
