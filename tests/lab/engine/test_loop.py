import json
import os
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch

from bayesrnn import kernels
from bayesrnn.errors import UserError
from bayesrnn.lab.engine import loop as engine
from bayesrnn.lab.engine.launch import device_of, launch
from bayesrnn.lab.engine.provenance import commit
from bayesrnn.lab.runs import checkpoint
from bayesrnn.lab.runs.folder import identity
from bayesrnn.lab.tasks.base import TASKS

TINY = ["hidden=8", "batch_size=4", "window=6", "epochs=3", "decay_after=1"]


class Quiet:
    def __init__(self):
        self.said, self.steps, self.lines = [], [], []

    def say(self, text):
        self.said.append(text)

    def step(self, progress):
        self.steps.append(progress)

    def epoch(self, line, epochs):
        self.lines.append(line)


def run(folder, out, name="variational-tied-medium", overrides=(), reporter=None, **kwargs):
    return launch(
        name,
        out=out,
        reporter=reporter or Quiet(),
        data=str(folder),
        overrides=[*TINY, *overrides],
        device="cpu",
        **kwargs,
    )


class Ending(Quiet):
    """Ends a run after its first epoch."""

    def epoch(self, line, epochs):
        raise InterruptedError


def rotated(file):
    """One sentence of a text begins elsewhere: the same words, as often."""
    lines = file.read_text().splitlines()
    words = lines[5].split()
    lines[5] = " ".join([*words[1:], words[0]])
    file.write_text("\n".join(lines) + "\n")


def test_other_data_is_refused_wherever_it_differs(text_folder, tmp_path):
    out = tmp_path / "r"
    with pytest.raises(InterruptedError):
        run(text_folder, out, reporter=Ending())
    for split in ("train", "valid", "test"):
        other = shutil.copytree(text_folder, tmp_path / split)
        rotated(other / f"{split}.txt")
        with pytest.raises(
            UserError, match=f"The data in {other} are not those that the run in {out} was started on"
        ) as e:
            run(other, out, resume=True)
        assert "\n" not in str(e.value)
    whole = run(text_folder, tmp_path / "whole")
    moved = shutil.copytree(text_folder, tmp_path / "moved")
    assert run(moved, out, resume=True).curves == whole.curves


def test_a_run_of_before_there_were_digests_goes_on(text_folder, tmp_path):
    out, whole = tmp_path / "r", run(text_folder, tmp_path / "whole")
    with pytest.raises(InterruptedError):
        run(text_folder, out, reporter=Ending())
    config = json.loads((out / "config.json").read_text())
    assert len(config.pop("data_digest")) == 32
    (out / "config.json").write_text(json.dumps(config))
    for name in ("last.safetensors", "best.safetensors"):
        tensors, about = checkpoint.load(out / name)
        checkpoint.save_file(out / name, tensors, {**about, "run": identity(out)})
    for name in ("previous.safetensors", "best-copy.safetensors"):
        (out / name).unlink(missing_ok=True)
    assert run(text_folder, out, resume=True).curves == whole.curves


@pytest.mark.parametrize(("first", "said"), [(2, []), (4, ["there are 3 epochs"])])
def test_averaging_that_would_begin_after_the_last_epoch_is_told(text_folder, tmp_path, first, said):
    told = Quiet()
    run(text_folder, tmp_path / "r", overrides=[f"average_from={first}"], reporter=told)
    assert [line.partition(", and ")[2].rstrip(".") for line in told.said if "averaged" in line] == said


def test_a_record_names_the_commit_that_the_run_began_with(text_folder, tmp_path, monkeypatch):
    """Though the checkout has another one when it ends."""
    said = ["first"]

    class Moving(Quiet):
        def epoch(self, *args):
            said[0] = "later"

    monkeypatch.setattr(subprocess, "run", lambda *a, **k: SimpleNamespace(stdout=f"{said[0]}\n"))
    commit.cache_clear()
    try:
        assert run(text_folder, tmp_path / "r", reporter=Moving()).commit == "first"
        assert said == ["later"]
    finally:
        commit.cache_clear()


def test_a_run_leaves_its_folder_and_record(text_folder, tmp_path):
    told = Quiet()
    record = run(text_folder, tmp_path / "r", seed=3, reporter=told, command="bayesrnn train x")
    names = {p.name for p in (tmp_path / "r").iterdir()}
    assert names == {
        "config.json", "metrics.jsonl", "vocabulary.txt", "best.safetensors", "last.safetensors", "state.json",
        "record.json",
    }  # fmt: skip
    lines = [json.loads(line) for line in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2, 3]
    assert lines[2]["lr"] == pytest.approx(0.8333333333**2)
    assert lines[-1]["valid_perplexity"] < lines[0]["valid_perplexity"] < 14
    assert record.metrics["valid_perplexity"] == pytest.approx(lines[-1]["valid_perplexity"], rel=0.1)
    assert record.curves["valid_perplexity"] == [line["valid_perplexity"] for line in lines]
    assert {"recipe", "seed", "commit", "device", "versions", "command"} <= record.to_dict().keys()
    assert told.steps[-1].step == told.steps[-1].steps
    assert "not a CUDA device" in " ".join(told.said)


def test_the_record_names_the_kernels_that_were_asked_for(text_folder, tmp_path, monkeypatch):
    assert "kernel" not in run(text_folder, tmp_path / "default", overrides=["epochs=1"]).to_dict()
    monkeypatch.setenv("BAYESRNN_KERNEL", "loop")
    assert run(text_folder, tmp_path / "asked", overrides=["epochs=1"]).kernel == "loop"


def weights(out, name="last.safetensors"):
    return checkpoint.load(out / name)[0]


KILLED = {
    "brnn-sharpened-medium": ["average_from=2", "inverse_gamma=0.01"],
    "awd-24m": ["embedding=6", "optimizer=adamw", "lr=0.01", "average_from=2", "average_restarts=[4]", "cosine_from=2"],
    "frontier-24m": ["embedding=6", "units=[8,8,7]", "vary=2", "mogrifier=2", "lr=0.5", "average_restarts=[]"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", KILLED)
def test_killed_and_resumed_is_bit_identical(text_folder, tmp_path, name):
    extra = ["epochs=4", "save_every=9", *KILLED[name]]
    run(text_folder, tmp_path / "whole", name, extra)
    out = tmp_path / "killed"
    command = [sys.executable, "-m", "bayesrnn", "train", name, "--data", str(text_folder), "--out", str(out),
               "--device", "cpu", *TINY, *extra]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if (out / "metrics.jsonl").exists() and len((out / "metrics.jsonl").read_text().splitlines()) == 2:
            break  # in the third epoch, whose weights are averaged
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "the run was over before it could be killed"
    told = Quiet()
    run(text_folder, out, name, extra, resume=True, reporter=told)
    assert any(text.startswith("Resumed in epoch 3") for text in told.said)
    for file in ("last.safetensors", "best.safetensors"):
        ours, theirs = weights(out, file), weights(tmp_path / "whole", file)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    a, b = (json.loads((p / "record.json").read_text()) for p in (out, tmp_path / "whole"))
    assert a["curves"] == b["curves"]
    assert a["metrics"]["test_perplexity"] == b["metrics"]["test_perplexity"]


def test_resuming_needs_the_same_settings_seed_and_text(text_folder, tmp_path):
    out = tmp_path / "r"
    with pytest.raises(UserError, match="holds no run to resume"):
        run(text_folder, out, resume=True)
    run(text_folder, out)
    before = (out / "record.json").read_bytes()
    with pytest.raises(UserError, match="finished run; to train longer, start another"):
        run(text_folder, out, resume=True)
    assert (out / "record.json").read_bytes() == before
    (out / ".unfinished").write_text("1\n")  # as a killed run leaves it
    with pytest.raises(UserError, match="continue it with --resume"):
        run(text_folder, out)
    with pytest.raises(UserError, match=r"started with train.epochs=3, not 4"):
        run(text_folder, out, overrides=["epochs=4"], resume=True)
    with pytest.raises(UserError, match="started with seed 1, not 2"):
        run(text_folder, out, resume=True, seed=2)
    other = tmp_path / "text"
    shutil.copytree(text_folder, other)
    (other / "train.txt").write_text("entirely other words\n" * 100)
    with pytest.raises(UserError, match="vocabulary of this text"):
        run(other, out, resume=True)
    (out / "last.safetensors").write_bytes((out / "last.safetensors").read_bytes()[:1000])
    with pytest.raises(UserError, match="not a whole checkpoint"):
        run(text_folder, out, resume=True)
    (out / "config.json").write_text("{")
    with pytest.raises(UserError, match="no readable config"):
        run(text_folder, out, resume=True)


def test_foreign_checkpoints_are_refused(text_folder, tmp_path):
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(2)}, tmp_path / "foreign.safetensors")
    with pytest.raises(UserError, match="was not written by bayesrnn"):
        checkpoint.load(tmp_path / "foreign.safetensors")
    with pytest.raises(UserError, match="There is no checkpoint"):
        checkpoint.load(tmp_path / "none.safetensors")
    model = torch.nn.Linear(2, 2)
    for tensors, message in (
        ({}, "has no weights weight"),
        ({"model.weight": torch.zeros(3, 2), "model.bias": torch.zeros(2)}, r"has shape \(3, 2\)"),
        ({"model.weight": torch.zeros(2, 2), "model.bias": torch.zeros(2), "model.x": torch.zeros(1)}, "weights x"),
    ):
        with pytest.raises(UserError, match=message):
            checkpoint.load_model(model, tensors, "c")


def test_a_run_that_diverges_stops_and_can_be_read(text_folder, tmp_path):
    out = tmp_path / "r"
    with pytest.raises(UserError, match=r"The loss (is not a number|diverged) in epoch 1.*nothing was saved yet"):
        run(text_folder, out, overrides=["lr=1e30", "clip=1e30"])
    assert (out / ".unfinished").exists()
    with pytest.raises(UserError, match=r"Lower train.lr or train.clip, or train.l2 and start again\.$"):
        run(text_folder, tmp_path / "l2", overrides=["l2=1e6"])
    with pytest.raises(UserError, match=r"in epoch 1, by step 2; the checkpoint of epoch 1, step 1, is kept\."):
        run(text_folder, tmp_path / "s", overrides=["lr=1e30", "clip=1e30", "save_every=1"])


def test_patience_ends_a_run(text_folder, tmp_path):
    told = Quiet()
    run(text_folder, tmp_path / "r", overrides=["lr=1e-9", "patience=1", "epochs=9", "weight_decay=0.3"], reporter=told)
    assert len(told.lines) < 9


def test_a_full_disk_keeps_what_was_saved(text_folder, tmp_path, monkeypatch):
    out, real, written = tmp_path / "r", os.replace, []

    def full(source, target):
        written.append(str(target))
        if sum(name.endswith("last.safetensors") for name in written) == 2:
            raise OSError(28, "No space left on device")
        real(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(UserError, match="No space left on device"):
        run(text_folder, out)
    monkeypatch.undo()
    assert not list(out.glob(".*.tmp"))
    run(text_folder, out, resume=True)
    whole = run(text_folder, tmp_path / "whole")
    assert json.loads((out / "record.json").read_text())["curves"] == whole.curves


def in_the_background(monkeypatch):
    """Checkpoints are written as on a GPU: while the next epoch goes on."""
    writer = checkpoint.Writer
    monkeypatch.setattr(checkpoint, "Writer", lambda background: writer(background=True))


def test_checkpoints_in_the_background_are_the_same(text_folder, tmp_path, monkeypatch):
    plain = run(text_folder, tmp_path / "plain", overrides=["average_from=2", "save_every=3"])
    in_the_background(monkeypatch)
    record = run(text_folder, tmp_path / "r", overrides=["average_from=2", "save_every=3"])
    assert record.curves == plain.curves
    for name in ("last.safetensors", "best.safetensors"):
        found, expected = (checkpoint.load(tmp_path / out / name) for out in ("r", "plain"))
        assert found[0].keys() == expected[0].keys()
        assert all(torch.equal(t, expected[0][key]) for key, t in found[0].items())
        assert found[1].get("epoch") == expected[1].get("epoch")


def test_an_error_in_the_background_ends_the_run(text_folder, tmp_path, monkeypatch):
    in_the_background(monkeypatch)
    real = checkpoint.save_last

    def full(folder, tensors, about):
        if about["epoch"] == 3:
            raise UserError("the disk is full")
        real(folder, tensors, about)

    with monkeypatch.context() as patch, pytest.raises(UserError, match="the disk is full"):
        patch.setattr(checkpoint, "save_last", full)
        run(text_folder, tmp_path / "r")
    assert checkpoint.load(tmp_path / "r" / "last.safetensors")[1]["epoch"] == 2
    assert checkpoint.load(tmp_path / "r" / "best.safetensors")[1]["epoch"] == 1, "written after the error"
    run(text_folder, tmp_path / "r", resume=True)


def test_a_run_that_is_stopped_waits_for_its_checkpoint(text_folder, tmp_path, monkeypatch):
    in_the_background(monkeypatch)
    real = checkpoint.save_last

    def slow(*args):
        time.sleep(0.3)
        real(*args)

    class Stopping(Quiet):
        def epoch(self, line, epochs):
            raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "save_last", slow)
    with pytest.raises(KeyboardInterrupt):
        run(text_folder, tmp_path / "r", reporter=Stopping())
    assert checkpoint.load(tmp_path / "r" / "last.safetensors")[1]["epoch"] == 2


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
)
def test_checkpoints_of_every_dtype_are_safetensors(tmp_path, dtype):
    from safetensors.torch import load_file

    tensors = {"a": torch.arange(6).view(2, 3).to(dtype), "b": torch.ones((), dtype=dtype), "c": torch.ones(0, 3)}
    path = checkpoint.save_file(tmp_path / "x.safetensors", tensors, {"epoch": 1})
    for found in (load_file(path), checkpoint.load(path)[0]):
        assert found.keys() == tensors.keys()
        for key, tensor in tensors.items():
            assert found[key].dtype == tensor.dtype
            assert torch.equal(found[key], tensor)


@pytest.mark.parametrize(
    ("split", "content", "message"),
    [
        ("valid", None, "has no valid file"),
        ("test", b"", "test text has no words"),
        ("train", b"\xff\xfe\x00", "not UTF-8"),
        ("train", b"a\0b", "binary"),
        ("valid", b"w1 w2\n", "valid text has 3 words, fewer than one window of 6"),
        ("train", b"a b c d e\n" * 4, "train text has 6 words in each of 4 streams"),
    ],
)
def test_bad_text(text_folder, tmp_path, split, content, message):
    folder = tmp_path / "text"
    shutil.copytree(text_folder, folder)
    if content is None:
        (folder / f"{split}.txt").unlink()
    else:
        (folder / f"{split}.txt").write_bytes(content)
    with pytest.raises(UserError, match=message):
        run(folder, tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_devices():
    assert device_of("cpu").type == "cpu"
    with pytest.raises(UserError, match="no device tpu"):
        device_of("tpu")
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match="no CUDA device"):
            device_of("cuda")


class Stop(Exception):
    pass


class Stopped(Quiet):
    """Ends the run at the step, once this many have been reported."""

    def __init__(self, after):
        super().__init__()
        self.after = after

    def step(self, progress):
        super().step(progress)
        if len(self.steps) == self.after:
            raise Stop


def line(recipe, out, overrides=(), reporter=None, **kwargs):
    return launch(recipe, out=out, reporter=reporter or Quiet(), overrides=list(overrides), device="cpu", **kwargs)


@pytest.mark.parametrize(
    "overrides",
    [
        ["kind=bayes_by_backprop"],
        ["kind=sharpened", "average_from=1", "average_decay=0.9"],
        ["dropout=0.3", "momentum=0.9", "l2=1e-4", "average_from=2", "inverse_gamma=0.1"],
    ],
)
def test_a_task_of_minibatches_is_resumed_exactly(line_recipe, tmp_path, monkeypatch, overrides):
    # 7 steps per epoch, the device looked at after every step, saved after every third: stopped in the second epoch
    # between two saves.
    monkeypatch.setattr("bayesrnn.lab.engine.loop._LOOK_EVERY", 1)
    overrides = [*overrides, "save_every=3"]
    told = Quiet()
    whole = line(line_recipe, tmp_path / "whole", overrides, told)
    assert len(told.steps) == 21
    with pytest.raises(Stop):
        line(line_recipe, tmp_path / "stopped", overrides, Stopped(12))
    again = line(line_recipe, tmp_path / "stopped", overrides, resume=True)
    assert again.curves == whole.curves
    for file in ("last.safetensors", "best.safetensors"):
        ours, theirs = weights(tmp_path / "stopped", file), weights(tmp_path / "whole", file)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_a_task_of_its_own(line_recipe, tmp_path, monkeypatch):
    told = Quiet()
    record = line(line_recipe, tmp_path / "r", ["lr=0.01"], told)
    assert {p.name for p in (tmp_path / "r").iterdir()} == {
        "config.json", "metrics.jsonl", "scale.txt", "best.safetensors", "last.safetensors", "state.json",
        "record.json",
    }  # fmt: skip
    assert record.data == "made up"
    assert record.metrics["valid_rmse"] == min(record.curves["valid_rmse"])
    assert record.metrics["valid_rmse"] < record.curves["valid_rmse"][0]
    assert {"train_nll", "kl", "valid_rmse", "lr", "loss", "gradient_norm"} == record.curves.keys()
    assert told.lines[0]["points_per_second"] > 0
    assert "7 steps of 8 points per epoch on cpu." in told.said
    (tmp_path / "r" / ".unfinished").write_text("1\n")
    monkeypatch.setattr(TASKS["line"], "files", lambda task: {"scale.txt": b"2\n"})
    with pytest.raises(
        UserError, match=r"The scale of this data .* is not that of the run .*; resume with the data it"
    ):
        line(line_recipe, tmp_path / "r", ["lr=0.01"], resume=True)


def test_the_average_is_validated_and_kept(line_recipe, tmp_path):
    plain = line(line_recipe, tmp_path / "plain")
    averaged = line(line_recipe, tmp_path / "averaged", ["average_from=2"])
    a, b = plain.curves, averaged.curves
    assert a["loss"] == b["loss"]  # the steps are the same
    assert a["valid_rmse"][0] == b["valid_rmse"][0]
    assert a["valid_rmse"][1:] != b["valid_rmse"][1:]
    last, best = weights(tmp_path / "averaged"), weights(tmp_path / "averaged", "best.safetensors")
    assert torch.equal(last["model.0.weight"], weights(tmp_path / "plain")["model.0.weight"])
    assert torch.equal(best["model.0.weight"], last["step.average.0"])  # the last epoch is the best
    assert averaged.metrics["valid_rmse"] == b["valid_rmse"][-1]


def test_measuring_does_not_change_training(line_recipe, tmp_path):
    from bayesrnn.lab.tasks.base import TASKS

    before = line(line_recipe, tmp_path / "a", ["dropout=0.5"]).curves

    class More(TASKS["line"]):
        def validate(self):
            return {**super().validate(), "valid_noise": float(torch.rand(()))}

    TASKS["line"] = More  # the fixture puts it away
    after = line(line_recipe, tmp_path / "b", ["dropout=0.5"]).curves
    assert len(set(after.pop("valid_noise"))) == 3
    assert after == before


def test_a_figure_that_is_not_a_number_ends_the_run(line_recipe, tmp_path):
    from bayesrnn.lab.tasks.base import TASKS

    class Bad(TASKS["line"]):
        def validate(self):
            return {"valid_rmse": float("nan")}

    TASKS["line"] = Bad
    with pytest.raises(UserError, match="The validation rmse is nan after epoch 1"):
        line(line_recipe, tmp_path / "r")


def test_the_limit_of_a_task(line_recipe, tmp_path):
    from bayesrnn.lab.tasks.base import TASKS

    class Strict(TASKS["line"]):
        limit = 1.0

    TASKS["line"] = Strict
    with pytest.raises(UserError, match="The loss diverged in epoch 1"):
        line(line_recipe, tmp_path / "r")


def test_a_precision_is_the_same_after_torch_s_newer_switch():
    """In a process of its own: torch does not take such a switch back."""
    code = """
import torch
from bayesrnn import kernels
from bayesrnn.lab.engine import loop as engine
for switch in ("tf32", "ieee"):
    torch.backends.fp32_precision = switch
    for precision in ("fp32", "tf32", "fp32"):
        engine.set_precision(precision, torch.device("cuda"))
        assert kernels.tf32(products=True) is kernels.tf32(products=False) is (precision == "tf32"), (switch, precision)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("first", ["fp32", "tf32", "bf16"])
def test_a_precision_is_the_same_whatever_was_set_before(first):
    """Of matrix products and of cuDNN's layers; the switches can be set where there is no GPU."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    try:
        for precision, rounded in (("fp32", False), ("tf32", True), ("bf16", True)):
            engine.set_precision(first, torch.device("cuda"))
            engine.set_precision(precision, torch.device("cuda"))
            assert [kernels.tf32(products=True), kernels.tf32(products=False)] == [rounded, rounded]
            engine.set_precision("fp32" if rounded else "tf32", torch.device("cpu"))  # not of a CPU
            assert torch.backends.cudnn.allow_tf32 is rounded
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]
