import math
from dataclasses import asdict

import pytest
import torch

from bayesrnn import recipes
from bayesrnn.errors import UserError
from bayesrnn.recipes import flatten, from_dict, load, names, override
from bayesrnn.tasks import language

TINY = ["model.hidden=4", "data.batch_size=2", "data.window=3"]


@pytest.mark.parametrize("name", names())
def test_every_recipe_opens_with_its_command_and_runs(name):
    text = (recipes._FOLDER / f"{name}.yaml").read_text("utf-8")
    assert text.startswith(f"# bayesrnn train {name} --data ")
    recipe = override(load(name), TINY)
    torch.manual_seed(0)
    model = language.build(recipe, 7).train()
    objective = language.Objective(model, recipe, windows=5)
    zeros = torch.zeros(recipe.model.layers, 2, 4)
    x, y = torch.randint(7, (3, 2)), torch.randint(7, (3, 2))
    loss, terms, (h, _) = objective(x, y, (zeros, zeros.clone()))
    assert math.isfinite(float(loss.detach()))
    assert h.shape == zeros.shape
    expected = (terms.nll + terms.sharpening) / 2 + terms.kl / (2 * 5)
    torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize("name", [n for n in names() if load(n).table])
def test_rows_of_the_tables_have_their_figures(name):
    recipe = load(name)
    assert recipe.paper.valid
    assert recipe.paper.test
    assert (recipe.model.hidden, recipe.train.clip) in ((650, 5.0), (1500, 10.0))
    assert (recipe.data.batch_size, recipe.data.window, recipe.model.layers) == (20, 35, 2)


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
        ("train.epoch=3", "did you mean train.epochs"),
        ("hidden=a", "model.hidden must be a whole number"),
        ("model.tied=1", "must be true or false"),
        ("epochs", "is no override; write key=value"),
        ("input_dropout=1", "a dropout rate is at least 0 and below 1"),
        ("epochs=0", "must be more than 0"),
        ("weight_decay=-1", "must be at least 0"),
        ("lr=.nan", "must be a finite number"),
        ("decay=2", "at most 1"),
        ("pi=1.5", "below 1"),
        ("precision=fp8", "must be one of tf32, fp32, bf16"),
        ("lr=[", "cannot be read"),
    ],
)
def test_bad_overrides_are_refused(text, message):
    with pytest.raises(UserError, match=message.replace("[", r"\[")):
        override(load("brnn-medium"), [text])


def test_overrides():
    recipe = override(load("brnn-medium"), ["lr=1e-3", "train.patience=4", "posterior.init_eta=null"])
    assert (recipe.train.lr, recipe.train.patience, recipe.posterior.init_eta) == (1e-3, 4, None)
    assert from_dict(asdict(recipe), where="copy") == recipe
    assert flatten(recipe)["train.lr"] == 1e-3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("modle: {hidden: 3}", "there is no key modle; did you mean model"),
        ("model: 3", "model must be a set of keys"),
        ("a: b: c", "is not YAML"),
        ("", "must be a set of keys"),
    ],
)
def test_bad_files(tmp_path, content, message):
    file = tmp_path / "r.yaml"
    file.write_text(content)
    with pytest.raises(UserError, match=message):
        load(str(file))


def test_unknown_names():
    with pytest.raises(UserError, match="did you mean brnn-medium"):
        load("brn-medium")
    with pytest.raises(UserError, match="cannot be read"):
        load("nowhere/x.yaml")
