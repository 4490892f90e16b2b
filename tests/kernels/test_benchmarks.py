"""The programs in benchmarks/ say in one line what they cannot do, before they measure anything."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


def refused(*command):
    done = subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    return done.stderr.splitlines()[-1]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("name", ["recurrent.py", "gaussian.py"])
def test_no_gpu(name):
    pytest.importorskip("triton")
    assert refused(FOLDER / name).endswith("this measures on a GPU, and torch sees no CUDA device here")


def test_a_record_has_a_folder_before_it_is_measured(tmp_path):
    line = refused(FOLDER / "cpu.py", "--out", tmp_path / "none" / "cpu.json")
    assert line.endswith("none is no folder; make it first, or choose another --out")
