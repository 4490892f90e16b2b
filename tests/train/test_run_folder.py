import json
import math

import pytest

from bayesrnn.errors import UserError
from bayesrnn.train.run_folder import MARKER, RunFolder

FILES = ["a.txt", "b.jsonl"]


def finished(path):
    run = RunFolder(path, files=FILES)
    run.write("a.txt", "one")
    run.append("b.jsonl", {"n": 1})
    run.append("b.jsonl", {"n": 2})
    run.finish({"x": 1})
    return run


def test_a_whole_run(tmp_path):
    finished(tmp_path / "deep" / "run")
    files = {p.name for p in (tmp_path / "deep" / "run").iterdir()}
    assert files == {"a.txt", "b.jsonl", "record.json"}
    record = json.loads((tmp_path / "deep" / "run" / "record.json").read_text())
    assert record == {"program": "bayesrnn", "x": 1}
    assert (tmp_path / "deep" / "run" / "b.jsonl").read_text() == '{"n": 1}\n{"n": 2}\n'


def test_a_finished_run_is_kept(tmp_path):
    finished(tmp_path)
    with pytest.raises(UserError, match="already holds a finished run; replace it with --force"):
        RunFolder(tmp_path, files=FILES)
    assert (tmp_path / "a.txt").read_text() == "one"


def test_force_replaces_its_own_files_only(tmp_path):
    finished(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    RunFolder(tmp_path, files=FILES, force=True).finish({})
    assert {p.name for p in tmp_path.iterdir()} == {"notes.txt", "record.json"}
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_killed_run_is_recognised(tmp_path):
    RunFolder(tmp_path, files=FILES).write("a.txt", "one")
    assert (tmp_path / MARKER).exists()
    with pytest.raises(UserError, match="unfinished run; start it over with --force"):
        RunFolder(tmp_path, files=FILES)
    RunFolder(tmp_path, files=FILES, force=True)
    assert not (tmp_path / "a.txt").exists()


def test_files_of_others_are_never_taken_for_ours(tmp_path):
    (tmp_path / "a.txt").write_text("mine")
    with pytest.raises(UserError, match="already holds files"):
        RunFolder(tmp_path, files=FILES)
    with pytest.raises(UserError, match="will not be replaced"):
        RunFolder(tmp_path, files=FILES, force=True)
    (tmp_path / "record.json").write_text("[]")
    with pytest.raises(UserError, match="will not be replaced"):
        RunFolder(tmp_path, files=FILES, force=True)
    assert (tmp_path / "a.txt").read_text() == "mine"


def test_force_into_a_folder_with_other_names(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    RunFolder(tmp_path, files=FILES, force=True).finish({})
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_file_in_the_way(tmp_path):
    (tmp_path / "run").write_text("")
    for path in ("run", "run/deeper"):
        with pytest.raises(UserError, match="is a file"):
            RunFolder(tmp_path / path, files=FILES)


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RunFolder, "write", full)
    with pytest.raises(UserError, match="cannot be written \\(No space left on device\\)"):
        RunFolder(tmp_path, files=FILES)


def test_what_was_made_of_the_replaced_run_goes_with_it(tmp_path):
    RunFolder(tmp_path, files=["a.txt"]).finish({})
    for name in ("evaluation.json", "pruned.safetensors", "mine.txt"):
        (tmp_path / name).write_text("{}")
    RunFolder(tmp_path, files=["a.txt"], force=True)
    left = {p.name for p in tmp_path.iterdir()}
    assert "mine.txt" in left
    assert not {"evaluation.json", "pruned.safetensors"} & left


def inner(path, **config):
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config))
    for name in ("a.txt", "record.json", "pruned.safetensors"):
        (path / name).write_text('{"program": "bayesrnn"}')
    return path


def test_runs_on_pruned_weights_go_with_the_run_they_are_inside(tmp_path):
    def run(**options):
        return RunFolder(tmp_path, files=["a.txt", "config.json"], **options)

    run().finish({})
    gone = [inner(tmp_path / "pruned-0.8", pruned={}), inner(tmp_path / "pruned-0.8/pruned-1e-05", pruned={})]
    kept = [inner(tmp_path / "pruned-0.7"), inner(tmp_path / "pruned-mine", pruned={})]
    mixed = inner(tmp_path / "pruned-0", pruned={})
    (mixed / "mine.txt").write_text("mine")
    (tmp_path / "pruned-0.5").mkdir()
    (tmp_path / "pruned-0.5" / MARKER).write_text("")  # killed before its config.json
    with pytest.raises(UserError, match="replace it with --force"):
        run()
    assert all((path / "a.txt").exists() for path in (*gone, *kept, mixed))
    with (
        RunFolder(gone[0] / "pruned-1e-05", files=["a.txt", "config.json"], force=True) as busy,
        pytest.raises(UserError, match="pruned-1e-05 is being written to by another process"),
    ):
        busy.write("config.json", '{"pruned": {}}')
        run(force=True)
    assert (tmp_path / "record.json").exists()
    assert (mixed / "a.txt").exists()
    run(force=True).finish({})
    assert not any(path.exists() for path in (*gone, tmp_path / "pruned-0.5"))
    assert all((path / "a.txt").exists() for path in kept)
    assert [path.name for path in mixed.iterdir()] == ["mine.txt"]


def test_what_to_do_elsewhere(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("")
    (tmp_path / "run").write_text("")
    cases = (
        (tmp_path / "run", False, "is a file, and a folder is needed; go away."),
        (tmp_path, False, "already holds files; replace it with --force, or go away."),
        (tmp_path, True, "has a a.txt that no run of bayesrnn wrote, and it will not be replaced; go away."),
    )
    for path, force, message in cases:
        with pytest.raises(UserError, match=message):
            RunFolder(path, files=["a.txt"], force=force, elsewhere="go away")
    with (
        RunFolder(tmp_path / "new", files=[]),
        pytest.raises(UserError, match=r"wait until it ends, or go away\."),
    ):
        RunFolder(tmp_path / "new", files=[], elsewhere="go away")


def test_json_has_no_infinity(tmp_path):
    with RunFolder(tmp_path / "run", files=()) as folder:
        folder.finish({"curve": [1.0, math.inf], "metrics": {"a": math.nan, "b": -math.inf, "c": 2, "d": "NaN"}})
    text = (tmp_path / "run" / "record.json").read_text()
    found = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert found["curve"] == [1.0, None]
    assert found["metrics"] == {"a": None, "b": None, "c": 2, "d": "NaN"}
