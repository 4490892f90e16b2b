import functools
import json
import shutil

import pytest
from typer.testing import CliRunner

from bayesrnn import kernels
from bayesrnn.errors import UserError
from bayesrnn.lab.cli import app
from bayesrnn.lab.engine import loop
from bayesrnn.lab.reading import data_name
from bayesrnn.lab.tasks.language import pruning
from bayesrnn.lab.tasks.language.text import Corpus

TINY = ["hidden=8", "batch_size=4", "window=6", "epochs=1"]


def invoke(*args, text=None):
    return CliRunner().invoke(app, [str(a) for a in args], input=text)


@pytest.fixture(scope="module")
def runs(text_folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    for name in ("brnn-sharpened-medium", "variational-tied-medium"):
        result = invoke("train", name, "--data", text_folder, "--out", out / name, "--device", "cpu", *TINY)
        assert result.exit_code == 0, result.output
        assert "epoch 1/1" in result.stdout
    return out


@pytest.fixture
def bayesian(runs, tmp_path):
    return shutil.copytree(runs / "brnn-sharpened-medium", tmp_path / "run")


def test_recipes_are_listed():
    result = invoke("recipes")
    assert result.exit_code == 0
    assert "brnn-sharpened-medium" in result.stdout
    assert "69.8" in result.stdout
    assert "77.1" in result.stdout  # of zaremba-medium, in the other paper's table


def test_evaluate_everything(bayesian):
    result = invoke("evaluate", bayesian, "--samples", 2, "--dynamic", "--reversed", "--entropy-samples", 2)
    assert result.exit_code == 0, result.output
    metrics = json.loads((bayesian / "evaluation.json").read_text())
    assert {
        "valid_perplexity", "test_perplexity", "test_perplexity_mc", "test_perplexity_bound", "test_perplexity_dynamic",
        "entropy_gap", "entropy_gap_mean", "entropy_gap_1", "test_calibration_error", "reliability",
    } <= metrics.keys()  # fmt: skip
    assert [metrics["entropy_gap_1"], metrics["entropy_gap"]] == metrics["entropy_gaps"]
    record = json.loads((bayesian / "record.json").read_text())
    assert record["metrics"]["test_perplexity_mc"] == metrics["test_perplexity_mc"]
    by_draws = metrics["test_perplexity_by_draws"]
    assert [row["draws"] for row in by_draws] == [1, 2]
    assert by_draws[-1]["perplexity"] == metrics["test_perplexity_mc"]
    assert "Test perplexity by the number of draws:" in result.output
    assert [row["draws"] for row in record["metrics"]["valid_perplexity_by_draws"]] == [1, 2]
    assert invoke("evaluate", bayesian, "--samples", 3).exit_code == 0
    after = json.loads((bayesian / "record.json").read_text())["metrics"]
    assert [row["draws"] for row in after["test_perplexity_by_draws"]] == [1, 2, 3]
    assert [row["draws"] for row in after["valid_perplexity_by_draws"]] == [1, 2, 3]
    assert after["entropy_gap"] == metrics["entropy_gap"]
    assert record["metrics"]["words_per_second"] > 0


@pytest.mark.parametrize("words", [["evaluate", "--samples", 0], ["prune", "--fraction", 0.5]])
def test_a_command_leaves_torch_s_precision_as_it_was(bayesian, words, monkeypatch):
    """`set_precision` acts here as it does on a GPU."""
    seen = []

    def as_on_a_gpu(precision, device):
        kernels.round_float32(True)
        seen.append(kernels.tf32(products=True))

    for module in (loop, pruning):
        monkeypatch.setattr(module, "set_precision", as_on_a_gpu)
    with kernels.float32_precision(False):
        result = invoke(words[0], bayesian, *words[1:])
        assert (result.exit_code, seen) == (0, [True]), result.output
        assert not kernels.tf32(products=True)
        assert not kernels.tf32(products=False)


def test_draws_that_drop_words_are_told_from_the_protocols(runs, tmp_path):
    from bayesrnn.lab.recipes import load
    from bayesrnn.lab.runs.record import read
    from bayesrnn.lab.tasks.language.paper_tables import compared

    run = shutil.copytree(runs / "variational-tied-medium", tmp_path / "run")
    result = invoke("evaluate", run, "--samples", 2, "--drop-words", "--seed", 4)
    assert result.exit_code == 0, result.output
    assert "Test perplexity by the number of draws that drop words:" in result.stdout
    record = json.loads((run / "record.json").read_text())
    assert (record["metrics"]["samples_words"], record["metrics"]["draws_seed_words"]) == (2, 4)

    def ours():
        rows = compared("x", load("variational-tied-medium"), [read(run / "record.json")])
        return next(row["ours"] for row in rows if row["measure"] == "test, MC")

    assert ours() is None
    assert invoke("evaluate", run, "--samples", 2).exit_code == 0
    assert ours() is not None


@pytest.mark.parametrize("rule", ["sgd", "rms"])
def test_dynamic_evaluation_that_diverges_is_one_line(bayesian, rule):
    before = (bayesian / "record.json").read_bytes()
    words = ["evaluate", bayesian, "--samples", 0, "--dynamic", "--dynamic-rule", rule, "--dynamic-lr"]
    for rates in ("1e38", "1e30", "1e38,1e37"):
        result = invoke(*words, rates)
        assert result.exit_code == 2
        assert "Dynamic evaluation diverged on valid with rate 1e+3" in result.stderr
        assert result.stderr.count("\n") == 1
        assert (bayesian / "record.json").read_bytes() == before
        assert not (bayesian / "evaluation.json").exists()
    result = invoke(*words, "1e38,1e-5")
    assert result.exit_code == 0, result.output
    assert "it diverged with rate 1e+38, which is left out" in result.stdout
    for name in ("evaluation.json", "record.json"):
        text = (bayesian / name).read_text()
        assert '"dynamic_diverged": [' in text
        assert "Infinity" not in text


def test_evaluate_with_the_rms_rule(runs):
    run = runs / "variational-tied-medium"
    result = invoke("evaluate", run, "--samples", 3, "--dynamic", "--dynamic-rule", "rms", "--dynamic-lr", "1e-4")
    assert result.exit_code == 0, result.output
    assert "test_perplexity_dynamic" in result.stdout
    assert "test_perplexity_bound" not in result.stdout
    assert invoke("evaluate", run, "--dynamic-rule", "x").exit_code == 2
    for option, value in (("--dynamic-lr", "0.1"), ("--dynamic-rule", "rms"), ("--dynamic-decay", "0.1")):
        refused = invoke("evaluate", run, option, value)
        assert refused.exit_code == 2
        assert "add --dynamic." in refused.stderr


def test_evaluate_by_both_rules(bayesian):
    """Each in its turn: the record, evaluation.json and the table have both; the best on validation has the names."""
    words = ["evaluate", bayesian, "--samples", 0, "--dynamic", "--dynamic-rule"]
    first = invoke(*words, "sgd", "--dynamic-lr", "0.01,0.1")
    assert first.exit_code == 0, first.output
    assert "(sgd)" not in first.stdout
    alone = json.loads((bayesian / "evaluation.json").read_text())
    metrics = json.loads((bayesian / "record.json").read_text())["metrics"]
    assert metrics["dynamic_by_rule"] == alone["dynamic_by_rule"]
    del metrics["dynamic_by_rule"]  # as an earlier version wrote it
    record = {**json.loads((bayesian / "record.json").read_text()), "metrics": metrics}
    (bayesian / "record.json").write_text(json.dumps(record))
    result = invoke(*words, "rms", "--dynamic-lr", "1e-12")  # all but the trained model
    assert result.exit_code == 0, result.output
    both = json.loads((bayesian / "record.json").read_text())["metrics"]
    rules = both["dynamic_by_rule"]
    assert rules["sgd"] == alone["dynamic_by_rule"]["sgd"]
    assert rules["rms"]["valid_perplexity"] == pytest.approx(both["valid_perplexity"], rel=1e-4)
    assert both["dynamic_rule"] == min(rules, key=lambda rule: rules[rule]["valid_perplexity"]) == "sgd"
    assert both["test_perplexity_dynamic"] == rules["sgd"]["test_perplexity"]
    assert both["dynamic_tried"] == alone["dynamic_tried"]
    latest = json.loads((bayesian / "evaluation.json").read_text())
    assert {k: v for k, v in latest.items() if "dynamic" in k} == {k: v for k, v in both.items() if "dynamic" in k}
    rows = {line.rsplit(maxsplit=1)[0].strip() for line in result.stdout.splitlines() if line.strip()}
    assert {f"{split}_perplexity_dynamic (rms)" for split in ("valid", "test")} | {"dynamic_lr (rms)"} <= rows
    assert invoke("evaluate", bayesian, "--samples", 0).exit_code == 0  # without it, the record keeps both
    assert json.loads((bayesian / "record.json").read_text())["metrics"]["dynamic_by_rule"] == rules
    assert "dynamic_by_rule" not in json.loads((bayesian / "evaluation.json").read_text())


def test_other_data_has_no_rule_of_the_record(bayesian, text_folder, tmp_path):
    words = ["evaluate", bayesian, "--samples", 0, "--dynamic", "--dynamic-lr"]
    assert invoke(*words, "0.1").exit_code == 0
    other, before = shutil.copytree(text_folder, tmp_path / "text"), (bayesian / "record.json").read_text()
    (other / "test.txt").write_text("\n".join((other / "test.txt").read_text().splitlines()[::-1]) + "\n")
    assert invoke(*words, "1e-5", "--dynamic-rule", "rms", "--data", other).exit_code == 0
    (file,) = bayesian.glob("evaluation-*.json")
    assert list(json.loads(file.read_text())["metrics"]["dynamic_by_rule"]) == ["rms"]
    assert (bayesian / "record.json").read_text() == before


def test_evaluate_at_a_temperature(bayesian):
    result = invoke("evaluate", bayesian, "--samples", 0, "--temperature")
    assert result.exit_code == 0, result.output
    metrics = json.loads((bayesian / "record.json").read_text())["metrics"]
    tempered = {key: value for key, value in metrics.items() if "temper" in key}
    assert len(tempered) == 6
    assert all(key in result.stdout for key in tempered if key != "test_deciles_tempered")
    assert metrics["valid_perplexity_tempered"] <= metrics["valid_perplexity"]
    again = invoke("evaluate", bayesian, "--samples", 0)  # without it, the figures stay
    assert "tempered" not in again.stdout
    after = json.loads((bayesian / "record.json").read_text())["metrics"]
    assert {key: value for key, value in after.items() if "temper" in key} == tempered


def test_figures_are_shown_to_be_read():
    from bayesrnn.lab.cli.evaluate import _shown

    assert [_shown(v) for v in (0.12345678, 9.87654, 75.456, 12345.678, 1e300, 3, "sgd")] == [
        "0.1235", "9.877", "75.46", "12345.68", "1e+300", "3", "sgd"
    ]  # fmt: skip


def test_prune(bayesian, runs):
    result = invoke("prune", bayesian, "--fraction", 0.5)
    assert result.exit_code == 0, result.output
    summary = json.loads((bayesian / "prune.json").read_text())
    assert summary["curve"][0]["rise"] == 0
    assert (summary["recipe"], summary["seed"]) == ("brnn-sharpened-medium", 1)
    assert summary["settings"]["model"]["hidden"] == 8
    assert {"commit", "device", "versions", "command", "data"} <= summary.keys()
    removed = sum(t["removed"] for t in summary["tensors"].values())
    total = sum(t["total"] for t in summary["tensors"].values())
    assert removed == pytest.approx(total / 2, abs=1)
    assert (bayesian / "prune.png").read_bytes().startswith(b"\x89PNG")
    assert (bayesian / "pruned.safetensors").exists()
    refused = invoke("prune", runs / "variational-tied-medium")
    assert refused.exit_code == 2
    assert "no posterior over weights" in refused.stderr


def zeros(file):
    from safetensors.torch import load_file

    return {name: int((t == 0).sum()) for name, t in load_file(file).items()}


def test_prune_and_train_again(bayesian):
    result = invoke("prune", bayesian, "--fraction", 0.6, "--retrain", 4, "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert "60% removed in 2 steps, 4 epochs from rate 0.5:" in result.stdout
    assert result.stdout.count(", removed 0.52") == 1  # 0.6 (1 - 1 / 8), in the first epoch
    assert f"a run of its own, {bayesian / 'pruned-0.6'}" in result.stdout
    summary = json.loads((bayesian / "prune.json").read_text())
    again = summary["retrained"]
    assert 0.6 in {row["fraction"] for row in summary["curve"]}
    assert (again["epochs"], again["steps"], again["sigma"], again["lr"]) == (4, 2, 0.5, 0.5)
    assert again["valid_perplexity"] != summary["valid_perplexity"]
    run = bayesian / "pruned-0.6"
    assert invoke("evaluate", run, "--samples", 2).exit_code == 0
    assert json.loads((run / "evaluation.json").read_text())["valid_perplexity"] == pytest.approx(
        again["valid_perplexity"]
    )
    assert invoke("predict", run, text="w1 w2\n").exit_code == 0
    for words, file in ((["export", run], run), (["export", bayesian, "--pruned"], bayesian)):
        assert invoke(*words).exit_code == 0
        removed = {name: part["removed"] for name, part in again["tensors"].items()}
        assert sum(removed.values()) == sum(part["removed"] for part in summary["tensors"].values())
        held = {"rnn.bias_hh_l0": 32, "rnn.bias_hh_l1": 32}  # a gate has one bias
        assert zeros(file / "model.safetensors") == {"decoder.bias": 0, **held, **removed}
    done = invoke("prune", bayesian, "--fraction", 0.6, "--retrain", 4, "--device", "cpu")
    assert done.exit_code == 0, done.output
    assert "epoch 1/4" not in done.stdout
    refused = invoke("prune", bayesian, "--fraction", 0.6, "--retrain", 3, "--device", "cpu")
    assert refused.exit_code == 2
    assert "replace it with --force" in refused.stderr
    forced = invoke("prune", bayesian, "--fraction", 0.6, "--retrain", 1, "--retrain-lr", 0.5, "--force")
    assert forced.exit_code == 0, forced.output
    assert "epoch 1/1: lr 0.5" in forced.stdout
    assert invoke("prune", bayesian, "--fraction", 0.6).exit_code == 0
    assert "retrained" not in json.loads((bayesian / "prune.json").read_text())


def test_a_run_of_pruned_weights_is_not_pruned_again(bayesian):
    assert invoke("prune", bayesian, "--fraction", 0.8, "--retrain", 1, "--device", "cpu").exit_code == 0
    run = bayesian / "pruned-0.8"
    result = invoke("prune", run, "--fraction", 0.5)
    assert result.exit_code == 2
    said = f"bayesrnn: The weights in {run} were pruned before; prune the run that they are from.\n"
    assert result.stderr == said


def start_over(run, text_folder, *words):
    result = invoke("train", "brnn-sharpened-medium", "--data", text_folder, "--out", run, "--device", "cpu", *TINY,
                    "--force", *words)  # fmt: skip
    assert result.exit_code == 0, result.output


def other_weights(run):
    """As a run that went on: the same config.json, other best weights."""
    from bayesrnn.lab.runs import checkpoint

    tensors, about = checkpoint.load(run / "best.safetensors")
    checkpoint.save_file(run / "best.safetensors", {name: tensor + 1 for name, tensor in tensors.items()}, about)


@pytest.mark.parametrize("change", ["replaced", "went on", "began again", "is gone"])
@pytest.mark.parametrize("words", [["evaluate", "--samples", 0], ["evaluate", "--data"], ["prune"]])
def test_figures_of_weights_that_are_no_longer_there_are_not_written(
    bayesian, text_folder, tmp_path, monkeypatch, words, change
):
    from bayesrnn.lab.tasks.language import pruning
    from bayesrnn.lab.tasks.language.task import Language

    place, name = (pruning, "_curve") if words[0] == "prune" else (Language, "evaluate")
    real, after = getattr(place, name), []

    @functools.wraps(real)
    def meanwhile(*args, **options):
        if change == "replaced":
            start_over(bayesian, text_folder, "--seed", 5)
        elif change == "went on":
            other_weights(bayesian)
        elif change == "began again":
            (bayesian / ".unfinished").write_text("")
        else:
            shutil.rmtree(bayesian)
        after.append(contents(bayesian))
        return real(*args, **options)

    if "--data" in words:
        other = shutil.copytree(text_folder, tmp_path / "other")
        (other / "test.txt").write_bytes((text_folder / "valid.txt").read_bytes())
        words = [*words, other, "--samples", 0]
    monkeypatch.setattr(place, name, meanwhile)
    result = invoke(words[0], bayesian, *words[1:])
    assert after
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith(f"bayesrnn: The run in {bayesian} was replaced or trained further meanwhile")
    assert "nothing was written" in result.stderr
    assert result.stderr.count("\n") == 1
    assert contents(bayesian) == after[0]
    assert bayesian.exists() == (change != "is gone")


def test_no_run_is_begun_inside_one_that_was_replaced(bayesian, text_folder, monkeypatch):
    from bayesrnn.lab.tasks.language import pruning

    real = pruning._curve

    def meanwhile(*args):
        start_over(bayesian, text_folder, "--seed", 5)
        return real(*args)

    monkeypatch.setattr(pruning, "_curve", meanwhile)
    result = invoke("prune", bayesian, "--retrain", 1, "--device", "cpu")
    assert result.exit_code == 2
    assert "was replaced or trained further meanwhile" in result.stderr
    assert not list(bayesian.glob("prune*"))


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_that_is_started_over_has_nothing_of_the_former(bayesian, text_folder):
    words = ["--data", text_folder, "--out", bayesian, "--device", "cpu", *TINY, "--force"]
    assert invoke("prune", bayesian, "--retrain", 1, "--device", "cpu").exit_code == 0
    assert (bayesian / "pruned-0.8" / "record.json").exists()
    assert invoke("export", bayesian).exit_code == 0
    (bayesian / "notes.txt").write_text("mine")
    result = invoke("train", "brnn-sharpened-medium", *words, "--seed", 5)
    assert result.exit_code == 0, result.output
    made = "prune.json, prune.png, pruned.safetensors, model.safetensors, model.safetensors.json"
    assert f"Removed with the earlier run in {bayesian}: {made}.\n" in result.stdout
    assert [path.name for path in bayesian.glob("prune*")] == ["pruned-0.8"], "a run of its own"
    again = invoke("prune", bayesian, "--retrain", 1, "--device", "cpu")
    assert again.exit_code == 2
    assert "pruned-0.8 holds a retraining of other weights" in again.stderr
    assert not list(bayesian.glob("model*"))
    assert (bayesian / "notes.txt").read_text() == "mine"


def test_shares_that_read_alike_have_folders_of_their_own(bayesian):
    for share, name in ((0.8, "80%"), (0.8000001, "80.00001%")):
        result = invoke("prune", bayesian, "--fraction", share, "--retrain", 1, "--device", "cpu")
        assert result.exit_code == 0, result.output
        assert f"{name} removed, 1 epoch from rate 0.5:" in result.stdout
    assert {p.name for p in bayesian.glob("pruned-*")} == {"pruned-0.8", "pruned-0.8000001"}
    assert invoke("export", bayesian / "pruned-0.8").exit_code == 0  # a run of its own, of pruned weights
    assert json.loads((bayesian / "pruned-0.8" / "model.safetensors.json").read_text())["pruned"] is True


def test_what_is_made_of_an_unfinished_run_is_not_kept(bayesian):
    marker = bayesian / ".unfinished"
    marker.write_text("")
    before = contents(bayesian)
    result = invoke("prune", bayesian, "--fraction", 0.5)
    assert result.exit_code == 0, result.output
    assert f"The run in {bayesian} is not finished. The results are shown, and not kept.\n" in result.stdout
    assert "Nothing was written." in result.stdout
    made = invoke("export", bayesian, "--out", bayesian.parent / "model.safetensors")
    assert "The run is not finished: these are the weights of epoch 1; export again when it is." in made.stdout
    assert json.loads((bayesian.parent / "model.safetensors.json").read_text())["epoch"] == 1
    refused = invoke("prune", bayesian, "--retrain", 1)
    assert refused.exit_code == 2
    assert "is not finished. Only finished runs are trained again" in refused.stderr
    assert contents(bayesian) == before


def test_pruned_weights_of_an_earlier_epoch_are_not_exported(bayesian):
    from bayesrnn.lab.runs import checkpoint

    assert invoke("prune", bayesian, "--fraction", 0.5).exit_code == 0
    tensors, about = checkpoint.load(bayesian / "best.safetensors")
    own = (bayesian / "best.safetensors").read_bytes()
    later = {name: tensor + 1 for name, tensor in tensors.items()}
    checkpoint.save_file(bayesian / "best.safetensors", later, about)
    result = invoke("export", bayesian, "--pruned")
    assert result.exit_code == 2
    assert "pruned.safetensors was made of other weights than best.safetensors has now" in result.stderr
    assert result.stderr.count("\n") == 1
    (bayesian / "best.safetensors").write_bytes(own)
    assert invoke("export", bayesian, "--pruned").exit_code == 0


def test_pruned_with_other_data_nothing_is_kept(bayesian, text_folder, tmp_path):
    other, moved = shutil.copytree(text_folder, tmp_path / "other"), shutil.copytree(text_folder, tmp_path / "moved")
    (other / "valid.txt").write_bytes((text_folder / "test.txt").read_bytes())
    assert invoke("prune", bayesian, "--data", moved).exit_code == 0
    assert json.loads((bayesian / "prune.json").read_text())["data"] == "moved"
    before = contents(bayesian)
    result = invoke("prune", bayesian, "--data", other)
    assert result.exit_code == 0, result.output
    said = f"The text given is not that of the run in {bayesian}: config.json has another digest. The results are shown"
    assert said in result.stdout
    refused = invoke("prune", bayesian, "--data", other, "--retrain", 1)
    assert refused.exit_code == 2
    assert "Only finished runs are trained again, on their own text." in refused.stderr
    assert contents(bayesian) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--retrain-lr", "0.5"], "add --retrain EPOCHS"),
        (
            ["--retrain", "1", "--fraction", "1"],
            "With 100% of the weights removed none is left to train; remove fewer.",
        ),
        (
            ["--retrain", "1", "--fraction", "0.9999999"],
            "With 99.99999% of the weights removed none is left to train",
        ),
        (["--retrain", "1", "--retrain-lr", "0"], "--retrain-lr is 0; it must be a finite number above 0"),
        (["--retrain", "1", "--retrain-lr", "inf"], "--retrain-lr is inf"),
    ],
)
def test_bad_options_of_training_again(runs, words, message):
    result = invoke("prune", runs / "brnn-sharpened-medium", *words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_training_again_that_was_stopped_says_how_to_go_on(bayesian, monkeypatch):
    from bayesrnn.lab.engine import loop as engine

    def stop(run):
        raise KeyboardInterrupt

    words = ["prune", bayesian, "--fraction", 0.6, "--retrain", 1, "--device", "cpu"]
    with monkeypatch.context() as patched:
        patched.setattr(engine.Run, "train", stop)
        result = invoke(*words)
    assert result.exit_code == 130
    assert "Stopped; the same command (without --force) continues." in result.stdout
    again = invoke(*words)
    assert again.exit_code == 0, again.output


def test_other_data_is_said_and_the_record_is_left_alone(runs, bayesian, text_folder, tmp_path):
    other = shutil.copytree(text_folder, tmp_path / "text")
    (other / "test.txt").write_text("\n".join((other / "test.txt").read_text().splitlines()[::-1]) + "\n")
    assert invoke("evaluate", bayesian, "--samples", 0).exit_code == 0
    before, own = ((bayesian / name).read_text() for name in ("record.json", "evaluation.json"))
    result = invoke("evaluate", bayesian, "--samples", 0, "--data", other)
    assert result.exit_code == 0, result.output
    (file,) = bayesian.glob("evaluation-text-*.json")
    assert (
        f"The text given is not that of the run in {bayesian}: config.json has another digest. "
        f"The metrics go to {file}, not to the record.\n"
    ) in result.stdout
    assert (bayesian / "record.json").read_text() == before
    assert (bayesian / "evaluation.json").read_text() == own
    found = json.loads(file.read_text())
    assert (found["data"], found["data_digest"][:8]) == ("text", file.stem.removeprefix("evaluation-text-"))
    assert found["metrics"]["test_perplexity"] != json.loads(own)["test_perplexity"]
    second = tmp_path / "there" / "text"  # another text of the same name: both are kept
    shutil.copytree(text_folder, second)
    (second / "test.txt").write_text("w1 w2 w5\n" * 20)
    assert invoke("evaluate", bayesian, "--samples", 0, "--data", second).exit_code == 0
    assert len(list(bayesian.glob("evaluation-text-*.json"))) == 2
    assert json.loads(file.read_text()) == found
    moved = shutil.copytree(text_folder, tmp_path / "moved")
    same = invoke("evaluate", bayesian, "--samples", 0, "--temperature", "--data", moved)
    assert "digest" not in same.stdout
    assert (bayesian / "record.json").read_text() != before
    config = json.loads((bayesian / "config.json").read_text())
    del config["data_digest"]  # an earlier version's: nothing to compare with
    (bayesian / "config.json").write_text(json.dumps(config))
    from bayesrnn.lab.runs import checkpoint

    tensors, about = checkpoint.load(bayesian / "best.safetensors")
    checkpoint.save_file(bayesian / "best.safetensors", tensors, {k: v for k, v in about.items() if k != "run"})
    assert "digest" not in invoke("evaluate", bayesian, "--samples", 0, "--data", other).output


def test_figures_of_other_data_are_not_in_a_report(bayesian, text_folder, tmp_path):
    from bayesrnn.lab.runs.collection import read

    other = shutil.copytree(text_folder, tmp_path / "text")
    (other / "test.txt").write_text("w1 w2 w5\n" * 20)
    (before,) = read(bayesian)
    assert invoke("evaluate", bayesian, "--samples", 0, "--data", other, "--temperature").exit_code == 0
    assert read(bayesian) == [before]
    (bayesian / "evaluation.json").write_text('{"test_perplexity": 1.5}')  # as an earlier version wrote it
    assert read(bayesian) == [before]
    assert invoke("evaluate", bayesian, "--samples", 0, "--temperature").exit_code == 0
    (after,) = read(bayesian)
    assert after.metrics["test_perplexity"] == pytest.approx(before.metrics["test_perplexity"])
    assert "temperature" in after.metrics
    (bayesian / "record.json").unlink()  # now evaluation.json alone has figures of the run
    (alone,) = read(bayesian)
    assert alone.metrics["test_perplexity"] == after.metrics["test_perplexity"]


def test_pruned_weights_of_another_run_are_not_exported(runs, bayesian, tmp_path):
    assert invoke("prune", bayesian, "--fraction", 0.5).exit_code == 0
    config = json.loads((bayesian / "config.json").read_text())
    (bayesian / "config.json").write_text(json.dumps({**config, "seed": 7}))
    from bayesrnn.lab.runs import checkpoint
    from bayesrnn.lab.runs.folder import identity

    tensors, about = checkpoint.load(bayesian / "best.safetensors")
    checkpoint.save_file(bayesian / "best.safetensors", tensors, {**about, "run": identity(bayesian)})
    result = invoke("export", bayesian, "--pruned")
    assert result.exit_code == 2
    assert "pruned.safetensors does not belong to" in result.stderr
    assert "make it again with `bayesrnn prune" in result.stderr
    assert result.stderr.count("\n") == 1
    tensors, about = checkpoint.load(bayesian / "pruned.safetensors")
    del about["run"], about["weights"]  # an earlier version's
    checkpoint.save_file(bayesian / "pruned.safetensors", tensors, about)
    assert invoke("export", bayesian, "--pruned").exit_code == 0


@pytest.mark.parametrize("samples", [0, 3])
def test_predict(runs, samples):
    result = invoke("predict", runs / "variational-tied-medium", "--samples", samples, text="w1 w2 zebra\nw3\n")
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["word"] for line in lines] == ["w1", "w2", "zebra", "<eos>", "w3", "<eos>"]
    assert [line["known"] for line in lines] == [True, True, False, True, True, True]
    dash = invoke("predict", runs / "variational-tied-medium", "-", "--samples", samples, text="w1 w2 zebra\nw3\n")
    assert dash.stdout == result.stdout
    assert all(line["surprisal"] > 0 and line["mutual_information"] >= 0 for line in lines)


def test_predict_on_bad_text(runs, tmp_path):
    run, file = runs / "variational-tied-medium", tmp_path / "a.txt"
    file.write_bytes(b"\xff\xff")
    assert "not UTF-8" in invoke("predict", run, file).stderr
    assert "no text to score" in invoke("predict", run, text="").stderr
    assert "cannot be read" in invoke("predict", run, tmp_path / "none.txt").stderr


def test_predict_without_stdin(runs, monkeypatch):
    import sys

    from bayesrnn.lab.tasks.language import words as prediction

    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UserError, match=r"^stdin is closed; send a text to it, or name a file"):
        prediction._stdin()


def test_predict_from_a_stdin_without_end(runs, monkeypatch):
    """It is read by parts, and no further than a file may be long; binary data is found at once."""
    import io
    import sys
    from types import SimpleNamespace

    from bayesrnn.lab.tasks.language import words as prediction

    class Endless(io.RawIOBase):
        def __init__(self, content):
            self.content, self.taken = content, 0

        def read(self, size=-1):
            assert 0 < size <= 1 << 20
            self.taken += size
            return self.content * size

    monkeypatch.setattr("bayesrnn.lab.tasks.language.words.MAX_BYTES", 3 << 20)
    for content, said, most in ((b"a", "stdin has more than", 4 << 20), (b"\0", None, 1 << 20)):
        source = Endless(content)
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=source))
        if said is None:
            assert prediction._stdin() == b"\0"
        else:
            with pytest.raises(UserError, match=said):
                prediction._stdin()
        assert source.taken == most
    binary = invoke("predict", runs / "variational-tied-medium", text=b"w1 w2\n\0\0")
    assert binary.exit_code == 2
    assert "stdin is a binary file" in binary.stderr


def surprisals(run, words):
    result = invoke("predict", run, "--samples", 0, text=" ".join(words))
    assert result.exit_code == 0, result.output
    return [json.loads(line)["surprisal"] for line in result.stdout.splitlines()]


def test_a_state_that_is_not_carried_in_training_is_not_carried_after(runs, text_folder, tmp_path):
    """With windows of 6 the seventh word on is predicted from the sixth on; else from all before it."""
    forgetful = tmp_path / "run"
    result = invoke("train", "brnn-medium", "--data", text_folder, "--out", forgetful, "--device", "cpu", *TINY,
                    "carry_state=false", "init=0.5")  # fmt: skip
    assert result.exit_code == 0, result.output
    one, other = "w1 w2 w5 w3 w8 w4 w9 w6 w1".split(), "w7 w7 w7 w7 w7 w4 w9 w6 w1".split()
    a, b = surprisals(forgetful, one), surprisals(forgetful, other)
    assert a[6:] == b[6:]
    assert a[5] != b[5]
    carrying = runs / "variational-tied-medium"
    assert surprisals(carrying, one)[6:] != surprisals(carrying, other)[6:]
    valid = json.loads((forgetful / "record.json").read_text())["metrics"]["valid_perplexity"]
    assert invoke("prune", forgetful, "--device", "cpu").exit_code == 0
    assert json.loads((forgetful / "prune.json").read_text())["curve"][0]["valid_perplexity"] == pytest.approx(valid)


def test_what_a_record_calls_its_data(tmp_path, monkeypatch):
    (tmp_path / "text").mkdir()
    monkeypatch.chdir(tmp_path / "text")
    assert [data_name(path) for path in (".", "../text", "./", str(tmp_path / "text"), "python-docs", "")] == [
        "text", "text", "text", "text", "python-docs", ""
    ]  # fmt: skip


@pytest.mark.parametrize("content", ["{", "[]", None])
def test_a_record_that_is_none_is_said(bayesian, content):
    file = bayesian / "record.json"
    file.unlink() if content is None else file.write_text(content)
    result = invoke("evaluate", bayesian, "--samples", 0)
    assert result.exit_code == 0, result.output
    said = f"{file} is missing or damaged: the metrics are only in evaluation.json. "
    assert said in result.stdout
    assert content == (file.read_text() if file.exists() else None)
    assert "test_perplexity" in json.loads((bayesian / "evaluation.json").read_text())


def test_rates_of_an_earlier_choice_leave_the_record(bayesian):
    common = ("evaluate", bayesian, "--samples", 0, "--dynamic", "--dynamic-lr")
    assert invoke(*common, "0.05,0.1").exit_code == 0
    assert "dynamic_tried" in json.loads((bayesian / "record.json").read_text())["metrics"]
    assert invoke(*common, "0.05").exit_code == 0
    assert "dynamic_tried" not in json.loads((bayesian / "record.json").read_text())["metrics"]


def test_bad_runs_and_text(runs, bayesian, tmp_path, text_folder):
    assert "is not a run of bayesrnn train" in invoke("evaluate", tmp_path / "none").stderr
    other = shutil.copytree(text_folder, tmp_path / "text")
    (other / "train.txt").write_text("quite other words here\n" * 50)
    (other / "test.txt").write_text("w1 w2 quite w3\n" * 50)
    result = invoke("evaluate", bayesian, "--data", other, "--samples", 0)
    assert "Words that the run does not know: 200 in train, 0 in valid, 50 in test." in result.stdout
    (file,) = bayesian.glob("evaluation-text-*.json")
    assert json.loads(file.read_text())["metrics"]["test_perplexity"] > 1
    words = (bayesian / "vocabulary.txt").read_text()
    (bayesian / "vocabulary.txt").write_text(words + "more\n")
    assert "vocabulary.txt is not the file that the run was trained with" in invoke("evaluate", bayesian).stderr
    (bayesian / "vocabulary.txt").write_text(words)
    (bayesian / "best.safetensors").write_bytes(b"12345678")
    result = invoke("evaluate", bayesian)
    assert result.exit_code == 2
    assert "not a whole checkpoint" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_run_is_used_from_another_folder(text_folder, tmp_path, monkeypatch):
    """Its data was named by a relative path: commands that read it say so, the others need it not."""
    shutil.copytree(text_folder, tmp_path / "text")
    monkeypatch.chdir(tmp_path)
    words = ["--data", "text", "--out", "run", "--device", "cpu", *TINY]
    assert invoke("train", "brnn-medium", *words).exit_code == 0
    (tmp_path / "else").mkdir()
    monkeypatch.chdir(tmp_path / "else")
    run = tmp_path / "run"
    for command in ("evaluate", "prune"):
        result = invoke(command, run)
        assert result.exit_code == 2
        assert result.stderr == (
            f"bayesrnn: {run / 'config.json'} has text as the text of this run (a path from where it was trained), and "
            "it is not there; name it with --data.\n"
        )
        result = invoke(command, run, "--data", "../text")
        assert result.exit_code == 0, result.output
    assert invoke("predict", run, text="w1 w2\n").exit_code == 0


def test_a_folder_by_the_name_of_the_own_text(text_folder, tmp_path, monkeypatch):
    """It goes first in every command; a run on the task's own text is not led astray by it."""
    text = [f"own{k * k % 19}" for k in range(300)]
    monkeypatch.setattr("bayesrnn.lab.tasks.language.task.python_docs", lambda: Corpus(text, text[:80], text[40:]))
    monkeypatch.chdir(tmp_path)
    assert invoke("train", "brnn-medium", "--out", "docs", "--device", "cpu", *TINY).exit_code == 0
    shutil.copytree(text_folder, tmp_path / "python-docs")
    words = ["--data", "python-docs", "--out", "run", "--device", "cpu", *TINY]
    assert invoke("train", "brnn-medium", *words).exit_code == 0
    before = json.loads((tmp_path / "run" / "record.json").read_text())["metrics"]["test_perplexity"]
    for more in ([], ["--data", "python-docs"]):
        result = invoke("evaluate", "run", "--samples", 0, *more)
        assert result.exit_code == 0, result.output
        assert "digest" not in result.stdout
        assert json.loads((tmp_path / "run" / "evaluation.json").read_text())["test_perplexity"] == pytest.approx(
            before
        )
        pruned = invoke("prune", "run", "--retrain", 1, "--device", "cpu", *more)  # the second time nothing is trained
        assert pruned.exit_code == 0, pruned.output
    assert invoke("evaluate", "run/pruned-0.8", "--samples", 0).exit_code == 0
    result = invoke("evaluate", "docs", "--samples", 0)
    assert result.exit_code == 0, result.output
    assert "digest" not in result.stdout
    result = invoke("evaluate", "docs", "--data", "python-docs", "--samples", 0)
    assert "The text given is not that of the run in docs" in result.stdout


def test_another_vocabulary_of_the_same_size(bayesian, tmp_path):
    """The run folder is to blame, not the text."""
    words = (bayesian / "vocabulary.txt").read_text().splitlines()
    (bayesian / "vocabulary.txt").write_text("\n".join(words[::-1]) + "\n")
    out = ["--out", tmp_path / "model.safetensors"]
    for command in (["predict", bayesian], ["export", bayesian, *out], ["evaluate", bayesian], ["prune", bayesian]):
        result = invoke(*command, text="w1 w2\n")
        assert result.exit_code == 2
        said = f"{bayesian / 'vocabulary.txt'} is not the file that the run was trained with: config.json has another"
        assert said in result.stderr
        assert result.stderr.count("\n") == 1
    assert not out[1].exists()


def test_an_interrupted_run_says_how_to_go_on(text_folder, tmp_path, monkeypatch):
    from bayesrnn.lab.engine import loop as engine

    def stop(run):
        raise KeyboardInterrupt

    words = ["train", "brnn-medium", "--data", text_folder, "--out", tmp_path / "run", "--device", "cpu", *TINY]
    with monkeypatch.context() as patched:
        patched.setattr(engine.Run, "train", stop)
        result = invoke(*words)
    assert result.exit_code == 130
    assert result.stderr == "bayesrnn: interrupted.\n"
    assert f"Continue with: bayesrnn train {tmp_path / 'run'} --resume" in result.stdout
    again = invoke("train", tmp_path / "run", "--resume")
    assert again.exit_code == 0, again.output
    assert "Stopped" not in again.stdout


def test_a_run_that_goes_astray_later_keeps_its_last_good_checkpoint(text_folder, tmp_path, monkeypatch):
    from bayesrnn.lab.engine import loop as engine

    real = engine.Run._epoch

    def astray(run):
        if run.epoch == 2:
            run.step.lr.fill_(1e30)
        real(run)

    settings = ["hidden=8", "batch_size=4", "window=6", "epochs=2", "clip=null"]
    words = [
        "train",
        "unregularised-medium",
        "--data",
        text_folder,
        "--out",
        tmp_path / "run",
        "--device",
        "cpu",
        *settings,
    ]
    with monkeypatch.context() as patched:
        patched.setattr(engine.Run, "_epoch", astray)
        result = invoke(*words)
    assert result.exit_code == 2
    assert "in epoch 2" in result.stderr
    assert "the checkpoint of epoch 1 is kept" in result.stderr
    assert invoke("evaluate", tmp_path / "run").exit_code == 0
    again = invoke(*words, "--resume")
    assert again.exit_code == 0, again.output
    assert "Resumed in epoch 2, after step 0." in again.stdout
