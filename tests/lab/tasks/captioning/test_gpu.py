"""Captioning on a CUDA device: one step is one graph, and what is found there is what a CPU finds."""

import json

import pytest
import torch

from bayesrnn.lab.engine.launch import launch
from bayesrnn.lab.runs.opening import open_run
from bayesrnn.lab.tasks.captioning.search import find_captions, seeds
from bayesrnn.lab.text import UNK

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


class Silent:
    def say(self, text):
        pass

    def step(self, progress):
        pass

    def epoch(self, line, epochs):
        pass


RATES = {"caption-dropout": 0.01, "caption-variational": 0.01, "caption-bbb": 1, "caption-bbb-masks": 0.01}


@pytest.mark.parametrize(("name", "lr"), RATES.items())
def test_a_run_is_one_graph_per_step_and_learns(pictures, tmp_path, name, lr):
    overrides = ["hidden=32", "batch_size=20", f"lr={lr}", "train.decay=1.0", "train.epochs=4", "precision=fp32"]
    record = launch(
        name, out=tmp_path / "run", reporter=Silent(), data=str(pictures), overrides=overrides, device="cuda"
    )
    assert record.cuda_graph
    curve = record.curves["valid_perplexity"]
    assert curve[-1] < 0.8 * curve[0]
    for where in (CPU, CUDA):
        task = open_run(tmp_path / "run", where).task(str(pictures), where)
        assert task.perplexity("test") == pytest.approx(record.metrics["test_perplexity"], rel=1e-3)
    # Evaluated on the GPU, read again on the CPU: the weights are recognised as the same.
    first = task.evaluate(samples=2, beam=3, length_penalty=0.5)
    kept = json.loads((tmp_path / "run/captions.json").read_text())
    other = open_run(tmp_path / "run", CPU).task(str(pictures), CPU)
    assert other.evaluate(samples=2, beam=3, length_penalty=0.5) == first
    assert json.loads((tmp_path / "run/captions.json").read_text()) == kept


def test_captions_are_those_of_the_cpu(runs, pictures):
    """With the posterior mean; ties and rounding may turn a few."""
    found = []
    for where in (CPU, CUDA):
        task = open_run(runs["caption-dropout"], where).task(str(pictures), where)
        options = {
            "end": task.end,
            "vocabulary": len(task.vocabulary),
            "banned": task.vocabulary.encode([UNK]).tolist(),
        }
        part = task.splits["test"].features
        found.append([one.words for one in find_captions(task.model, part, **options, beam=5, length_penalty=0.5)])
        assert len(find_captions(task.model, part, **options, beam=2, held=seeds(3, 1))) == len(part)
    assert sum(a == b for a, b in zip(*found, strict=True)) >= 0.9 * len(found[0])
