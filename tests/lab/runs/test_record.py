import json

import pytest

from bayesrnn.errors import UserError
from bayesrnn.lab.runs import record as records
from bayesrnn.lab.runs.record import NotARunRecord, Record, from_json


def write(folder, name, **record):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(record))


def test_by_seed_and_nothing_without_a_folder(tmp_path):
    assert records.read_folder(tmp_path / "none") == []
    for name, seed in (("10.json", 10), ("9.json", 9), ("a.json", 1)):
        write(tmp_path / "r", name, seed=seed, metrics={})
    assert [record.seed for record in records.read_folder(tmp_path / "r")] == [1, 9, 10]


BEGUN = {"recipe": "a", "data": "ptb", "settings": {}, "started": "2026-01-01T00:00:00Z", "curves": {"x": [2.0, 1.0]}}


def test_a_run_counts_once_however_often_its_record_is_there(tmp_path):
    """A copy, a copy that was evaluated since, and runs that are not copies though much is the same."""
    write(tmp_path, "1.json", **BEGUN, seed=1, commit="c", metrics={"test": 1.0})
    write(tmp_path, "copy.json", **BEGUN, seed=1, commit="c", metrics={"test": 1.0})
    write(tmp_path, "evaluated.json", **BEGUN, seed=1, commit="d", metrics={"test": 1.0, "gap": 0.5})
    (alone,) = records.read_folder(tmp_path)
    assert alone.metrics == {"test": 1.0, "gap": 0.5}
    for key, other in (("seed", 2), ("data", "b"), ("settings", {"lr": 1}), ("started", "2"), ("curves", {"x": [3]})):
        write(tmp_path, f"{key}.json", **{**BEGUN, "seed": 1, "metrics": {"test": 1.0}, key: other})
    assert len(records.read_folder(tmp_path)) == 6
    short = [Record(seed=1, metrics={"test": value}) for value in (1.0, 1.0, 2.0)]  # without a start time
    assert records.once(short) == short[1:]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"metrics": 1}',
        "[" * 100_000,
        '{"metrics": {"error": 1.0}, "seed": "one"}',
        '{"metrics": {"error": 1.0}, "seed": [1]}',
    ],
)
def test_what_is_no_such_record(tmp_path, text):
    (tmp_path / "1.json").write_text(text)
    with pytest.raises(UserError, match=r"1\.json is not a record of a run\."):
        records.read_folder(tmp_path)


def test_what_a_task_adds_is_kept(tmp_path):
    """Unknown keys go through reading and writing, and so do numbers that are not finite: as null."""
    told = {"recipe": "a", "metrics": {"x": float("nan")}, "curves": {"y": [1.0, float("inf")]}, "series": {"of": [1]}}
    record = Record.model_validate(told)
    assert record.extra == {"series": {"of": [1]}}
    path = record.write(tmp_path / "1.json")
    written = json.loads(path.read_text())
    assert written == {
        "program": "bayesrnn",
        "format": 1,
        "recipe": "a",
        "metrics": {"x": None},
        "curves": {"y": [1.0, None]},
        "series": {"of": [1]},
    }
    again = records.read(path)
    assert (again.metric("x"), again.extra) == (None, record.extra)
    assert again.curve("y")[0] == 1.0
    assert again.curve("y")[1] != again.curve("y")[1]
    assert [p.name for p in tmp_path.iterdir()] == ["1.json"]


def test_paths_to_values():
    record = Record(metrics={"end": {"rmse": 0.5, "n": True}}, settings={"train": {"lr": 1.0}, "paper": {"test": 3.0}})
    assert (record.metric("end.rmse"), record.metric("end.rmse.x"), record.metric("gone")) == (0.5, None, None)
    assert (record.number("end.rmse"), record.number("end.n"), record.number("end")) == (0.5, None, None)
    assert (record.setting("train.lr"), record.setting("data.x"), record.paper) == (1.0, None, {"test": 3.0})
    assert record.curve("gone") == []
    assert record.task == "language"
    assert record.scalars() == {"end.rmse": 0.5}


def test_a_later_version_is_refused_with_a_remedy():
    with pytest.raises(UserError, match=r"written by a newer bayesrnn .*format is 9.* update bayesrnn"):
        from_json({"format": 9, "metrics": {}}, where="r.json")


@pytest.mark.parametrize(
    ("wrong", "key"),
    [({"curves": {"x": ["a"]}}, "curves.x.0"), ({"versions": [1]}, "versions"), ({"recipe": 3}, "recipe")],
    ids=["curve", "versions", "recipe"],
)
def test_a_wrong_type_is_named(wrong, key):
    with pytest.raises(NotARunRecord, match=rf"^r\.json is not the record of a run \({key}"):
        from_json({"metrics": {}, **wrong}, where="r.json")


def test_later_metrics_are_merged_by_the_rules_of_the_task(tmp_path):
    """Of a language model every rule of dynamic evaluation stays; of another task the newer metric counts."""
    sgd = {"valid_perplexity": 80.0, "test_perplexity": 79.0}
    kept = {"dynamic_by_rule": {"sgd": sgd}, "entropy_gap": 0.5, "test_rmse_mc": 1.0, "draws_seed": 1}
    new = {"dynamic_by_rule": {"rms": {"valid_perplexity": 70.0, "test_perplexity": 69.0}}, "samples": 0}
    language = Record(metrics=kept, settings={"task": "language"}, curves={})
    found = language.evaluated(new)
    assert found.metric("dynamic_rule") == "rms"
    assert found.metric("dynamic_by_rule.sgd") == sgd
    assert found.metric("test_rmse_mc") is None
    other = Record(metrics=kept, settings={"task": "sentiment"}).evaluated(new)
    assert other.metrics == {"entropy_gap": 0.5, **new}
    language.write(tmp_path / "record.json")
    latest = records.add_evaluation(tmp_path, new)
    assert latest == json.loads((tmp_path / "evaluation.json").read_text())
    assert latest["dynamic_by_rule"].keys() == {"sgd", "rms"}
    assert "entropy_gap" not in latest
    assert records.read(tmp_path / "record.json").metrics == found.metrics


@pytest.mark.parametrize("text", [None, "{", "[]", '{"metrics": 3}'])
def test_an_evaluation_without_a_record_is_kept_alone(tmp_path, text):
    if text is not None:
        (tmp_path / "record.json").write_text(text)
    assert records.add_evaluation(tmp_path, {"test": 1.0}) is None
    assert json.loads((tmp_path / "evaluation.json").read_text()) == {"test": 1.0}
    assert not (tmp_path / "record.json").exists() if text is None else (tmp_path / "record.json").read_text() == text
