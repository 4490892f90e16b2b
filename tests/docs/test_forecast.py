"""Plots and the table of forecasts, from records."""

import json
import struct
from pathlib import Path

import pytest

from bayesrnn.lab import recipes
from bayesrnn.lab.runs.record import Record
from bayesrnn.lab.tasks.forecast.plots import _ticks, forecast_plot
from docs.build.forecast import (
    _T,
    BLOCKS,
    NO_DIFFERENCE,
    Difference,
    comparison_table,
    difference,
    difference_table,
    findings,
    records_by_series,
)
from docs.build.forecast_plots import ahead_plot, pit_plot, walk_plot, write_figures

ROOT = Path(__file__).resolve().parents[2]


def record(seed=1, crps=0.5, epistemic=0.2, raw=None, coverage=0.95):
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
        "level": 0.95, "test_crps": crps, "test_coverage": coverage, "test_width": 4.0, "valid_crps": 0.4,
        "test_crps_raw": crps if raw is None else raw, "test_coverage_raw": 0.9,
        "epistemic_share": epistemic, "naive_crps": 1.25, "naive_coverage": 0.9, "naive_width": 9.0,
        "reliability": {"pit": [0.1] * 10}, "walk": walk,
        "ahead": {"past": walk["actual"], "date": [str(i) for i in range(n + 4)], "direct": 2, **{
            key: walk[key][:4] for key in ("mean", "low", "high", "aleatoric", "epistemic")
        }},
    }  # fmt: skip
    about = {"device": "a machine", "versions": {"torch": "2.11"}, "series": {"columns": ["level"]}}
    return Record(seed=seed, metrics=metrics, **about)


def size(png):
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", png[16:24])


def test_pictures():
    rows = {"mean": [1.0, 2.0], "low": [0.0, 0.5], "high": [2.0, 3.5], "epistemic_std": [0.1, 0.2]}
    labels = [str(i) for i in range(12)]
    width, height = size(forecast_plot([1.0] * 10, rows, labels, name="level", level=0.9, direct=1))
    assert (width, height) == (1080, 570)
    plain = forecast_plot([1.0] * 10, {**rows, "epistemic_std": [0.0, 0.0]}, labels, name="level", level=0.9, direct=2)
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
                record(seed, crps + 0.1 * seed, epistemic).write(folder / f"{seed}.json")
    return tmp_path


def test_records_are_grouped(results):
    found = records_by_series(results)
    assert list(found) == ["mauna_loa", "zoo"]  # the library's own first
    assert {recipe: len(group) for recipe, group in found["zoo"].items()} == {"forecast": 2, "forecast-plain": 2}


def test_the_table(results):
    lines = comparison_table(results).splitlines()
    assert lines[0].startswith("| series | model | CRPS, raw | CRPS, recalibrated | 95% intervals cover, raw |")
    scores = "0.65 ± 0.07 | 0.65 ± 0.07 | 90.0% | 95.0% (95.0 to 95.0) | 4 | 20% | 0.4 | 2 |"
    assert lines[2] == f"| mauna_loa | variational dropout | {scores}"
    assert lines[3] == f"| mauna_loa | plain LSTM | {scores.replace('0.65', '0.75').replace('20%', '–')}"
    assert lines[4] == "| mauna_loa | last value | – | 1.25 | – | 90.0% | 9 | – | – | – |"
    assert len(lines) == 2 + 2 * 3


class TestDifferences:
    def test_by_hand(self):
        """Differences 0.1, 0.2 and 0.3 over a mean of 2: 10% with a standard error of 0.1 / sqrt(3) / 2."""
        own = [record(seed, crps) for seed, crps in ((1, 2.1), (2, 2.2), (3, 2.3), (9, 77.0))]
        plain = [record(seed, 2.0) for seed in (3, 2, 1, 8)]
        found = difference(own, plain, "test_crps")
        assert (found.mean, found.error, found.pairs) == pytest.approx((0.1, 0.05 / 3**0.5, 3))
        assert str(found) == "+10.0% ± 2.9"

    def test_pairs_are_of_one_seed(self):
        """Seeds differ far more than models do; paired, the difference is clear all the same."""
        own = [record(seed, seed - 0.01 - 0.001 * (seed % 2)) for seed in range(1, 9)]
        plain = [record(seed, float(seed)) for seed in range(8, 0, -1)]
        assert difference(own, plain, "test_crps").verdict == "better"
        assert difference(plain, own, "test_crps").verdict == "worse"

    def test_the_verdict_is_a_t_test(self):
        stats = pytest.importorskip("scipy.stats")
        for pairs in (2, 3, 8, 16):
            limit = stats.t.ppf(0.975, pairs - 1)
            assert _T[pairs - 2] == pytest.approx(limit, rel=5e-4)
            assert Difference(-1.01 * limit, 1.0, pairs).verdict == "better"
            assert Difference(1.01 * limit, 1.0, pairs).verdict == "worse"
            assert (
                Difference(0.99 * limit, 1.0, pairs).verdict == Difference(-limit, 1.01, pairs).verdict == NO_DIFFERENCE
            )
        assert Difference(-_T[-1] - 0.01, 1.0, 100).verdict == "better"

    def test_one_pair_or_none_says_nothing(self):
        assert difference([record(1, 0.1)], [record(1, 9.0)], "test_crps").verdict == NO_DIFFERENCE
        assert difference([record(1, 0.1)], [record(2, 9.0)], "test_crps") == Difference(0.0, 0.0, 0)
        assert Difference(0.0, 0.0, 0).verdict == NO_DIFFERENCE

    def test_noise_is_seldom_called_a_difference(self):
        """Of 2000 comparisons without one, 5% are called one: between 3.5% and 6.5% in all but 1 in 400 such tests."""
        import random

        source, called = random.Random(0), 0
        for _ in range(2000):
            groups = [[record(s, 10 + source.gauss(0, 1)) for s in range(8)] for _ in range(2)]
            called += difference(*groups, "test_crps").verdict != NO_DIFFERENCE
        assert 0.035 <= called / 2000 <= 0.065


def write(results, recipe, series, *records):
    for path in (results / recipe / series).iterdir():
        path.unlink()
    for one in records:
        one.write(results / recipe / series / f"{one.seed}.json")


def test_findings_go_by_the_rule(results):
    """A mean that is lower, raw or recalibrated, is called better only when seeds agree."""
    for series in ("zoo", "mauna_loa"):
        write(results, "forecast-plain", series, *(record(s, 0.6 + 0.1 * s, raw=0.5) for s in (1, 2, 3)))
    write(results, "forecast", "zoo", *(record(s, 0.51 + 0.101 * s, raw=0.5 + 0.1 * (-1) ** s) for s in (1, 2, 3)))
    low = (record(s, c, raw=0.4 + s / 1000, coverage=0.98 - s / 100) for s, c in ((1, 0.2), (2, 0.9), (3, 0.7)))
    write(results, "forecast", "mauna_loa", *low)
    raw, recalibrated, both = findings(results)
    assert raw == (
        "- variational dropout, CRPS raw, against the plain LSTM on 2 series: better on 1 (mauna_loa); worse on 0; "
        "no difference within noise on 1 (zoo)."
    )
    assert "better on 1 (zoo); worse on 0; no difference within noise on 1 (mauna_loa)." in recalibrated
    assert both == (
        "- variational dropout: better both raw and recalibrated than every plain LSTM that was run on it, on 0. "
        "95% intervals, recalibrated, cover 92% to 98% "
        "in the mean of seeds on 2 (mauna_loa, zoo), with every seed on 2 (mauna_loa, zoo)."
    )
    write(results, "forecast", "mauna_loa", *(record(s, 0.7, coverage=c) for s, c in ((1, 0.919), (2, 0.95))))
    assert findings(results)[2].endswith("on 2 (mauna_loa, zoo), with every seed on 1 (zoo).")
    lines = difference_table(results).splitlines()
    assert lines[3].startswith("| variational dropout | zoo | -6.7% ± 13.3 | no difference within noise | -11.0% ± ")
    assert lines[3].endswith("| better | 3 |")


def test_blocks_of_the_page(results, tmp_path):
    text = BLOCKS["forecast"](results)
    assert text.startswith("| against the plain LSTM | series |")
    assert "\n| series | model |" in text
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


def test_the_long_series_are_compared_with_a_prior_too(results):
    for seed in (1, 2):
        path = results / "forecast-plain-prior" / "zoo" / f"{seed}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        record(seed, 0.4 + 0.1 * seed, raw=1.0).write(path)  # 0.1 better than variational dropout
    lines = BLOCKS["forecast-long"](results).splitlines()
    assert lines[2:] == [
        "| zoo | 0.55 ± 0.07 | -35.0% ± 5.0: no difference within noise | +18.2% ± 0.0: worse | 2 |",
    ]
    every = "better both raw and recalibrated than every plain LSTM that was run on it, on {}. "
    assert every.format("1 (mauna_loa)") in findings(results)[2]  # on zoo it is better than the other plain model alone
    for seed in (1, 2):
        path = results / "forecast-plain-prior" / "zoo" / f"{seed}.json"
        record(seed, 0.8 + 0.1 * seed).write(path)
    assert every.format("2 (mauna_loa, zoo)") in findings(results)[2]


def test_four_are_compared_with_one_and_with_four(results):
    for recipe, crps in (("forecast-plain-mixture", 0.5), ("forecast-mixture", 0.4), ("forecast-plain", 1.0)):
        (results / recipe / "zoo").mkdir(parents=True, exist_ok=True)
        write(results, recipe, "zoo", *(record(s, crps + s / 100, raw=crps + (-1) ** s) for s in (1, 2, 3)))
    lines = BLOCKS["forecast-four"](results).splitlines()
    assert lines[0].startswith(
        "| series | four plain LSTMs against one, raw | four plain LSTMs against one, recalibrat"
    )
    assert lines[2:] == ["| zoo | -75.0% ± 0.0: better | -49.0% ± 0.0: better | -60.0% ± 0.0: better "
                         "| -19.2% ± 0.0: better | 3 |"]  # fmt: skip
    assert any(line.startswith("- mixture of four: better both raw and recalibrated") for line in findings(results))


def test_mixtures_of_runs_against_one_plain_run(results):
    with pytest.raises(SystemExit, match=r"forecast-choice-average.json is missing: make it with"):
        BLOCKS["forecast-choice-average"](results)
    plain = {"a": {"crps": [1.0, 3.0], "crps_raw": [4.0, 4.0]}, "b": {"crps": [10.0, 10.0], "crps_raw": [5.0, 5.0]}}
    two = {"a": {"crps": [1.8], "crps_raw": [2.0]}, "b": {"crps": [11.0], "crps_raw": [5.0]}}
    record = {"mixtures": {"forecast": {"2": two}, "forecast-plain": {"1": plain}}}
    (results / "forecast-choice-average.json").write_text(json.dumps(record))
    assert BLOCKS["forecast-choice-average"](results).splitlines()[2:] == [
        "| variational dropout | 2 | -25.0% (-50.0 to +0.0) | +0.0% (-10.0 to +10.0) | 2 |",
        "| plain LSTM | 1 | +0.0% (+0.0 to +0.0) | +0.0% (+0.0 to +0.0) | 2 |",
    ]


def test_the_second_round_of_choosing(results):
    with pytest.raises(SystemExit, match=r"forecast-choice-second.json is missing: make it with"):
        BLOCKS["forecast-choice-second"](results)
    row = {
        "changes": ["model.hidden=4", "train.average_from=null"], "seeds": [11, 12],
        "crps": {"a": [1.0, 3.0], "b": [8.0, 8.0]},
        "crps_raw": {"a": [1.0, 1.0], "b": [4.0, 4.0]}, "coverage": {"a": [0.9, 1.0], "b": [0.95, 0.95]},
        "coverage_raw": {"a": [0.9, 0.9], "b": [0.9, 0.9]},
    }  # fmt: skip
    choice = {"recipes": {"forecast": {"chosen": row["changes"], "settings": [row]}}}
    (results / "forecast-choice-second.json").write_text(json.dumps(choice))
    lines = BLOCKS["forecast-choice-second"](results).splitlines()
    assert lines[2:] == ["| forecast | hidden=4 | 2.000 | 4.000 | 90.0% | 95.0% | 2 | chosen |"]


def test_figures_are_written_from_records(results, tmp_path):
    written = write_figures(results, tmp_path / "figures")
    assert {path.name for path in written} == {
        "forecast-ahead-mauna_loa.png", "forecast-pit.png"
    }  # fmt: skip
    assert write_figures(tmp_path / "nothing", tmp_path / "others") == []
    assert not (tmp_path / "others").exists()


def _choice(name):
    return json.loads((ROOT / "results" / name).read_text("utf-8"))["recipes"]


def test_recipes_are_the_chosen_settings():
    """What the rounds of choosing found best is what the recipes say; the second round has the last word."""
    first, second = _choice("forecast-choice.json"), _choice("forecast-choice-second.json")
    assert set(first) == {"forecast", "forecast-plain", "forecast-bbb"}
    assert set(second) == {"forecast", "forecast-plain"}
    for name, group in (first | second).items():
        recipe = recipes.load(name)
        assert recipes.override(recipe, group["chosen"]) == recipe
    for group in (*first.values(), *second.values()):
        most = max(len(row.get("seeds", "")) for row in group["settings"])
        final = [row for row in group["settings"] if len(row.get("seeds", "")) == most]
        assert min(final, key=lambda row: row["geometric_mean"])["changes"] == group["chosen"]


def test_the_mixture_has_the_settings_of_variational_dropout():
    """Nothing was chosen for it; its loss is the mean of four, so half as long a gradient is clipped alike."""
    one, four = (recipes.load(name) for name in ("forecast", "forecast-mixture"))
    assert recipes.override(four, ["model.components=1", "train.clip=1.0"]) == one.model_copy(
        update={"description": four.description}
    )


def test_plain_and_variational_got_as_many_tries():
    first, second = _choice("forecast-choice.json"), _choice("forecast-choice-second.json")
    tries = {name: len(first[name]["settings"]) + len(second[name]["settings"]) for name in second}
    assert tries["forecast-plain"] >= tries["forecast"]


def test_records_are_of_the_recipes_as_they_are():
    """Both models of a comparison have the same seeds, and their records the recipe's settings."""
    for series, groups in records_by_series(ROOT / "results").items():
        seeds = {name: [one.seed for one in group] for name, group in groups.items()}
        assert sorted(seeds["forecast"]) == sorted(seeds["forecast-plain"]), series
        for name, one in ((name, one) for name, group in groups.items() for one in group):
            recipe = recipes.load(name)
            for section, later in (("model", {"components": 1}), ("train", {})):
                found = later | one.settings[section]  # earlier records lack what came later
                assert found == getattr(recipe, section).model_dump(), (series, name, one.seed)
