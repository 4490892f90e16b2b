"""The table of language models and the picture of overfitting, from records."""

import json

from bayesrnn.lab import recipes
from docs.build import penn_treebank


def written(folder, recipe, seed, metrics, **changed):
    train = {**vars(recipes.load(recipe).train), **changed}
    record = {
        "recipe": recipe, "seed": seed, "data": "ptb", "device": "cpu", "versions": {"torch": "2.13"},
        "settings": {"train": train}, "curves": {}, "metrics": metrics,
    }  # fmt: skip
    (folder / recipe).mkdir(exist_ok=True)
    (folder / recipe / f"{seed}{'-'.join(['', *changed])}.json").write_text(json.dumps(record))


def cells(text):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:] if line[:1] == "|"]


def test_every_published_row(tmp_path):
    for seed, test, dynamic in ((1, 76.0, 71.0), (2, 77.0, 73.0)):
        rules = {"sgd": {"test_perplexity": dynamic}, "rms": {"test_perplexity": 60.0}}
        written(tmp_path, "brnn-medium", seed, {"test_perplexity": test, "dynamic_by_rule": rules})
    written(tmp_path, "brnn-medium", 1, {"test_perplexity": 50.0}, epochs=9)  # not the recipe's settings
    bounds = {"test_perplexity": 76.0, "test_perplexity_bound": 75.0}
    written(tmp_path, "brnn-sharpened-medium", 1, {**bounds, "dynamic_by_rule": {"sgd": {"test_perplexity": 71.0}}})
    odd = {"sgd": {"test_perplexity": None, "test_perplexity_bound": "low"}}
    written(tmp_path, "brnn-sharpened-medium", 2, {"test_perplexity_bound": None, "dynamic_by_rule": odd})
    written(tmp_path, "variational-tied-medium", 1, {"test_perplexity": 79.5, "test_perplexity_mc": 78.5})
    only = {"test_perplexity": 65.0, "dynamic_rule": "rms", "test_perplexity_dynamic": 58.0}
    written(tmp_path, "best-medium", 1, {**only, "test_perplexity_mc": 64.0})  # of no paper, so whatever there is
    learnt = {"test_perplexity_dynamic": 77.5}  # published in another paper's table
    written(tmp_path, "zaremba-medium", 1, {"test_perplexity": 83.0, **learnt})
    written(tmp_path, "small-plain", 1, {"test_perplexity": 140.0})  # of no table
    text = penn_treebank.table(tmp_path)
    assert cells(text) == [
        ["best-medium", "–", "65.00", "–", "64.00", "–", "–", "58.00", "1"],
        ["brnn-medium", "75.5", "76.50 ± 0.71", "–", "–", "70.7", "72.00 ± 1.41", "60.00 ± 0.00", "2"],
        ["brnn-sharpened-medium", "74.8", "75.00", "–", "–", "69.8", "71.00 (no bound, 1 seed)", "–", "2"],
        ["variational-tied-medium", "79.7", "79.50", "79.0", "78.50", "–", "–", "–", "1"],
        ["zaremba-medium", "82.7", "83.00", "–", "–", "77.1", "77.50", "–", "1"],
    ]
    assert "cpu, torch 2.13" in text
    assert "by SGD in the papers (zaremba-medium: arXiv 1704.02798, table 1)." in text
    both = {"sgd": {"test_perplexity": 71.0, "test_perplexity_bound": 70.5}}
    written(tmp_path, "brnn-sharpened-medium", 1, {**bounds, "dynamic_by_rule": both})
    assert cells(penn_treebank.table(tmp_path))[2][6] == "70.50 (1 seed)"
    assert cells(penn_treebank.table(tmp_path / "nothing")) == []


def test_calibration_of_mean_and_draws(tmp_path):
    def scored(kind, perplexity, error):
        tenths = [{"entropy": float(k), "nll": k / 2} for k in range(10)]
        found = {"perplexity": perplexity, "calibration_error": error, "deciles": tenths}
        return {f"test_{key}{kind}": value for key, value in found.items()}

    drawn = {"samples": 50, "entropy_samples": 50}
    written(tmp_path, "best-medium", 1, {**scored("", 65.0, 0.02), **scored("_mc", 64.0, 0.01), **drawn})
    written(tmp_path, "brnn-medium", 1, {"test_perplexity": 76.0, "test_calibration_error": 0.02})
    printed = {
        **scored("", 60.0, 0.03),
        **scored("_mc_units", 58.0, 0.01),
        "samples_units": 50,
        "entropy_samples_units": 20,
    }
    printed["test_perplexity_by_draws_units"] = [{"draws": 20, "perplexity": 59.0}, {"draws": 50, "perplexity": 58.0}]
    other = {**scored("", 76.0, 0.05), **scored("_mc", 75.0, 0.01), "samples": 200, "entropy_samples": 10}
    written(tmp_path, "brnn-sharpened-medium", 1, other)
    written(tmp_path, "awd-24m", 1, {key: value for key, value in printed.items() if "deciles" not in key})
    assert cells(penn_treebank.calibration(tmp_path)) == [
        ["awd-24m", "mean", "60.00", "3.00%", "–", "–", "–"],
        ["awd-24m", "average of 20 draws of unit masks", "59.00", "1.00%", "–", "–", "–"],
        ["best-medium", "mean", "65.00", "2.00%", "0.000", "2.500", "4.500"],
        ["best-medium", "average of 50 draws", "64.00", "1.00%", "0.000", "2.500", "4.500"],
        ["brnn-sharpened-medium", "mean", "76.00", "5.00%", "0.000", "2.500", "4.500"],
        ["brnn-sharpened-medium", "average of 10 draws", "–", "1.00%", "0.000", "2.500", "4.500"],
    ]


def test_records_with_the_recipe_s_own_settings_come_first_and_other_texts_are_omitted(tmp_path):
    for seed, changed in ((1, {"epochs": 9}), (2, {}), (1, {})):
        written(tmp_path, "brnn-medium", seed, {}, **changed)
    other = {**json.loads((tmp_path / "brnn-medium/2.json").read_text()), "seed": 3, "data": "docs"}
    (tmp_path / "brnn-medium/3.json").write_text(json.dumps(other))
    found = penn_treebank.load(tmp_path)["brnn-medium"]
    assert [(r.seed, r.setting("train.epochs")) for r in found] == [(1, 60), (2, 60), (1, 9)]


def test_the_small_models_have_a_picture(tmp_path):
    assert penn_treebank.overfitting(tmp_path) == ""
    assert penn_treebank.figures(tmp_path) == {}
    for name, valid in (("small-plain", [150.0, 130.0, 160.0]), ("small-variational", [160.0, 140.0, 120.0])):
        (tmp_path / name).mkdir()
        curves = {"valid_perplexity": valid, "train_perplexity": [200.0, 90.0, 40.0]}
        record = {"recipe": name, "seed": 1, "metrics": {}, "curves": curves}
        (tmp_path / name / "1.json").write_text(json.dumps(record))
    text = penn_treebank.overfitting(tmp_path)
    assert "small-plain: validation 130.0 at best (epoch 2), 160.0 after epoch 3; training 40.0." in text
    assert "small-variational: validation 120.0 at best (epoch 3)" in text
    assert "(figures/ptb-overfitting.png)" in text
    assert penn_treebank.figures(tmp_path)["ptb-overfitting.png"][:4] == b"\x89PNG"
