"""The table and the picture of sentiment runs, from made-up records."""

import json

import pytest

from bayesrnn.errors import UserError
from docs.build import sentiment
from docs.build.pictures import NO_RECORD


def record(cell, variant, seed, *, end, split="review", coverage=0.88):
    draws = variant != "plain"
    curve = [0.19 - 0.01 * i for i in range(5)]
    own = {"test_rmse": end, "intervals": [{"level": level, "coverage": coverage} for level in (0.5, 0.9)]}
    if draws:
        own["test_rmse_mc"] = end - 0.001
    return {
        "recipe": f"sentiment-{cell}-{variant}", "seed": seed, "device": "cpu (x)", "versions": {"torch": "2.11"},
        "settings": {"data": {"split": split}}, "constant_rmse": 0.1918,
        "curves": {"test_rmse": curve, **({"test_rmse_mc": curve} if draws else {})},
        "metrics": {"test_rmse": 0.15, "samples": 50 if draws else 0, "end": own},
    }  # fmt: skip


def write(folder, *records):
    for one in records:
        (folder / one["recipe"]).mkdir(exist_ok=True)
        (folder / one["recipe"] / f"{one['seed']}.json").write_text(json.dumps(one))
    return folder


@pytest.fixture
def results(tmp_path):
    ends = {"plain": 0.165, "naive": 0.16, "variational": 0.15, "bbb": 0.155}
    made = [record(c, v, s, end=e + 0.001 * s) for c in ("lstm", "gru") for v, e in ends.items() for s in (1, 2)]
    return write(tmp_path, *made)


def test_the_block(results):
    text = sentiment.block(results)
    assert "| LSTM, no dropout | 0.1665 ± 0.0007 | – | 0.1500 ± 0.0000 | 88.0% | 2 |" in text
    assert "| GRU, variational | 0.1515 ± 0.0007 | 0.1505 ± 0.0007 | 0.1500 ± 0.0000 | 88.0% | 2 |" in text
    assert "5 epochs. MC: 50 draws" in text
    assert "A constant gives 0.1918" in text
    assert sentiment.figures(results)["sentiment-curves.png"][:4] == b"\x89PNG"


def test_one_model_alone(tmp_path):
    write(tmp_path, record("gru", "plain", 1, end=0.16))
    assert "MC: no draws" in sentiment.block(tmp_path)
    assert sentiment.figures(tmp_path)


def test_without_records(tmp_path):
    assert sentiment.block(tmp_path) == NO_RECORD
    assert sentiment.figures(tmp_path) == {}


def test_records_of_another_division_are_refused(tmp_path):
    write(tmp_path, record("lstm", "plain", 1, end=0.15, split="chunk"))
    with pytest.raises(UserError, match="is not divided by review"):
        sentiment.load(tmp_path)
