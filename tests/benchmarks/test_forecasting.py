"""benchmarks/forecasting_tasks.py: the tasks and metrics of the forecasting benchmark, on data made here."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

FILE = Path(__file__).resolve().parents[2] / "benchmarks/forecasting_tasks.py"


@pytest.fixture(scope="module")
def tasks():
    spec = importlib.util.spec_from_file_location("forecasting_tasks", FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path):
    """Three weekly series in the form of the competition's files."""
    (tmp_path / "m4").mkdir()
    rng = np.random.default_rng(0)
    lengths = (80, 100, 120)
    train = [[f"W{i}", *rng.uniform(10, 20, n), *[None] * (120 - n)] for i, n in enumerate(lengths)]
    test = [[f"W{i}", *rng.uniform(10, 20, 13)] for i in range(3)]
    for part, rows in (("train", train), ("test", test)):
        names = [f"V{k + 1}" for k in range(len(rows[0]))]
        pd.DataFrame(rows, columns=names).to_csv(tmp_path / f"m4/Weekly-{part}.csv.gz", index=False)
    return tmp_path


def test_test_and_validation_origins(tasks, folder):
    test, valid = (tasks.load("m4-weekly", folder, fold) for fold in ("test", "valid"))
    assert [o for _, o in test.origins] == [80, 100, 120]
    assert [o for _, o in valid.origins] == [67, 87, 107]
    assert [len(v) for v in valid.values] == [80, 100, 120]  # nothing of the test part
    assert test.targets().shape == (3, 13)
    assert test.frame(train=True).groupby("unique_id").size().tolist() == [80, 100, 120]


def test_rolling_origins_end_a_horizon_before_the_end(tasks):
    task = tasks.rolling("one", np.arange(100.0), pd.Timestamp("2020-01-01"), "h", 10, 5, share=0.3)
    assert task.origins == [(0, o) for o in range(70, 91, 5)]
    assert task.train_ends == [70]
    assert tasks.validation(task).train_ends[0] < 70
    assert len(tasks.validation(task).values[0]) == 70


def test_metrics_of_hand_made_quantiles(tasks):
    values = np.concatenate([np.tile([1.0, 3.0], 10), [2.0, 4.0]])
    task = tasks.Task("t", 2, 1, "h", [values], [pd.Timestamp("2020-01-01")], [(0, 20)], [20], ["a"])
    assert task.scales() == pytest.approx([2.0])
    levels = tasks.LEVELS
    quantiles = np.stack([levels * 4, levels * 2], -2)[None]  # uniform on (0, 4) and on (0, 2)
    found = tasks.metrics(task, quantiles)
    assert found["mase"] == pytest.approx((0 + 3) / 2 / 2)
    assert found["smape"] == pytest.approx((0 + 200 * 3 / 5) / 2)
    assert found["coverage_80_by_step"] == [1.0, 0.0]
    width, beyond = 0.95 * (4 + 2) / 2, 40 * (4 - 1.95) / 2
    assert found["msis"] == pytest.approx((width + beyond) / 2)
    uniform = [4 * (1 / 3 - 0.5 + 0.25), 4 - 2 + 2 / 3]  # CRPS of uniform distributions, in closed form
    assert found["crps_by_step"] == pytest.approx(uniform, abs=0.04)


def test_seasonal_naive_repeats_the_last_season_and_widens_with_seasons(tasks):
    values = np.array([1.0, 5.0, 2.0, 7.0, 2.0, 6.0, 0, 0, 0, 0])
    task = tasks.Task("t", 4, 2, "h", [values], [pd.Timestamp("2020-01-01")], [(0, 6)], [6], ["a"])
    found = tasks.seasonal_naive(task)[0]
    assert found[:, 10] == pytest.approx([2, 6, 2, 6])
    width = found[:, -1] - found[:, 0]
    assert width[2] / width[0] == pytest.approx(np.sqrt(2))
    sigma = np.sqrt(np.mean(np.square([1.0, 2.0, 0.0, -1.0])))
    assert width[0] == pytest.approx(2 * 1.959964 * sigma, rel=1e-5)


def test_missing_targets_do_not_count(tasks):
    values = np.append(np.tile([1.0, 3.0], 10), [2.0, np.nan])
    task = tasks.Task("t", 2, 1, "h", [values], [pd.Timestamp("2020-01-01")], [(0, 20)], [20], ["a"])
    found = tasks.metrics(task, np.broadcast_to(tasks.LEVELS * 4, (1, 2, 21)))
    assert found["coverage_95"] == 1.0
    assert np.isfinite(found["crps"])


def test_made_up_series(tasks):
    gaps = tasks.other("gaps", Path())
    assert 0.33 < np.isnan(gaps.values[0]).mean() < 0.37
    assert len(tasks.other("monthly", Path()).values[0]) == 140
