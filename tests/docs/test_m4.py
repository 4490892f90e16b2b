"""The tables of forecasts beside other libraries, from records."""

import pytest

from bayesrnn.lab.runs.record import Record
from docs.build import m4

KEYS = ("smape", "mase", "msis", "crps", "scaled_crps", "coverage_80", "coverage_90", "coverage_95")


def write(results, task, method, value, seed=1, **extra):
    folder = results / "forecasting" / task / method
    folder.mkdir(parents=True, exist_ok=True)
    metrics = {**dict.fromkeys(KEYS, value), "train_seconds": 10.0, "predict_seconds": 1.0}
    metrics |= {f"coverage_{level}_by_step": [0.5, 0.75] for level in (80, 90, 95)}
    metrics["scaled_crps_by_origin"] = [value] if "origins_done" in extra else [value, 3 * value]
    made = {"device": "a machine", "versions": {"torch": "2.11"}}
    Record(seed=seed, metrics=metrics, **made, **extra).write(folder / f"{seed}.json")


def test_a_row_is_a_mean_over_seeds(tmp_path):
    write(tmp_path, "etth1-24", m4.OURS, 0.5)
    write(tmp_path, "etth1-24", m4.OURS, 0.75, seed=2)
    row = next(line for line in m4.block(tmp_path).splitlines() if line.startswith("| **bayesrnn**"))
    assert "| 0.625 |" in row
    assert row.endswith("| 2 seeds |")


def test_methods_that_are_better_are_named(tmp_path):
    write(tmp_path, "etth1-24", m4.OURS, 0.5)
    write(tmp_path, "etth1-24", "lightgbm", 0.4)
    write(tmp_path, "etth1-24", "mstl", 0.6)
    text = m4.block(tmp_path)
    assert "Better than bayesrnn in sMAPE: LightGBM quantiles; MASE: LightGBM quantiles;" in text
    assert "MSTL" not in text.split("Better than")[1].split(".\n")[0]


def test_a_lower_crps_has_its_interval(tmp_path):
    """Two origins, two blocks: ours 0.5 and 1.5, theirs 0.4 and 1.2, so lower by 0.1 and 0.3 of a mean of 1."""
    write(tmp_path, "etth1-24", m4.OURS, 0.5)
    write(tmp_path, "etth1-24", "lightgbm", 0.4)
    assert "CRPS: LightGBM quantiles (20.0% ± 19.6%)" in m4.block(tmp_path)


def test_the_crps_of_some_origins_is_compared_on_these(tmp_path):
    write(tmp_path, "m4-weekly", m4.OURS, 0.5)  # 0.5 on the first origin, 1.5 on the second
    write(tmp_path, "m4-weekly", "auto-ets", 0.75, origins_done=[1])
    assert "CRPS: AutoETS (statsforecast) (50.0%" in m4.block(tmp_path)


def test_coverage_is_drawn_by_step(tmp_path):
    assert m4.figures(tmp_path) == {}
    write(tmp_path, "m4-weekly", m4.OURS, 0.5)
    write(tmp_path, "etth1-24", "lightgbm", 0.4)
    assert m4.figures(tmp_path)["forecasting-coverage.png"][:4] == b"\x89PNG"
    assert "(figures/forecasting-coverage.png)" in m4.block(tmp_path)


def test_missing_records_are_said(tmp_path):
    with pytest.raises(SystemExit, match="make it with"):
        m4.block(tmp_path)
