"""Records of every task, as runs write them, and pages made of them: for the tests of ``bayesrnn report``."""

import json
from html.parser import HTMLParser
from pathlib import Path

from typer.testing import CliRunner

from bayesrnn.lab.cli import app
from bayesrnn.lab.report.page import build
from bayesrnn.lab.runs.collection import groups, read

ROOT = Path(__file__).resolve().parents[3]


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
    "metrics": {
        "best_epoch": 2,
        "level": 0.9,
        "samples": 20,
        "valid_crps": 0.4,
        "test_crps": 0.45,
        "test_coverage": 0.93,
        "naive_crps": 1.2,
        "naive_width": 3.0,
        "reliability": {"pit": [0.1, 0.9], "levels": [0.5, 0.9], "coverage": [0.55, 0.93]},
        "by_horizon": {"crps": [0.3, 0.6], "coverage": [0.9, 0.9], "width": [1.0, 2.0]},
    },
}


def groups_of(tmp_path, *records):
    runs = []
    for k, one in enumerate(records):
        file = tmp_path / f"{k}.json"
        file.write_text(json.dumps(one))
        runs += read(file)
    return groups(runs)


def page_of(tmp_path, *records, analyses=None):
    return build(groups_of(tmp_path, *records), analyses or {}, title="A & B")


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
