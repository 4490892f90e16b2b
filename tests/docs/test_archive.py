"""Every file of results/ has a kind, and loses nothing when it is read."""

import json
from collections import Counter
from pathlib import Path

import pytest

from bayesrnn.errors import UserError
from bayesrnn.lab.runs.record import Record, read
from docs.build import archive

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
FILES = sorted(RESULTS.rglob("*.json"))


def without_nulls(value):
    """Top-level keys whose value is null are the same as absent ones."""
    return {key: inner for key, inner in value.items() if inner is not None}


def test_every_file_loads_and_keeps_its_values():
    kinds = Counter()
    for path in FILES:
        found = archive.load_any(path, RESULTS)
        kinds[type(found).__name__] += 1
        said = json.loads(path.read_text("utf-8"))
        kept = found.model_dump(exclude_unset=True, by_alias=True)
        assert without_nulls(kept) == without_nulls(said), path
    assert kinds.total() == len(FILES) > 300
    assert set(kinds) == {"Record", *(kind.__name__ for kind in archive.KINDS.values())}
    assert kinds["Record"] > 200


def test_records_are_written_as_they_were_read(tmp_path):
    for path in FILES[:: len(FILES) // 40]:
        found = archive.load_any(path, RESULTS)
        if type(found) is Record:
            written = json.loads(found.write(tmp_path / "r.json").read_text("utf-8"))
            assert written == {"format": 1, **json.loads(path.read_text("utf-8"))}, path
            assert read(tmp_path / "r.json") == found


def test_a_file_of_another_kind_is_refused_by_name(tmp_path):
    path = tmp_path / "cpu.json"
    path.write_text('{"command": "x"}')
    with pytest.raises(UserError, match=r"cpu\.json is not a CpuBench record \(threads: Field required\)"):
        archive.load_any(path, tmp_path)
