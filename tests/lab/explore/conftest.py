"""Tiny runs of the tasks, and a client that asks the page's questions about them."""

import json
import warnings
from pathlib import Path

import pytest
import torch

pytest.importorskip("starlette", reason="the page needs starlette: pip install 'bayesrnn[explore]'")
pytest.importorskip("httpx", reason="Starlette's test client needs httpx")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # newer releases of Starlette prefer httpx2
    from starlette.testclient import TestClient

from bayesrnn.lab.engine.launch import launch
from bayesrnn.lab.explore.application import application
from bayesrnn.lab.explore.panel import Options
from bayesrnn.lab.runs.opening import open_run

TOKEN, PORT = "t" * 43, 8123
SMALL_TEXT = ["model.embedding=5", "model.hidden=7", "data.batch_size=3", "data.window=4", "train.epochs=1"]


class Silent:
    def say(self, text): ...
    def step(self, progress): ...
    def epoch(self, line, epochs): ...


class Client(TestClient):
    """Asks as the page does: with origin and token."""

    def __init__(self, folders, options=Options(), token=TOKEN):  # noqa: B008
        self.runs = [open_run(folder, torch.device("cpu")) for folder in folders]
        app = application(self.runs, options, token=TOKEN, port=PORT)
        super().__init__(app, base_url=f"http://127.0.0.1:{PORT}")
        self.headers.update({"Origin": f"http://127.0.0.1:{PORT}", "Authorization": f"Bearer {token}"})

    def ask(self, handler, body=None, *, panel="task", run=0):
        """The parts of an answer, merged, without progress; lists are joined."""
        response = self.post(f"/ask/{run}/{panel}/{handler}", json=body or {})
        assert response.status_code == 200, response.text
        found = {}
        for line in response.text.splitlines():
            part = json.loads(line)
            for key, value in part.items():
                found[key] = found[key] + value if isinstance(value, list) and key in found else value
        found.pop("progress", None)
        return found

    def about(self, run=0):
        response = self.post("/about", json={})
        assert response.status_code == 200, response.text
        return response.json()


@pytest.fixture(scope="session")
def train(tmp_path_factory):
    """Trains a recipe on a folder; returns the run folder."""

    def made(name, data, settings):
        out = tmp_path_factory.mktemp("explored") / Path(name).stem
        data = None if data is None else str(data)
        launch(name, out=out, reporter=Silent(), data=data, overrides=settings, device="cpu", measure=False)
        return out

    return made


@pytest.fixture(scope="session")
def language_runs(train, text_folder) -> list[Path]:
    """With a posterior over the weights, with dropout, and without noise."""
    names = ("brnn-medium", "variational-tied-medium", "unregularised-small")
    return [train(name, text_folder, SMALL_TEXT) for name in names]


@pytest.fixture
def client(language_runs):
    """On two language models."""
    return Client(language_runs[:2])


@pytest.fixture
def client_of():
    return Client
