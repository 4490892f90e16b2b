"""A saved forecaster that is damaged, or made to harm, is refused in one line; an honest one opens."""

import json

import numpy as np
import pandas as pd
import pytest

from bayesrnn.errors import UserError
from bayesrnn.forecasting import Forecaster


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    rng, days = np.random.default_rng(0), pd.date_range("2024-01-01", periods=60)
    parts = [pd.DataFrame({"unique_id": n, "ds": days, "y": rng.normal(size=60), "x": days.day}) for n in "ab"]
    made = Forecaster(2, members=1, likelihood="student", hidden=4, minutes=0.01).fit(pd.concat(parts))
    return made.save(tmp_path_factory.mktemp("saved"))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("arrays", "panel_y"), [[10**9], "float64"]),
        (("arrays", "panel_y"), [[-1], "float64"]),
        (("settings", "horizon"), 10**9),
        (("settings", "samples"), 10**7),
        (("bases", 0, "shape", "context"), 10**8),
        (("bases", 0, "shape", "horizon"), 3),
        (("clock", "unit"), "moon"),
        (("clock", "every"), 0),
        (("columns", "past"), ["x", "x"]),
        (("columns", "means"), {}),
        (("ids",), ["a", "a"]),
        (("ids",), ["a"]),
        (("positive",), "soon"),
    ],
)
def test_damage(folder, tmp_path, place, value):
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    about = json.loads((folder / "forecaster.json").read_text())
    part = about
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    (tmp_path / "forecaster.json").write_text(json.dumps(about))
    with pytest.raises(UserError) as refused:
        Forecaster.load(tmp_path)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 500


def test_an_honest_one_opens(folder):
    assert len(Forecaster.load(folder).predict()) == 4
