"""benchmarks/comparison.py: runs that differ in one ingredient, or in the path of a kernel."""

import importlib.util
import json
import random
from pathlib import Path

import pytest
import torch

from bayesrnn import kernels
from bayesrnn.errors import UserError
from bayesrnn.lab import recipes
from bayesrnn.lab.engine.loop import Diverged
from bayesrnn.lab.runs.record import Record, read
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
    words = ["ingredients", *SMALL, "--recipe", "best-medium", "--data", text, "--epochs", "4", "--device", "cpu"]
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
            script.main([words[0], *other, *words[1:]] if "=" in other[0] else [*words, *other])


def test_pairs_stop_when_the_time_is_over_and_continue(script, text, tmp_path, capsys):
    kernels.path("cpu", name="LSTM")  # builds the compiled kernel
    words = ["paths", *SMALL, "--data", text, "--epochs", "4", "--device", "cpu", "--seeds", "2", "--only", "brnn-200"]
    words += ["--out", str(tmp_path / "out"), "--runs", str(tmp_path / "runs")]
    script.main([*words, "--minutes", "0.00001"])
    assert capsys.readouterr().out.endswith("The time is over; the same command continues.\n")
    ended = [*words, "--minutes", "0"]
    options = script.arguments(ended)
    options.end = options.end + 1e9  # the first run begins, and stops after its first epoch
    with pytest.raises(script.OutOfTime):
        stopped_after_an_epoch(script, options)
    (folder,) = (tmp_path / "runs").iterdir()
    assert json.loads((folder / "state.json").read_text())["epoch"] == 2
    script.main([*words, "--path", "reference"])  # as another process would
    assert not (tmp_path / "out/brnn-200.json").exists()
    script.main(words)
    said = capsys.readouterr().out
    assert "Resumed in epoch 2" in said
    assert said.count("epoch 1/4") == 4  # of four runs, the one before the stop included
    found, runs = read(tmp_path / "out/brnn-200.json"), {}
    for path in ("compiled", "reference"):
        runs[path] = [read(tmp_path / f"out/brnn-200-{path}-{seed}.json") for seed in (1, 2)]
        assert {run.kernel for run in runs[path]} == {path}
    assert found.kernel == "compiled over reference"
    each = [
        100 * (a.metrics["valid_perplexity"] / b.metrics["valid_perplexity"] - 1)
        for a, b in zip(*runs.values(), strict=True)
    ]
    assert found.metrics["valid_each"] == pytest.approx(each)
    assert all(abs(difference) < 0.5 for difference in each)  # the two paths compute the same
    assert found.metrics["pairs"] == 2
    assert "test_perplexity" not in runs["compiled"][0].metrics
    assert len(found.curves["valid_percent"]) == 4


def stopped_after_an_epoch(script, options):
    class Once(script.Reporter):
        def __init__(self, name, end):
            super().__init__(name, 0.0)

    kept, script.Reporter = script.Reporter, Once
    try:
        script.paths(options)
    finally:
        script.Reporter = kept


def test_the_interval_is_student_s(script):
    def run(valid, **more):
        metrics, curve = {"valid_perplexity": valid, **more}, [2 * valid, valid]
        return Record(
            recipe="r", kernel="k", metrics=metrics, curves={"valid_perplexity": curve, "train_perplexity": curve}
        )

    pairs = [[run(101.0), run(100.0)], [run(102.0), run(100.0)], [run(103.0), run(100.0)], [run(104.0), run(100.0)]]
    found = script.difference("case", [*pairs, [run(1.0, diverged="The loss"), run(100.0)]], {}).metrics
    assert (found["pairs"], found["diverged"]) == (4, 1)
    for split in ("valid", "train"):
        assert found[f"{split}_percent"] == pytest.approx(2.5)
        assert found[f"{split}_high"] - 2.5 == pytest.approx(3.182 * 1.290994 / 2, rel=1e-4)
        assert found[f"{split}_low"] == pytest.approx(5 - found[f"{split}_high"])
    assert "valid_low" not in script.difference("case", pairs[:1], {}).metrics
    assert script.difference("case", pairs[2:], {}).curves["valid_percent"] == pytest.approx([3.5, 3.5])


def test_a_run_that_diverges_is_recorded(script, text, tmp_path, monkeypatch):
    def launch(recipe, *, out, **options):
        out.mkdir(parents=True)
        (out / "metrics.jsonl").write_text('{"valid_perplexity": 9.5}\n')
        raise Diverged("The loss diverged in epoch 2.")

    monkeypatch.setattr(script, "launch", launch)
    words = ["ingredients", *SMALL, "--data", text, "--epochs", "4", "--only", "all", "--out", str(tmp_path / "out")]
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
        script.main(["ingredients", "--data", "ptb", *words])
    assert message in capsys.readouterr().err
