import json
import math
from pathlib import Path
from typing import Literal

import pytest
import torch
from jsonschema import Draft202012Validator
from pydantic import Field, ValidationError
from typer.testing import CliRunner

from bayesrnn.errors import UserError
from bayesrnn.lab.cli import app
from bayesrnn.lab.recipes import flatten, from_dict, keys, load, names, override, schema, tables
from bayesrnn.lab.registry import TASKS, recipe_files
from bayesrnn.lab.tasks.language import task as language
from bayesrnn.lab.tasks.language.model import zero_state

TINY = ["model.hidden=4", "data.batch_size=2", "data.window=3", "data.loss=window"]
PAPERS = ("gal2016", "fortunato2017")  # of papers on the Penn Treebank
LANGUAGE = [name for name in names() if load(name).task == "language"]


@pytest.mark.parametrize("name", names())
def test_every_recipe_opens_with_its_command(name):
    text = recipe_files()[name].read_text("utf-8")
    assert text.startswith(f"# bayesrnn train {name} ")
    recipe = load(name)
    of_a_paper = name in LANGUAGE and recipe.paper.source  # the others have Python's documentation
    assert not of_a_paper or text.startswith(f"# bayesrnn train {name} --data ")
    assert from_dict(json.loads(json.dumps(recipe.model_dump())), where="copy") == recipe


@pytest.mark.parametrize("name", LANGUAGE)
def test_every_language_recipe_runs(name):
    recipe = override(load(name), TINY)
    torch.manual_seed(0)
    model = language.build(recipe, 7).train()
    elbo = language.window_elbo(model, recipe, windows=5)
    zeros = zero_state(recipe.model, 2, torch.device("cpu"))
    x, y = torch.randint(7, (3, 2)), torch.randint(7, (3, 2))
    terms, (_, after) = elbo.evaluate(lambda: model(x, zeros, y), y)
    loss = terms.loss
    assert math.isfinite(float(loss.detach()))
    assert [part.shape for part in after] == [part.shape for part in zeros]
    expected = (terms.nll + terms.sharpening) / 2 + terms.kl / (2 * 5)
    torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize("name", [n for n in LANGUAGE if load(n).table in PAPERS])
def test_rows_of_the_tables_have_their_figures(name):
    recipe = load(name)
    assert recipe.paper.valid
    assert recipe.paper.test
    published = 10.0 if recipe.model.hidden == 1500 else 5.0
    assert recipe.train.clip == (5.0 if name == "moon-large-embedding" else published)
    small = name == "unregularised-small"
    assert recipe.model.hidden in ((200,) if small else (650, 1500))
    assert (recipe.data.batch_size, recipe.data.window, recipe.model.layers) == (20, 20 if small else 35, 2)


def test_rows_of_a_table_have_its_figures():
    """Also where the recipe is another paper's; the recipe itself keeps that one's."""
    rows = tables.rows("fortunato2017")
    assert list(rows) == [
        "brnn-medium", "brnn-sharpened-medium", "unregularised-small", "variational-tied-medium", "zaremba-medium"
    ]  # fmt: skip
    here, own = rows["zaremba-medium"], load("zaremba-medium")
    assert (here.paper.test, here.paper.test_dynamic, own.paper.test) == (82.1, 77.1, 82.7)
    assert (here.model, here.train, here.data) == (own.model, own.train, own.data)
    assert rows["brnn-medium"] == load("brnn-medium")
    gal = tables.rows("gal2016")
    assert len(gal) == 12
    assert all(recipe == load(name) for name, recipe in gal.items())
    assert tables.rows("beyond").keys() == {"awd-24m", "best-medium", "brnn-24m", "frontier-24m"}
    assert all("1704.02798" in recipe.paper.source for recipe in rows.values())


WEIGHTS = [("awd-24m", 24_221_600), ("frontier-24m", 23_736_720), ("brnn-24m", 23_792_528)]


@pytest.mark.parametrize(("name", "weights"), WEIGHTS)
def test_weights_of_the_24m_recipes_with_the_vocabulary_of_the_penn_treebank(name, weights):
    with torch.device("meta"):
        model = language.LanguageModel(10_000, load(name).model)
    assert sum(p.numel() for p in model.parameters()) == weights
    assert weights <= 24_000_000 or name == "awd-24m"


def test_recipes_without_results_say_so():
    """In the list of recipes too, which shows their description where there is no paper."""
    results = Path(__file__).resolve().parents[3] / "results"
    missing = {name for name in names() if not (results / name).is_dir() and not name.startswith("quickstart")}
    assert missing == {name for name in names() if load(name).description.endswith("; not trained yet")}
    assert not any(load(name).paper.source for name in missing)
    assert CliRunner().invoke(app, ["recipes"]).output.split().count("yet") == len(missing)


def test_published_settings_of_the_bayesian_row():
    model = language.build(override(load("brnn-medium"), ["hidden=30"]), 50)
    sigma = math.sqrt(0.25 * math.exp(-2) + 0.75 * math.exp(-14))
    found = {name: (mean, s) for name, mean, s in model.named_posteriors()}
    assert "decoder.bias" not in found
    for name, (mean, s) in found.items():
        mean, s = mean.detach(), s.detach()
        low, high = (sigma / 4, sigma / 2) if name.startswith("rnn.") else (sigma / 2, sigma)
        assert low * 0.999 <= float(s.min()) <= float(s.max()) <= high * 1.001
        assert float(mean.abs().max()) <= 0.05


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lrr=1", "There is no key lrr; did you mean train.lr"),
        ("train.epoch=3", r"There is no key train.epoch; did you mean train.epochs\?$"),
        ("modl.hidden=3", r"There is no key modl.hidden; did you mean model.hidden\?$"),
        ("train.batch_size=3", r"There is no key train.batch_size; did you mean data.batch_size\?$"),
        ("nope.source=x", "There is no key nope.source; sections are paper, model"),
        ("nope.x=1", "There is no key nope.x; sections are paper, model, posterior, data, train, evaluate.$"),
        ("modl.nope=1", "There is no key modl.nope; sections are paper, model"),
        ("nope=1", "There is no key nope; keys are written SECTION.KEY, and sections are paper, model"),
        ("evaluate.x=1", "There is no key evaluate.x; evaluate has samples, dynamic_lr, dynamic_window, keep_weights."),
        ("train=1", "There is no key train; it is a section, and has epochs, optimizer, lr"),
        ("=1", "'=1' is not an override"),
        ("hidden=a", "model.hidden must be a whole number"),
        ("model.tied=1", "must be true or false"),
        ("epochs", "is not an override; write key=value"),
        ("input_dropout=1", "model.input_dropout is 1.0; it must be below 1"),
        ("epochs=0", "must be more than 0"),
        ("weight_decay=-1", "must be at least 0"),
        ("lr=.nan", "must be a finite number"),
        ("decay=2", "at most 1"),
        ("pi=1.5", "below 1"),
        ("precision=fp8", "must be one of tf32, fp32, bf16"),
        ("lr=[", "The value of train.lr cannot be read: '[' is not YAML"),
        ("epochs=1:30", "The value of train.epochs cannot be read: '1:30' is not YAML .*'1:30' is 90 in YAML 1.1"),
        ("epochs=0o10", "train.epochs must be a whole number, got '0o10'"),
        ("lr=1_0e2", "train.lr must be a number, got '1_0e2'"),
        ("optimizer=no", "train.optimizer must be text, got False"),
        ("momentum=1", "it must be below 1"),
        (
            "samples=100001",
            "evaluate.samples is 100001; it must be at most 100,000: each draw is a pass over all the d",
        ),
        ("samples=1000000001", "evaluate.samples is 1000000001; it must be at most"),
        ("clip=0", "must be more than 0"),
        ("average_decay=0.9", "needs train.average_from"),
        ("task=digits", "cannot be overridden"),
        ("paper.test=1", "paper.test is a published result, and cannot be overridden"),
        ("test_mc=1", "paper.test_mc is a published result"),
        ("init=.inf", "must be a finite number"),
        ("log_sigma1=1000", "posterior.log_sigma1 is 1000.0; it must be at most 40"),
        ("log_sigma2=-1000", "posterior.log_sigma2 is -1000.0; it must be at least -40"),
    ],
)
def test_bad_overrides_are_refused(text, message):
    with pytest.raises(UserError, match=message.replace("[", r"\[")):
        override(load("brnn-medium"), [text])


def test_overrides():
    recipe = override(load("brnn-medium"), ["lr=1e-3", "train.patience=4", "posterior.init_eta=null"])
    assert (recipe.train.lr, recipe.train.patience, recipe.posterior.init_eta) == (1e-3, 4, None)
    assert from_dict(recipe.model_dump(), where="copy") == recipe
    assert flatten(recipe)["train.lr"] == 1e-3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("modle: {hidden: 3}", "there is no key modle; did you mean model"),
        ("qqq: 3", "there is no key qqq; a recipe has description, table, task, paper, model"),
        ("evaluate: {qqq: 3}", "there is no key evaluate.qqq; evaluate has samples, dynamic_lr, dynamic_window"),
        ("model: 3", "model must be a set of keys"),
        ("a: b: c", "is not YAML"),
        ("", "must be a set of keys"),
        ("train:\n  epochs: 1\n  epochs: 2", r"\(line 3: the key 'epochs' is there twice\)"),
        ("train:\n  epochs: [1", r"\(line 2: .*'<stream end>'\)"),
        ("train: {epochs: 1:30}", r"r.yaml is not YAML as it is read here \('1:30' is 90 in YAML 1.1"),
        ("train: {epochs: 010}", r"r.yaml is not YAML as it is read here \('010' is 8 in YAML 1.1"),
    ],
)
def test_bad_files(tmp_path, content, message):
    file = tmp_path / "r.yaml"
    file.write_text(content)
    with pytest.raises(UserError, match=message):
        load(str(file))


@pytest.mark.parametrize("name", ["digits-bbb-400", "sentiment-gru-bbb", "caption-bbb", "forecast", "brnn-medium"])
def test_draws_have_a_limit_in_every_task(name):
    """A stranger's run folder may not keep `bayesrnn evaluate` busy for ever."""
    recipe = load(name)
    keys = [key for key in flatten(recipe) if key.endswith("samples")]
    assert "evaluate.samples" in keys
    for key in keys:
        assert flatten(override(recipe, [f"{key}=100000"]))[key] == 100_000
        with pytest.raises(UserError, match=f"{key} is 100001; it must be at most 100,000"):
            override(recipe, [f"{key}=100001"])


def test_unknown_names():
    with pytest.raises(UserError, match="did you mean brnn-medium"):
        load("brn-medium")
    with pytest.raises(UserError, match="cannot be read"):
        load("nowhere/x.yaml")


class TestFields:
    """Checks that are declared with a field."""

    @pytest.fixture
    def refused(self, monkeypatch):
        from bayesrnn.lab.tasks.base import TASKS, Task

        class Model(schema.Section):
            sizes: schema.Counts = (4, 4)
            share: schema.Rate | None = None
            power: schema.Real = Field(0.5, gt=0, lt=2)
            cell: Literal["lstm", "gru"] = "lstm"
            drop: schema.Rate = 0.1

        class Figures(schema.Paper):
            error: schema.Real | None = None

        class Own(Task):
            sections = schema.Sections(model=Model, data=schema.Nothing, paper=Figures)
            metric = "valid_error"

        monkeypatch.setitem(TASKS, "own", Own)

    @pytest.mark.parametrize(
        ("model", "message"),
        [
            ({"sizes": [3, 0]}, "model.sizes is 0; it must be more than 0"),
            ({"sizes": [3, 0.5]}, "model.sizes must be a whole number, got 0.5"),
            ({"sizes": 3}, "model.sizes must be a list"),
            ({"share": 1.5}, "model.share is 1.5; it must be below 1"),
            ({"share": -1}, "model.share is -1.0; it must be at least 0"),
            ({"power": 2}, "model.power is 2.0; it must be below 2"),
            ({"cell": "rnn"}, "model.cell is 'rnn'; it must be one of lstm, gru"),
            ({"drop": 1}, "model.drop is 1.0; it must be below 1"),
            ({"celll": 1}, "there is no key model.celll; did you mean model.cell"),
        ],
    )
    def test_bad_values(self, refused, model, message):
        with pytest.raises(UserError, match=message):
            from_dict({"task": "own", "model": model}, where="x")

    def test_good_values(self, refused):
        recipe = from_dict({"task": "own", "model": {"sizes": [7]}, "paper": {"error": "1e-3"}}, where="x")
        assert recipe.model.sizes == (7,)
        assert recipe.model.share is None
        assert recipe.paper.error == 1e-3
        assert flatten(recipe)["model.cell"] == "lstm"
        assert override(recipe, ["sizes=[1, 2]", "share=0.5"]).model.sizes == (1, 2)
        assert from_dict(json.loads(json.dumps(recipe.model_dump())), where="copy") == recipe

    @pytest.mark.parametrize("task", ["nothing", 3])
    def test_tasks_that_do_not_exist(self, task):
        with pytest.raises(UserError, match=f"There is no task {task}; there are captioning"):
            from_dict({"task": task}, where="x")


def test_momentum_is_not_for_adam():
    with pytest.raises(UserError, match="momentum is for sgd"):
        override(load("brnn-medium"), ["optimizer=adam", "momentum=0.5"])
    assert override(load("brnn-medium"), ["clip=null"]).train.clip is None


@pytest.mark.parametrize("task", TASKS)
def test_every_setting_has_a_meaning_and_a_default(task):
    recipe = from_dict({"task": task}, where="x")
    for setting in keys.settings(recipe):
        assert setting.meaning, setting.key
        assert setting.key == "task" or setting.value == setting.default


def test_recipes_cannot_be_changed():
    with pytest.raises(ValidationError, match="frozen"):
        load("brnn-medium").train.epochs = 3


@pytest.mark.parametrize("task", TASKS)
def test_the_schema_for_editors_knows_every_key(task):
    """Every shipped recipe fits its task's schema, which refuses unknown keys and values out of bounds."""
    found = keys.json_schema(task)
    validator = Draft202012Validator(found)
    for name in [name for name in names() if load(name).task == task]:
        values = load(name).model_dump(mode="json")
        assert validator.is_valid(values), name
        assert not validator.is_valid({**values, "modle": {}})
        assert not validator.is_valid({**values, "train": {"epochs": 0}})
    sections = found["$defs"]
    assert all("description" in field for part in sections.values() for field in part.get("properties", {}).values())


def test_one_schema_for_all_tasks():
    validator = Draft202012Validator(keys.json_schema())
    assert validator.is_valid({"model": {"tied_masks": False}})
    assert validator.is_valid({"task": "digits", "model": {"kind": "lenet"}})
    assert not validator.is_valid({"task": "digits", "model": {"tied_masks": False}})
