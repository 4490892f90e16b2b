import json

import pytest

from bayesrnn.errors import UserError
from bayesrnn.lab.runs.record import Record
from docs.build.seeds import devices, mean, records_of, values


@pytest.mark.parametrize("metrics", [{}, {"error": None}, {"error": []}])
def test_a_record_that_lacks_what_is_needed(tmp_path, metrics):
    (tmp_path / "1.json").write_text(json.dumps({"metrics": metrics}))
    with pytest.raises(UserError, match="is not the record of a test"):
        records_of(tmp_path, what="the record of a test", needs=["metrics.error"])


def test_a_metric_of_zero_is_there(tmp_path):
    (tmp_path / "1.json").write_text(json.dumps({"metrics": {"error": 0.0}}))
    assert len(records_of(tmp_path, what="a record", needs=["metrics.error"])) == 1


def test_values_over_seeds():
    both = [Record(metrics={"end": end}) for end in ({"rmse": 1.0}, None, {"rmse": 2.0})]
    assert values(both, "end.rmse") == [1.0, 2.0]


@pytest.mark.parametrize(
    ("numbers", "text"), [([], None), ([1.0], "1.0"), ([1.0, 3.0], "2.0 ± 1.4")], ids=["none", "one", "several"]
)
def test_mean_over_seeds(numbers, text):
    assert mean(numbers, "{:.1f}") == text


def test_devices_once():
    runs = [Record(device=d, versions={"torch": "2"}) for d in ("cuda", "cpu", "cuda")]
    assert devices(runs) == "cpu, torch 2; cuda, torch 2"
