"""benchmarks/ablation.py: runs without one ingredient each."""

import importlib.util
import json
import random
import shlex
from pathlib import Path

import pytest

from bayesrnn.errors import UserError
from bayesrnn.lab import recipes

FILE = Path(__file__).resolve().parents[2] / "benchmarks/ablation.py"
SMALL = ["hidden=8", "batch_size=4", "window=10"]


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("ablation", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def settings(script, name, epochs=24):
    return recipes.flatten(recipes.override(recipes.load(script.RECIPE), script.overrides_of(name, epochs)))


def test_each_run_lacks_one_ingredient(script):
    whole = settings(script, "all")
    for name in script.WITHOUT:
        own = settings(script, name)
        changed = {key for key in own if own[key] != whole[key]}
        if name == "no-averaging":
            assert changed == {"train.average_from", "train.decay", "train.decay_after"}
        else:
            assert changed == {text.partition("=")[0] for text in script.WITHOUT[name]}
        assert own["train.epochs"] == 24


def test_the_recipe_s_share_of_epochs_is_averaged(script):
    recipe = recipes.load(script.RECIPE).train
    assert settings(script, "all", recipe.epochs)["train.average_from"] == recipe.average_from
    assert settings(script, "all")["train.average_from"] == 13
    lowered = settings(script, "no-averaging")
    left = 24 - lowered["train.decay_after"]
    assert lowered["train.decay_after"] == 12
    assert lowered["train.decay"] ** left == pytest.approx(0.01, rel=0.01)


def test_untied_in_a_width_of_as_many_weights(script):
    def weights(values):
        width, tied = values["model.hidden"], values["model.tied"]
        return (1 if tied else 2) * 10_000 * width + 10_000 + values["model.layers"] * (8 * width**2 + 8 * width)

    assert weights(settings(script, "all")) == 22_767_120
    assert weights(settings(script, "no-tying-narrow")) == pytest.approx(22_767_120, rel=0.01)


def test_commands(script, capsys):
    script.main(["--data", "ptb", "--print", "--only", "all", "no-l2", "--device", "cuda", "--seed", "2"])
    first, second = (shlex.split(line) for line in capsys.readouterr().out.splitlines())
    assert first[:3] == second[:3] == ["bayesrnn", "train", "best-medium"]
    assert set(second) - set(first) == {"train.l2=0", "runs/ablation/no-l2-2"}
    assert second[-8:] == "--data ptb --seed 2 --out runs/ablation/no-l2-2 --device cuda".split()


def test_runs_and_their_records(script, tmp_path, capsys):
    text, choose = tmp_path / "text", random.Random(0)
    text.mkdir()
    for split, lines in (("train", 60), ("valid", 20), ("test", 20)):
        rows = [" ".join(f"w{choose.randrange(30)}" for _ in range(9)) for _ in range(lines)]
        (text / f"{split}.txt").write_text("\n".join(rows) + "\n")
    words = [*SMALL, "--data", str(text), "--epochs", "4", "--device", "cpu", "--out", str(tmp_path / "ablation")]
    words += ["--only", "all", "no-averaging", "no-tying", "no-word-dropout"]
    script.main(words)
    records = {p.stem: json.loads(p.read_text()) for p in (tmp_path / "ablation").glob("*.json")}
    assert set(records) == {"all-1", "no-averaging-1", "no-tying-1", "no-word-dropout-1"}
    assert records["no-averaging-1"]["settings"]["train"]["average_from"] is None
    assert records["all-1"]["command"].startswith("bayesrnn train best-medium train.epochs=4 train.average_from=2")
    capsys.readouterr()
    script.main(words)
    assert capsys.readouterr().out.count("is there already") == 4
    for other in ("--epochs", "5"), ("--data", str(tmp_path)), ("model.init=0.1",):
        with pytest.raises(
            UserError, match=r"all-1.json is of other settings or another text .*; use --out or --force"
        ):
            script.main([*other[:1], *words] if len(other) == 1 else [*words, *other])


def test_too_few_epochs(script, capsys):
    with pytest.raises(SystemExit):
        script.main(["--data", "ptb", "--epochs", "3"])
    assert "averaging needs at least 4" in capsys.readouterr().err
