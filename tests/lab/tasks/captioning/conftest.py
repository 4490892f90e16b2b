"""A made-up set of pictures and captions, small enough to learn in seconds."""

import json

import numpy as np
import pytest

from bayesrnn.lab.engine.launch import launch

COLOURS = ("red", "green", "blue", "white")
THINGS = ("dog", "boat", "child", "car", "horse")
PLACES = ("grass", "water", "snow")
FEATURES = 24


def made_up(count, seed):
    """(name, captions, feature) of pictures: what is in them is written in the feature, with noise."""
    source = np.random.default_rng(seed)
    codes = np.random.default_rng(0).normal(size=(len(COLOURS) + len(THINGS) + len(PLACES), FEATURES))
    for i in range(count):
        c, t, p = (int(source.integers(len(kind))) for kind in (COLOURS, THINGS, PLACES))
        feature = codes[c] + codes[len(COLOURS) + t] + codes[len(COLOURS) + len(THINGS) + p]
        colour, thing, place = COLOURS[c], THINGS[t], PLACES[p]
        captions = [
            f"A {colour} {thing} on the {place} .",
            f"The {thing} is {colour} .",
            f"There is a {colour} {thing} , it 's on {place}",
        ]
        yield f"{seed}_{i}.jpg", captions, feature + 0.1 * source.normal(size=FEATURES)


def write_flickr8k(folder, sizes=(160, 24, 24), features=True):
    """The made-up set in Flickr8k's layout; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    lines, names, rows = [], [], []
    for (split, count), seed in zip(zip(("train", "dev", "test"), sizes, strict=True), (1, 2, 3), strict=True):
        images = list(made_up(count, seed))
        (folder / f"Flickr_8k.{split}Images.txt").write_text("".join(f"{name}\n" for name, _, _ in images))
        for name, captions, feature in images:
            lines += [f"{name}#{k}\t{caption}\n" for k, caption in enumerate(captions)]
            names.append(name)
            rows.append(feature)
    (folder / "Flickr8k.token.txt").write_text("".join(lines))
    if features:
        np.save(folder / "features_f16.npy", np.array(rows, dtype=np.float16))
        (folder / "filenames.json").write_text(json.dumps(names))
    return folder


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """The made-up set with features, in Flickr8k's layout."""
    return write_flickr8k(tmp_path_factory.mktemp("pictures"))


@pytest.fixture
def writable(tmp_path):
    """A small copy of it that a test may break."""
    return write_flickr8k(tmp_path / "pictures", sizes=(6, 3, 3))


class Silent:
    def say(self, text):
        pass

    def step(self, progress):
        pass

    def epoch(self, line, epochs):
        pass


@pytest.fixture(scope="session")
def runs(pictures, tmp_path_factory):
    """Short runs of the recipes on the made-up set: recipe name to run folder. The first has learnt what it sees."""
    folder = tmp_path_factory.mktemp("runs")
    settings = {
        "caption-dropout": ["train.epochs=30", "image_dropout=0", "step_dropout=0.1"],
        "caption-bbb": ["train.epochs=2"],
        "caption-variational": ["train.epochs=1"],
    }
    for name, changed in settings.items():
        launch(
            name,
            out=folder / name,
            reporter=Silent(),
            data=str(pictures),
            overrides=["hidden=32", "batch_size=20", "lr=0.01", "train.decay=1.0", *changed],
            device="cpu",
        )
    return {name: folder / name for name in settings}
