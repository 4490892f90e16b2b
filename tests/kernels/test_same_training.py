"""One and the same training on every path: the fast kernels give the losses that the plain operations give.

Words are made up by a rule that a language model can learn. A run is some hundred steps of the engine's own step,
with the same start, the same noise and the same batches; only `BAYESRNN_KERNEL` differs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from bayesrnn import kernels
from bayesrnn.lab.engine.step import TOTALS, Step
from bayesrnn.lab.recipes import load, override
from bayesrnn.lab.tasks.language.task import Language

CUDA = torch.cuda.is_available()
RECIPES = {
    "tied": "variational-tied-medium",
    "untied": "variational-untied-medium",
    "Bayes by Backprop": "brnn-medium",
    "sharpened": "brnn-sharpened-medium",
}


@dataclass(frozen=True)
class Size:
    words: int
    hidden: int
    rows: int
    window: int
    windows: int
    epochs: int
    init: float
    rate: float = 1.0


SMALL = Size(words=11, hidden=13, rows=5, window=7, windows=20, epochs=4, init=0.3)
# like the published medium models: 2 layers, in odd sizes
MEDIUM = Size(words=101, hidden=325, rows=19, window=33, windows=40, epochs=5, init=0.1, rate=0.3)


def write_text(folder, size: Size) -> str:
    """Every word is followed by one of two, by rule."""
    generator = torch.Generator().manual_seed(0)
    for split, windows in (("train", size.windows), ("valid", 4), ("test", 1)):
        length = size.rows * (windows * size.window + 1)
        choices, word, text = torch.randint(4, (length,), generator=generator).tolist(), 1, []
        for choice in choices:
            word = (3 * word + (choice == 0)) % size.words
            text.append(f"w{word}")
        (folder / f"{split}.txt").write_text(" ".join(text))
    return str(folder)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return {size: write_text(tmp_path_factory.mktemp("text"), size) for size in (SMALL, MEDIUM)}


class Run(NamedTuple):
    """-log p and KL of every step, (epochs, windows) each, and the validation perplexity at the end."""

    nll: Tensor
    kl: Tensor
    perplexity: float

    def apart(self, other: Run) -> Distance:
        nll = (self.nll / other.nll - 1).abs()
        kl = (self.kl - other.kl).abs() / other.kl.abs().clamp_min(1e-9)
        return Distance(
            first=float(nll[0].max()), usual=float(nll.median()), largest=float(nll.max()), kl=float(kl.max()),
            perplexity=abs(self.perplexity / other.perplexity - 1),
        )  # fmt: skip


class Distance(NamedTuple):
    """Relative differences of two runs: -log p of one step (the largest of the first epoch, the median and the
    largest of all), KL of one step (the largest), perplexity at the end."""

    first: float
    usual: float
    largest: float
    kl: float
    perplexity: float


@pytest.fixture
def train(texts, monkeypatch):
    def run(
        kind: str, path: str | None, *, size: Size, device: str = "cpu", seed: int = 1, exact: bool = False,
        graph: bool = False,
    ) -> Run:  # fmt: skip
        if path is not None:
            monkeypatch.setenv("BAYESRNN_KERNEL", path)
        else:
            monkeypatch.delenv("BAYESRNN_KERNEL", raising=False)
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", not exact)
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest" if exact else "high")
        settings = {"hidden": size.hidden, "batch_size": size.rows, "window": size.window, "init": size.init}
        try:
            recipe = override(load(RECIPES[kind]), [f"{key}={value}" for key, value in settings.items()])
            task = Language(recipe, texts[size], torch.device(device))
            assert task.steps == size.windows
            torch.manual_seed(0)
            task.attach(task.build(recipe, task.files()).to(device).train())
            step = Step(task, recipe.train, graph=graph)
            assert (step.graph is not None) is graph, step.reason
            step.lr.fill_(size.rate)
            torch.manual_seed(seed)
            sums = []
            for _ in range(size.epochs):
                step.start_epoch()
                sums.append(step.totals.clone())
                for _ in range(task.steps):
                    step()
                    sums.append(step.totals.clone())
            each = torch.stack(sums).cpu().view(size.epochs, task.steps + 1, -1).diff(dim=1)
            nll, kl = (each[..., TOTALS.index(name)] for name in ("nll", "kl"))
            return Run(nll, kl, float(task.validate()["valid_perplexity"]))
        finally:
            torch.set_float32_matmul_precision(before)

    return run


@pytest.mark.parametrize("kind", RECIPES)
def test_every_path_trains_alike_on_a_cpu(kind, train):
    # paths differ by the order of float32 sums, 1e-7; 80 steps carry that to 1e-5 at most
    plain = train(kind, "reference", size=SMALL)
    for path in (None, "loop"):
        assert max(train(kind, path, size=SMALL).apart(plain)) < 5e-4
    assert train(kind, None, size=SMALL, seed=2).apart(plain).largest > 1e-2  # so it is the noise that is the same


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="no CUDA device")
@pytest.mark.parametrize("kind", RECIPES)
def test_every_path_trains_alike_on_a_gpu(kind, train, monkeypatch):
    """The default as `bayesrnn train` runs it, one CUDA graph; plain operations in float32 without TF32.

    Products of 10 bits are a relative noise of up to 5e-4 in every gradient. Such noise, put into runs on a CPU, moved
    -log p by up to 2e-4 in the first epoch and, as training is chaotic, by 2e-3 in the median of all 200 steps (tied
    masks; a tenth of that or less for the others). Another seed of the noise moved it by 1.5e-2 to 3e-2, and by 8e-3 to
    2e-2.
    """
    masks = {"tied": "tied", "untied": "untied"}.get(kind)
    facts = {"batch": MEDIUM.rows, "hidden": MEDIUM.hidden, "steps": MEDIUM.window, "recurrent_mask": masks}
    assert kernels.path("cuda", **facts) == "persistent"
    from bayesrnn.kernels.gpu import persistent

    launches, launch = [], persistent.launch
    monkeypatch.setattr(persistent, "launch", lambda *a, **k: (launches.append(1), launch(*a, **k))[1])
    plain = train(kind, "reference", size=MEDIUM, device="cuda", exact=True)
    assert plain.perplexity < 10  # of 101 words: it has learnt
    for path in ("cells", None):
        assert not launches
        found = train(kind, path, size=MEDIUM, device="cuda", graph=path is None).apart(plain)
        assert found.first < 2e-3, (path, found)
        assert found.usual < 1e-2, (path, found)
        assert found.perplexity < 2e-2, (path, found)
        assert found.kl < 1e-3, (path, found)
    assert launches  # the default trains with all steps of a layer in one launch
    other = train(kind, None, size=MEDIUM, device="cuda", graph=True, seed=2).apart(plain)
    assert other.first > 4e-3, other
