"""Locks, checksums, the spare checkpoints and the format number. Kills and full disks at length: test_torture.py."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch

from bayesrnn.errors import UserError
from bayesrnn.lab.engine.launch import launch
from bayesrnn.lab.runs import checkpoint
from bayesrnn.lab.runs import folder as run_folder
from bayesrnn.lab.runs.checkpoint import BEST, BEST_COPY, LAST, NEXT, PREVIOUS, Damaged
from bayesrnn.lab.runs.files import write_file
from bayesrnn.lab.runs.folder import FORMAT, LOCK, MARKER, Busy, RunFolder
from bayesrnn.lab.runs.opening import open_run


class Stop(Exception):
    pass


class Told:
    """Keeps what is said; with ``stop`` ends the run at the report of that many steps."""

    def __init__(self, stop=None):
        self.said, self.steps, self.stop = [], 0, stop

    def say(self, text):
        self.said.append(text)

    def step(self, progress):
        self.steps += 1
        if self.steps == self.stop:
            raise Stop

    def epoch(self, line, epochs):
        pass


OVERRIDES = ["kind=bayes_by_backprop", "save_every=3", "average_from=2"]


@pytest.fixture
def train(line_recipe, tmp_path, monkeypatch):
    """Runs "line": 3 epochs of 7 steps, a checkpoint after every third and at the end; looked at after every step."""
    monkeypatch.setattr("bayesrnn.lab.engine.loop._LOOK_EVERY", 1)

    def run(out, reporter=None, **kwargs):
        overrides = [*OVERRIDES, *kwargs.pop("overrides", [])]
        told = reporter or Told()
        return launch(line_recipe, out=tmp_path / out, reporter=told, overrides=overrides, device="cpu", **kwargs)

    return run


@pytest.fixture(scope="module")
def kept():
    """What the fixtures ``stopped`` and ``whole`` have made once."""
    return {}


@pytest.fixture
def stopped(train, tmp_path, kept):
    """A run stopped in its last epoch between two checkpoints, with all four checkpoint files."""
    folder = tmp_path / "stopped"
    if "stopped" not in kept:
        with pytest.raises(Stop):
            train("stopped", Told(stop=19))
        assert all((folder / name).is_file() for name in (LAST, PREVIOUS, BEST, BEST_COPY))
        kept["stopped"] = {path.name: path.read_bytes() for path in folder.iterdir()}
    folder.mkdir(exist_ok=True)
    for name, content in kept["stopped"].items():
        (folder / name).write_bytes(content)
    return folder


def outcome(out):
    """All that a finished run leaves, times aside."""
    record = json.loads((out / "record.json").read_text())
    tensors = {name: checkpoint.load(out / name)[0] for name in (LAST, BEST)}
    return record["curves"], record["metrics"]["valid_rmse"], tensors


def same(a, b):
    assert a[:2] == b[:2]
    for file in (LAST, BEST):
        assert a[2][file].keys() == b[2][file].keys()
        assert all(torch.equal(a[2][file][key], b[2][file][key]) for key in a[2][file])


@pytest.fixture
def whole(train, tmp_path, kept):
    if "whole" not in kept:
        train("whole")
        kept["whole"] = outcome(tmp_path / "whole")
    return kept["whole"]


def flip(path, at=-5):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_every_changed_byte_of_a_checkpoint_is_found(tmp_path):
    path = tmp_path / "c.safetensors"
    tensors, about = {"model.w": torch.arange(5.0), "rng": torch.arange(3)}, {"epoch": 2, "history": [{"loss": 0.5}]}
    checkpoint.save_file(path, tensors, about)
    found, read = checkpoint.load(path)
    assert read == about
    assert all(torch.equal(found[key], tensors[key]) for key in tensors)
    data = path.read_bytes()
    for at in range(len(data)):
        for change in (1, 0x20):  # 0x20: the other case of a letter
            path.write_bytes(data[:at] + bytes([data[at] ^ change]) + data[at + 1 :])
            with pytest.raises(Damaged):
                checkpoint.load(path)
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(Damaged):
            checkpoint.load(path)
    path.write_bytes(data + b"\0")
    with pytest.raises(Damaged):
        checkpoint.load(path)


def test_weights_that_share_memory_are_saved_apart(tmp_path):
    weight = torch.randn(4, 3)
    checkpoint.save_file(tmp_path / "c", {"a": weight, "b": weight, "c": weight.t()}, {})
    found, _ = checkpoint.load(tmp_path / "c")
    assert torch.equal(found["b"], weight)
    assert torch.equal(found["c"], weight.t())


def test_a_damaged_checkpoint_gives_way_to_the_one_before(train, stopped, whole):
    epoch, done = (checkpoint.load(stopped / PREVIOUS)[1][key] for key in ("epoch", "done"))
    flip(stopped / LAST)
    told = Told()
    train("stopped", told, resume=True)
    assert f"Resumed in epoch {epoch}, after step {done}." in told.said
    assert any("its checksum is wrong" in t and f"{PREVIOUS} is whole and is used" in t for t in told.said)
    same(outcome(stopped), whole)
    assert not any((stopped / name).exists() for name in (*checkpoint.SPARE, MARKER, LOCK))


def test_a_deleted_checkpoint_gives_way_to_the_one_before(train, stopped, whole):
    (stopped / LAST).unlink()
    told = Told()
    train("stopped", told, resume=True)
    assert any("There is no checkpoint" in t and f"{PREVIOUS} is whole" in t for t in told.said)
    same(outcome(stopped), whole)


@pytest.mark.parametrize("damaged", [None, NEXT, PREVIOUS])
@pytest.mark.parametrize("moves", [0, 1])
def test_a_run_killed_between_two_moves_has_two_whole_checkpoints(train, stopped, whole, moves, damaged):
    # As after the writing of the next one: last, previous and next, or after the first move previous and next.
    shutil.copy(stopped / LAST, stopped / NEXT)
    os.replace(stopped / PREVIOUS, stopped / LAST)
    if moves:
        os.replace(stopped / LAST, stopped / PREVIOUS)
    if damaged is not None and (stopped / damaged).exists():
        flip(stopped / damaged)
    told = Told()
    train("stopped", told, resume=True)
    assert any("is whole and is used" in t for t in told.said) == (damaged == NEXT)
    same(outcome(stopped), whole)


def test_a_damaged_checkpoint_never_takes_the_place_of_the_good_one(train, stopped, monkeypatch):
    flip(stopped / LAST)
    moves, real = [], os.replace

    def watched(source, target):
        real(source, target)
        good = 0
        for name in checkpoint.RESUMABLE:
            try:
                checkpoint.load(stopped / name)
                good += 1
            except Damaged:
                pass
        moves.append(good)

    monkeypatch.setattr(os, "replace", watched)
    train("stopped", resume=True)
    first = moves.index(2)
    assert len(moves) > first + 8
    assert min(moves[:first]) == 1
    assert min(moves[first:]) == 2


def test_two_damaged_checkpoints_are_one_line(train, stopped):
    flip(stopped / LAST)
    flip(stopped / PREVIOUS)
    with pytest.raises(UserError, match=r"last.safetensors is not .*previous.safetensors is not .*--force") as error:
        train("stopped", resume=True)
    assert "\n" not in str(error.value)


def test_the_best_weights_have_a_copy(train, stopped, whole):
    flip(stopped / BEST)
    told = Told()
    train("stopped", told, resume=True)
    assert any(f"{BEST_COPY} is whole" in t for t in told.said)
    same(outcome(stopped), whole)


def test_best_weights_that_were_not_written_yet_are_made_again(train, tmp_path, whole, monkeypatch):
    # Stopped after the last checkpoint of epoch 2, the best so far, and before its weights were kept as the best.
    real = checkpoint.save_best

    def stopping(folder, tensors, about):
        if about["epoch"] == 2:
            raise Stop
        real(folder, tensors, about)

    with monkeypatch.context() as patch, pytest.raises(Stop):
        patch.setattr(checkpoint, "save_best", stopping)
        train("r")
    assert checkpoint.load(tmp_path / "r" / BEST)[1]["epoch"] == 1
    assert checkpoint.load(tmp_path / "r" / LAST)[1]["epoch"] == 3
    with pytest.raises(Stop):
        train("r", Told(stop=1), resume=True)
    found, about = checkpoint.load(tmp_path / "r" / BEST)
    assert about["epoch"] == 2
    last = checkpoint.load(tmp_path / "r" / LAST)[0]  # epoch 2 is the first one averaged over
    assert torch.equal(found["model.posterior.rho.0.weight"].flatten(), last["step.average.4"].flatten())
    train("r", resume=True)
    same(outcome(tmp_path / "r"), whole)


def test_best_weights_that_cannot_be_made_again(train, stopped):
    flip(stopped / BEST)
    flip(stopped / BEST_COPY)
    with pytest.raises(UserError, match=r"best.*cannot be recovered; start over"):
        train("stopped", resume=True)


def test_checkpoints_of_another_run_are_refused(train, stopped, tmp_path):
    other = tmp_path / "other"
    with pytest.raises(Stop):
        train("other", Told(stop=19), seed=2)
    for name in (LAST, PREVIOUS, BEST, BEST_COPY):
        shutil.copy(other / name, stopped / name)
    with pytest.raises(
        UserError, match=r"was written by a run with another config\.json.*Put the run's own config\.json"
    ):
        train("stopped", resume=True)


@pytest.mark.parametrize("name", [LAST, BEST])
def test_one_checkpoint_of_another_run_is_refused_and_nothing_is_lost(train, stopped, tmp_path, whole, name):
    with pytest.raises(Stop):
        train("other", Told(stop=19), seed=2)
    own = (stopped / name).read_bytes()
    shutil.copy(tmp_path / "other" / name, stopped / name)
    with pytest.raises(UserError, match=rf"{name} was written by a run with another config\.json\. Put the run's own"):
        train("stopped", resume=True)
    (stopped / name).write_bytes(own)
    train("stopped", resume=True)
    same(outcome(stopped), whole)


def test_to_resume_and_to_start_over_are_not_one_wish(train, stopped):
    before = {p.name: p.read_bytes() for p in stopped.iterdir()}
    with pytest.raises(UserError, match="--resume continues a run and --force starts it over"):
        train("stopped", resume=True, force=True)
    assert {p.name: p.read_bytes() for p in stopped.iterdir()} == before


def test_a_run_whose_lock_was_taken_away_stops(train, stopped, tmp_path, whole):
    """A second process may have come in: nothing more is written, and its lock stays."""

    class Deleting(Told):
        def step(self, progress):
            super().step(progress)
            if self.steps == 1:
                (stopped / LOCK).unlink()
                self.second = RunFolder(stopped, files=[], resume=True)
                self.files = {p.name: p.read_bytes() for p in stopped.iterdir()}

    told = Deleting()
    with pytest.raises(Busy, match=r"\.lock was removed during the run.*continue with --resume") as error:
        train("stopped", told, resume=True)
    assert "\n" not in str(error.value)
    assert {p.name: p.read_bytes() for p in stopped.iterdir()} == told.files
    with pytest.raises(Busy, match="is being written to by another process"):
        train("stopped", resume=True)
    told.second.release()
    train("stopped", resume=True)
    same(outcome(stopped), whole)


def test_lost_checkpoints_are_not_a_fresh_start(train, stopped, tmp_path):
    for name in (LAST, PREVIOUS, BEST, BEST_COPY):
        (stopped / name).unlink()
    with pytest.raises(UserError, match="has lost its checkpoints"):
        train("stopped", resume=True)
    with pytest.raises(Stop):
        train("early", Told(stop=1))  # before the first checkpoint
    told = Told()
    train("early", told, resume=True)
    assert "Nothing was saved yet: started from the beginning." in told.said


def test_a_run_killed_before_it_has_described_itself(train, stopped, tmp_path, whole):
    for names in ([MARKER], [MARKER, "config.json"]):
        early = tmp_path / f"early{len(names)}"
        early.mkdir()
        for name in names:
            shutil.copy(stopped / name, early / name)
        train(early.name, resume=True)
        same(outcome(early), whole)
    (stopped / "config.json").unlink()
    with pytest.raises(UserError, match="has no readable config"):  # but not once there is something to lose
        train("stopped", resume=True)


HOLD = """
import sys, time
from bayesrnn.lab.runs.folder import RunFolder
folder = RunFolder(sys.argv[1], files=["a"])
print("has it", flush=True)
time.sleep(60)
"""


def test_a_second_process_is_refused_until_the_first_is_dead(tmp_path):
    out = tmp_path / "r"
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(out)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "has it\n"
    for options in ({}, {"force": True}, {"resume": True}):
        with pytest.raises(Busy, match=rf"r is being written to by another process \({process.pid} on .*\); wait") as e:
            RunFolder(out, files=["a"], **options)
        assert "\n" not in str(e.value)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert (out / LOCK).exists()
    RunFolder(out, files=["a"], resume=True)  # the dead process's lock is taken over
    assert not (out / LOCK).exists()


def test_the_lock_ends_with_the_run_however_that_ends(train, tmp_path):
    with pytest.raises(Stop):
        train("r", Told(stop=5))
    assert not (tmp_path / "r" / LOCK).exists()
    with RunFolder(tmp_path / "r", files=[], resume=True), pytest.raises(Busy):
        train("r", resume=True)
    train("r", resume=True)


def test_a_refused_folder_is_left_as_it_was(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="already holds files"):
        RunFolder(tmp_path, files=["a"])
    assert {p.name for p in tmp_path.iterdir()} == {"mine.txt"}
    with pytest.raises(UserError, match="holds no run to resume"):
        RunFolder(tmp_path / "none", files=["a"], resume=True)
    assert not (tmp_path / "none").exists()


def test_what_a_run_killed_in_its_first_moment_leaves_is_no_obstacle(tmp_path):
    (tmp_path / LOCK).write_text("1")
    (tmp_path / f".{MARKER}.0a1b2c3d.tmp").write_text("1")
    with RunFolder(tmp_path, files=["a"]):
        assert {p.name for p in tmp_path.iterdir()} == {MARKER, LOCK}


def test_a_lock_taken_away_in_between_is_not_a_lock(tmp_path, monkeypatch):
    # Opened, then its owner removes the file and lets go: the lock of a file that is gone keeps nobody out.
    real, calls = run_folder.fcntl.flock, []

    def removing(descriptor, how):
        real(descriptor, how)
        calls.append(descriptor)
        if len(calls) == 1:
            (tmp_path / LOCK).unlink()

    monkeypatch.setattr(run_folder.fcntl, "flock", removing)
    with RunFolder(tmp_path, files=["a"]):
        assert len(calls) == 2
        monkeypatch.undo()
        with pytest.raises(Busy):
            RunFolder(tmp_path, files=["a"], force=True)


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EIO, None])
def test_file_systems_without_locks(train, tmp_path, monkeypatch, code):
    def refused(descriptor, how):
        raise OSError(code, "no locks" if code == errno.ENOLCK else "Input/output error")

    if code is None:
        monkeypatch.setattr(run_folder, "fcntl", None)
    else:
        monkeypatch.setattr(run_folder.fcntl, "flock", refused)
    told = Told()
    if code == errno.EIO:
        with pytest.raises(UserError, match="Input/output error"):
            train("r", told)
        return
    train("r", told)
    assert "on a file system without locks" in told.said[0]
    assert not (tmp_path / "r" / LOCK).exists()


def test_a_forked_child_does_not_take_the_lock_away(tmp_path):
    code = f"""
import os
from bayesrnn.lab.runs.folder import RunFolder
folder = RunFolder({str(tmp_path / "r")!r}, files=["a"])
pid = os.fork()
if pid == 0:
    folder.release()
    os._exit(0)
os.waitpid(pid, 0)
print(os.path.exists({str(tmp_path / "r" / LOCK)!r}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_a_folder_without_permission_says_first_what_it_holds(train, tmp_path, monkeypatch):
    def denied(path, elsewhere):
        raise PermissionError(errno.EACCES, "Permission denied")

    train("r")
    before = {p.name: p.read_bytes() for p in (tmp_path / "r").iterdir()}
    monkeypatch.setattr(run_folder, "_locked", denied)
    with pytest.raises(UserError, match="already holds a finished run"):
        train("r")
    for options in ({"out": "r", "force": True}, {"out": "new"}):
        with pytest.raises(UserError, match=r"cannot be written \(Permission denied\)"):
            train(**options)
    assert {p.name: p.read_bytes() for p in (tmp_path / "r").iterdir()} == before


def test_two_writers_of_one_file_leave_one_whole(tmp_path, monkeypatch):
    path, real = tmp_path / "table.json", os.replace

    def meanwhile(source, target):
        monkeypatch.setattr(os, "replace", real)
        write_file(path, "second")
        real(source, target)

    monkeypatch.setattr(os, "replace", meanwhile)
    write_file(path, "first")
    assert path.read_text() == "first"
    assert [p.name for p in tmp_path.iterdir()] == ["table.json"]


def test_an_interrupted_write_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(descriptor):
        raise KeyboardInterrupt

    write_file(tmp_path / "a", "old")
    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_file(tmp_path / "a", "new")
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "old"


@pytest.mark.parametrize(
    ("call", "code"),
    [("write", errno.ENOSPC), ("fsync", errno.EIO), ("replace", errno.EROFS), ("unlink", errno.EROFS)],
)
def test_a_disk_that_takes_no_more_is_one_line_and_nothing_is_lost(train, tmp_path, whole, monkeypatch, call, code):
    """From the ninth file on, full or read-only: the run ends, and goes on from its checkpoint when there is room."""
    count = [0]

    def failing(real):
        def one(*args, **kwargs):
            count[0] += 1
            if count[0] > 8:
                raise OSError(code, os.strerror(code))
            return real(*args, **kwargs)

        return one

    with monkeypatch.context() as patched, pytest.raises(UserError) as refused:
        if call == "write":
            patched.setattr("builtins.open", failing(open))
        elif call == "unlink":
            patched.setattr(run_folder.Path, "unlink", failing_unlink(code))
        else:
            patched.setattr(os, call, failing(getattr(os, call)))
        train("r")
    assert os.strerror(code) in str(refused.value)
    assert "\n" not in str(refused.value)
    if call != "unlink":
        assert checkpoint.load(tmp_path / "r" / LAST)
    train("r", resume=True)
    same(outcome(tmp_path / "r"), whole)


def failing_unlink(code):
    """Of what a finished run takes away."""

    def unlink(path, missing_ok=False):
        if path.name in (*checkpoint.SPARE, MARKER):
            raise OSError(code, os.strerror(code))
        os.unlink(path)

    return unlink


def test_a_jump_of_the_clock_changes_nothing(train, tmp_path, whole, monkeypatch):
    hours = iter(range(10**6))
    monkeypatch.setattr(time, "time", lambda: 2e9 + (-1) ** next(hours) * 1e9)
    record = train("r")
    same(outcome(tmp_path / "r"), whole)
    assert 0 < record.metrics["train_seconds"] < 60


def as_format_1(out):
    """The folder as it was written before there were numbers and checksums."""
    from safetensors.torch import save_file

    config = json.loads((out / "config.json").read_text())
    assert config.pop("format") == FORMAT == 2
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for name in checkpoint.FILES:
        if (out / name).exists():
            tensors, about = checkpoint.load(out / name)
            about.pop("run", None)
            save_file(tensors, out / name, metadata={"bayesrnn": json.dumps(about)})
    for name in checkpoint.SPARE:
        (out / name).unlink(missing_ok=True)


def test_folders_without_a_number_open_as_before(train, stopped, whole, tmp_path):
    as_format_1(stopped)
    train("stopped", resume=True)
    same(outcome(stopped), whole)
    train("finished")
    before = open_run(tmp_path / "finished", torch.device("cpu")).model.state_dict()
    as_format_1(tmp_path / "finished")
    after = open_run(tmp_path / "finished", torch.device("cpu")).model.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_folders_of_a_newer_format_are_refused(train, stopped):
    config = json.loads((stopped / "config.json").read_text())
    for number in (FORMAT + 1, "x"):
        (stopped / "config.json").write_text(json.dumps({**config, "format": number}))
        message = rf"written by a newer bayesrnn \(its format is {number}, this one reads up to {FORMAT}\); update"
        with pytest.raises(UserError, match=message):
            train("stopped", resume=True)
        with pytest.raises(UserError, match=message):
            open_run(stopped, torch.device("cpu"))


def test_settings_that_need_more_memory_than_there_is(monkeypatch, tmp_path):
    class Large:
        def __init__(self, recipe, data, device):
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 320000000000 bytes.")

    monkeypatch.setattr("bayesrnn.lab.engine.launch.task_class", lambda name: Large)
    with pytest.raises(UserError, match=r"brnn-medium with these settings .* \(320.0 GB asked for at once\).*hidden"):
        launch("brnn-medium", out=tmp_path / "run", reporter=Told(), device="cpu")
    assert not (tmp_path / "run").exists()
    monkeypatch.setattr(Large, "__init__", lambda self, *given: torch.zeros(2) @ torch.zeros(3))
    with pytest.raises(RuntimeError, match="size"):  # a fault of ours stays one
        launch("brnn-medium", out=tmp_path / "run", reporter=Told(), device="cpu")
