import gc
import os
import random
import sys
from collections import Counter

import pytest

_seen, _idle = Counter(), Counter()


def pytest_collection():
    gc.disable()


def pytest_collection_finish():
    """Exclude the imported modules and the collected tests from garbage collection.

    They are millions of objects that stay until the end. The collector would visit them again and again, above all for
    code under test that calls `gc.collect()`.
    """
    gc.enable()
    gc.collect()
    gc.freeze()


def pytest_sessionfinish():
    gc.unfreeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Coverage watches the tests of a file until three in a row reach no new line, and then every fifth.

    Python's tracer takes half as long again as the tests. So what it reports is a lower bound.
    """
    coverage = sys.modules.get("coverage")
    measured, file = coverage and coverage.Coverage.current(), item.path
    if measured is None:
        return (yield)
    _seen[file] += 1
    if _idle[file] >= 3 and _seen[file] % 5:
        measured.stop()
        try:
            return (yield)
        finally:
            measured.start()
    before = _lines(measured)
    result = yield
    _idle[file] = 0 if _lines(measured) > before else _idle[file] + 1
    return result


def _lines(measured):
    return sum(map(len, measured._collector.data.values()))


@pytest.fixture(autouse=True, scope="session")
def no_waiting_for_the_disk():
    """Runs flush every file to the disk, which takes longer than the small runs of tests; only power failures tell."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


def _text(folder, most=300):
    """A small made-up language: sentences of a few words that follow each other by rule."""
    source = random.Random(0)
    for split, lines in (("train", 300), ("valid", 40), ("test", 40)):
        text = []
        for _ in range(lines):
            word, sentence = source.randrange(12), []
            for _ in range(source.randrange(4, 9)):
                sentence.append(f"w{word}")
                word = (word * 2 + source.randrange(3)) % 12
            text.append(" ".join(sentence))
        (folder / f"{split}.txt").write_text("\n".join(text[:most]) + "\n")
    return folder


@pytest.fixture(scope="session")
def text_folder(tmp_path_factory):
    """A text of a made-up language, short enough to be trained on in no time."""
    return _text(tmp_path_factory.mktemp("text"), most=120)


@pytest.fixture(scope="session")
def long_text_folder(tmp_path_factory):
    """The same language, with more text to train on."""
    return _text(tmp_path_factory.mktemp("text"))


@pytest.fixture
def new_packages():
    """Tasks of other packages are looked for again, before and after the test."""
    from bayesrnn.lab import registry

    registry._installed.cache_clear()
    yield
    registry._installed.cache_clear()


@pytest.fixture
def line_recipe(tmp_path, monkeypatch):
    """The path of a recipe of a task of its own, "line": a network of one hidden layer learns y = x0 - 2 x1."""
    import torch
    from torch import nn

    import bayesrnn as br
    from bayesrnn.lab.recipes.schema import Count, Rate, Section, Sections
    from bayesrnn.lab.tasks.base import TASKS, Minibatches, Task, posterior, recipe_elbo

    class Model(Section):
        hidden: Count = 5
        dropout: Rate = 0.0

    class Data(Section):
        examples: Count = 50
        batch_size: Count = 8

    class Line(Task):
        sections = Sections(model=Model, data=Data)
        metric = "valid_rmse"
        unit = "points"
        default_data = "made up"

        def __init__(self, recipe, data, device):
            super().__init__(recipe, data, device)
            x = torch.randn(recipe.data.examples + 30, 2, generator=torch.Generator().manual_seed(0)).to(device)
            y = x[:, :1] - 2 * x[:, 1:]
            self.minibatches = Minibatches(x[30:], y[30:], batch_size=recipe.data.batch_size, last="wrap")
            self.valid = x[:30], y[:30]
            self.steps = self.minibatches.steps
            self.batch_size = self.examples_per_step = recipe.data.batch_size

        @staticmethod
        def build(recipe, files):
            m = recipe.model
            plain = nn.Sequential(nn.Linear(2, m.hidden), nn.Tanh(), nn.Dropout(m.dropout), nn.Linear(m.hidden, 1))
            return posterior(plain, recipe.posterior)

        def attach(self, model):
            super().attach(model)
            likelihood = br.Gaussian(0.1, learn=False)
            self.elbo = recipe_elbo(model, likelihood, self.recipe.posterior, num_data=self.minibatches.count)

        def files(self):
            return {"scale.txt": b"1\n"}

        def tensors(self):
            return self.minibatches.tensors()

        def start_epoch(self, epoch):
            self.minibatches.shuffle()

        def batch(self, position):
            return self.minibatches(position)

        def objective(self, batch, state):
            x, y = batch
            terms, _ = self.elbo.evaluate(lambda: self.model(x), y)
            return terms.loss, terms, state

        def validate(self):
            x, y = self.valid
            with torch.no_grad():
                return {"valid_rmse": float((self.model(x) - y).square().mean().sqrt())}

        def evaluate(
            self, *, samples=None, seed=1, say=print, beam: int = 3, note: str | None = None, fast: bool = False
        ):
            return {**self.validate(), "beam": beam, "note": note, "fast": fast}

    monkeypatch.setitem(TASKS, "line", Line)
    path = tmp_path / "line.yaml"
    path.write_text("task: line\ntrain: {epochs: 3, lr: 0.001, clip: 5.0}\n")
    return str(path)
