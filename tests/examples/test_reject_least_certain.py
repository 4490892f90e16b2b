import re
import runpy
import sys
from pathlib import Path

import torch

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "reject_least_certain.py"


def test_it_runs_and_the_certain_part_is_better(monkeypatch, capsys, tmp_path):
    arguments = [
        "--reviews",
        "800",
        "--epochs",
        "10",
        "--units",
        "24",
        "--samples",
        "20",
        "--plot",
        str(tmp_path / "a.png"),
    ]
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), *arguments])
    with torch.random.fork_rng():
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    errors = {int(k): float(e) for k, e in re.findall(r"^ *(\d+)% +([\d.]+)$", capsys.readouterr().out, re.MULTILINE)}
    assert list(errors) == [100, 80, 60, 40, 20]
    assert errors[40] < errors[100] < 0.25
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
