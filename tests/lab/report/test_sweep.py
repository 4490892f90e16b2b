import struct

import pytest

from bayesrnn.lab.report.plots import heat_map


@pytest.mark.parametrize("missing", [0, 1, 4])
def test_a_heat_map_of_any_number_of_results(missing):
    pairs = [(a, b) for a in (0.0, 0.5) for b in (True, False)]
    rows = [
        {"settings": {"a": a, "b": b}, "value": None if i < missing else 80.0 + i} for i, (a, b) in enumerate(pairs)
    ]
    rows.append({"settings": {}, "value": None})  # killed before it had settings
    png = heat_map(rows, keys=("a", "b"), values=([0.0, 0.5], [True, False]), label="perplexity")
    assert png.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", png[16:24])
    assert width > 300
    assert height > 200
