import json

import pytest
from typer.testing import CliRunner

from bayesrnn.lab.cli import app
from bayesrnn.lab.cli.sweep import _summary

pytest.importorskip("optuna")


def invoke(*args):
    return CliRunner().invoke(app, [str(a) for a in args])


@pytest.mark.slow
def test_a_grid_of_two_settings_is_a_table_and_a_picture(line_recipe, tmp_path):
    out = tmp_path / "sweep"
    grid = ["--grid", "model.hidden=2,5", "--grid", "dropout=0,0.5", "--device", "cpu", "--out", out]
    result = invoke("sweep", line_recipe, "epochs=1", *grid)
    assert result.exit_code == 0, result.output
    record = json.loads((out / "sweep.json").read_text())
    assert len(record["trials"]) == 4
    best = record["best"]["settings"]
    assert f"Best: model.hidden={best['model.hidden']} model.dropout={best['model.dropout']}, " in result.stdout
    assert result.stdout.count("complete") == 4
    assert record["space"] == {"model.hidden": [2, 5], "model.dropout": [0.0, 0.5]}


def test_a_search(line_recipe, tmp_path):
    out = tmp_path / "sweep"
    search = ["--search", "lr=1e-4:1e-2:log", "--trials", 2, "--prune"]
    result = invoke("sweep", line_recipe, "epochs=1", *search, "--device", "cpu", "--out", out)
    assert result.exit_code == 0, result.output
    assert len(json.loads((out / "sweep.json").read_text())["trials"]) == 2


def test_nothing_ended_well(line_recipe, tmp_path):
    options = ["--grid", "lr=1e30", "--device", "cpu", "--out", tmp_path / "sweep"]
    result = invoke("sweep", line_recipe, "clip=null", *options)
    assert result.exit_code == 0, result.output
    assert "No run has finished." in result.stdout
    refused = invoke("sweep", line_recipe, "--out", tmp_path / "other")
    assert refused.exit_code == 2
    assert refused.stderr.count("\n") == 1


def test_the_best_settings_are_written_as_train_takes_them(line_recipe, tmp_path):
    options = ["--grid", "train.clip=null", "--device", "cpu", "--out", tmp_path / "sweep"]
    result = invoke("sweep", line_recipe, "epochs=1", *options)
    assert result.exit_code == 0, result.output
    assert "Best: train.clip=null, " in result.stdout
    assert "None" not in result.stdout
    assert invoke("train", line_recipe, "epochs=1", "train.clip=null", "--out", tmp_path / "run").exit_code == 0
    settings = {"model.tied": True, "model.sizes": [400, 400], "train.lr": 1e-5, "model.cell": "lstm"}
    best = {"settings": settings, "value": 1.0}
    text = _summary({"trials": [], "metric": "valid_rmse", "best": best}, tmp_path)
    assert text.startswith("Best: model.tied=true 'model.sizes=[400,400]' train.lr=1e-05 model.cell=lstm, ")
