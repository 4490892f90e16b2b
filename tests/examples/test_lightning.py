"""The examples with Lightning: they run, and the model learns."""

import runpy
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SMALL = ["--epochs", "2", "--steps", "15", "--hidden", "16", "--accelerator", "cpu"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("package", ["lightning_fabric", "lightning"])
def test_it_learns(package, monkeypatch):
    pytest.importorskip(package)
    file = EXAMPLES / f"{package.removeprefix('lightning_')}_language_model.py"
    monkeypatch.setattr(sys, "argv", [str(file), *SMALL])
    with torch.random.fork_rng():
        perplexity = runpy.run_path(str(file))["main"]()
    assert 1 < perplexity < 900  # 1,900 word types, about as many to choose from before training
