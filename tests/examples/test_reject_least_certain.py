import re
import runpy
import sys
from pathlib import Path

import torch

from bayesrnn import uncertainty

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
    out = capsys.readouterr().out
    errors = {int(k): float(e) for k, e in re.findall(r"^ *(\d+)% +([\d.]+)$", out, re.MULTILINE)}
    assert list(errors) == [100, 80, 60, 40, 20]
    assert errors[40] < errors[100] < 0.25
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
    area, chance, best = map(float, re.findall(r"0\.\d{4}", out))
    assert best < area < chance
    assert "better than 500 of 500 random ones" in out


def test_a_spread_that_knows_nothing_is_said_to_be_no_better_than_chance():
    example = runpy.run_path(str(EXAMPLE))
    source = torch.Generator().manual_seed(3)
    losses = torch.rand(400, generator=source)

    def beaten(spread):
        text = example["compare"](uncertainty.risk_coverage(spread, losses), losses)
        assert f"{float(losses.mean()):.3f}"[:4] in text, "in random order it is the mean of all"
        return int(re.search(r"better than (\d+) of 500", text)[1])

    assert beaten(losses) == 500
    assert beaten(-losses) == 0
    assert 10 < beaten(torch.rand(400, generator=source)) < 490  # 1 in 25 seeds would fail, and this one does not
