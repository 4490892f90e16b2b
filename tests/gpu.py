"""Run every test that needs a GPU in one process, and record the outcome::

    PYTHONPATH=src python -m tests.gpu --out results/gpu-tests.json

On a machine without git, `--commit SHA` names the commit. Extra arguments go to pytest, such as `-k persistent`. Exits
with pytest's code.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
import torch


def sentence(reason: Any) -> str:
    """Why a file was left out, without local paths: from pytest's (path, line, text), or from the end of an error."""
    text = str(reason[2] if isinstance(reason, tuple) else reason).strip().splitlines()[-1]
    missing = re.search(r"No module named '([^'.]+)", text)
    if missing and missing[1] not in ("bayesrnn", "tests"):
        return f"The package {missing[1]} is not installed."
    text = text.removeprefix("E ").strip().removeprefix("Skipped: ").replace(f"{Path.cwd()}/", "").rstrip(".")
    return f"{text}." if text.startswith("tests/") else f"{text[:1].upper()}{text[1:]}."


class Outcome:
    """A pytest plugin that notes how every test ended."""

    def __init__(self) -> None:
        self.tests: dict[str, str] = {}
        self.reasons: dict[str, str] = {}
        self.left_out: dict[str, str] = {}
        self.broken = False

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            if self.tests.get(report.nodeid) != "failed":
                self.tests[report.nodeid] = report.outcome
            if report.failed:
                self.reasons[report.nodeid] = sentence(report.longrepr)

    def pytest_collectreport(self, report: Any) -> None:
        if report.outcome != "passed":
            self.left_out[report.nodeid] = sentence(report.longrepr)
            self.broken |= report.failed and not self.left_out[report.nodeid].endswith("is not installed.")

    def count(self, outcome: str) -> int:
        return sum(1 for found in self.tests.values() if found == outcome)


def versions() -> dict[str, str]:
    """The versions a result depends on."""
    found = {"python": platform.python_version(), "torch": torch.__version__, "cuda": str(torch.version.cuda)}
    for package in ("triton", "numpy", "pytest"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def commit() -> str:
    """The commit that is checked out, with "+changes" where the files differ; "" outside a repository."""
    asked = [["git", "rev-parse", "HEAD"], ["git", "status", "--porcelain", "--untracked-files=no"]]
    try:
        head, changed = (subprocess.run(a, capture_output=True, text=True, check=True).stdout.strip() for a in asked)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head + ("+changes" if changed else "")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/gpu-tests.json"))
    parser.add_argument("--commit", help="the commit to record where there is no repository")
    options, rest = parser.parse_known_args(arguments)
    if not torch.cuda.is_available():
        print("torch sees no CUDA device: nothing was run and nothing written.", file=sys.stderr)
        return 2
    outcome, started = Outcome(), time.time()
    # a file that needs a package which is not installed here is left out, not a failure of the others
    flags = ["-q", "-m", "gpu", "-p", "no:cacheprovider", "--continue-on-collection-errors", "tests", *rest]
    code = int(pytest.main(flags, plugins=[outcome]))
    device: Any = torch.cuda.get_device_properties(0)
    record = {
        "format": 1,
        "commit": options.commit or commit(),
        "device": device.name,
        "capability": f"{device.major}.{device.minor}",
        "versions": versions(),
        "arguments": rest,
        "processes": 1,
        "seconds": round(time.time() - started, 1),
        "passed": outcome.count("passed"),
        "failed": outcome.count("failed"),
        "skipped": outcome.count("skipped"),
        "failures": dict(sorted(outcome.reasons.items())),
        "files_left_out": dict(sorted(outcome.left_out.items())),
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record, indent=2) + "\n")
    print(f"{record['passed']} passed, {record['failed']} failed, {record['skipped']} skipped; wrote {options.out}")
    return int(bool(record["failed"] or outcome.broken)) if code in (0, 1) else code


if __name__ == "__main__":
    sys.exit(main())
