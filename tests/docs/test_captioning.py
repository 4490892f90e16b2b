"""The table and the picture of captioning runs, from made-up records and from those of the repository."""

import json
from pathlib import Path

import pytest

from bayesrnn.errors import UserError
from bayesrnn.lab import recipes
from docs.build import captioning
from docs.build.pictures import NO_RECORD

ROOT = Path(__file__).resolve().parents[2]


def record(recipe, seed, *, human=True):
    metrics = {"valid_perplexity": 15.0, "test_perplexity": 15.0 + 0.1 * seed, "test_perplexity_mc": 14.0}
    for key, value in {"bleu1": 64.0, "bleu4": 21.0, "cider": 50.0}.items():
        metrics |= {f"test_{key}": value + seed, f"test_{key}_mc": value}
    if human:
        metrics["human"] = {"bleu1": 63.6, "bleu4": 21.0, "cider": 78.9}
    about = {"recipe": recipe, "seed": seed, "device": "cuda (made up)", "versions": {"torch": "2.11"}}
    return {**about, "curves": {"valid_perplexity": [20.0, 15.0]}, "metrics": metrics}


def write(folder, *records):
    for one in records:
        (folder / one["recipe"]).mkdir(exist_ok=True)
        (folder / one["recipe"] / f"{one['seed']}.json").write_text(json.dumps(one))


def test_the_block(tmp_path):
    write(tmp_path, *(record(name, seed) for name in ("caption-dropout", "caption-bbb") for seed in (1, 2)))
    text = captioning.block(tmp_path)
    assert "| dropout, mean | 15.15 ± 0.07 | 65.5 ± 0.7 | 22.5 ± 0.7 | 51.5 ± 0.7 | 2 |" in text
    assert "| Bayes by Backprop, draws | 14.00 ± 0.00 | 64.0 ± 0.0 | 21.0 ± 0.0 | 50.0 ± 0.0 | 2 |" in text
    assert "| published (arXiv 1411.4555) | – | 63.0 | – | – | – |" in text
    assert "| a person, against the others | – | 63.6 | 21.0 | 78.9 | – |" in text
    assert "cuda (made up), torch 2.11" in text
    assert captioning.figures(tmp_path)["captioning-scores.png"][:4] == b"\x89PNG"


def test_a_run_that_was_not_evaluated(tmp_path):
    one = record("caption-bbb", 1, human=False)
    one["metrics"] = {"valid_perplexity": 15.0, "test_perplexity": 15.5}
    write(tmp_path, one)
    text = captioning.block(tmp_path)
    assert "| Bayes by Backprop, mean | 15.50 | – | – | – | 1 |" in text
    assert "a person" not in text
    assert captioning.figures(tmp_path)


def test_without_records(tmp_path):
    assert captioning.block(tmp_path) == NO_RECORD
    assert captioning.figures(tmp_path) == {}


def test_other_files_are_refused(tmp_path):
    (tmp_path / "caption-bbb").mkdir()
    (tmp_path / "caption-bbb/9.json").write_text('{"metrics": {}}')
    with pytest.raises(UserError, match="is not the record of a captioning run: seed None has no metrics"):
        captioning.load(tmp_path)


def test_records_under_another_recipe_have_its_settings():
    """Bayes by Backprop with masks was trained as caption-bbb with other settings, which then became a recipe."""
    for name in captioning.METHODS:
        for one in captioning.load(ROOT / "results").get(name, []):
            assert one.recipe == name or one.changed_settings(name) == []


def test_every_recipe_has_a_name_and_every_name_a_recipe():
    assert set(captioning.METHODS) == {n for n in recipes.names() if recipes.load(n).task == "captioning"}
