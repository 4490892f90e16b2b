import json
from pathlib import Path

import pytest

from bayesrnn.lab import recipes
from docs.build.distributed import BLOCKS, RECIPES, Links

RESULTS = Path(__file__).resolve().parents[2] / "results"


def test_the_time_of_an_exchange():
    links = Links("x", inside=100.0, outside=10.0, latency=1e-3, per_machine=4, fraction=0.5)
    assert links.seconds(50.0, 1) == 0
    assert links.seconds(50.0, 2) == pytest.approx(1.0 * 50 / 50 + 2e-3)  # a ring of two sends all of it once
    assert links.seconds(50.0, 4) == pytest.approx(1.5 * 50 / 50 + 4e-3)
    assert links.seconds(50.0, 8) == pytest.approx(1.5 * 50 / 50 + 1.0 * 50 / 5 + 6e-3)
    assert links.seconds(100.0, 4096) == pytest.approx(1.5 * 2 + 2 * 1023 / 1024 * 20 + 24e-3)


def test_the_step_is_that_of_the_record_nearest_to_the_recipe(tmp_path):
    """Whatever the files are called."""
    for name in RECIPES:
        (tmp_path / name).mkdir()
        settings = recipes.load(name).model_dump()
        for stem, seed, epochs, speed in (("a", 1, 9, 7e9), ("two", 3, None, 7e8), ("z", 2, None, 7e5)):
            train = settings["train"] | ({"epochs": epochs} if epochs else {})
            record = {"recipe": name, "seed": seed, "settings": {**settings, "train": train}}
            record["metrics"] = {"words_per_second": speed, "parameters": 10}
            (tmp_path / name / f"{stem}.json").write_text(json.dumps(record))
    lines = BLOCKS["distributed-model"](tmp_path).splitlines()[2:]
    assert {line.split("|")[3].strip() for line in lines} == {"1.0"}  # 20 x 35 words at 700,000 a second


@pytest.mark.parametrize("block", BLOCKS)
def test_tables_are_made_of_the_records(block):
    lines = BLOCKS[block](RESULTS).splitlines()
    assert lines[1].startswith("|---|")
    assert len(lines) > 4
