"""The panel of the weights: its numbers are those of the library."""

import base64
import copy

import numpy as np
import pytest
import torch

import bayesrnn as br
from bayesrnn.lab.tasks.language.streams import perplexity


def ask(client, handler, body=None, run=0):
    return client.ask(handler, body, panel="weights", run=run)


def test_the_histogram_is_that_of_signal_to_noise(client):
    ratios = torch.cat([r.flatten() for r in br.signal_to_noise(client.runs[0].model).values()])
    found = ask(client, "overview")
    assert found["total"] == len(ratios)
    assert sum(found["shares"]) == pytest.approx(1)
    assert found["median"] == pytest.approx(float(ratios.median()), rel=1e-4)
    assert found["matrices"][0]["gates"] == ["i", "f", "g", "o"]
    sizes = ask(client, "overview", run=1)  # dropout: no posterior
    assert sizes["total"] == sum(p.numel() for p in client.runs[1].model.parameters())
    assert client.post("/ask/1/weights/prune", json={"share": 0.5}).status_code == 404


def test_pruning_removes_and_costs_what_br_prune_does(client):
    before = ask(client, "prune", {"share": 0.0})
    assert before["before"] == before["after"]
    found = ask(client, "prune", {"share": 0.6})
    smaller = copy.deepcopy(client.runs[0].model)
    report = br.prune(smaller, 0.6)
    assert found["removed"] == report.removed
    assert {t["name"]: t["removed"] for t in found["tensors"]} == {t.name: t.removed for t in report.tensors}
    text = client.runs[0].task(None, torch.device("cpu")).streams.valid
    assert found["after"] == pytest.approx(perplexity(smaller, text[:2001]), rel=1e-5)
    assert found["label"] == "validation perplexity"


def test_pictures_have_a_part_per_gate(client):
    matrices = ask(client, "overview")["matrices"]
    for k, matrix in enumerate(matrices):
        for kind in ("size", "left"):
            found = ask(client, "picture", {"matrix": k, "kind": kind, "share": 0.5})
            assert [gate["gate"] for gate in found["gates"]] == (matrix["gates"] or [""])
            for gate in found["gates"]:
                assert len(base64.b64decode(gate["data"])) == gate["rows"] * gate["columns"]
    left = ask(client, "picture", {"matrix": 0, "kind": "left", "share": 0.0})["gates"][0]
    assert set(np.frombuffer(base64.b64decode(left["data"]), np.uint8)) == {255}
    assert ask(client, "picture", {"matrix": 39})["error"] == "There is no such matrix."


def test_without_the_data_the_cost_is_not_known(language_runs, client_of, tmp_path):
    from bayesrnn.lab.explore.panel import Options

    client = client_of(language_runs[:1], Options(data=str(tmp_path / "gone")))
    found = ask(client, "prune", {"share": 0.5})
    assert found["removed"]
    assert "is not a folder" in found["unscored"]
