"""The examples on series and on words run as they are, and show what they say."""

import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(autouse=True)
def alone():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng():
        yield
    torch.set_num_threads(threads)


@pytest.mark.slow
def test_bands_hold_most_of_what_came(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["forecast_with_bands.py", str(tmp_path / "bands.png")])
    runpy.run_path(str(EXAMPLES / "forecast_with_bands.py"), run_name="__main__")
    found = re.search(r"95% intervals hold ([\d.]+)%", capsys.readouterr().out)
    assert 90 < float(found[1]) < 99
    assert (tmp_path / "bands.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.slow
def test_faults_are_found(capsys):
    found = runpy.run_path(str(EXAMPLES / "sensor_faults.py"))["main"]()
    assert found["precision"] > 0.85
    assert found["recall"] > 0.85
    assert "spike: 8 of 8 found" in capsys.readouterr().out


@pytest.mark.slow
def test_words(capsys):
    """One epoch: the table is there; draws disagree, and the parts add up."""
    found = runpy.run_path(str(EXAMPLES / "ambiguous_words.py"))["main"](epochs=1)
    rows = re.findall(r"^(\w+) +([\d.]+) +([\d.]+) +([\d.]+)   \S+, \S+, \S+$", capsys.readouterr().out, re.MULTILINE)
    assert len(rows) == 19
    for _, entropy, aleatoric, epistemic in rows:
        assert float(entropy) == pytest.approx(float(aleatoric) + float(epistemic), abs=0.011)
    assert min(found.values()) > 0
