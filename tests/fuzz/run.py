"""Feed readers with inputs that are not what they should be.

    python tests/fuzz/run.py --inputs 100000 recipe          # one reader
    python tests/fuzz/run.py --inputs 100000 all             # each in turn, in a process of its own
    python tests/fuzz/run.py --list

Every input must be read, or be refused with a UserError, within 10 seconds and with little memory. The first that is
not ends the run: its traceback, and the input. Results go to results/fuzz.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests" / "fuzz")]

os.environ["BAYESRNN_FUZZ_QUICK"] = "1"
SECONDS = 10  # for one input
EXTRA = 1 << 30  # bytes of memory that reading may take beyond what the process has at the start


class TooSlow(BaseException):
    """No Exception, which a reader may take for the file's fault."""


class TooLong(Exception):
    pass


def _alarm(*_: Any) -> None:
    raise TooSlow(f"an input took more than {SECONDS} seconds")


def fuzz(name: str, inputs: int, seed: int) -> dict[str, Any]:
    """Run one reader; raises what the reader raised."""
    from readers import READERS

    from bayesrnn.errors import UserError

    reader = READERS[name]
    strategy = reader.inputs()
    counts = {"read": 0, "refused": 0}
    base = Path(tempfile.mkdtemp(prefix=f"fuzz-{name}-"))
    where = base / "input"
    where.mkdir()
    signal.signal(signal.SIGALRM, _alarm)
    _limit_memory()
    started, before = time.perf_counter(), _peak()
    value: Any = None
    try:
        for number in range(inputs):
            value = strategy.make(random.Random(f"{name}/{seed}/{number}"))
            for file in where.iterdir():
                file.unlink()
            signal.alarm(SECONDS)
            try:
                reader.read(value, where)
                counts["read"] += 1
            except UserError as error:
                if len(str(error)) > 1000:
                    raise TooLong("a message of more than 1,000 characters") from error
                counts["refused"] += 1
            finally:
                signal.alarm(0)
            if number % 5000 == 4999:
                print(f"{name}: {number + 1:,} inputs, {counts['refused'] / (number + 1):.0%} refused", flush=True)
    except BaseException:
        print(f"input {sum(counts.values())} of {name}, seed {seed}: {value!r}", file=sys.stderr)
        raise
    finally:
        shutil.rmtree(base, ignore_errors=True)
    return {
        "what": reader.what,
        "inputs": sum(counts.values()),
        **counts,
        "seconds": round(time.perf_counter() - started, 1),
        "extra_memory_mb": round((_peak() - before) / 1024),
        "seed": seed,
    }


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KB on Linux


def _limit_memory() -> None:
    """An input that makes a reader take a gigabyte is a finding: MemoryError is no UserError."""
    import torch

    torch.zeros(8).sum()
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        size = pages * resource.getpagesize() + EXTRA
        resource.setrlimit(resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))
    except OSError:
        print("memory is not limited here", file=sys.stderr)


def record(name: str, found: dict[str, Any], out: Path, command: str) -> None:
    """Put one reader's result beside the others'."""
    import torch

    from bayesrnn._version import __version__
    from bayesrnn.lab.engine.provenance import commit

    whole = json.loads(out.read_text()) if out.exists() else {"readers": {}}
    whole["readers"][name] = {
        **found,
        "command": command,
        "commit": commit(),
        "versions": {
            "bayesrnn": __version__,
            "python": sys.version.split()[0],
            "torch": torch.__version__,
        },
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(whole, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("reader", nargs="?", help="a name from --list, or all")
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "fuzz.json")
    parser.add_argument("--list", action="store_true", help="the readers")
    asked = parser.parse_args()
    from readers import READERS

    if asked.list or asked.reader not in (*READERS, "all"):
        for name, reader in READERS.items():
            print(f"{name:<12} {reader.what}")
        sys.exit(0 if asked.list else 2)
    if asked.reader == "all":
        common = ["--inputs", str(asked.inputs), "--seed", str(asked.seed), "--out", str(asked.out)]
        failed = [n for n in READERS if subprocess.run([sys.executable, __file__, n, *common]).returncode]
        if failed:
            sys.exit(f"findings in: {', '.join(failed)}")
        return
    command = f"python tests/fuzz/run.py --inputs {asked.inputs} --seed {asked.seed} {asked.reader}"
    record(asked.reader, fuzz(asked.reader, asked.inputs, asked.seed), asked.out, command)


if __name__ == "__main__":
    main()
