from pathlib import Path

import pytest

from bayesrnn.report.distributed import BLOCKS, Links

RESULTS = Path(__file__).resolve().parents[2] / "results"


def test_the_time_of_an_exchange():
    links = Links("x", inside=100.0, outside=10.0, latency=1e-3, per_machine=4, fraction=0.5)
    assert links.seconds(50.0, 1) == 0
    assert links.seconds(50.0, 2) == pytest.approx(1.0 * 50 / 50 + 2e-3)  # a ring of two sends all of it once
    assert links.seconds(50.0, 4) == pytest.approx(1.5 * 50 / 50 + 4e-3)
    assert links.seconds(50.0, 8) == pytest.approx(1.5 * 50 / 50 + 1.0 * 50 / 5 + 6e-3)
    assert links.seconds(100.0, 4096) == pytest.approx(1.5 * 2 + 2 * 1023 / 1024 * 20 + 24e-3)


@pytest.mark.parametrize("block", BLOCKS)
def test_tables_are_made_of_the_records(block):
    lines = BLOCKS[block](RESULTS).splitlines()
    assert lines[1].startswith("|---|")
    assert len(lines) > 4
