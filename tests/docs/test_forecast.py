"""The table of forecasts, from records."""

from pathlib import Path

import pytest

from bayesrnn.lab import recipes
from bayesrnn.lab.runs.record import Record
from docs.build.forecast import (
    _T,
    BLOCKS,
    NO_DIFFERENCE,
    Difference,
    difference,
    records_by_series,
)

ROOT = Path(__file__).resolve().parents[2]


def record(seed=1, crps=0.5):
    metrics = {"level": 0.95, "test_crps": crps, "test_coverage": 0.95, "naive_crps": 1.25}
    return Record(seed=seed, metrics=metrics, device="a machine", versions={"torch": "2.11"})


@pytest.fixture
def results(tmp_path):
    for recipe, crps in (("forecast", 0.5), ("forecast-plain", 0.6)):
        for series in ("zoo", "mauna_loa"):
            folder = tmp_path / recipe / series
            folder.mkdir(parents=True)
            for seed in (1, 2):
                record(seed, crps + 0.1 * seed).write(folder / f"{seed}.json")
    return tmp_path


def test_records_are_grouped(results):
    found = records_by_series(results)
    assert list(found) == ["mauna_loa", "zoo"]  # the library's own first
    assert {recipe: len(group) for recipe, group in found["zoo"].items()} == {"forecast": 2, "forecast-plain": 2}


def test_the_table(results):
    lines = BLOCKS["forecast"](results).splitlines()
    assert lines[0].startswith("| series | seasonal naive | plain GRU | variational dropout | mixture of four |")
    assert lines[2] == "| mauna_loa | – | 0.75 | -13.3% ± 0.0, better | – | – | 95.0% |"
    assert lines[3].startswith("| zoo |")
    assert "(a machine, torch 2.11, 1 thread)" in lines[-1]


def test_a_series_that_the_plain_model_lacks(results):
    for path in (results / "forecast-plain/zoo").iterdir():
        path.unlink()
    assert "| zoo | – | – | – | – | – | 95.0% |" in BLOCKS["forecast"](results)


def test_without_records(tmp_path):
    with pytest.raises(SystemExit, match=r"make it with `python benchmarks/forecast.py`"):
        BLOCKS["forecast"](tmp_path)


class TestDifferences:
    def test_by_hand(self):
        """Differences 0.1, 0.2 and 0.3 over a mean of 2: 10% with a standard error of 0.1 / sqrt(3) / 2."""
        own = [record(seed, crps) for seed, crps in ((1, 2.1), (2, 2.2), (3, 2.3), (9, 77.0))]
        plain = [record(seed, 2.0) for seed in (3, 2, 1, 8)]
        found = difference(own, plain, "test_crps")
        assert (found.mean, found.error, found.pairs) == pytest.approx((0.1, 0.05 / 3**0.5, 3))
        assert found.reach == pytest.approx(4.303 * 0.05 / 3**0.5)
        assert str(found) == "+10.0% ± 12.4, no difference"

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
        assert difference([record(1, 0.1)], [record(2, 9.0)], "test_crps").pairs == 0
        assert Difference(0.0, 0.0, 0).verdict == NO_DIFFERENCE

    def test_noise_is_seldom_called_a_difference(self):
        """Of 2000 comparisons without one, 5% are called one: between 3.5% and 6.5% in all but 1 in 400 such tests."""
        import random

        source, called = random.Random(0), 0
        for _ in range(2000):
            groups = [[record(s, 10 + source.gauss(0, 1)) for s in range(8)] for _ in range(2)]
            called += difference(*groups, "test_crps").verdict != NO_DIFFERENCE
        assert 0.035 <= called / 2000 <= 0.065


def test_the_mixture_has_the_settings_of_variational_dropout():
    """Nothing was chosen for it; its loss is the mean of four, so half as long a gradient is clipped alike."""
    one, four = (recipes.load(name) for name in ("forecast", "forecast-mixture"))
    assert recipes.override(four, ["model.components=1", "train.clip=1.0"]) == one.model_copy(
        update={"description": four.description}
    )


def test_records_are_of_the_recipes_as_they_are():
    """Both models of a comparison have the same seeds, and their records the recipe's settings."""
    for series, groups in records_by_series(ROOT / "results").items():
        seeds = {name: [one.seed for one in group] for name, group in groups.items()}
        assert sorted(seeds["forecast"]) == sorted(seeds["forecast-plain"]), series
        for name, one in ((name, one) for name, group in groups.items() for one in group):
            recipe = recipes.load(name)
            for section in ("model", "train"):
                assert one.settings[section] == getattr(recipe, section).model_dump(mode="json"), (series, name)
