import json

import pytest

from bayesrnn.errors import UserError
from bayesrnn.report import records


def write(folder, name, **record):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(record))


def test_by_seed_and_nothing_without_a_folder(tmp_path):
    assert records.read(tmp_path / "none") == []
    for name, seed in (("10.json", 10), ("9.json", 9), ("a.json", 1)):
        write(tmp_path / "r", name, seed=seed, metrics={})
    assert [record["seed"] for record in records.read(tmp_path / "r")] == [1, 9, 10]


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"metrics": 1}', '{"metrics": {"error": null}}', '{"metrics": {"error": []}}', "[" * 100_000],
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
