"""The numbers of the README, from the records of the repository."""

import json
from pathlib import Path

from docs.build import headlines

ROOT = Path(__file__).resolve().parents[2]


def test_five_numbers_with_links():
    lines = headlines.block(ROOT, ROOT / "README.md").splitlines()
    assert len(lines) == 5
    assert all(line.startswith("- [") and "](docs/results/" in line for line in lines)
    record = json.loads((ROOT / "results/quickstart/record.json").read_text())
    assert record["findings"][0] in lines[0]
    assert "the paper has 79.7" in lines[1]
    assert "](../docs/results/" in headlines.block(ROOT, ROOT / "src/README.md")
