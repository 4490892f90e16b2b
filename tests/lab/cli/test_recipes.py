import json

import pytest
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from bayesrnn.lab import recipes
from bayesrnn.lab.cli import app
from bayesrnn.lab.recipes.keys import settings


def invoke(*words):
    return CliRunner().invoke(app, list(words))


@pytest.mark.parametrize("name", ["brnn-medium", "digits-bbb-400", "caption-bbb"])
def test_every_setting_is_listed_with_value_default_and_meaning(name):
    result = invoke("recipes", name)
    assert result.exit_code == 0, result.output
    rows = {line.split()[0]: line for line in result.stdout.splitlines() if line.strip()}
    listed = [s for s in settings(recipes.load(name)) if "." in s.key and not s.key.startswith("paper.")]
    assert len(listed) > 40
    for setting in listed:
        assert setting.meaning.split()[0] in rows[setting.key]
    assert recipes.load(name).description in result.stdout


def test_a_value_beside_its_default():
    line = next(line for line in invoke("recipes", "brnn-medium").stdout.splitlines() if "train.decay_after" in line)
    assert line.split()[:3] == ["train.decay_after", "20", "0"]


def test_a_recipe_of_ones_own_and_one_that_is_not_there(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("# yaml-language-server: $schema=recipe.schema.json\ntask: digits\ntrain: {epochs: 7}\n")
    assert "train.epochs" in invoke("recipes", str(file)).stdout
    result = invoke("recipes", "brn-medium")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "did you mean brnn-medium?" in result.stderr


def test_the_schema_for_editors():
    all_tasks, digits = (json.loads(invoke("recipes", "--schema", *task).stdout) for task in ([], ["digits"]))
    recipe = {"task": "digits", "train": {"epochs": 3}, "model": {"kind": "lenet"}}
    for schema in (all_tasks, digits):
        Draft202012Validator.check_schema(schema)
        assert Draft202012Validator(schema).is_valid(recipe)
        assert not Draft202012Validator(schema).is_valid({**recipe, "train": {"epoch": 3}})
    assert not Draft202012Validator(digits).is_valid({"task": "language"})
    assert "There is no task numbers" in invoke("recipes", "--schema", "numbers").stderr
