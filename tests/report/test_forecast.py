"""Plots and the table of forecasts, from records."""

import json
import struct
from pathlib import Path

import pytest

from bayesrnn import recipes
from bayesrnn.report.forecast import (
    BLOCKS,
    _ticks,
    ahead_plot,
    comparison_table,
    findings,
    forecast_plot,
    pit_plot,
    records_by_series,
    walk_plot,
    write_figures,
)

ROOT = Path(__file__).resolve().parents[2]


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
        "ahead": {"past": walk["actual"], "date": [str(i) for i in range(n + 4)], "direct": 2, **{
            key: walk[key][:4] for key in ("mean", "low", "high", "aleatoric", "epistemic")
        }},
    }  # fmt: skip
    about = {"device": "a machine", "versions": {"torch": "2.11"}, "series": {"columns": ["level"]}}
    return {"seed": seed, "metrics": metrics, **about}


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
    assert size(ahead_plot(record())) == (1080, 570)
    assert size(pit_plot({"a": [record()], "b": [record(), record(2)]})) == (1080, 360)
    assert size(pit_plot({name: [record()] for name in "abcde"})) == (1080, 660)  # two rows of three


def test_labels_of_months_divide_the_year():
    months = [f"{2000 + i // 12}-{i % 12 + 1:02}" for i in range(5, 77)]
    assert [months[i] for i in _ticks(months, 7)] == ["2001-01", "2002-01", "2003-01", "2004-01", "2005-01", "2006-01"]
    assert [months[i] for i in _ticks(months[:20], 7)] == [
        "2000-07",
        "2000-10",
        "2001-01",
        "2001-04",
        "2001-07",
        "2001-10",
        "2002-01",
    ]
    assert [months[i] for i in _ticks(months[:3], 7)] == months[:3]
    days = [f"2020-01-{i + 1:02}" for i in range(30)]
    assert list(_ticks(days, 7)) == [0, 5, 10, 15, 20, 25]
    assert list(_ticks([], 7)) == []


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


def test_findings_compare_with_the_plain_model(results):
    first, second = findings(results)
    assert first == (
        "- variational dropout: CRPS below the plain LSTM's on 2 of 2 series (mauna_loa, zoo), by more than the seeds' "
        "spread on 0 (none); 95% intervals cover 92% to 98% on 2 (mauna_loa, zoo)."
    )
    assert "on 0 of 0 series (none)" in second
    for path in (results / "forecast-plain" / "zoo").iterdir():
        path.write_text(json.dumps(record(1, 0.1, 0.0)))
    assert "on 1 of 2 series (mauna_loa)," in findings(results)[0]
    for path in (results / "forecast-plain" / "zoo").iterdir():
        path.write_text(json.dumps(record(1, 0.9, 0.0)))
    assert "by more than the seeds' spread on 1 (zoo);" in findings(results)[0]


def test_blocks_of_the_page(results, tmp_path):
    text = BLOCKS["forecast"](results)
    assert text.startswith("| series |")
    assert text.endswith("Written by `python benchmarks/forecast.py run`: a machine, torch 2.11, 1 thread.")
    with pytest.raises(SystemExit, match="results/forecast is missing: make it with"):
        BLOCKS["forecast"](tmp_path / "nothing")
    with pytest.raises(SystemExit, match=r"forecast-choice.json is missing: make it with"):
        BLOCKS["forecast-choice"](results)
    rows = [
        {"changes": [f"model.hidden={h}"], "geometric_mean": h / 10, "coverage": {"a": 0.9, "b": 1.0}} for h in (5, 4)
    ]
    choice = {"recipes": {"forecast": {"chosen": ["model.hidden=4"], "settings": rows}}}
    (results / "forecast-choice.json").write_text(json.dumps(choice))
    lines = BLOCKS["forecast-choice"](results).splitlines()
    assert lines[2:] == [
        "| forecast | hidden=5 | 0.500 | 95.0% |  |",
        "| forecast | hidden=4 | 0.400 | 95.0% | chosen |",
    ]


def test_figures_are_written_from_records(results, tmp_path):
    written = write_figures(results, tmp_path / "figures")
    assert {path.name for path in written} == {
        "forecast-ahead-mauna_loa.png", "forecast-pit.png"
    }  # fmt: skip
    assert write_figures(tmp_path / "nothing", tmp_path / "others") == []
    assert not (tmp_path / "others").exists()


def test_recipes_are_the_chosen_settings():
    """What results/forecast-choice.json found best is what the recipes say."""
    found = json.loads((ROOT / "results/forecast-choice.json").read_text("utf-8"))["recipes"]
    assert set(found) == {"forecast", "forecast-plain", "forecast-bbb"}
    for name, group in found.items():
        recipe = recipes.load(name)
        assert recipes.override(recipe, group["chosen"]) == recipe
        best = min(group["settings"], key=lambda row: row["geometric_mean"])
        assert best["changes"] == group["chosen"]
