"""The Triton kernels in Triton's interpreter, on a machine without a GPU.

The interpreter must be chosen before Triton is first imported. One process of its own runs all files that test these
kernels; in this process those tests are skipped or absent.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")
FILES = ("decoder", "draws_at_once", "filling", "gaussian_triton", "kernel_bounds", "masks", "persistent", "update")


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU tests run these kernels on the GPU")
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter is already in use")
def test_the_kernels_in_the_interpreter():
    files = [str(Path(__file__).with_name(f"test_{name}.py")) for name in FILES]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", *files]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert " passed" in done.stdout
