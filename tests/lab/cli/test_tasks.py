"""Commands on runs of any task."""

import json

import pytest
from typer.testing import CliRunner

from bayesrnn.lab.cli import app
from bayesrnn.lab.cli.recipes import heading
from bayesrnn.lab.console.lines import in_words
from bayesrnn.lab.tasks.base import TASKS


def invoke(*args):
    return CliRunner().invoke(app, [str(a) for a in args])


@pytest.fixture
def run(line_recipe, tmp_path):
    result = invoke("train", line_recipe, "--out", tmp_path / "run", "--device", "cpu", "lr=0.01", "epochs=1")
    assert result.exit_code == 0, result.output
    assert "epoch 1/1: lr 0.01, -log p " in result.stdout
    assert "points/s" in result.stdout
    assert "best epoch 1, RMSE " in result.stdout
    assert result.stdout.splitlines()[-1].count("validation") <= 3  # the rest is in the record
    return tmp_path / "run"


def test_options_are_the_tasks_own(run):
    result = invoke("evaluate", run, "--beam", 5, "--note=a b", "--fast", "--device", "cpu")
    assert result.exit_code == 0, result.output
    found = json.loads((run / "evaluation.json").read_text())
    assert (found["beam"], found["note"], found["fast"]) == (5, "a b", True)
    assert json.loads((run / "record.json").read_text())["metrics"]["beam"] == 5
    assert invoke("evaluate", run, "--fast=false", "--samples", 3).exit_code == 0
    found = json.loads((run / "evaluation.json").read_text())
    assert (found["beam"], found["note"], found["fast"]) == (3, None, False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--dynamic"],
            "--dynamic is not an option of line runs; they have --samples, --seed, --beam, --note, --fast.",
        ),
        (["--reversed"], "--reversed is not an option of line runs"),
        (["--dynamic-lr", "0.1"], "--dynamic-lr is not an option of line runs"),
        (["--bean", "3"], "--bean is not an option of line runs"),
        (["--beam", "x"], "--beam must be a whole number, got 'x'."),
        (["--beam"], "--beam must be a whole number, got ''."),
        (
            ["--samples", "100001"],
            "--samples is 100001; it must be at most 100,000: each draw is a pass over all the data.",
        ),
        (["--fast=1"], "--fast must be true or false, got '1'."),
        (["more"], "more is one word too many; name one run folder, then options."),
    ],
)
def test_options_of_other_tasks_are_refused(run, options, message):
    result = invoke("evaluate", run, *options)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (run / "evaluation.json").exists()


@pytest.mark.parametrize(
    ("arguments", "whose"),
    [
        (["predict", "RUN", "no/such/file.txt"], "language models"),
        (["prune", "RUN", "--device", "tpu"], "language models"),
        (["forecast", "RUN", "--level", "95", "--device", "tpu"], "forecasts"),
        (["caption", "RUN"], "captioning runs"),
    ],
)
def test_the_wrong_kind_of_run_is_said_before_anything_else(run, arguments, whose):
    (run / "best.safetensors").unlink()  # nor is it opened
    result = invoke(*(run if word == "RUN" else word for word in arguments))
    assert result.exit_code == 2
    said = f"bayesrnn: {run} is a line run; this command is for {whose}. For this run: bayesrnn evaluate {run}\n"
    assert result.stderr == said


def test_the_command_for_a_run_is_named(text_folder, tmp_path):
    tiny = ["hidden=4", "batch_size=2", "window=3", "epochs=1"]
    result = invoke("train", "small-plain", "--data", text_folder, "--out", tmp_path / "r", "--device", "cpu", *tiny)
    assert result.exit_code == 0, result.output
    for command in ("caption", "forecast"):
        assert f"is a language run; this command is for {command}" in (said := invoke(command, tmp_path / "r").stderr)
        assert said.endswith(f"For this run: bayesrnn predict {tmp_path / 'r'}\n")


def test_options_about_draws_of_a_model_that_has_none(text_folder, tmp_path):
    """Refused where they would have no effect; no draws, and the recipe's own number, are asked of every model."""
    tiny = ["hidden=4", "batch_size=2", "window=3", "epochs=1"]
    run = tmp_path / "r"
    result = invoke("train", "small-plain", "--data", text_folder, "--out", run, "--device", "cpu", *tiny)
    assert result.exit_code == 0, result.output
    for option in (["--samples", 5], ["--drop-words"], ["--reversed", "--entropy-samples", 3]):
        refused = invoke("evaluate", run, *option)
        name = option[-2] if isinstance(option[-1], int) else option[0]
        assert refused.exit_code == 2
        said = f"bayesrnn: {name} is for draws, and this run has none: its model has no noise; omit it.\n"
        assert refused.stderr == said
    assert "--samples is for draws, and this run has none" in invoke("predict", run, "--samples", 5).stderr
    assert not (run / "evaluation.json").exists()
    for option in ([], ["--samples", 0], ["--reversed", "--entropy-samples", 0], ["--reversed"]):
        result = invoke("evaluate", run, *option)
        assert result.exit_code == 0, result.output
        assert "draws" not in result.stdout.replace("no draws", "")


def test_a_task_says_itself_that_it_has_no_draws(run, monkeypatch):
    assert invoke("evaluate", run, "--samples", 3).exit_code == 0
    monkeypatch.setattr(TASKS["line"], "random", False)
    assert "--samples is for draws, and this run has none" in invoke("evaluate", run, "--samples", 3).stderr


def test_data_that_is_not_the_runs(run, monkeypatch):
    monkeypatch.setattr(TASKS["line"], "files", lambda task: {"scale.txt": b"3\n"})
    result = invoke("evaluate", run)
    assert "The scale of this data" in result.stderr
    assert "name the data it was trained on with --data" in result.stderr
    (run / "scale.txt").unlink()
    assert "scale.txt cannot be read (there is no such file)" in invoke("evaluate", run).stderr


def test_figures_of_other_data_have_a_file_of_their_own(run, monkeypatch):
    """Of any task; a name that is no file name, or too long for one, is made one."""
    monkeypatch.setattr(TASKS["line"], "content", lambda task: [b"other"])
    before = (run / "record.json").read_bytes()
    result = invoke("evaluate", run, "--data", f"some/a [b]{'c' * 200}")
    assert result.exit_code == 0, result.output
    (file,) = run.glob("evaluation-*.json")
    found = json.loads(file.read_text())
    assert file.name == f"evaluation-a__b_{'c' * 35}-{found['data_digest'][:8]}.json"
    assert f"The metrics go to {file}, not to the record.\n" in result.stdout
    assert found["metrics"]["valid_rmse"] > 0
    assert (run / "record.json").read_bytes() == before
    assert not (run / "evaluation.json").exists()
    file.unlink()
    (run / ".unfinished").write_text("")
    result = invoke("evaluate", run, "--data", "text")
    assert "config.json has another digest.\n" in result.stdout
    assert "are not kept" in result.stdout
    assert not list(run.glob("evaluation*"))


def test_recipes_are_listed_by_task():
    result = invoke("recipes")
    assert result.exit_code == 0, result.output
    assert "language: perplexity in the papers" in result.stdout
    assert [heading(key) for key in ("valid", "test_mc", "test_dynamic")] == ["valid", "test, MC", "test, dynamic"]


def test_figures_in_words():
    named = {
        "train_perplexity": 81.204,
        "valid_perplexity": 9.5,
        "kl_per_sequence": 0.0,
        "valid_streams": 10,
        "x": 1234.5,
    }
    assert in_words(named) == "perplexity 81.20 train, 9.5 validation, x 1,234.50"
    mc = {"valid_rmse": 1.5, "valid_rmse_mc": 1.25, "test_rmse_mc_all_words": 1.0}
    said = "RMSE 1.5 validation, RMSE averaged over draws 1.25 validation, RMSE averaged over draws all words 1 test"
    assert in_words(mc) == said
