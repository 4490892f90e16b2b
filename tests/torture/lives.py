"""A run that is tortured: its lives, each a process that may be killed, and whether it ended as it should."""

import json
import os
import shutil
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bayesrnn.errors import UserError
from bayesrnn.lab.engine.launch import launch
from bayesrnn.lab.engine.progress import Progress
from bayesrnn.lab.runs import checkpoint
from bayesrnn.lab.runs.checkpoint import BEST, LAST
from bayesrnn.lab.runs.folder import MARKER
from bayesrnn.lab.runs.record import RECORD

RECIPE = "brnn-medium"
OVERRIDES = (
    "hidden=4 layers=1 min_count=60 batch_size=160 window=20 epochs=3 average_from=2 momentum=0.5 lr=0.1 save_every=3"
).split()
REFUSED = 2

Position = tuple[int, int]
Fault = Callable[[], None]


class Failed(Exception):
    """A fault was not survived."""


class Log:
    """Writes to a file what a run says, so that it can be read after its death."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def say(self, text: str) -> None:
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(text + "\n")

    def step(self, progress: Progress) -> None:
        pass

    def epoch(self, line: dict[str, Any], epochs: int) -> None:
        pass


def start(out: Path, fault: Fault | None = None) -> int:
    """One life of the run, in a process of its own; returns its id. The folder says whether it is the first."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    log = Log(out.with_suffix(".log"))
    try:
        if fault is not None:
            fault()
        resume = (out / MARKER).exists()
        launch(RECIPE, out=out, reporter=log, overrides=OVERRIDES, device="cpu", resume=resume)
        status = 0
    except UserError as error:
        status = REFUSED
        log.say(f"bayesrnn: {error}")
    except BaseException:
        log.say(traceback.format_exc())
    finally:
        os._exit(status)


def end(pid: int) -> int:
    """How a life ended: its exit status, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def alive(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def is_over(out: Path) -> bool:
    """Whether the run has written all that it writes."""
    return (out / RECORD).exists() and not (out / MARKER).exists()


def finish(out: Path) -> None:
    """A life without faults, up to the end."""
    log = out.with_suffix(".log")
    status = end(start(out))
    if status:
        raise Failed(f"{out.name} could not be resumed: {log.read_text('utf-8').splitlines()[-1]}")


def refused(out: Path, pid: int, *words: str) -> None:
    """The life must end with one line that has these words."""
    status, log = end(pid), out.with_suffix(".log")
    text = log.read_text("utf-8") if log.exists() else ""
    last = text.splitlines()[-1] if text else ""
    if status != REFUSED or not any(word in last for word in words):
        raise Failed(f"{out.name} ended with status {status} and said {last!r}, not one of {words}")


def newest(out: Path) -> Position:
    """Epoch and step of the newest whole checkpoint; (0, 0): there is none."""
    found = [(0, 0)]
    for name in checkpoint.RESUMABLE:
        try:
            _, about = checkpoint.load(out / name)
            found.append((about["epoch"], about["done"]))
        except checkpoint.Damaged:
            pass
    return max(found)


def outcome(out: Path) -> dict[str, Any]:
    """All that a finished run leaves, times aside."""
    record = json.loads((out / RECORD).read_text("utf-8"))
    times = ("words_per_second", "train_seconds")
    return {
        "figures": {key: value for key, value in record["metrics"].items() if key not in times},
        "curves": record["curves"],
        **{name: checkpoint.load(out / name)[0] for name in (LAST, BEST)},
    }


def check_same(out: Path, whole: dict[str, Any]) -> None:
    """The run has ended like the undisturbed one and left no litter."""
    ours = outcome(out)
    for key in ("figures", "curves"):
        if ours[key] != whole[key]:
            raise Failed(f"{out.name} ended with other {key}")
    for name in (LAST, BEST):
        if ours[name].keys() != whole[name].keys():
            raise Failed(f"{out.name}: {name} has other tensors")
        for key, tensor in whole[name].items():
            if not torch.equal(ours[name][key], tensor):
                raise Failed(f"{out.name}: {key} of {name} differs")
    if litter := [p.name for p in out.iterdir() if p.name.startswith(".") or p.name in checkpoint.SPARE]:
        raise Failed(f"{out.name} has {litter[0]} left over")


def last_line(out: Path) -> str:
    return out.with_suffix(".log").read_text("utf-8").splitlines()[-1]


def forget(out: Path) -> None:
    shutil.rmtree(out, ignore_errors=True)
    out.with_suffix(".log").unlink(missing_ok=True)
