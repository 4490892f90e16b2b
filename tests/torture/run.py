"""Torture: a tiny run is killed, its files are damaged, its disk is full. It must end as if nothing had happened.

    python -m tests.torture.run --kills 50

Bayes by Backprop on Python's documentation, with averaged weights. Every life of the run is a process of its own,
forked from this one, and dies a real death. A fault is survived if afterwards

- no checkpoint that was whole before is lost: the newest whole one is never older than it was;
- the run can be resumed, or says in one line why not and can be resumed once the cause is gone;
- its end is that of an undisturbed run, bit for bit: all weights, optimiser and random states, curves and figures.
"""

import argparse
import errno
import functools
import itertools
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bayesrnn.errors import UserError
from bayesrnn.lab.engine import provenance
from bayesrnn.lab.engine.provenance import commit
from bayesrnn.lab.runs import checkpoint
from bayesrnn.lab.runs import files as run_files
from bayesrnn.lab.runs.checkpoint import BEST, BEST_COPY, FILES, LAST, PREVIOUS
from bayesrnn.lab.runs.folder import LOCK, MARKER
from bayesrnn.lab.runs.record import RECORD
from bayesrnn.lab.tasks.language import task as language
from tests.torture.faults import (
    Impossible,
    die_in_a_write,
    disk_full_after,
    jumping_clock,
    mounted,
    no_privileges,
)
from tests.torture.lives import (
    OVERRIDES,
    RECIPE,
    REFUSED,
    Failed,
    alive,
    check_same,
    end,
    finish,
    forget,
    is_over,
    last_line,
    newest,
    outcome,
    refused,
    start,
)


class Torture:
    """All faults, one after the other, on runs in a folder.

    Args:
        folder: for the runs; on a real disk.
        seed: of the moments and places of the faults.
        say: told of what was survived.
    """

    def __init__(self, folder: Path, seed: int, say: Callable[[str], None]) -> None:
        self.folder, self.chance, self.say = folder, random.Random(seed), say
        self.numbers = itertools.count(1)
        self.failures: list[str] = []
        language.python_docs = functools.cache(language.python_docs)  # read once, for all children
        language.python_docs()
        whole = folder / "whole"
        before = time.monotonic()
        finish(whole)
        self.life = time.monotonic() - before
        self.whole = outcome(whole)
        self.sizes = [(whole / name).stat().st_size for name in (LAST, BEST)]

    def new(self) -> Path:
        return self.folder / f"run-{next(self.numbers)}"

    def run(self, kills: int, trials: int) -> dict[str, Any]:
        """Survived and total of every fault."""
        found = {"kill -9": self.kills(kills)}
        others: dict[str, Callable[[Path], None]] = {
            "a changed byte in a checkpoint": self.changed_byte,
            "a checkpoint cut short": self.cut_short,
            "a checkpoint deleted": self.deleted,
            "a full disk (ENOSPC half-way through a write)": self.full_disk,
            "a full disk (tmpfs of the size of two checkpoints)": self.small_disk,
            "a file size limit (RLIMIT_FSIZE)": self.size_limit,
            "a folder made read-only during the run": self.read_only,
            "a clock that jumps": self.clock,
            "two processes at once on one folder": self.two_processes,
        }
        for name, trial in others.items():
            found[name] = self.repeated(name, trial, trials)
        return found

    def kills(self, count: int) -> dict[str, int]:
        """Half of the kills at any time, half inside a write; several in one run, until it is over."""
        survived = inside = done = 0
        while done < count:
            out, these = self.new(), 0
            try:
                while done + these < count:
                    before = newest(out)
                    aimed = self.chance.random() < 0.5
                    status = end(self._killed(out, aimed))
                    if status == 0:
                        break  # over before its time came
                    if status != -signal.SIGKILL:
                        raise Failed(f"{out.name} ended with status {status}: {last_line(out)}")
                    these += 1
                    inside += aimed
                    if newest(out) < before:
                        raise Failed(f"{out.name}: a whole checkpoint was lost, {before} -> {newest(out)}")
                    if is_over(out):  # killed between its last write and its end
                        (out / LOCK).unlink(missing_ok=True)  # which it could not take away; nobody holds it
                        break
                if not is_over(out):
                    finish(out)
                check_same(out, self.whole)
                survived += these
            except Failed as error:
                self.failures.append(f"kill -9: {error}")
            done += these
            forget(out)
            self.say(f"kill -9: survived {survived} of {done}, {inside} inside a write")
        return {"survived": survived, "total": done, "inside_a_write": inside}

    def _killed(self, out: Path, aimed: bool) -> int:
        if aimed:
            return start(out, functools.partial(die_in_a_write, self.chance.randint(1, 60)))
        pid = start(out)
        time.sleep(self.chance.uniform(0, self.life))
        os.kill(pid, signal.SIGKILL)
        return pid

    def repeated(self, name: str, trial: Callable[[Path], None], count: int) -> dict[str, Any]:
        survived = 0
        for _ in range(count):
            out = self.new()
            try:
                trial(out)
                check_same(out, self.whole)
                survived += 1
            except Failed as error:
                self.failures.append(f"{name}: {error}")
            except Impossible as error:
                self.say(f"{name}: not tried, {error}")
                return {"survived": 0, "total": 0, "not_tried": str(error)}
            finally:
                forget(out)
        self.say(f"{name}: survived {survived} of {count}")
        return {"survived": survived, "total": count}

    def stopped(self, out: Path) -> None:
        """A run killed when it has all its kinds of checkpoints, between two writes or in one."""
        while not (out / MARKER).exists():
            forget(out)  # or was it over already
            pid = start(out)
            while not all((out / name).exists() for name in (LAST, PREVIOUS, BEST, BEST_COPY)) and alive(pid):
                time.sleep(0.002)
            time.sleep(self.chance.uniform(0, self.life / 4))
            os.kill(pid, signal.SIGKILL)
            end(pid)

    def _spoilt(self, out: Path, spoil: Callable[[Path], str]) -> None:
        self.stopped(out)
        present = [name for name in FILES if (out / name).exists()]
        spoil(out / self.chance.choice(present))
        finish(out)

    def changed_byte(self, out: Path) -> None:
        def spoil(path: Path) -> str:
            data = bytearray(path.read_bytes())
            header = 8 + int.from_bytes(data[:8], "little")
            # As many in the header, where the meaning is, as in the numbers.
            part = self.chance.choice([(0, 8), (8, header), (header, len(data)), (header, len(data))])
            at = self.chance.randrange(*part)
            data[at] ^= self.chance.randrange(1, 256)
            path.write_bytes(data)
            try:
                checkpoint.load(path)
            except checkpoint.Damaged:
                return f"byte {at}"
            raise Failed(f"a change of byte {at} of {path.name} was not noticed")

        self._spoilt(out, spoil)

    def cut_short(self, out: Path) -> None:
        def spoil(path: Path) -> str:
            size = self.chance.randrange(path.stat().st_size)
            os.truncate(path, size)
            return f"{size} bytes"

        self._spoilt(out, spoil)

    def deleted(self, out: Path) -> None:
        def spoil(path: Path) -> str:
            path.unlink()
            return "deleted"

        self._spoilt(out, spoil)

    def full_disk(self, out: Path) -> None:
        size = self.chance.randrange(8 * self.sizes[0])
        refused(out, start(out, functools.partial(disk_full_after, size)), os.strerror(errno.ENOSPC))
        finish(out)

    def small_disk(self, out: Path) -> None:
        out.mkdir()
        with mounted(out, 2 * self.sizes[0] + 3 * self.sizes[1] // 2) as resize:
            refused(out, start(out), os.strerror(errno.ENOSPC))
            resize(20 * self.sizes[0])
            finish(out)
            check_same(out, self.whole)
            kept = shutil.copytree(out, out.with_suffix(".kept"))
        out.rmdir()
        kept.rename(out)

    def size_limit(self, out: Path) -> None:
        limit = self.chance.randrange(self.sizes[1], self.sizes[0])  # the best weights fit, the checkpoint does not
        fault = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (limit, limit))
        refused(out, start(out, fault), os.strerror(errno.EFBIG))
        finish(out)

    def read_only(self, out: Path) -> None:
        out.mkdir()
        pid = start(out, no_privileges)
        while not (out / LAST).exists() and alive(pid):
            time.sleep(0.002)
        out.chmod(0o555)
        try:
            refused(out, pid, os.strerror(errno.EACCES))
        finally:
            out.chmod(0o755)
        finish(out)

    def clock(self, out: Path) -> None:
        for _ in range(2):
            pid = start(out, functools.partial(jumping_clock, random.Random(self.chance.random())))
            time.sleep(self.life / 2)
            os.kill(pid, signal.SIGKILL)
            end(pid)
        if end(start(out, functools.partial(jumping_clock, self.chance))) and (out / MARKER).exists():
            raise Failed(f"{out.name} ended with {last_line(out)}")
        seconds = json.loads((out / RECORD).read_text("utf-8"))["metrics"]["train_seconds"]
        if not 0 < seconds < 3600:
            raise Failed(f"{out.name} says that it took {seconds} seconds")

    def two_processes(self, out: Path) -> None:
        pids = [start(out) for _ in range(2)]
        statuses = sorted(end(pid) for pid in pids)
        text = out.with_suffix(".log").read_text("utf-8")
        # One was refused by the lock; or, where it came a moment late, by what the folder held by then.
        if statuses != [0, REFUSED] or not ("another process" in text or "holds a" in text):
            raise Failed(f"{out.name}: two processes ended with {statuses}: {text.splitlines()[-1]}")


def main(arguments: list[str] | None = None) -> int:
    """Print survived and total, write the record; the exit status is 1 if anything was not survived."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture.run", description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=50, help="kill -9, at random moments (default 50)")
    parser.add_argument("--trials", type=int, default=5, help="trials of every other fault (default 5)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and places of the faults")
    parser.add_argument("--out", type=Path, default=Path("results/torture.json"), help="the record to write")
    options = parser.parse_args(arguments)
    try:
        run_files.check_free(options.out, force=True)
    except UserError as error:
        parser.error(str(error))
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="bayesrnn-torture-") as name:
        before = time.monotonic()
        torture = Torture(Path(name), options.seed, functools.partial(print, flush=True))
        faults = torture.run(options.kills, options.trials)
        seconds = time.monotonic() - before
    survived, total = (sum(fault[key] for fault in faults.values()) for key in ("survived", "total"))
    record = {
        "program": "bayesrnn",
        "command": f"python -m tests.torture.run --kills {options.kills} --trials {options.trials} "
        f"--seed {options.seed}",
        "commit": commit(),
        **provenance.environment(torch.device("cpu")),
        "recipe": RECIPE,
        "overrides": OVERRIDES,
        "seconds_of_a_whole_run": round(torture.life, 2),
        "seconds": round(seconds, 1),
        "survived": survived,
        "total": total,
        "faults": faults,
        "failures": torture.failures,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    run_files.write_file(options.out, json.dumps(record, indent=2) + "\n")
    for failure in torture.failures:
        print(failure)
    print(f"survived {survived}/{total} in {seconds:.0f} s; written to {options.out}")
    return 0 if survived == total else 1


if __name__ == "__main__":
    sys.exit(main())
