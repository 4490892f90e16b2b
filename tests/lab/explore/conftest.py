"""Tiny runs of the tasks, and a client that asks the page's questions about them."""

import json
import os
import random
import struct
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image, ImageDraw

pytest.importorskip("starlette", reason="the page needs starlette: pip install 'bayesrnn[explore]'")
pytest.importorskip("httpx", reason="Starlette's test client needs httpx")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # newer releases of Starlette prefer httpx2
    from starlette.testclient import TestClient

from bayesrnn.forecasting import Forecaster
from bayesrnn.lab.engine.launch import launch
from bayesrnn.lab.explore.application import application
from bayesrnn.lab.explore.panel import Options
from bayesrnn.lab.registry import open_saved
from bayesrnn.lab.runs.opening import open_run
from bayesrnn.lab.tasks.digits.images import FILES
from bayesrnn.lab.tasks.sentiment.reviews import AUTHORS

TOKEN, PORT = "t" * 43, 8123
SMALL_TEXT = ["model.embedding=5", "model.hidden=7", "data.batch_size=3", "data.window=4", "train.epochs=1"]


class Silent:
    def say(self, text): ...
    def step(self, progress): ...
    def epoch(self, line, epochs): ...


class Client(TestClient):
    """Asks as the page does: with origin and token."""

    def __init__(self, folders, options=Options(), token=TOKEN):  # noqa: B008
        self.runs = [open_saved(folder) or open_run(folder, torch.device("cpu")) for folder in folders]
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


@pytest.fixture(scope="session")
def digits(train, tmp_path_factory):
    folder, source = tmp_path_factory.mktemp("digits"), torch.Generator().manual_seed(0)
    for split, count in (("train", 120), ("test", 30)):
        labels = torch.arange(count) % 10
        images = torch.rand(count, 28, 28, generator=source) * 90
        for image, label in zip(images, labels, strict=True):
            image[2 + 2 * label : 8 + 2 * label, 6:22] += 150
        for part, entries in ((f"{split}_images", images), (f"{split}_labels", labels)):
            header = struct.pack(f">BBBB{entries.ndim}I", 0, 0, 8, entries.ndim, *entries.shape)
            (folder / FILES[part][0]).write_bytes(header + entries.to(torch.uint8).numpy().tobytes())
    return train("digits-bbb-400", folder, ["hidden=8", "data.valid=40", "batch_size=16", "epochs=2"])


@pytest.fixture(scope="session")
def sentiment(train, tmp_path_factory):
    folder, source = tmp_path_factory.mktemp("reviews"), random.Random(0)
    for author in AUTHORS:
        ratings = [source.choice([0.1, 0.5, 0.9]) for _ in range(25)]
        texts = [" ".join("good" if source.random() < rating else "bad" for _ in range(20)) for rating in ratings]
        (folder / author).mkdir()
        (folder / author / f"subj.{author}").write_text("".join(f"{text} \n" for text in texts))
        (folder / author / f"rating.{author}").write_text("".join(f"{rating}\n" for rating in ratings))
    settings = ["model.hidden=8", "model.embedding=6", "data.length=24", "epochs=1", "batch_size=16"]
    return train("sentiment-lstm-variational", folder, settings)


@pytest.fixture(scope="session")
def captions(tmp_path_factory):
    """Drawings of balls in Flickr8k's layout, whose features say what is in them; two of the test split have a file."""
    folder, source = tmp_path_factory.mktemp("flickr8k"), np.random.default_rng(0)
    colours, places = ("red", "blue", "white"), ("grass", "sand")
    lines, names, features = [], [], []
    for split, count in (("train", 60), ("dev", 6), ("test", 6)):
        own = [f"{split}{k}.png" for k in range(count)]
        (folder / f"Flickr_8k.{split}Images.txt").write_text("".join(f"{name}\n" for name in own))
        for k, name in enumerate(own):
            lines.append(f"{name}#0\tA {colours[k % 3]} ball on the {places[k % 2]} .\n")
            features.append([*(4.0 * (k % 3 == c) for c in range(3)), 4.0 * (k % 2), *source.normal(size=4)])
        names += own
    (folder / "Flickr8k.token.txt").write_text("".join(lines))
    np.save(folder / "features.npy", np.array(features, dtype=np.float32))
    (folder / "filenames.json").write_text(json.dumps(names))
    (folder / "images").mkdir()
    for k in (1, 2):
        image = Image.new("RGB", (240, 160), (150, 190, 235))
        pen = ImageDraw.Draw(image)
        pen.rectangle((0, 90, 240, 160), "#e0c98f" if k % 2 else "#5fa052")
        pen.ellipse((85, 60, 155, 130), ("#c33", "#25c", "#fff")[k % 3])
        image.save(folder / "images" / f"test{k}.png")
    return folder


@pytest.fixture(scope="session")
def captioning(train, captions):
    settings = ["model.hidden=16", "data.min_count=1", "batch_size=20", "evaluate.max_words=8", "lr=0.01"]
    settings += ["image_dropout=0.05", "input_dropout=0.05", "recurrent_dropout=0.05", "output_dropout=0.1"]
    settings += ["word_dropout=0", "patience=150", "epochs=150" if "SCREENSHOTS" in os.environ else "epochs=5"]
    return train("caption-variational", captions, settings)


@pytest.fixture(scope="session")
def forecast(train, tmp_path_factory):
    """With a covariate."""
    file = tmp_path_factory.mktemp("series") / "series.csv"
    steps = np.arange(460)
    heat = np.sin(steps / 5)
    level = 10 + np.roll(heat, 1) + 0.05 * np.random.default_rng(0).normal(size=len(steps))
    rows = [f"{1980 + t // 12}-{t % 12 + 1:02},{y:.4f},{x:.4f}" for t, y, x in zip(steps, level, heat, strict=True)]
    file.write_text("\n".join(["date,level,heat", *rows]) + "\n")
    settings = [
        "model.hidden=6",
        "target=level",
        "covariates=all",
        "window=24",
        "horizon=3",
        "epochs=2",
        "evaluate.samples=3",
    ]
    return train("forecast-bbb", file, settings)


@pytest.fixture(scope="session")
def forecaster(tmp_path_factory):
    """A saved one: two series, a column known up to now, and one known ahead."""
    rng, t, parts = np.random.default_rng(0), np.arange(150), []
    for k, name in enumerate(("north", "south")):
        price, heat = 3 + rng.normal(size=150), 15 + 8 * np.sin(t / 5)
        y = 20 + 3 * k - 2 * price + 0.3 * np.roll(heat, 1) + 0.5 * rng.normal(size=150)
        days = pd.date_range("2024-01-01", periods=150)
        parts.append(pd.DataFrame({"unique_id": name, "ds": days, "y": y, "price": price, "heat": heat}))
    made = Forecaster(6, future=["price"], past=["heat"], members=0).fit(pd.concat(parts))
    return made.save(tmp_path_factory.mktemp("saved") / "forecaster")
