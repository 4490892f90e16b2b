import json
import re
from pathlib import Path

import pytest

from bayesrnn.errors import UserError
from bayesrnn.lab import recipes
from docs.build import caption_plots, captioning

PNG = b"\x89PNG\r\n\x1a\n"
ROOT = Path(__file__).resolve().parents[4]


def record(recipe, seed, perplexity, cider, epochs=12):
    """A record as a run and its evaluation write it, with made-up figures."""
    valid = [60 * 0.7**e + perplexity + (0.02 * max(0, e - 8)) for e in range(epochs)]
    metrics = {"best_epoch": 9, "valid_perplexity": perplexity, "train_seconds": 100.0 + seed, "samples": 30}
    for suffix, shift in (("", 0.0), ("_mc", 0.5)):
        metrics |= {
            f"valid_perplexity{suffix}": perplexity + shift,
            f"test_perplexity{suffix}": perplexity + shift + 0.1 * seed,
            f"beam{suffix}": 5,
            f"length_penalty{suffix}": 0.5,
            f"test_words{suffix}": 9.5,
            f"decoding{suffix}": [
                {"beam": b, "length_penalty": a, "cider": cider - abs(a - 0.5) * 5 + b / 10, "words": 8 + 2 * a}
                for b in (3, 5, 10)
                for a in (0.0, 0.5, 1.0)
            ],
            f"selective{suffix}": {
                sign: [[k / 5, cider + 20 - 4 * k] for k in range(1, 6)] for sign in captioning.SIGNS
            },
        }
        for i, name in enumerate(captioning.SCORES):
            metrics[f"test_{name}{suffix}"] = cider if name == "cider" else 64.0 - 15 * i - shift
            metrics[f"valid_{name}{suffix}"] = cider if name == "cider" else 60.0 - 15 * i
    metrics["human"] = {"bleu1": 63.6, "bleu2": 44.6, "bleu3": 30.6, "bleu4": 21.0, "cider": 78.9}
    return {
        "recipe": recipe,
        "seed": seed,
        "device": "cuda (made up)",
        "versions": {"torch": "2.11"},
        "overrides": ["train.lr=0.003"],
        "settings": {
            "model": vars(recipes.load(recipe).model),
            "train": {**vars(recipes.load(recipe).train), "lr": 0.003},
            "evaluate": {"samples": 7},
        },
        "curves": {"valid_perplexity": valid, "train_perplexity": [0.8 * v for v in valid]},
        "metrics": metrics,
    }


@pytest.fixture
def results(tmp_path):
    figures = {"caption-dropout": (16.0, 50.0), "caption-variational": (15.5, 51.0), "caption-bbb": (14.9, 53.0)}
    for name, (perplexity, cider) in figures.items():
        (tmp_path / name).mkdir()
        for seed in (1, 2, 3):
            made = record(name, seed, perplexity, cider + seed)
            (tmp_path / name / f"{seed}.json").write_text(json.dumps(made))
    (tmp_path / "caption-search").mkdir()
    for k in range(3):
        made = record("caption-bbb", 1, 15.0 + k, 50.0)
        (tmp_path / "caption-search" / f"{k}.json").write_text(json.dumps(made))
    return tmp_path


def test_the_table_has_means_over_seeds_and_people(results):
    text = captioning.BLOCKS["captioning"](results)
    rows = {line.split(" | ")[0].strip("| "): line for line in text.splitlines() if line.startswith("|")}
    assert "15.10 ± 0.10" in rows["Bayes by Backprop, mean"]
    assert "55.0 ± 1.0" in rows["Bayes by Backprop, mean"]
    assert "15.60 ± 0.10" in rows["Bayes by Backprop, draws"]
    assert "63.0 | 41.0 | 27.0 | – | – |" in rows["published, plain (arXiv 1411.4555)"]
    assert "21.0 | 78.9" in rows["a person, against the others"]
    better = "(better, every seed)"
    said = f"perplexity -1.10 {better}, BLEU-4 +0.00 (the same, seeds overlap), CIDEr +3.00 {better}"
    assert f"- Bayes by Backprop, mean, against dropout, mean: {said}." in text
    assert f"- Bayes by Backprop, draws, against dropout, mean: perplexity -0.60 {better}, BLEU-4 -0.50" in text
    assert text.count("against dropout, mean") == 4, "two methods with as many units, with the mean and with draws"
    assert "1024 units" not in text
    reached = "; ".join(
        f"{method}, {way}"
        for method in ("dropout", "variational dropout", "Bayes by Backprop")
        for way in ("mean", "draws")
    )
    assert f"- At least the published scores (BLEU-1 63, BLEU-2 41, BLEU-3 27): {reached}." in text
    assert "cuda (made up), torch 2.11" in text


def test_a_consensus_that_not_all_seeds_have(results):
    """Its row counts the seeds it is of, and has no perplexity; the sentence under the table leaves that out."""
    path = results / "caption-bbb" / "2.json"
    made = json.loads(path.read_text())
    own = {f"test_{name}_consensus": 70.0 for name in (*captioning.SCORES, "words")}
    own |= {f"valid_{name}_consensus": 70.0 for name in captioning.SCORES}
    made["metrics"] |= own | {"beam_consensus": 3, "length_penalty_consensus": 0.6}
    path.write_text(json.dumps(made))
    text = captioning.BLOCKS["captioning"](results)
    assert f"| Bayes by Backprop, consensus of draws | – |{' 70.0 |' * 6} 1 |" in text
    assert "- Bayes by Backprop, consensus of draws, against dropout, mean: BLEU-4 +" in text
    assert text.count("consensus of draws") == 3, "the row, and two sentences"
    settings = captioning.BLOCKS["captioning-settings"](results)
    assert "| beam / penalty, consensus of draws | mean of scores |" in settings
    assert "| 3 / 0.6 | 70.0 |" in settings
    assert caption_plots.scores(captioning.load(results)).startswith(b"\x89PNG")


def test_the_other_tables(results):
    settings = captioning.BLOCKS["captioning-settings"](results)
    assert settings.count("| 5 / 0.5 |") == 18
    assert settings.count("| 40.8 |") == 4, "60, 45, 30, 15 and 54 on average: two seeds, with the mean and with draws"
    search = captioning.BLOCKS["captioning-search"](results).splitlines()[2:]
    rows = [row.split(" | ") for row in search if row.startswith("|")]
    assert [row[3] for row in rows] == ["15.00", "16.00", "17.00"], "best first"
    assert {row[4] for row in rows} == {"40.0"}, "60, 45, 30, 15 and 50 on average"
    assert {row[1] for row in rows} == {"train.lr=0.003"}, "what differs from the recipe, wherever it came from"
    assert search[-1] == "Runs: Bayes by Backprop 3."
    doubt = captioning.BLOCKS["captioning-doubt"](results)
    assert "| Bayes by Backprop, mutual information | 71.0 | 67.0 | 63.0 | 59.0 | 55.0 |" in doubt


def test_figures_are_drawn_and_all_named_ones_exist(results, tmp_path):
    made = captioning.write_figures(results, tmp_path / "figures")
    assert {path.name for path in made} == set(captioning.FIGURES)
    assert all(path.read_bytes().startswith(PNG) for path in made)
    for block in captioning.BLOCKS.values():
        for target in re.findall(r"\]\((\S+)\)", block(results)):
            assert (tmp_path / target).is_file()


def test_one_seed_and_one_method(results, tmp_path):
    for name in ("caption-dropout", "caption-variational"):
        for file in (results / name).iterdir():
            file.unlink()
    for seed in (2, 3):
        (results / f"caption-bbb/{seed}.json").unlink()
    text = captioning.BLOCKS["captioning"](results)
    assert "±" not in text
    assert "against dropout" not in text
    assert captioning.write_figures(results, tmp_path / "figures")


def test_runs_that_were_not_evaluated(results, tmp_path):
    for file in (results / "caption-bbb").iterdir():
        made = json.loads(file.read_text())
        keep = ("best_epoch", "valid_perplexity", "test_perplexity", "train_seconds")
        made["metrics"] = {key: made["metrics"][key] for key in keep}
        file.write_text(json.dumps(made))
    for block in captioning.BLOCKS.values():
        block(results)
    assert captioning.write_figures(results, tmp_path / "figures")


def test_without_records(tmp_path):
    assert {block(tmp_path) for block in captioning.BLOCKS.values()} == {captioning.NOTHING}
    assert captioning.write_figures(tmp_path, tmp_path / "figures") == []
    assert not (tmp_path / "figures").exists()


def test_other_files_are_refused(results):
    (results / "caption-bbb/9.json").write_text('{"metrics": {}}')
    with pytest.raises(UserError, match=r"9.json is not the record of a captioning run"):
        captioning.load(results)


def test_the_page_has_a_place_for_every_block():
    text = (ROOT / "docs/captioning.md").read_text("utf-8")
    assert set(re.findall(r"<!-- results:([\w-]+) -->", text)) == set(captioning.BLOCKS)


def test_records_under_another_recipe_have_its_settings():
    """Bayes by Backprop with masks was trained as caption-bbb with other settings, which then became a recipe."""
    for name in captioning.METHODS:
        for record in captioning.load(ROOT / "results").get(name, []):
            assert record.recipe == name or record.changed_settings(name) == []


def test_every_recipe_has_a_name_and_every_name_a_recipe():
    from bayesrnn.lab import recipes

    assert set(captioning.METHODS) == {n for n in recipes.names() if recipes.load(n).task == "captioning"}


def test_models_are_compared_with_those_of_their_size(results):
    for name in ("caption-dropout-wide", "caption-variational-wide"):
        (results / name).mkdir()
        (results / name / "1.json").write_text(json.dumps(record(name, 1, 15.0 if "dropout" in name else 14.0, 50.0)))
    sentences = captioning.findings(captioning.load(results))
    assert len(sentences) == 7, "one of them about the published scores"
    wide = "Variational dropout, 1024 units, mean, against dropout, 1024 units, mean: perplexity -1.00 (better), "
    assert any(sentence.startswith(wide) for sentence in sentences)
