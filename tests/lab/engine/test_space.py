import pytest

from bayesrnn.errors import UserError
from bayesrnn.lab.engine.space import Range, read_grid, read_search, read_value
from bayesrnn.lab.recipes import load
from bayesrnn.lab.recipes.schema import Counts, Section, Sections
from bayesrnn.lab.tasks.base import TASKS


@pytest.fixture
def recipe():
    return load("variational-tied-medium")


def test_grids(recipe):
    found = read_grid(recipe, ["recurrent_dropout=0, 0.25", "train.patience=null,3"])
    assert found == {"model.recurrent_dropout": ("0", "0.25"), "train.patience": ("null", "3")}


def test_lists_are_one_value(line_recipe, monkeypatch):
    class Model(Section):
        sizes: Counts = (1,)

    monkeypatch.setattr(TASKS["line"], "sections", Sections(model=Model, data=Model))
    assert read_grid(load(line_recipe), ["model.sizes=[1, 2],[3]"]) == {"model.sizes": ("[1, 2]", "[3]")}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("recurrent_dropout", "is not a grid"),
        ("recurrent_dropout=0,", "is not a grid"),
        ("recurrent_dropout=0,0", "repeats a setting or value"),
        ("recurrent_dropout=0,1", "it must be below 1"),
        ("recurent_dropout=0", "did you mean model.recurrent_dropout"),
    ],
)
def test_bad_grids(recipe, text, message):
    with pytest.raises(UserError, match=message):
        read_grid(recipe, [text])
    with pytest.raises(UserError, match="repeats a setting"):
        read_grid(recipe, ["hidden=1", "model.hidden=2"])


def test_ranges(recipe):
    found = read_search(recipe, ["lr=1e-3:1:log", "hidden=4:8", "train.clip=1:5"])
    assert found == {
        "train.lr": Range(1e-3, 1.0, True),
        "model.hidden": Range(4, 8, False),
        "train.clip": Range(1.0, 5.0, False),
    }
    assert isinstance(found["model.hidden"].low, int)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr", "is not a range"),
        ("lr=1", "is not a range"),
        ("lr=2:1", "is not a range"),
        ("lr=1:2:exp", "is not a range"),
        ("lr=0:2:log", "is not a range"),
        ("hidden=1.5:2", "must be a whole number"),
        ("lr=a:b", "is not a range"),
        ("word_dropout=0:1", "it must be below 1"),
        ("precision=1:2", "is not a number; give its values with --grid"),
    ],
)
def test_bad_ranges(recipe, text, message):
    with pytest.raises(UserError, match=message):
        read_search(recipe, [text])
    with pytest.raises(UserError, match="repeats a setting"):
        read_search(recipe, ["lr=1:2", "train.lr=1:2"])


def test_values_are_of_their_fields_type(recipe):
    assert read_value(recipe, "train.lr", "1e-3") == 1e-3  # to YAML alone a word
    assert read_value(recipe, "train.patience", "null") is None
    assert read_value(recipe, "model.hidden", "3") == 3
