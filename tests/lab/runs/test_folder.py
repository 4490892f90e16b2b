import json
import math
import os
import stat
import threading
import time

import pytest

from bayesrnn.errors import UserError
from bayesrnn.lab.runs.files import check_free, check_out, write_file
from bayesrnn.lab.runs.folder import LOCK, MARKER, Busy, RunFolder, briefly_locked

FILES = ["a.txt", "b.jsonl"]


def finished(path):
    run = RunFolder(path, files=FILES)
    run.write("a.txt", "one")
    run.write("b.jsonl", "two")
    run.finish({"x": 1})
    return run


def test_a_whole_run(tmp_path):
    finished(tmp_path / "deep" / "run")
    files = {p.name for p in (tmp_path / "deep" / "run").iterdir()}
    assert files == {"a.txt", "b.jsonl", "record.json"}
    record = json.loads((tmp_path / "deep" / "run" / "record.json").read_text())
    assert record == {"program": "bayesrnn", "x": 1}
    assert (tmp_path / "deep" / "run" / "b.jsonl").read_text() == "two"


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
    run = RunFolder(tmp_path, files=["a.txt"], force=True)
    left = {p.name for p in tmp_path.iterdir()}
    assert "mine.txt" in left
    assert not {"evaluation.json", "pruned.safetensors"} & left
    assert run.note == f"Removed with the earlier run in {tmp_path}: evaluation.json, pruned.safetensors."


def test_figures_of_other_data_go_with_the_run_if_they_are_its_own(tmp_path):
    RunFolder(tmp_path, files=["a.txt"]).finish({})
    (tmp_path / "evaluation-text-0a1b2c3d.json").write_text('{"program": "bayesrnn", "metrics": {}}')
    (tmp_path / ".evaluation-text-0a1b2c3d.json.x1.tmp").write_text("torn")
    (tmp_path / "evaluation-mine.json").write_text("{}")
    run = RunFolder(tmp_path, files=["a.txt"], force=True)
    left = {p.name for p in tmp_path.iterdir() if "evaluation" in p.name}
    assert left == {"evaluation-mine.json"}
    assert run.note == f"Removed with the earlier run in {tmp_path}: evaluation-text-0a1b2c3d.json."


def test_captions_go_with_the_run_if_they_are_its_own(tmp_path):
    """Those that say that this program wrote them; a data set's file of the same name stays, and is in nobody's way."""
    mine = '{"images": [{"caption": "a dog", "program": "bayesrnn"}]}'
    (tmp_path / "captions.json").write_text(mine)
    about = {"settings": {"task": "captioning"}}
    RunFolder(tmp_path, files=["a.txt"], force=True).finish(about)
    for content in (mine, "not JSON", '["program", "bayesrnn"]', '{"program": "another"}'):
        (tmp_path / "captions.json").write_text(content)
        run = RunFolder(tmp_path, files=["a.txt"], force=True)
        run.finish(about)
        assert run.note == ""
        assert (tmp_path / "captions.json").read_text() == content
    (tmp_path / "captions.json").write_text('{"program": "bayesrnn", "found": []}')
    (tmp_path / ".captions.json.12.tmp").write_text("torn")
    run = RunFolder(tmp_path, files=["a.txt"], force=True)
    assert run.note == f"Removed with the earlier run in {tmp_path}: captions.json."
    run.finish({})
    assert {p.name for p in tmp_path.iterdir()} == {"record.json"}


def exported(path):
    path.write_text("weights")
    path.with_name(path.name + ".json").write_text('{"written_by": "bayesrnn 0.1.0"}')


def test_exports_go_with_the_run_that_is_replaced(tmp_path):
    """Those under the names of `bayesrnn export`, with its description; other files of these names stay."""
    RunFolder(tmp_path, files=["a.txt"]).finish({})
    for name in ("model.safetensors", "model.pt2", "lm.pt2"):
        exported(tmp_path / name)
    (tmp_path / "model.onnx").write_text("mine")
    run = RunFolder(tmp_path, files=["a.txt"], force=True)
    assert run.note.endswith(": model.safetensors, model.safetensors.json, model.pt2, model.pt2.json.")
    run.finish({})
    assert {p.name for p in tmp_path.iterdir()} == {"record.json", "lm.pt2", "lm.pt2.json", "model.onnx"}
    (tmp_path / "model.pt2.json").write_text('{"written_by": "bayesrnn 0.1.0"}')  # killed between the two
    (tmp_path / "model.onnx.json").write_text('["written_by"]')
    RunFolder(tmp_path, files=["a.txt"], force=True).finish({})
    assert not (tmp_path / "model.pt2.json").exists()
    assert {"model.onnx", "model.onnx.json"} <= {p.name for p in tmp_path.iterdir()}
    assert RunFolder(tmp_path, files=["a.txt"], force=True).note == ""


def test_what_is_not_of_a_replaced_run_stays(tmp_path):
    """A run may begin in a folder of someone's exports and of a run on pruned weights; gone on with, it keeps all."""
    exported(tmp_path / "model.safetensors")
    inner(tmp_path / "pruned-0.8", pruned={})
    names = {"model.safetensors", "model.safetensors.json", "pruned-0.8"}
    run = RunFolder(tmp_path, files=["a.txt"], force=True)
    assert run.note == ""
    assert names <= {p.name for p in tmp_path.iterdir()}
    assert (tmp_path / "pruned-0.8" / "record.json").exists()
    run.release()
    (tmp_path / "evaluation.json").write_text("{}")
    assert RunFolder(tmp_path, files=["a.txt"], resume=True).note == ""
    assert names | {"evaluation.json"} <= {p.name for p in tmp_path.iterdir()}


def inner(path, **config):
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config))
    for name in ("a.txt", "record.json", "pruned.safetensors"):
        (path / name).write_text('{"program": "bayesrnn"}')
    return path


def test_a_run_inside_a_run_that_is_replaced_stays(tmp_path):
    RunFolder(tmp_path, files=["a.txt"]).finish({})
    inside = inner(tmp_path / "pruned-0.8", pruned={})
    RunFolder(tmp_path, files=["a.txt"], force=True).finish({})
    assert (inside / "record.json").exists()


def test_what_to_do_elsewhere(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("")
    (tmp_path / "run").write_text("")
    cases = (
        (tmp_path / "run", False, "is a file, and a folder is needed; go away."),
        (tmp_path, False, "already holds files; replace it with --force, or go away."),
        (tmp_path, True, "a.txt was not written by a run of bayesrnn, and will not be replaced; go away."),
    )
    for path, force, message in cases:
        with pytest.raises(UserError, match=message):
            RunFolder(path, files=["a.txt"], force=force, elsewhere="go away")
    with (
        RunFolder(tmp_path / "new", files=[]),
        pytest.raises(UserError, match=r"wait until it ends, or go away\."),
    ):
        RunFolder(tmp_path / "new", files=[], elsewhere="go away")


@pytest.mark.skipif(os.name != "posix", reason="no locks")
def test_a_short_lock_waits_for_another_and_not_for_a_run(tmp_path, monkeypatch):
    finished(tmp_path)
    with briefly_locked(tmp_path):
        assert (tmp_path / LOCK).exists()
        with pytest.raises(Busy, match="is being written to by another process"):
            RunFolder(tmp_path, files=FILES, force=True)
        with pytest.raises(Busy, match="or start this again later"), briefly_locked(tmp_path, patience=0.2):
            pass
    assert not (tmp_path / LOCK).exists()
    first = threading.Event()

    def hold():
        with briefly_locked(tmp_path):
            first.set()
            time.sleep(0.5)

    holder = threading.Thread(target=hold)
    holder.start()
    assert first.wait(10)
    with briefly_locked(tmp_path):
        assert (tmp_path / LOCK).exists()
    holder.join()
    with RunFolder(tmp_path, files=FILES, force=True):
        monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("it trains: there is nothing to wait for"))
        with pytest.raises(Busy), briefly_locked(tmp_path):
            pass
    with pytest.raises(UserError, match="none cannot be written"), briefly_locked(tmp_path / "none"):
        pass


def test_json_has_no_infinity(tmp_path):
    with RunFolder(tmp_path / "run", files=()) as folder:
        folder.finish({"curve": [1.0, math.inf], "metrics": {"a": math.nan, "b": -math.inf, "c": 2, "d": "NaN"}})
    text = (tmp_path / "run" / "record.json").read_text()
    found = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert found["curve"] == [1.0, None]
    assert found["metrics"] == {"a": None, "b": None, "c": 2, "d": "NaN"}


@pytest.fixture
def pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


@pytest.mark.parametrize("force", [True, False])
def test_what_is_no_file_is_refused_whatever_force_says(tmp_path, pipe, force):
    with pytest.raises(UserError, match="pipe is not a regular file; choose another --plot"):
        check_free(pipe, force=force, option="--plot")
    with pytest.raises(UserError, match="is not a regular file; choose another --out"):
        check_free(tmp_path, force=force)
    link = tmp_path / "link"
    for target in (pipe, tmp_path / "a.txt", tmp_path / "nowhere"):
        (tmp_path / "a.txt").write_text("mine")
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        with pytest.raises(UserError, match="link is a link; name the file itself, or choose another --out"):
            check_free(link, force=force)


def test_a_file_that_is_there_needs_force_and_a_new_one_needs_a_folder(tmp_path):
    (tmp_path / "a.txt").write_text("mine")
    with pytest.raises(UserError, match="exists already; replace it with --force, or choose another --out"):
        check_out(tmp_path / "a.txt", force=False)
    check_out(tmp_path / "a.txt", force=True)
    check_out(tmp_path / "b.txt", force=False)
    check_free(tmp_path / "a.txt/b.txt", force=False)  # its folder is looked at by `check_out`
    for path in (tmp_path / "none/b.txt", tmp_path / "a.txt/b.txt"):
        with pytest.raises(UserError, match="is not a folder; make it first, or choose another --out"):
            check_out(path, force=True)
    with pytest.raises(UserError, match="cannot be written"):
        check_out(tmp_path / ("x" * 300), force=True)


def test_a_pipe_is_never_replaced_by_a_file(tmp_path, pipe):
    (tmp_path / "link").symlink_to(pipe)
    for path in (pipe, tmp_path / "link", tmp_path):
        with pytest.raises(UserError, match="is not a regular file, and will not be replaced by one"):
            write_file(path, "text")
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert {p.name for p in tmp_path.iterdir()} == {"pipe", "link"}


def test_a_run_of_another_kind_is_not_replaced(tmp_path):
    """`--force` would replace the files that both kinds write, and mix in the rest."""
    run = RunFolder(tmp_path / "run", files=["config.json", "weights"])
    run.write("config.json", json.dumps({"program": "bayesrnn", "recipe": "x"}))
    run.write("weights", "w")
    run.finish({})
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    with pytest.raises(UserError, match="holds a run of another command, which --force does not replace; choose"):
        RunFolder(tmp_path / "run", files=["config.json", "page"], force=True, kind="quickstart")
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before
    RunFolder(tmp_path / "run", files=["config.json", "weights"], force=True).release()


def test_a_run_of_the_same_kind_is_replaced(tmp_path):
    run = RunFolder(tmp_path, files=["config.json"], kind="quickstart")
    run.write("config.json", json.dumps({"program": "bayesrnn", "quickstart": {}}))
    run.finish({})
    RunFolder(tmp_path, files=["config.json"], force=True, kind="quickstart").release()
    assert not (tmp_path / "config.json").exists()
