"""The table and the picture of digit runs, from made-up records."""

import json

import pytest

from bayesrnn.errors import UserError
from bayesrnn.lab import recipes
from docs.build import digits


def made_up(name, seed):
    metrics = {"test_error": 1.3 + 0.02 * seed, "best_epoch": 3}
    if name not in ("digits-lenet", "digits-mlp-plain"):
        metrics |= {"test_error_mc": 0.55 + 0.02 * seed, "samples": 50}
    about = {"seed": seed, "device": "cpu (here)", "versions": {"torch": "2"}, "recipe": name, "settings": {}}
    return {**about, "curves": {"test_error": [3.0, 2.0, 1.4]}, "metrics": metrics}


@pytest.fixture
def results(tmp_path):
    for name in digits.NAMES:
        (tmp_path / name).mkdir()
        for seed in (1, 2):
            (tmp_path / name / f"{seed}.json").write_text(json.dumps(made_up(name, seed)))
    return tmp_path


def test_every_recipe_has_a_name_and_every_name_a_recipe():
    assert set(digits.NAMES) == {n for n in recipes.names() if recipes.load(n).task == "digits"}


def test_without_records(tmp_path):
    assert digits.figures(tmp_path) == {}
    assert digits.block(tmp_path) == digits.NO_RECORD


def test_the_block(results):
    text = digits.block(results)
    assert "| Bayes by Backprop, MLP 400 | 1.36 | 1.33 ± 0.01 | 0.58 ± 0.01 | 2 |" in text
    assert "| LeNet | – | 1.33 ± 0.01 | – | 2 |" in text
    assert "(figures/digits-errors.png)" in text
    assert "MC: 50 draws" in text
    assert digits.figures(results)["digits-errors.png"][:4] == b"\x89PNG"


def test_a_file_that_is_no_record(results):
    (results / "digits-lenet/9.json").write_text('{"metrics": {}}')
    with pytest.raises(UserError, match="digits-lenet is not the record of a digits run"):
        digits.load(results)
