"""benchmarks/comparison.py: runs that differ in one ingredient."""

import importlib.util
import json
import random
from pathlib import Path

import pytest
import torch

from bayesrnn.errors import UserError
from bayesrnn.lab import recipes
from bayesrnn.lab.engine.loop import Diverged
from bayesrnn.lab.runs.record import read
from bayesrnn.lab.tasks.language.model import LanguageModel

FILE = Path(__file__).resolve().parents[2] / "benchmarks/comparison.py"
SMALL = ["hidden=8", "batch_size=4", "window=10"]


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("comparison", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def text(tmp_path):
    folder, choose = tmp_path / "text", random.Random(0)
    folder.mkdir()
    for split, lines in (("train", 60), ("valid", 20), ("test", 20)):
        rows = [" ".join(f"w{choose.randrange(30)}" for _ in range(9)) for _ in range(lines)]
        (folder / f"{split}.txt").write_text("\n".join(rows) + "\n")
    return str(folder)


def settings(script, recipe, name, epochs=24):
    squeezed = script.squeezed(recipe, epochs, averaging=name != "no-averaging")
    return recipes.flatten(
        recipes.override(recipes.load(recipe), [*squeezed, *script.INGREDIENTS[recipe][name].split()])
    )


@pytest.mark.parametrize("recipe", ["best-medium", "awd-24m"])
def test_each_run_differs_in_one_ingredient(script, recipe):
    whole = settings(script, recipe, "all")
    for name, changes in script.INGREDIENTS[recipe].items():
        own = settings(script, recipe, name)
        changed = {key for key in own if own[key] != whole[key]}
        if name == "no-averaging":
            assert changed == {"train.average_from", "train.decay", "train.decay_after"}
            assert own["train.decay"] ** (24 - own["train.decay_after"]) == pytest.approx(0.01, rel=0.01)
        else:
            assert changed == {text.partition("=")[0] for text in changes.split()}
        assert own["train.epochs"] == 24
    assert whole["train.average_stall"] is None


def test_schedules_are_those_of_the_recipes(script):
    for recipe in ("best-medium", "brnn-medium", "variational-tied-medium"):
        train = recipes.load(recipe).train
        found = recipes.override(recipes.load(recipe), script.squeezed(recipe, train.epochs)).train
        assert found.model_copy(update={"decay": train.decay}) == train
        assert found.decay == pytest.approx(train.decay, rel=1e-5)
    assert settings(script, "best-medium", "all")["train.average_from"] == 13
    assert settings(script, "awd-24m", "all")["train.average_from"] == 8
    short, train = script.squeezed("brnn-medium", 20), recipes.load("brnn-medium").train
    squeezed = recipes.override(recipes.load("brnn-medium"), short).train
    assert squeezed.decay_after == round(train.decay_after / 3)
    assert squeezed.decay == pytest.approx(train.decay**3, rel=1e-5)


@pytest.mark.parametrize(
    ("recipe", "names"),
    [("best-medium", ["no-tying-narrow"]), ("awd-24m", ["equal-widths", "masks", "mixture", "mogrifier"])],
)
def test_other_widths_have_no_more_weights(script, recipe, names):
    def weights(name):
        own = recipes.override(recipes.load(recipe), script.INGREDIENTS[recipe][name].split())
        with torch.device("meta"):
            return sum(p.numel() for p in LanguageModel(10_000, own.model).parameters())

    for name in names:
        assert 0.96 < weights(name) / weights("all") < 1.01, name


def test_ingredients_and_their_records(script, text, tmp_path, capsys):
    words = [*SMALL, "--recipe", "best-medium", "--data", text, "--epochs", "4", "--device", "cpu"]
    words += ["--out", str(tmp_path / "out"), "--runs", str(tmp_path / "runs"), "--only", "all", "no-averaging"]
    script.main(words)
    records = {p.stem: json.loads(p.read_text()) for p in (tmp_path / "out").glob("*.json")}
    assert set(records) == {"all-1", "no-averaging-1"}
    assert records["no-averaging-1"]["settings"]["train"]["average_from"] is None
    assert records["all-1"]["command"].startswith("bayesrnn train best-medium train.epochs=4 train.average_from=2")
    assert list((tmp_path / "runs").iterdir()) == []
    capsys.readouterr()
    script.main(words)
    assert "epoch" not in capsys.readouterr().out  # nothing is trained again
    for other in (["--epochs", "5"], ["model.init=0.1"]):
        with pytest.raises(UserError, match=r"all-1.json has other settings or another text .*; use --out or --force"):
            script.main([*other, *words] if "=" in other[0] else [*words, *other])


def test_a_run_stops_when_the_time_is_over_and_continues(script, text, tmp_path, capsys, monkeypatch):
    words = [*SMALL, "--recipe", "best-medium", "--data", text, "--epochs", "4", "--device", "cpu", "--only", "all"]
    words += ["--out", str(tmp_path / "out"), "--runs", str(tmp_path / "runs")]
    script.main([*words, "--minutes", "0"])
    assert capsys.readouterr().out == "The time is over; the same command continues.\n"
    options = script.arguments(words)
    with monkeypatch.context() as patched, pytest.raises(script.OutOfTime):
        patched.setattr(script, "Reporter", lambda name, end, own=script.Reporter: own(name, 0.0))
        script.ingredients(options)
    (folder,) = (tmp_path / "runs").iterdir()
    assert json.loads((folder / "state.json").read_text())["epoch"] == 2
    script.main(words)
    assert "Resumed in epoch 2" in capsys.readouterr().out
    assert len(read(tmp_path / "out/all-1.json").curve("valid_perplexity")) == 4


def test_a_run_that_diverges_is_recorded(script, text, tmp_path, monkeypatch):
    def launch(recipe, *, out, **options):
        out.mkdir(parents=True)
        (out / "metrics.jsonl").write_text('{"valid_perplexity": 9.5}\n')
        raise Diverged("The loss diverged in epoch 2.")

    monkeypatch.setattr(script, "launch", launch)
    words = [*SMALL, "--data", text, "--epochs", "4", "--only", "all", "--out", str(tmp_path / "out")]
    script.main([*words, "--runs", str(tmp_path / "runs")])
    record = read(tmp_path / "out/all-1.json")
    assert record.metrics == {"diverged": "The loss diverged in epoch 2."}
    assert record.curve("valid_perplexity") == [9.5]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--epochs", "3"], "averaging needs at least 4"),
        (["--only", "brnn-650"], "--only has no brnn-650; there are all"),
    ],
)
def test_wrong_options(script, words, message, capsys):
    with pytest.raises(SystemExit):
        script.main(["--data", "ptb", *words])
    assert message in capsys.readouterr().err
