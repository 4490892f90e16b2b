"""Plots and the table of forecasts, from records."""

import json
import struct

import pytest

from bayesrnn.report.forecast import comparison_table, forecast_plot, pit_plot, records_by_series, walk_plot


def record(seed=1, crps=0.5, epistemic=0.2):
    n = 30
    walk = {
        "date": [str(1990 + i) for i in range(n)],
        "mean": [float(i % 7) for i in range(n)],
        "low": [i % 7 - 2.0 for i in range(n)],
        "high": [i % 7 + 2.0 for i in range(n)],
        "aleatoric": [0.9] * n,
        "epistemic": [epistemic] * n,
        "actual": [i % 7 + (3.0 if i == 4 else 0.5) for i in range(n)],
    }
    metrics = {
        "level": 0.95, "test_crps": crps, "test_coverage": 0.95, "test_width": 4.0, "valid_crps": 0.4,
        "epistemic_share": epistemic, "naive_crps": 1.25, "naive_coverage": 0.9, "naive_width": 9.0,
        "reliability": {"pit": [0.1] * 10}, "walk": walk,
    }  # fmt: skip
    return {"seed": seed, "metrics": metrics, "series": {"columns": ["level"]}}


def size(png):
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", png[16:24])


def test_pictures():
    rows = {"mean": [1.0, 2.0], "low": [0.0, 0.5], "high": [2.0, 3.5], "epistemic": [0.1, 0.2]}
    labels = [str(i) for i in range(12)]
    width, height = size(forecast_plot([1.0] * 10, rows, labels, name="level", level=0.9, direct=1))
    assert (width, height) == (1080, 570)
    plain = forecast_plot([1.0] * 10, {**rows, "epistemic": [0.0, 0.0]}, labels, name="level", level=0.9, direct=2)
    assert size(plain) == (1080, 570)
    assert size(walk_plot(record()))[0] == 1080
    assert size(pit_plot({"a": [record()], "b": [record(), record(2)]}))[0] == 1080


def test_pictures_are_the_same_again():
    assert walk_plot(record()) == walk_plot(record())


@pytest.fixture
def results(tmp_path):
    for recipe, crps in (("forecast", 0.5), ("forecast-plain", 0.6)):
        for series in ("zoo", "mauna_loa"):
            folder = tmp_path / recipe / series
            folder.mkdir(parents=True)
            for seed in (1, 2):
                epistemic = 0.2 if recipe == "forecast" else 0.0
                (folder / f"{seed}.json").write_text(json.dumps(record(seed, crps + 0.1 * seed, epistemic)))
    return tmp_path


def test_records_are_grouped(results):
    found = records_by_series(results)
    assert list(found) == ["mauna_loa", "zoo"]  # the library's own first
    assert {recipe: len(group) for recipe, group in found["zoo"].items()} == {"forecast": 2, "forecast-plain": 2}


def test_the_table(results):
    lines = comparison_table(results).splitlines()
    assert lines[0].startswith("| series | model | CRPS, test | 95% intervals cover")
    assert lines[2] == "| mauna_loa | variational dropout | 0.65 ± 0.071 | 95.0% | 4 | 20% | 0.4 | 2 |"
    assert lines[3] == "| mauna_loa | plain LSTM | 0.75 ± 0.071 | 95.0% | 4 | – | 0.4 | 2 |"
    assert lines[4] == "| mauna_loa | last value | 1.25 | 90.0% | 9 | – | – | – |"
    assert len(lines) == 2 + 2 * 3
