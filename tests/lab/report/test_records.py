import json

import pytest

from bayesrnn.errors import UserError
from bayesrnn.lab.runs import records


def write(folder, name, **record):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(record))


def test_by_seed_and_nothing_without_a_folder(tmp_path):
    assert records.read(tmp_path / "none") == []
    for name, seed in (("10.json", 10), ("9.json", 9), ("a.json", 1)):
        write(tmp_path / "r", name, seed=seed, metrics={})
    assert [record["seed"] for record in records.read(tmp_path / "r")] == [1, 9, 10]


BEGUN = {"recipe": "a", "data": "ptb", "settings": {}, "started": "2026-01-01T00:00:00Z", "curves": {"x": [2.0, 1.0]}}


def test_a_run_counts_once_however_often_its_record_is_there(tmp_path):
    """A copy, a copy that was evaluated since, and runs that are not copies though much is the same."""
    write(tmp_path, "1.json", **BEGUN, seed=1, commit="c", metrics={"test": 1.0})
    write(tmp_path, "copy.json", **BEGUN, seed=1, commit="c", metrics={"test": 1.0})
    write(tmp_path, "evaluated.json", **BEGUN, seed=1, commit="d", metrics={"test": 1.0, "gap": 0.5})
    (alone,) = records.read(tmp_path)
    assert alone["metrics"] == {"test": 1.0, "gap": 0.5}
    for key, other in (("seed", 2), ("data", "b"), ("settings", {"lr": 1}), ("started", "2"), ("curves", {"x": [3]})):
        write(tmp_path, f"{key}.json", **{**BEGUN, "seed": 1, "metrics": {"test": 1.0}, key: other})
    assert len(records.read(tmp_path)) == 6
    short = [{"seed": 1, "metrics": {"test": value}} for value in (1.0, 1.0, 2.0)]  # of an unknown beginning
    assert records.once(short) == short[1:]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"metrics": 1}',
        '{"metrics": {"error": null}}',
        '{"metrics": {"error": []}}',
        "[" * 100_000,
        '{"metrics": {"error": 1.0}, "seed": "one"}',
        '{"metrics": {"error": 1.0}, "seed": [1]}',
    ],
)
def test_what_is_no_such_record(tmp_path, text):
    (tmp_path / "1.json").write_text(text)
    with pytest.raises(UserError, match=r"1\.json is not the record of a test\."):
        records.read(tmp_path, what="the record of a test", needs=("metrics.error",))


def test_a_figure_of_zero_is_there(tmp_path):
    write(tmp_path, "1.json", metrics={"error": 0.0})
    assert len(records.read(tmp_path, needs=("metrics.error",))) == 1


def test_figures_over_seeds():
    both = [{"metrics": {"end": {"rmse": 1.0}}}, {"metrics": {"end": None}}, {"metrics": {"end": {"rmse": 2.0}}}]
    assert records.figures(both, "end.rmse") == [1.0, 2.0]
    assert records.mean([1.0, 2.0], "{:.2f}") == "1.50 ± 0.71"
    assert records.mean([1.0], "{:.1f}") == "1.0"
    assert records.mean([], "{:.1f}") is None


def test_devices_once():
    made = [{"device": d, "versions": {"torch": "2"}} for d in ("cuda", "cpu", "cuda")]
    assert records.devices(made) == "cpu, torch 2; cuda, torch 2"
