"""`bayesrnn export --hub` and `br.load`: a run's predictions to the bit, and a card that says what the record says."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from typer.testing import CliRunner

import bayesrnn as br
from bayesrnn.errors import UserError
from bayesrnn.lab import hub, recipes
from bayesrnn.lab.cli import app
from bayesrnn.lab.registry import task_class
from bayesrnn.lab.runs.opening import OpenedRun, open_run
from bayesrnn.lab.runs.record import Record
from bayesrnn.lab.tasks.forecast.task import Forecast

CPU = torch.device("cpu")
WORDS = b"<unk>\n<eos>\na\nb\nc\n"
RATINGS = json.dumps({"mean": 0.5, "sd": 0.2, "words": ["", "start", "unknown", "good", "bad"]}).encode()
FILES = {
    "language": {"vocabulary.txt": WORDS},
    "sentiment": {"words.json": RATINGS},
    "captioning": {"vocabulary.txt": WORDS, "features.json": b'{"size": 7}'},
    "digits": {},
}
TOKENS, IMAGES = torch.arange(8).reshape(4, 2) % 5, torch.linspace(0, 1, 2 * 784).reshape(2, 1, 28, 28)
RUNS = {
    "variational-tied-medium": (["hidden=4"], TOKENS),
    "variational-untied-medium": (["hidden=4"], TOKENS),
    "brnn-medium": (["hidden=4", "tied=true"], TOKENS),
    "brnn-sharpened-medium": (["hidden=4"], TOKENS),
    "sentiment-lstm-variational": (["hidden=4", "embedding=3"], TOKENS),
    "sentiment-gru-variational": (["hidden=4", "embedding=3"], TOKENS),
    "sentiment-lstm-bbb": (["hidden=4", "embedding=3"], TOKENS),
    "digits-bbb-400": (["hidden=4"], IMAGES),
    "digits-bbb-sharpened-400": (["hidden=4"], IMAGES),
    "digits-lenet-all": (["hidden=4"], IMAGES),
    "digits-lenet-dropconnect": (["hidden=4"], IMAGES),
    "caption-bbb": (["hidden=4"], TOKENS),
    "caption-variational": (["hidden=4"], TOKENS),
}


def invoke(*args):
    return CliRunner().invoke(app, [str(a) for a in args])


def opened(name, overrides, path):
    """A run with random weights: what training made of them is not the matter here."""
    recipe = recipes.override(recipes.load(name), overrides)
    files = FILES[recipe.task]
    torch.manual_seed(0)
    model = task_class(recipe.task).build(recipe, files)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.is_floating_point():
                tensor.add_(0.1 * torch.rand_like(tensor))
    config = {"recipe": name, "seed": 1, "settings": recipe.model_dump()}
    return OpenedRun(path, config, recipe, files, model.eval())


def predicted(model, task, inputs):
    extra = {"features": torch.ones(2, 7)} if task == "captioning" else {}
    return br.predict(model, inputs, samples=4, seed=3, kwargs=extra, batch_dim=0 if task == "digits" else 1).samples


def example(folder, monkeypatch):
    """Run the code on the card."""
    monkeypatch.chdir(folder.parent)
    exec(re.search("```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL).group(1), {})


@pytest.mark.parametrize("name", RUNS)
def test_every_task_is_loaded_with_the_same_predictions_to_the_bit(name, tmp_path, monkeypatch):
    overrides, inputs = RUNS[name]
    run = opened(name, overrides, tmp_path)
    folder = hub.export(run, tmp_path / "model")
    state = torch.get_rng_state()
    model = br.load(folder)
    assert torch.equal(torch.get_rng_state(), state)
    assert not model.training
    assert type(model) is type(run.model)
    for key, value in run.model.state_dict().items():
        assert torch.equal(model.state_dict()[key], value)
    if run.recipe.posterior.kind != "sharpened":  # which needs targets
        one, two = (predicted(m, run.recipe.task, inputs) for m in (run.model, model))
        assert torch.equal(one, two)
        assert not torch.equal(one[0], one[1])
        example(folder, monkeypatch)


def test_every_recipe_of_the_list_exists_and_every_task_is_in_it():
    assert set(RUNS) <= set(recipes.names())
    assert {recipes.load(name).task for name in RUNS} == set(FILES)


def test_a_forecast_goes_without_its_series(tmp_path, monkeypatch):
    overrides = ["hidden=3", "components=2", "window=24", "horizon=3"]
    task = Forecast(recipes.override(recipes.load("forecast-mixture"), overrides), None, CPU)
    monkeypatch.setitem(FILES, "forecast", task.files())
    run = opened("forecast-mixture", overrides, tmp_path)
    folder = hub.export(run, tmp_path / "model")
    assert sorted(p.name for p in folder.iterdir()) == ["README.md", "config.json", "model.safetensors", "plan.json"]
    same = br.load(folder)
    task.attach(run.model)
    for a, b, inputs in zip(run.model.networks, same.networks, task.examples, strict=True):
        for seed in range(3):
            with br.draw(a, seed=seed), br.draw(b, seed=seed), torch.no_grad():
                assert torch.equal(a(*inputs[:3]), b(*inputs[:3]))
    example(folder, monkeypatch)


@pytest.fixture(scope="module")
def language(text_folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    small = ["hidden=6", "batch_size=4", "window=6", "epochs=1", "tied=true"]
    result = invoke("train", "brnn-medium", "--data", text_folder, "--out", out, "--device", "cpu", *small)
    assert result.exit_code == 0, result.output
    assert invoke("prune", out, "--fraction", 0.5).exit_code == 0
    return out


def test_the_command_writes_the_whole_posterior_or_what_pruning_left(language, tmp_path):
    x = torch.randint(12, (7, 2))
    for flags in ([], ["--pruned"]):
        folder = tmp_path / f"model{len(flags)}"
        result = invoke("export", language, "--hub", folder, *flags)
        assert result.exit_code == 0, result.output
        again = invoke("export", language, "--hub", folder, *flags)
        assert (again.exit_code, "exists already; replace it with --force" in again.stderr) == (2, True)
        assert invoke("export", language, "--hub", folder, "--force", *flags).exit_code == 0
    whole, pruned = (br.load(tmp_path / f"model{n}") for n in (0, 1))
    run = open_run(language, CPU).model
    one, two = (br.predict(m, x, samples=3, seed=1).samples for m in (run, whole))
    assert torch.equal(one, two)
    assert float((br.to_torch(pruned).rnn.weight_hh_l0 == 0).float().mean()) > 0.2
    cards = [(tmp_path / f"model{n}" / "README.md").read_text() for n in (0, 1)]
    assert ["before weights were removed" in card for card in cards] == [False, True]
    assert ["model-index" in card for card in cards] == [True, False]
    record = json.loads((language / "record.json").read_text())
    results = yaml.safe_load(cards[0].split("---\n")[1])["model-index"][0]["results"][0]["metrics"]
    assert {m["type"]: m["value"] for m in results}["test_perplexity"] == record["metrics"]["test_perplexity"]
    assert "It was not measured. Run `bayesrnn evaluate RUN` and export again." in cards[0]
    assert str(language.parent) not in cards[0] + (tmp_path / "model0" / "config.json").read_text()
    for option in (["--out", tmp_path / "x"], ["--format", "onnx"], ["--format", "torch"]):
        refused = invoke("export", language, "--hub", tmp_path / "other", *option)
        assert (refused.exit_code, "omit --out and --format" in refused.stderr) == (2, True)


def test_a_run_folder_is_not_opened_but_exported(language):
    with pytest.raises(UserError, match=r"is the folder of a run; export it first: bayesrnn export .* --hub FOLDER"):
        br.load(language)


def test_the_card_has_what_the_record_says_about_uncertainty(tmp_path):
    metrics = {"test_error": 1.5, "test_calibration_error_mc": 0.01234, "samples": 50}
    card = hub.card(opened("digits-bbb-400", ["hidden=4"], tmp_path), Record(data="mnist", metrics=metrics), name="m")
    results, unsure = card.split("## Results")[1].split("## Uncertainty")
    assert "| test error in % | 1.5 |" in results
    assert "On mnist." in unsure
    assert "| measured with | samples 50 |" in unsure
    assert "| test calibration error, averaged over draws | 0.01234 |" in unsure
    assert "trained by Bayes by Backprop" in card
    assert "Changed settings" not in card
    changed = Record(data="mnist", metrics=metrics, overrides=["hidden=4"])
    card = hub.card(opened("digits-bbb-400", ["hidden=4"], tmp_path), changed, name="m")
    assert "Changed settings: hidden=4. A Gaussian" in card


def test_words_of_a_stranger_do_not_become_markup(tmp_path):
    run = opened("digits-bbb-400", ["hidden=4"], tmp_path)
    evil = "x](http://evil) <script>\n---\n| `a` |"
    run.config["recipe"] = evil
    record = Record(
        recipe=evil, data=evil, metrics={"test_error": 1.5, "test_nll": float("nan")}, versions={evil: evil}
    )
    card = hub.card(run, record, name="m")
    front, body = card.split("---\n", 2)[1:]
    assert yaml.safe_load(front)["model-index"][0]["results"][0]["dataset"]["name"] == evil.replace("\n", " ")
    prose = re.sub("```.*?```", "", body, flags=re.DOTALL)
    assert not re.search(r"(?<!\\)<script|(?<!\\)\]\(http", prose)
    assert all(line.count("|") - line.count(r"\|") in (0, 3, 4) for line in prose.splitlines())


def test_a_stranger_s_folder_takes_no_more_memory_than_it_has(tmp_path):
    run = opened("brnn-medium", ["hidden=4"], tmp_path)
    folder = hub.export(run, tmp_path / "model")
    about = json.loads((folder / "config.json").read_text())
    for change, said in (
        ({"hidden": 9_000_000}, "more than fits into this machine's memory|is of another model"),
        ({"hidden": 5}, "is of another model"),
        ({"layers": 10**8}, "must be at most 1,000"),
        ({"hidden": "x"}, "must be a whole number"),
    ):
        settings = {**about["arguments"]["settings"], "model": {**about["arguments"]["settings"]["model"], **change}}
        (folder / "config.json").write_text(json.dumps({**about, "arguments": {"settings": settings}}))
        with pytest.raises(UserError, match=said):
            br.load(folder)
    for arguments in ({}, {"settings": 3}, {"settings": {"task": "os.system"}}):
        (folder / "config.json").write_text(json.dumps({**about, "arguments": arguments}))
        with pytest.raises(UserError):
            br.load(folder)


def test_a_vocabulary_of_another_size_or_content_is_refused(tmp_path):
    folder = hub.export(opened("brnn-medium", ["hidden=4"], tmp_path), tmp_path / "model")
    shutil.copytree(folder, tmp_path / "copy")
    (folder / "vocabulary.txt").write_bytes(WORDS.replace(b"c", b"d"))
    with pytest.raises(UserError, match="is not the file that was saved"):
        br.load(folder)
    Path(tmp_path / "copy" / "vocabulary.txt").unlink()
    with pytest.raises(UserError, match=r"vocabulary.txt cannot be read"):
        br.load(tmp_path / "copy")
