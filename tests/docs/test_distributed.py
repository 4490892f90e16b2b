"""Tables on several processes and on faults, from the records of the repository."""

from pathlib import Path

import pytest

from docs.build.distributed import BLOCKS

RESULTS = Path(__file__).resolve().parents[2] / "results"


@pytest.mark.parametrize("block", BLOCKS)
def test_tables_are_made_of_the_records(block):
    lines = BLOCKS[block](RESULTS).splitlines()
    assert lines[1].startswith("|---|")
    assert len(lines) > 4
