import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.torture import run as torture


def test_no_pipe_is_replaced_by_the_record(tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SystemExit):
        torture.main(["--out", str(tmp_path / "pipe")])
    assert "pipe is not a regular file; choose another --out." in capsys.readouterr().err
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.slow
def test_a_small_torture(tmp_path):
    """Three kills and one of every other fault; `python -m tests.torture.run` does it at length."""
    out = tmp_path / "torture.json"
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-m", "tests.torture.run", "--kills", "3", "--trials", "1", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root)
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(out.read_text())
    assert record["failures"] == []
    tried = [fault for fault in record["faults"].values() if "not_tried" not in fault]  # mounting needs root
    assert record["survived"] == record["total"] == 3 + len(tried) - 1
    assert len(tried) >= 9
    assert f"survived {record['total']}/{record['total']}" in done.stdout
