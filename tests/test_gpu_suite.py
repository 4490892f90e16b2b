"""The record of the GPU suite: the reasons it gives, and the commit where there is no repository."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests import gpu


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (("tests/a.py", 9, "Skipped: could not import 'optuna': No module named 'colorlog'"),
         "The package colorlog is not installed."),
        (("tests/a.py", 1, "Skipped: could not import 'a': No module named 'a.b'"), "The package a is not installed."),
        ("tests/a.py:1: in <module>\n    import b\nE   ModuleNotFoundError: No module named 'b'",
         "The package b is not installed."),
        (("tests/a.py", 19, "Skipped: tests/b.py runs the same kernels."), "tests/b.py runs the same kernels."),
        (("tests/a.py", 19, "Skipped: no CUDA device"), "No CUDA device."),
        (f"E   OSError: {Path.cwd()}/x.txt is missing", "OSError: x.txt is missing."),
    ],
)  # fmt: skip
def test_reasons_are_sentences_without_local_paths(reason, words):
    assert gpu.sentence(reason) == words


@pytest.mark.parametrize(
    ("outcome", "reason", "code"),
    [
        ("skipped", ("a.py", 1, "Skipped: not here"), 0),
        ("failed", "E   No module named 'b'", 0),
        ("failed", "E   No module named 'bayesrnn.b'", 1),
    ],
)
def test_the_commit_is_recorded_as_given(tmp_path, monkeypatch, outcome, reason, code):
    device = SimpleNamespace(name="GPU", major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: device)

    def suite(flags, plugins):
        report = SimpleNamespace(outcome=outcome, failed=outcome == "failed", nodeid="tests/a.py", longrepr=reason)
        plugins[0].pytest_collectreport(report)
        return 0

    monkeypatch.setattr(pytest, "main", suite)
    assert gpu.main(["--out", str(tmp_path / "found.json"), "--commit", "abc", "-k", "x"]) == code
    record = json.loads((tmp_path / "found.json").read_text())
    assert record["commit"] == "abc"
    assert record["arguments"] == ["-k", "x"]
    assert list(record["files_left_out"]) == ["tests/a.py"]
