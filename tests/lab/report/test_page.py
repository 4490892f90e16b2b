"""``bayesrnn report``: the page says what the records say, holds for any task, and can be read anywhere."""

import math
import re

import pytest
from report_examples import DIGITS, FORECAST, SENTIMENT, Reader, groups_of, page_of, record

from bayesrnn.lab.report import weights
from bayesrnn.lab.report.analysis import Analysis
from bayesrnn.lab.report.page import heading
from bayesrnn.lab.runs.record import Record
from bayesrnn.lab.tasks.language.words import ScoredWord


def test_a_language_run_beside_its_paper(tmp_path):
    text, pictures = page_of(tmp_path, record())
    page = Reader(text)
    assert not page.open
    assert page.ids[::2] == ["summary", "curves", "measures", "reliability", "entropy-gap", "configuration",
                             "environment"]  # fmt: skip
    at = page.cells.index("test perplexity")
    assert page.cells[at + 1] == "77.12paper 75.50"
    assert "test perplexity 77.12 (paper 75.50)" in text
    assert "0.610 with 0 draws, 0.630 with 1 draw, 0.660 with 10 draws" in text
    assert "6.3%" in text  # (30 * 0.05 + 10 * 0.1) / 40
    assert set(pictures) == {
        "curve-valid-perplexity.png", "curve-train-perplexity.png", "curve-kl-per-sequence.png", "reliability.png",
        "entropy-gap.png",
    }  # fmt: skip


def test_only_the_papers_rule_of_dynamic_evaluation_stands_beside_its_figure(tmp_path):
    """SGD is theirs; the RMS rule is better, which would flatter us."""
    own = record()
    settings = {**own["settings"], "paper": {**own["settings"]["paper"], "test_dynamic": 70.7}}
    rms = {"dynamic_rule": "rms", "dynamic_lr": 2e-4, "valid_perplexity_dynamic": 72.0, "test_perplexity_dynamic": 69.5}
    sgd = {"lr": 0.1, "valid_perplexity": 74.0, "test_perplexity": 71.25}
    by_rule = {"sgd": sgd, "rms": {"lr": 2e-4, "valid_perplexity": 72.0, "test_perplexity": 69.5}}
    for name, more in {"one": {}, "both": {"dynamic_by_rule": by_rule}}.items():
        (tmp_path / name).mkdir()
        made = {**own, "settings": settings, "metrics": {**own["metrics"], **rms, **more}}
        page = Reader(page_of(tmp_path / name, made)[0])
        assert page.cells[page.cells.index("test perplexity, dynamic evaluation by the RMS rule") + 1] == "69.50"
        found = page.cells[page.cells.index("test perplexity, dynamic evaluation") + 1]
        assert found == ("71.25paper 70.70" if more else "–paper 70.70")


def test_of_a_sharpened_model_bounds_stand_beside_the_paper_s_figures(tmp_path):
    own = record()
    paper = {"source": "x", "test": 74.8, "test_dynamic": 69.8}
    settings = {**own["settings"], "paper": paper, "posterior": {"kind": "sharpened"}}
    rules = {
        "sgd": {"test_perplexity": 71.25, "test_perplexity_bound": 70.75},
        "rms": {"test_perplexity": 69.5, "test_perplexity_bound": 69.25},
    }
    metrics = {"test_perplexity": 76.25, "test_perplexity_bound": 75.5, "dynamic_by_rule": rules}
    page = Reader(page_of(tmp_path, {**own, "settings": settings, "metrics": metrics})[0])
    for words, text in {
        "test perplexity": "76.25",
        "test perplexity, sharpened bound": "75.50paper 74.80",
        "test perplexity, dynamic evaluation": "71.25",
        "test perplexity, dynamic evaluation, sharpened bound": "70.75paper 69.80",
        "test perplexity, dynamic evaluation by the RMS rule, sharpened bound": "69.25",
    }.items():
        assert page.cells[page.cells.index(words) + 1] == text


def test_the_page_is_self_contained_and_has_alternatives(tmp_path):
    text, pictures = page_of(tmp_path, record(), SENTIMENT)
    page = Reader(text)
    assert len(page.images) == len(pictures)
    assert all(len(image["alt"]) > 30 for image in page.images)
    assert all(image["src"].startswith("data:image/png;base64,") for image in page.images)
    assert not re.search(r"<script|https?://|@import|url\(|javascript:", text)
    assert len(page.ids) == len(set(page.ids))
    for target in re.findall(r'href="#([^"]+)"', text):
        assert target in page.ids
    again, _ = page_of(tmp_path, record(), SENTIMENT)
    assert again == text


def test_seeds_of_one_setting_are_one_column(tmp_path):
    other = record(seed=2, metrics={"best_epoch": 2, "valid_perplexity": 82.25, "test_perplexity": 79.125})
    text, _ = page_of(tmp_path, record(), other)
    assert "81.25 ± 1.41" in text
    assert "2 seeds" in text
    changed = record(overrides=["train.epochs=9"], settings={**record()["settings"], "train": {"epochs": 9}})
    text, _ = page_of(tmp_path, record(), other, changed)
    assert "brnn-medium (train.epochs=9)" in text
    assert "What differs" in text
    rows = Reader(text).cells
    assert rows[rows.index("train.epochs") + 1 :][:2] == ["3", "9"]


def test_other_tasks(tmp_path):
    text, pictures = page_of(tmp_path, SENTIMENT, DIGITS, FORECAST)
    ids = Reader(text).ids
    assert {"sentiment-coverage", "sentiment-selective", "forecast-coverage"} <= set(ids)
    curves = {"sentiment-curve-valid-rmse.png", "digits-curve-valid-error.png", "forecast-curve-valid-crps.png"}
    assert curves | {"sentiment-coverage.png", "forecast-coverage.png"} <= set(pictures)
    assert "90% intervals hold 91.0%" in text
    assert "90% intervals hold 93.0%" in text
    assert "test error in % 1.6 (paper 1.36)" in text
    assert "after the last epoch: test RMSE" in text
    assert "digits-curve-kl.png" in pictures
    assert "sentiment-curve-kl.png" not in pictures  # of the digits, not of the reviews, whose KL is nothing


def test_what_is_no_figure_of_the_model_is_folded_away(tmp_path):
    text, _ = page_of(tmp_path, FORECAST)
    main, folded = text.split("<details><summary>More metrics", 1)
    folded, how = folded.split("<summary>How they were measured", 1)
    shown = Reader(main[main.index("<table") : main.index("</table>") + 8]).cells
    assert shown[0::2] == [
        "metric",
        "test CRPS",
        "test coverage",
        "naive CRPS",
        "validation CRPS of the networks, scaled",
    ]
    assert "93.0%" in shown
    assert "naive width" in folded
    assert re.findall(r'<th scope="row">(.*?)</th>', how[: how.index("</table>")])[:2] == ["level", "samples"]


def test_captions_and_digits_have_their_own(tmp_path):
    captions = record(recipe="c", settings={"task": "captioning"})
    captions["metrics"] = {"selective": {"entropy": [[0.2, 76.0], [1.0, 47.5], "x"]}, "test_perplexity": 9.0}
    kinds = [{"kind": "noise", "entropy_auroc": 0.97}, {"kind": "letters", "entropy_auroc": None}]
    prune = [{"fraction": 0.0, "valid_error": 1.5}, {"fraction": 0.75, "valid_error": 1.51}]
    digits = {**DIGITS, "metrics": {**DIGITS["metrics"], "unfamiliar": kinds, "unfamiliar_mc": kinds, "pruning": prune}}
    text, pictures = page_of(tmp_path, captions, digits)
    assert "c: 76 at 20%, 47.50 at 100%" in text
    cells = Reader(text).cells
    assert cells[cells.index("noise, averaged over draws") + 1] == "97.0%"
    assert "letters" not in cells
    assert "75% of the weights can go for a rise of at most 1%" in text
    assert {"captioning-selective.png", "digits-pruning.png"} <= set(pictures)


def test_runs_of_one_recipe_are_told_apart_by_what_differs(tmp_path):
    base = record()

    def changed(data="ptb", **train):
        settings = {**base["settings"], "train": {"epochs": 3, **train}}
        return record(settings=settings, data=data, overrides=[f"train.{k}={v}" for k, v in train.items()])

    def labels(*records):
        return [group.label for group in groups_of(tmp_path, *records)]

    assert labels(base, changed(lr=0.5)) == ["brnn-medium (train.lr=1)", "brnn-medium (train.lr=0.5)"]
    many = changed(lr=0.5, decay=0.9, l2=0.1, clip=1.0, momentum=0.5, save_every=7)
    assert labels(base, many)[1].count("=") == 4
    assert labels(base, many)[1].endswith(", 2 more)")
    assert labels(base, changed(data="wiki.txt")) == ["brnn-medium (data=ptb)", "brnn-medium (data=wiki.txt)"]
    # One that is too old to have a setting is of the same setting where that has its default.
    assert labels(base, record(seed=2, settings=changed(shared_draw=False)["settings"])) == ["brnn-medium"]


def test_labels_name_the_most_telling_settings_first(tmp_path):
    def changed(**train):
        return record(recipe="p", settings={"task": "language", "model": {}, "train": train, "data": {}})

    def labels(*records):
        return [group.label for group in groups_of(tmp_path, *records)]

    runs = [changed(epochs=k, lr=0.5 if k < 3 else 1.0) for k in (1, 2, 3)]
    assert labels(*runs)[1] == "p (train.epochs=2, train.lr=0.5)"
    many = {"lr": 0.5, "decay": 0.5, "l2": 0.5, "momentum": 0.5, "patience": 5}
    two = [changed(**many), changed(**many, save_every=1), changed()]
    assert labels(*two)[1] == f"{labels(*two)[0]} #2", "where four settings are not enough"


def test_titles_are_short(tmp_path):
    def title(*records):
        return heading(groups_of(tmp_path, *records))

    assert title(record(recipe="a"), record(recipe="b")) == "a, b"
    assert title(*(record(recipe=f"a-model-with-a-long-name-{k}") for k in range(5))) == "5 models compared: language"
    changed = [record(settings={**record()["settings"], "train": {"lr": 0.1 * k}}) for k in range(1, 5)]
    assert title(*changed) == "brnn-medium: 4 settings compared"


def test_tasks_are_chapters_and_are_not_compared(tmp_path):
    """Captions have a perplexity too; it is not the better for being lower than that of newspapers."""
    captions = record(recipe="caption-bbb", settings={"task": "captioning", "description": "of images"})
    captions["metrics"] = {"valid_perplexity": 15.0, "test_perplexity": 16.0}
    plain = record(recipe="plain", settings={**record()["settings"], "model": {"hidden": 9}})
    plain["metrics"] = {"valid_perplexity": 120.0, "test_perplexity": 118.0}
    text, pictures = page_of(tmp_path, record(), captions, plain)
    page = Reader(text)
    assert re.findall(r'<h2 class="chapter">(.*?)</h2>', text) == ["Language", "Captioning"]
    assert [key for key in page.ids if key.endswith("-measures")] == ["language-measures", "captioning-measures"]
    assert text.count('class="best"') == 2  # of the two language models, in both rows
    assert {"language-curve-valid-perplexity.png", "captioning-curve-valid-perplexity.png"} <= set(pictures)
    assert "caption-bbb: of images" in text
    assert "<h2 id=" not in text
    elsewhere, _ = page_of(tmp_path, record(), {**plain, "data": "other"})
    assert 'class="best"' not in elsewhere
    assert 'class="chapter"' not in elsewhere


def test_a_task_that_is_not_known_here(tmp_path):
    mine = {**DIGITS, "settings": {"task": "mine"}}
    text, _ = page_of(tmp_path, mine)
    assert "validation error 1.5" in text


def test_numbers_that_are_none_leave_gaps(tmp_path):
    broken = record(curves={"valid_perplexity": [math.nan, 100.0, math.inf], "empty": []})
    broken["metrics"]["test_perplexity"] = math.inf
    text, _ = page_of(tmp_path, broken)
    assert "nan to inf" in text
    assert "inf (paper" not in text
    text, _ = page_of(tmp_path, record(curves={}, metrics={}))
    assert "no metrics yet" in text


@pytest.mark.parametrize("key", ["valid_perplexity", "train_perplexity", "kl_per_sequence"])
def test_a_run_that_has_diverged(tmp_path, key):
    curves = {**record()["curves"], key: [1e308, -1e308]}
    metrics = {**record()["metrics"], "test_perplexity": 1.7e308, "entropy_gap": 1e308}
    metrics["reliability"] = [{"confidence": 0.5, "accuracy": 1e308, "count": 1e308}]
    pair = [record(seed=seed, curves=curves, metrics=metrics) for seed in (1, 2)]
    text, pictures = page_of(tmp_path, *pair)
    assert "1e+308 to -1e+308" in text
    assert f"curve-{key.replace('_', '-')}.png" in pictures


def test_very_many_figures(tmp_path, monkeypatch):
    """Tables end, and metrics are looked through a few times, not once for each."""
    calls = []
    own = Record.scalars
    monkeypatch.setattr(Record, "scalars", lambda record: calls.append(1) or own(record))
    curves = {**record()["curves"], **{f"kl_{k}": [2.0, 1.0] for k in range(30)}}
    metrics = {f"m{k}": k + 0.5 for k in range(1500)}
    text, pictures = page_of(tmp_path, record(metrics={**metrics, "test_perplexity": 3.0}, curves=curves))
    assert len(calls) == 1
    assert "1,000 more are left out" in text
    assert "m499" in text
    assert "m500" not in text
    assert sum(name.startswith("curve-") for name in pictures) == 12
    assert "21 more are left out" in text


def test_what_is_measured_of_weights(tmp_path):
    import torch

    torch.manual_seed(0)
    ratios = {"rnn.weight_ih_l0": torch.rand(8, 3) * 10, "rnn.bias": torch.rand(8), "embed.weight": torch.rand(9, 3)}
    words = [ScoredWord("the", 0.5, 1.0, 0.01), ScoredWord("<unk>", 12.0, 3.0, 2.0)]
    own = {"sentences": [words]}
    analyses = {"brnn-medium": Analysis(ratios, own, ["a note"])}
    curve = [{"fraction": 0.0, "valid_perplexity": 80.0}, {"fraction": 0.5, "valid_perplexity": 80.5},
             {"fraction": 0.9, "valid_perplexity": 120.0}]  # fmt: skip
    one = record(pruning={"fraction": 0.5, "curve": curve})
    text, pictures = page_of(tmp_path, one, analyses=analyses)
    assert "50% of the weights can go for a rise of at most 1%" in text
    assert (
        '<span class="w s4 i4" title="surprisal 12.00, entropy 3.00, mutual information 2.000">&lt;unk&gt;</span>'
        in text
    )
    assert "a note" in text
    assert {"signal-to-noise.png", "pruning.png", "patterns-brnn-medium.png"} <= set(pictures)
    kept = weights.kept_of(analyses["brnn-medium"].ratios, 0.5)
    assert sum(int(mask.sum()) for mask in kept.values()) == 59 - round(59 / 2)
