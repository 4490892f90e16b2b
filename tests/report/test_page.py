"""``bayesrnn report``: the page says what the records say, holds for any task, and can be read anywhere."""

import json
import math
import re
import shutil
import subprocess
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bayesrnn.cli import app
from bayesrnn.errors import UserError
from bayesrnn.report import collect, figures, forecast, forecast_sections, gallery, html, uncertainty_sections, wording
from bayesrnn.report.collect import groups, metrics_lines, read, scalars
from bayesrnn.report.measured import Measured, Word
from bayesrnn.report.page import build, heading
from bayesrnn.report.parts import Page
from bayesrnn.train import checkpoint
from bayesrnn.train.run_folder import identity

ROOT = Path(__file__).resolve().parents[2]


def invoke(*args):
    return CliRunner().invoke(app, [str(a) for a in args])


def record(**changes):
    """A language run's record, as `bayesrnn train` and `evaluate` write it."""
    made = {
        "program": "bayesrnn",
        "recipe": "brnn-medium",
        "seed": 1,
        "commit": "abc",
        "device": "cpu",
        "versions": {"torch": "2.13"},
        "command": "bayesrnn train brnn-medium",
        "data": "ptb",
        "overrides": [],
        "settings": {
            "task": "language",
            "paper": {"source": "x", "valid": 78.8, "test": 75.5, "entropy_gap": 0.67, "entropy_gap_mean": 0.65},
            "model": {"hidden": 650},
            "posterior": {"kind": "bayes_by_backprop"},
            "train": {"epochs": 3},
        },
        "curves": {
            "train_perplexity": [500.0, 200.0, 100.0],
            "valid_perplexity": [300.0, 150.0, 80.25],
            "kl_per_sequence": [600.0, 500.0, 400.0],
            "lr": [1.0, 1.0, 0.9],
        },
        "metrics": {
            "best_epoch": 3,
            "valid_perplexity": 80.25,
            "test_perplexity": 77.125,
            "words_per_second": 99_872.2,
            "entropy_gap_mean": 0.61,
            "entropy_gap_1": 0.63,
            "entropy_gap": 0.66,
            "entropy_samples": 10,
            "reliability": [
                {"confidence": 0.2, "accuracy": 0.25, "count": 30.0},
                {"confidence": 0.8, "accuracy": 0.7, "count": 10.0},
            ],
        },
    }
    return {**made, **changes}


SENTIMENT = {
    "recipe": "sentiment-lstm-variational",
    "seed": 1,
    "settings": {"task": "sentiment", "model": {"cell": "lstm"}, "posterior": {"kind": "none"}},
    "curves": {"train_nll": [1.0, 0.8], "valid_rmse": [0.2, 0.17], "test_rmse": [0.21, 0.18], "kl": [0.0, 0.0]},
    "metrics": {
        "best_epoch": 2,
        "valid_rmse": 0.17,
        "test_rmse": 0.18,
        "test_rmse_mc": 0.175,
        "intervals": [{"level": 0.5, "coverage": 0.48, "width": 0.2}, {"level": 0.9, "coverage": 0.91, "width": 0.5}],
        "uncertainty": {"rank_correlation": 0.2, "risk": {"coverage": [0.1, 0.5, 1.0], "rmse": [0.1, 0.15, 0.18]}},
        "end": {"test_rmse": 0.19},
    },
}
DIGITS = {
    "recipe": "digits-bbb-400",
    "seed": 2,
    "settings": {"task": "digits", "paper": {"test_error": 1.36}, "model": {}, "posterior": {}},
    "curves": {"valid_error": [3.0, 1.5], "test_error": [3.1, 1.6], "kl": [5.0, 4.0]},
    "metrics": {"best_epoch": 2, "valid_error": 1.5, "test_error": 1.6, "images_per_second": 1e5},
}
FORECAST = {
    "recipe": "forecast",
    "seed": 1,
    "settings": {"task": "forecast", "model": {}},
    "curves": {"train_nll": [2.0, 1.0], "valid_crps": [0.5, 0.4]},
    "series": {"columns": ["CO2 in $", "wind"]},
    "metrics": {
        "best_epoch": 2,
        "level": 0.9,
        "samples": 20,
        "valid_crps": 0.4,
        "test_crps": 0.45,
        "test_coverage": 0.93,
        "test_crps_raw": 0.5,
        "naive_crps": 1.2,
        "naive_width": 3.0,
        "reliability": {"pit": [0.1, 0.9], "levels": [0.5, 0.9], "coverage": [0.55, 0.93]},
        "by_horizon": {"crps": [0.3, 0.6], "coverage": [0.9, 0.9], "width": [1.0, 2.0]},
        "walk": {
            "date": ["2001-01", "2001-02", "2001-03"],
            "mean": [1.0, 2.0, 3.0],
            "low": [0.5, 1.5, 2.5],
            "high": [1.5, 2.5, 3.5],
            "aleatoric": [0.2, 0.2, 0.2],
            "epistemic": [0.1, 0.1, 0.1],
            "actual": [1.1, 2.6, 3.0],
        },
        "ahead": {
            "date": ["2001-02", "2001-03", "2001-04", "2001-05"],
            "past": [2.6, 3.0],
            "mean": [4.0, 5.25],
            "low": [3.0, 4.0],
            "high": [5.0, 6.5],
            "aleatoric": [0.4, 0.5],
            "epistemic": [0.2, 0.3],
            "direct": 1,
        },
    },
}


def groups_of(tmp_path, *records):
    runs = []
    for k, one in enumerate(records):
        file = tmp_path / f"{k}.json"
        file.write_text(json.dumps(one))
        runs += read(file)
    return groups(runs)


def page_of(tmp_path, *records, measured=None):
    return build(groups_of(tmp_path, *records), measured or {}, title="A & B")


class Reader(HTMLParser):
    """Ids, headings, images without alt text, tables' cells, and whether tags are closed."""

    VOID = ("meta", "br", "wbr", "img", "link")

    def __init__(self, text):
        super().__init__()
        self.ids, self.images, self.open, self.cells, self.text = [], [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if "id" in values:
            self.ids.append(values["id"])
        if tag == "img":
            self.images.append(values)
        if tag not in self.VOID:
            self.open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)
        if self.open and any(tag in ("td", "th") for tag in self.open):
            self.cells[-1] += data


def test_a_language_run_beside_its_paper(tmp_path):
    text, pictures = page_of(tmp_path, record())
    page = Reader(text)
    assert not page.open
    assert page.ids[::2] == ["summary", "curves", "measures", "reliability", "entropy-gap", "configuration",
                             "environment"]  # fmt: skip
    at = page.cells.index("test perplexity")
    assert page.cells[at + 1] == "77.12paper 75.50"
    assert "test perplexity 77.12 (paper 75.50)" in text
    assert "0.610 with 0 draws, 0.630 with 1 draws, 0.660 with 10 draws" in text
    assert "6.3%" in text  # (30 * 0.05 + 10 * 0.1) / 40
    assert set(pictures) == {
        "curve-valid-perplexity.png", "curve-train-perplexity.png", "curve-kl-per-sequence.png", "reliability.png",
        "entropy-gap.png",
    }  # fmt: skip


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


def test_forecasts_have_their_pictures(tmp_path):
    text, pictures = page_of(tmp_path, FORECAST)
    assert {"ahead", "walk", "by-step"} <= set(Reader(text).ids)
    assert {"ahead-forecast.png", "walk-forecast.png", "by-step.png", "pit.png"} <= set(pictures)
    assert "2001-04: 4 (3 to 5); 2001-05: 5.25 (4 to 6.5)" in text
    assert "2 of 3 values are inside the 90% intervals" in text
    assert "forecast: 0.3 one step ahead, 0.6 at step 2" in text
    assert "The end of CO2 in $ and 2 steps" in text  # the target's name as it is


@pytest.mark.parametrize(
    ("key", "name", "value"),
    [("ahead", "low", [3.0]), ("ahead", "mean", [math.nan, 1.0]), ("ahead", "past", "x"), ("ahead", "date", ["a"]),
     ("ahead", "high", [1e300, 1.0]), ("walk", "actual", [1.0, None, 2.0]), ("walk", "date", 3),
     ("walk", "mean", [True, 1.0, 2.0]), ("walk", "epistemic", [0.0] * 9999)],
)  # fmt: skip
def test_forecasts_that_cannot_be_drawn_are_left_out(tmp_path, key, name, value):
    metrics = {**FORECAST["metrics"], key: {**FORECAST["metrics"][key], name: value}}
    page = Page()
    together = groups_of(tmp_path, {**FORECAST, "metrics": metrics, "series": {"columns": 1}})
    getattr(forecast_sections, key)(page, together, {})
    assert not page.sections
    assert not page.pictures


def test_what_is_no_figure_of_the_model_is_folded_away(tmp_path):
    text, _ = page_of(tmp_path, FORECAST)
    main, folded = text.split("<details><summary>More figures", 1)
    folded, how = folded.split("<summary>How they were measured", 1)
    shown = Reader(main[main.index("<table") : main.index("</table>") + 8]).cells
    assert shown[0::2] == ["measure", "validation CRPS", "test CRPS", "test coverage", "naive CRPS"]
    assert "93.0%" in shown
    assert "test CRPS, before correction" in folded
    assert "naive width" in folded
    assert re.findall(r'<th scope="row">(.*?)</th>', how[: how.index("</table>")])[:2] == ["level", "samples"]
    assert "ahead: direct" in how


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

    assert labels(base, changed(lr=0.5)) == ["brnn-medium", "brnn-medium (train.lr=0.5)"]
    many = changed(lr=0.5, decay=0.9, l2=0.1, clip=1.0)
    assert labels(base, many)[1] == "brnn-medium (train.lr=0.5, train.decay=0.9, 2 more)"
    assert labels(base, changed(data="wiki.txt")) == ["brnn-medium, ptb", "brnn-medium, wiki"]
    # One that is too old to have a setting is of the same setting where that has its default.
    assert labels(base, record(seed=2, settings=changed(shared_draw=False)["settings"])) == ["brnn-medium"]


def test_labels_say_what_is_not_usual(tmp_path):
    """Recipes as they are trained here: each run changes many settings, which most of them share."""
    shared = ["data.batch_size=8", "data.window=10", "model.hidden=16"]

    def changed(*own, data="a/text"):
        settings = {"task": "language", "model": {}, "train": {}, "data": {}}
        for text in (*shared, *own):
            (section, key), value = text.split("=")[0].split("."), text.split("=")[1]
            settings[section][key] = float(value) if "." in value else int(value)
        return record(recipe="p", settings=settings, overrides=[*shared, *own], data=data)

    def labels(*records):
        return [group.label for group in groups_of(tmp_path, *records)]

    two, three = changed("train.epochs=2"), changed("train.epochs=3")
    assert labels(two, three) == ["p (train.epochs=2)", "p (train.epochs=3)"]
    saving = changed("train.epochs=2", "train.save_every=1")
    assert labels(two, three, saving, changed("train.epochs=2", "model.layers=1")) == [
        "p", "p (train.epochs=3)", "p (train.save_every=1)", "p (model.layers=1)",
    ]  # fmt: skip
    # What changes no figure comes last, what fewest have comes first.
    both = changed("train.epochs=3", "train.save_every=1", "train.lr=0.5")
    assert labels(two, three, both)[2] == "p (train.lr=0.5, train.save_every=1)"
    # Data of one name in two folders: by settings, or else by the folder.
    there = changed("train.epochs=3", data="b/text")
    assert labels(two, there) == ["p (train.epochs=2)", "p (train.epochs=3)"]
    assert labels(three, there) == ["p, a/text", "p, b/text"]
    # As many settings as it takes.
    rates = [changed("train.epochs=2", "train.lr=0.5", "train.decay=0.9", f"train.clip={c}") for c in (3, 4)]
    others = [changed(f"train.epochs={k}", f"train.lr={k}", f"train.decay=0.{k}", f"train.clip={k}") for k in (5, 6)]
    assert len(set(labels(*rates, *others))) == 4
    assert not any("#" in label for label in labels(*rates, *others))


def test_titles_are_short(tmp_path):
    def title(*records):
        return heading(groups_of(tmp_path, *records))

    assert title(record(recipe="a"), record(recipe="b")) == "a, b"
    assert title(*(record(recipe=f"a-model-with-a-long-name-{k}") for k in range(5))) == "5 models compared: language"
    changed = [record(settings={**record()["settings"], "train": {"lr": 0.1 * k}}) for k in range(1, 5)]
    assert title(*changed) == "brnn-medium: 4 settings compared"


def test_names_are_no_formulas():
    assert figures.curves({r"a $\frac$": [[1.0, 2.0]]}, label="$x_{$").startswith(b"\x89PNG")
    assert figures.lines({"日本": [(1.0, 2.0)]}, across="x", up="y").startswith(b"\x89PNG")  # nor is there a warning
    assert figures.lines({"$x_{$": [(1.0, 2.0)]}, across="$_$", up="^$").startswith(b"\x89PNG")


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


def test_more_runs_than_colours_are_still_told_apart():
    names = [f"run {k}" for k in range(30)]
    looks = [figures.look(name, dict.fromkeys(names), names) for name in names]
    assert len({(look["color"], str(look["linestyle"]), look["marker"]) for look in looks}) == 30
    for a in looks:
        for b in looks:
            if a is not b and a["color"] == b["color"]:
                assert a["linestyle"] != b["linestyle"]


def test_a_task_that_is_not_known_here(tmp_path):
    mine = {**DIGITS, "settings": {"task": "mine"}}
    text, _ = page_of(tmp_path, mine)
    assert "validation error 1.5" in text


def test_numbers_that_are_none_leave_gaps(tmp_path):
    broken = record(curves={"valid_perplexity": [math.nan, 100.0, math.inf], "odd": ["x"], "empty": []})
    broken["metrics"]["test_perplexity"] = math.inf
    text, _ = page_of(tmp_path, broken)
    assert "nan to inf" in text
    assert "inf (paper" not in text
    text, _ = page_of(tmp_path, record(curves={}, metrics={}))
    assert "no figures yet" in text


UNSHOWN = ([1e308, -1e308], [1.7e308, 2.0, 3.0], [1e308, 1.0], [5e-324, 1e300, 1e-300], [1e30, -1e30], [math.nan])


@pytest.mark.parametrize("numbers", UNSHOWN, ids=str)
def test_what_no_picture_can_show_is_a_gap(numbers):
    """Nor is there a warning, which would be an error here."""
    count = len(numbers)
    pairs, rows = list(zip(numbers, numbers[::-1], strict=True)), dict.fromkeys(BANDS, numbers)
    made = [
        figures.curves({"a": [numbers, [2.0, 1.0]]}, label="x", best="the lowest"),
        figures.against_diagonal({"a": pairs}, across="x", up="y", sizes={"a": numbers}),
        figures.lines({"a": pairs}, across="x", up="y", levels={"b": numbers[0]}, ticks=numbers, log_y=True),
        figures.histogram({"a": ([k / count for k in range(count + 1)], numbers)}, across="x", up="y"),
        forecast.forecast_plot(numbers, rows, ["d"] * 2 * count, name="x", level=0.9, direct=1, narrow=True),
        forecast.walked(rows, ["d"] * count, name="x", level=0.9, last=9, narrow=True),
    ]
    assert all(png.startswith(b"\x89PNG") for png in made)


BANDS = ("mean", "low", "high", "aleatoric", "epistemic", "actual")


def test_sizes_that_are_shown():
    assert [figures.shown(v) for v in (0.0, -2.5, 1e30, 1e-30, 1e-31)] == [0.0, -2.5, 1e30, 1e-30, 0.0]
    assert all(math.isnan(figures.shown(v)) for v in (1.1e30, -1e308, math.inf, math.nan))
    assert figures._pairs([(1.0, 1e40), (1e40, 1.0), (2.0, 3.0)])[0] == [1.0, 2.0]
    assert wording.number(1e308) == "1e+308"


def test_names_break_after_marks_and_numbers_do_not():
    assert html.breakable("p (train.lr=0.5, save_every)") == "p (train.<wbr>lr=<wbr>0.5, save_<wbr>every)"
    assert html.breakable("<b>") == "&lt;b&gt;"


@pytest.mark.parametrize("key", ["valid_perplexity", "train_perplexity", "kl_per_sequence"])
def test_a_run_that_has_diverged(tmp_path, key):
    curves = {**record()["curves"], key: [1e308, -1e308]}
    metrics = {**record()["metrics"], "test_perplexity": 1.7e308, "entropy_gap": 1e308}
    metrics["reliability"] = [{"confidence": 0.5, "accuracy": 1e308, "count": 1e308}]
    pair = [record(seed=seed, curves=curves, metrics=metrics) for seed in (1, 2)]
    text, pictures = page_of(tmp_path, *pair)
    assert "1e+308 to -1e+308" in text
    assert f"curve-{key.replace('_', '-')}.png" in pictures


def test_legends_and_names_have_an_end():
    png = figures.curves({f"run {k}": [[1.0, 2.0]] for k in range(400)}, label="x" * 5000)
    assert int.from_bytes(png[20:24]) < 2000  # pixels of height
    assert figures.lines({"a\n" * 50: [(1.0, 2.0)]}, across="x\n" * 50, up="y").startswith(b"\x89PNG")


def test_very_many_figures(tmp_path, monkeypatch):
    """Tables end, and metrics are looked through a few times, not once for each."""
    calls = []
    monkeypatch.setattr(collect, "scalars", lambda metrics: calls.append(1) or scalars(metrics))
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
    words = [Word("the", 0.5, 1.0, 0.01), Word("<unk>", 12.0, 3.0, 2.0)]
    measured = {"brnn-medium": Measured(ratios, [words], [(0, 0.1), (2, 0.2)], ["a note"])}
    curve = [{"fraction": 0.0, "valid_perplexity": 80.0}, {"fraction": 0.5, "valid_perplexity": 80.5},
             {"fraction": 0.9, "valid_perplexity": 120.0}]  # fmt: skip
    one = record(pruning={"fraction": 0.5, "curve": curve})
    for key in ("entropy_gap", "entropy_gap_1", "entropy_gap_mean"):
        del one["metrics"][key]
    text, pictures = page_of(tmp_path, one, measured=measured)
    assert "50% of the weights can go for a rise of at most 1%" in text
    assert (
        '<span class="w s4 i4" title="surprisal 12.00, entropy 3.00, mutual information 2.000">&lt;unk&gt;</span>'
        in text
    )
    assert "a note" in text
    assert "0.200 with 2 draws" in text
    assert {"signal-to-noise.png", "pruning.png", "patterns-brnn-medium.png"} <= set(pictures)
    kept = uncertainty_sections._kept(measured["brnn-medium"], 0.5)
    assert sum(int(mask.sum()) for mask in kept.values()) == 59 - round(59 / 2)


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_colours_can_be_told_apart_by_everyone():
    """WCAG: 3:1 for lines, 4.5:1 for text. Colour blindness by Viénot et al. (1999); distances in linear RGB."""
    for colour in figures.COLOURS:
        assert contrast(colour, "#ffffff") >= 3
    for shades, ink in ((gallery.LIGHT, gallery.INK["light"]), (gallery.DARK, gallery.INK["dark"])):
        assert all(contrast(shade, ink) >= 4.5 for shade in shades)
    deutan = ((0.29275, 0.70725, 0), (0.29275, 0.70725, 0), (-0.02234, 0.02234, 1))
    protan = ((0.11238, 0.88762, 0), (0.11238, 0.88762, 0), (0.00401, -0.00401, 1))

    def seen(colour, matrix):
        rgb = [(int(colour[i : i + 2], 16) / 255) ** 2.2 for i in (1, 3, 5)]
        return [max(0.0, sum(m * c for m, c in zip(row, rgb, strict=True))) ** (1 / 2.2) for row in matrix]

    first = figures.COLOURS[:4]
    for matrix in (deutan, protan):
        for i, a in enumerate(first):
            for b in first[:i]:
                assert math.dist(seen(a, matrix), seen(b, matrix)) > 0.1, (a, b)
    looks = [(c, s, m) for c, s, m in zip(figures.COLOURS, figures.STYLES, figures.MARKERS, strict=True)]
    assert len({m for _, _, m in looks}) == len({str(s) for _, s, _ in looks}) == 6  # nor by colour alone


def test_words_for_names_and_numbers():
    assert wording.spoken("valid_perplexity_mc") == "validation perplexity, averaged over draws"
    assert wording.spoken("end.test_rmse") == "after the last epoch: test RMSE"
    assert wording.spoken("test_rmse_mc_all_words") == "test RMSE, averaged over draws that keep all words"
    assert wording.spoken("test_error_mc", "digits") == "test error in %, averaged over draws"
    assert wording.spoken("entropy_gap_mean") == "entropy gap, posterior mean"
    assert wording.spoken("kl_per_sequence") == "KL per sequence"
    assert [wording.number(v) for v in (78.8, 3.0, 12_345.6, 0.12345, math.inf)] == \
        ["78.80", "3", "12,346", "0.1235", "inf"]  # fmt: skip
    assert wording.mean([1.5]) == "1.5"
    assert wording.mean([2.0, 2.0]) == "2"
    assert wording.mean([0.2386, 0.2394]) == "0.2390 ± 0.0006"  # as many decimals, also where the last is a zero
    assert wording.mean([1e-9, 3e-9]) == "2e-09 ± 1.414e-09"
    assert wording.figure("test_coverage", [0.93, 0.95]) == "94.0% ± 1.4%"
    assert wording.figure("epistemic_share", [0.25]) == "25.0%"
    assert wording.figure("test_crps", [0.25]) == wording.figure("coverage", [25.0])[:2].replace("25", "0.25")
    assert scalars({"a": 1, "b": True, "c": {"d": 2.5, "e": [1]}, "f": "x"}) == {"a": 1.0, "c.d": 2.5}


def test_bad_inputs_are_said(tmp_path):
    with pytest.raises(UserError, match="There is no run or record"):
        read(tmp_path / "none")
    with pytest.raises(UserError, match="holds neither a run nor records"):
        read(tmp_path)
    for content, said in (
        ("[]", "is not the record of a run"),
        ('{"metrics": {}}', "it has no settings or no curves"),
        ("{", "is not JSON"),
        ('{"table": [], "findings": []}', "of a quickstart"),
        ("[" * 5000, "nested more than 100 deep"),
    ):
        (tmp_path / "1.json").write_text(content)
        with pytest.raises(UserError, match=said):
            read(tmp_path / "1.json")
        result = invoke("report", tmp_path / "1.json", "--out", tmp_path / "out")
        assert result.exit_code == 2
        assert result.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_folder_of_folders(tmp_path):
    """Records and run folders at any place in it; what else it holds is left out, and said in one line."""
    results = tmp_path / "results"
    for place in ("brnn-medium/1.json", "brnn-medium/10.json", "brnn-medium/2.json", "runs/other/3/record.json"):
        (results / place).parent.mkdir(parents=True, exist_ok=True)
        seed = int(re.findall(r"\d+", place)[0])
        (results / place).write_text(json.dumps(record(recipe=place.split("/")[-2], seed=seed)))
    (results / "cpu.json").write_text('{"training": []}')
    (results / "quickstart").mkdir()
    (results / "quickstart" / "record.json").write_text('{"table": [], "findings": []}')
    (results / "brnn-medium" / "4.json").write_text("{")
    (results / ".hidden").mkdir()
    (results / ".hidden" / "1.json").write_text(json.dumps(record(recipe="hidden")))
    left_out = {}
    found = read(results, left_out)
    assert [(run.recipe, run.seed) for run in found] == [("brnn-medium", s) for s in (1, 2, 10)] + [("3", 3)]
    assert left_out.pop("no records of runs") == [results / "cpu.json", results / "quickstart"]
    ((why, files),) = left_out.items()
    assert "is not JSON" in why
    assert files == [results / "brnn-medium" / "4.json"]
    result = invoke("report", results, "--out", tmp_path / "out", "--fast")
    assert result.exit_code == 0, result.output
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("Left out: ")]
    assert f"{results / 'cpu.json'}, {results / 'quickstart'} (no records of runs)" in line
    assert read(results / "runs")[0].seed == 3
    with pytest.raises(UserError, match="of a quickstart"):
        read(results / "quickstart")
    (tmp_path / "deep/1/2/3/4").mkdir(parents=True)
    (tmp_path / "deep/1/2/3/4/1.json").write_text(json.dumps(record()))
    with pytest.raises(UserError, match="holds neither a run nor records"):
        read(tmp_path / "deep")


def test_metrics_of_a_run_that_was_killed(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"epoch": 1, "valid_perplexity": 9.5}\n{"epoch": 2, "valid_per')
    assert metrics_lines(tmp_path / "metrics.jsonl") == [{"epoch": 1, "valid_perplexity": 9.5}]
    (tmp_path / "config.json").write_text(json.dumps({"recipe": "mine", "seed": 1, "settings": {}, "data": "x"}))
    text, _ = build(groups(read(tmp_path)), {}, title="t")
    assert "not finished, 1 epochs so far" in text


@pytest.fixture(scope="module")
def report(text_folder, tmp_path_factory):
    """The page of two tiny runs, made by the command."""
    out = tmp_path_factory.mktemp("runs")
    tiny = ["hidden=8", "batch_size=4", "window=6", "epochs=2"]
    for name in ("brnn-medium", "variational-tied-medium"):
        result = invoke("train", name, "--data", text_folder, "--out", out / name, "--device", "cpu", *tiny)
        assert result.exit_code == 0, result.output
    assert invoke("prune", out / "brnn-medium", "--fraction", 0.5).exit_code == 0
    result = invoke("report", out / "brnn-medium", out / "variational-tied-medium", "--out", out / "report")
    assert result.exit_code == 0, result.output
    return out


def test_the_command_measures_what_is_not_recorded(report):
    text = (report / "report" / "index.html").read_text()
    ids = Reader(text).ids
    assert {"signal-to-noise", "pruning", "patterns", "words", "entropy-gap"} <= set(ids)
    assert "Computed on the first 1,500 words" in text
    for picture in (report / "report").glob("*.png"):
        assert picture.read_bytes().startswith(b"\x89PNG")


def test_fast_takes_what_is_recorded(report):
    result = invoke("report", report / "brnn-medium", "--out", report / "fast", "--fast", "--title", "Mine & yours")
    assert result.exit_code == 0, result.output
    text = (report / "fast" / "index.html").read_text()
    assert "<title>Mine &amp; yours</title>" in text
    assert "words" not in Reader(text).ids
    assert "pruning" in Reader(text).ids
    assert invoke("report", report / "brnn-medium", "--out", report / "fast", "--fast").exit_code == 0  # its own again


def test_data_that_is_gone_is_said(report, tmp_path):
    run = shutil.copytree(report / "brnn-medium", tmp_path / "run")
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "data": str(tmp_path / "gone")}))
    tensors, about = checkpoint.load(run / "best.safetensors")
    checkpoint.save_file(run / "best.safetensors", tensors, {**about, "run": identity(run)})
    result = invoke("report", run, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    text = (tmp_path / "out" / "index.html").read_text()
    assert "Words are not shown" in text
    assert "signal-to-noise" in Reader(text).ids


def test_nothing_of_others_is_replaced(report, tmp_path):
    (tmp_path / "index.html").write_text("<p>my page</p>")
    result = invoke("report", report / "brnn-medium", "--out", tmp_path, "--fast")
    assert result.exit_code == 2
    assert "will not be replaced" in result.stderr
    assert (tmp_path / "index.html").read_text() == "<p>my page</p>"
    result = invoke("report", report / "brnn-medium", "--out", tmp_path / "index.html", "--fast")
    assert "is a file" in result.stderr


def test_the_records_of_this_repository(tmp_path):
    result = invoke("report", ROOT / "results" / "brnn-medium", ROOT / "results" / "variational-tied-medium" / "1.json",
                    "--out", tmp_path)  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "paper 75.50" in (tmp_path / "index.html").read_text()


BROWSER = next((b for b in map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome")) if b), None)
PROBE = """<script>
const wide = [...document.querySelectorAll('main *')].filter(e => !e.closest('.wide') &&
    e.getBoundingClientRect().right > innerWidth + 1).map(e => e.tagName + '.' + e.className);
parent.postMessage(JSON.stringify({inner: innerWidth, page: document.documentElement.scrollWidth, wide,
    images: [...document.images].filter(i => i.complete && i.naturalWidth > 500).length,
    small: [...document.querySelectorAll('main *')].filter(e => parseFloat(getComputedStyle(e).fontSize) < 12).length,
    headings: document.querySelectorAll('h2').length}), '*');
</script>"""


NARROW = """<script>
parent.postMessage(JSON.stringify([...document.querySelectorAll('#measures > .wide, #configuration > .wide')].map(
    e => [e.clientWidth, e.scrollWidth, getComputedStyle(e).backgroundImage.includes('gradient')])), '*');
</script>"""


def in_a_frame(folder, text, width):
    """What the page, in a frame of this width, tells the window around it."""
    (folder / "inner.html").write_text(text)
    # A window is at least 500 wide, a frame in it is not.
    listen = "<script>addEventListener('message', e => { document.title = e.data; });</script>"
    (folder / "page.html").write_text(f'{listen}<iframe src="inner.html" width="{width}" height="900"></iframe>')
    done = subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}",
         "--window-size=1400,1000", "--virtual-time-budget=3000", "--dump-dom", str(folder / "page.html")],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    return json.loads(re.search(r"<title>(.*?)</title>", done.stdout).group(1).replace("&quot;", '"'))


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome to open the page with")
@pytest.mark.parametrize(("runs", "fits"), [(3, True), (12, False)])
def test_tables_on_a_phone(tmp_path, runs, fits):
    """Three runs of one recipe stand side by side; of more, a shade at the edge says that there are."""
    settings = record()["settings"]
    many = [record(settings={**settings, "train": {"epochs": k}}) for k in range(3, 3 + runs)]
    text, _ = page_of(tmp_path, *many)
    found = in_a_frame(tmp_path, text.replace("</body>", NARROW + "</body>"), 400)
    assert len(found) == 2
    for inner, whole, shaded in found:
        assert (whole <= inner) == fits
        assert shaded


@cache
def records_page():
    """A page of this repository's records: two of each task that has some, with a chapter for each task."""
    kinds = ("*-medium", "forecast*", "sentiment-lstm-*", "digits-*", "caption-[bv]*")
    found = [sorted((ROOT / "results").glob(f"{kind}/**/*.json"))[::3][:2] for kind in kinds]
    assert all(found)
    return build(groups(run for files in found for file in files for run in read(file)), {}, title="All")[0]


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome to open the page with")
@pytest.mark.parametrize("width", [400, 1200])
@pytest.mark.parametrize("of", ["runs", "records"])
def test_in_a_browser(report, tmp_path, width, of):
    """Nothing is wider than the screen, pictures are shown, text is of readable size; without scripts in the page."""
    text = (report / "report" / "index.html").read_text() if of == "runs" else records_page()
    found = in_a_frame(tmp_path, text.replace("</body>", PROBE + "</body>"), width)
    assert width - 20 <= found["inner"] <= width
    assert found["wide"] == []
    assert found["page"] <= found["inner"]
    assert found["images"] == text.count("<img")
    assert found["small"] == 0
    assert found["headings"] >= (10 if of == "runs" else 5)  # sections; chapters
