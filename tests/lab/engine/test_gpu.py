"""Runs on a CUDA device: one step is one graph, and the graph does what the steps do."""

from contextlib import nullcontext

import pytest
import torch

import bayesrnn as br
from bayesrnn.lab import recipes
from bayesrnn.lab.engine import contract
from bayesrnn.lab.engine.launch import launch
from bayesrnn.lab.engine.step import Step
from bayesrnn.lab.registry import task_class
from bayesrnn.lab.runs import checkpoint

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SETTINGS = [
    ["momentum=0.9", "l2=1e-3", "inverse_gamma=0.1", "average_from=2"],
    ["optimizer=adam", "average_from=1", "average_decay=0.8", "weight_decay=1e-4"],
    ["kind=bayes_by_backprop"],
    ["kind=sharpened"],
    ["dropout=0.3", "clip=null"],
]


class Quiet:
    def __init__(self, stop=None):
        self.said, self.stop, self.seen = [], stop, 0

    def say(self, text):
        self.said.append(text)

    def step(self, progress):
        self.seen += 1
        if self.seen == self.stop:
            raise KeyboardInterrupt

    def epoch(self, line, epochs):
        pass


def run(recipe, out, overrides, **options):
    told = options.pop("reporter", None) or Quiet()
    record = launch(recipe, out=out, reporter=told, overrides=["precision=fp32", *overrides], device="cuda", **options)
    return record, told


@pytest.mark.parametrize("overrides", SETTINGS, ids=lambda o: o[0])
def test_a_graph_does_what_the_steps_do(line_recipe, tmp_path, overrides):
    graph, told = run(line_recipe, tmp_path / "graph", overrides)
    assert "One step is one CUDA graph." in told.said
    eager, told = run(line_recipe, tmp_path / "eager", overrides, graph=False)
    assert "Steps run eagerly: switched off." in told.said
    for key, values in eager.curves.items():
        assert graph.curves[key] == pytest.approx(values, rel=1e-3, abs=1e-6), key


@pytest.mark.parametrize("overrides", SETTINGS, ids=lambda o: o[0])
def test_a_run_is_resumed_exactly(line_recipe, tmp_path, monkeypatch, overrides):
    monkeypatch.setattr("bayesrnn.lab.engine.loop._LOOK_EVERY", 1)
    overrides = [*overrides, "save_every=3"]
    whole, _ = run(line_recipe, tmp_path / "whole", overrides)
    with pytest.raises(KeyboardInterrupt):
        run(line_recipe, tmp_path / "stopped", overrides, reporter=Quiet(stop=12))
    again, _ = run(line_recipe, tmp_path / "stopped", overrides, resume=True)
    for key, values in whole.curves.items():
        assert again.curves[key] == pytest.approx(values, rel=1e-4, abs=1e-7), key
    a, b = (checkpoint.load(tmp_path / name / "last.safetensors")[0] for name in ("whole", "stopped"))
    assert torch.equal(a["step.task.order"], b["step.task.order"])
    assert a["rng.cuda"].equal(b["rng.cuda"])


@pytest.mark.parametrize("name", ["small-plain", "small-variational", "brnn-medium", "brnn-sharpened-medium"])
def test_language_models_too(text_folder, tmp_path, name):
    overrides = ["hidden=16", "batch_size=4", "window=6", "epochs=2", "average_from=2"]
    records = {}
    for graph in (True, False):
        records[graph], told = run(name, tmp_path / str(graph), overrides, data=str(text_folder), graph=graph)
        assert ("One step is one CUDA graph." in told.said) is graph
    assert records[True].curves["valid_perplexity"] == pytest.approx(
        records[False].curves["valid_perplexity"], rel=1e-2
    )


def step_of(name, text, overrides):
    recipe = recipes.override(recipes.load(name), overrides)
    task = task_class(recipe.task)(recipe, str(text), torch.device("cuda"))
    torch.manual_seed(1)
    contract.attach(task, task.build(recipe, task.files()))
    return Step(task, recipe.train)


def overwritten():
    """Take all memory that torch holds free outside of graphs, and fill it with NaN."""
    torch.cuda.synchronize()
    taken = []
    for segment in torch.cuda.memory_snapshot():
        if tuple(segment["segment_pool_id"]) != (0, 0):
            continue
        with torch.cuda.stream(torch.cuda.ExternalStream(segment["stream"])):
            for block in segment["blocks"]:
                if block["state"] == "inactive":
                    taken.append(torch.full((block["size"],), 255, dtype=torch.uint8, device="cuda"))
    torch.cuda.synchronize()
    return taken


@pytest.mark.parametrize(
    "name", ["small-plain", "variational-tied-medium", "brnn-medium", "brnn-sharpened-medium", "awd-24m", "brnn-24m"]
)
def test_a_graph_reads_no_memory_that_was_given_back(text_folder, name):
    """A recorded step gives the same totals whatever lies in the memory that its warm-up used."""
    overrides = ["hidden=24", "batch_size=4", "window=6", "precision=tf32", *["embedding=16"] * ("24m" in name)]
    step = step_of(name, text_folder, overrides)
    assert step.graph
    written = [t.clone() for t in step._written()]
    random = torch.cuda.get_rng_state()
    totals = []
    for taken in (list, overwritten):
        kept = taken()
        torch.cuda.set_rng_state(random)
        with torch.no_grad():
            for tensor, before in zip(step._written(), written, strict=True):
                tensor.copy_(before)
        step.start_epoch()
        for _ in range(3):
            step()
        totals.append(step.read_totals())
    assert len(kept) > 0
    assert totals[0] == pytest.approx(totals[1], rel=1e-5)


@pytest.mark.parametrize("include", ["*weight*", None])
def test_parameters_that_are_not_drawn_stay_where_they_are(include):
    """torch would move them to new memory at every call, and a graph would go on reading the old one."""
    q = br.BayesByBackprop(torch.nn.LSTM(5, 7, 2), include=include, init_sigma=0.1).cuda()
    places = {name: p.data_ptr() for name, p in q.named_parameters()}
    x = torch.randn(4, 3, 5, device="cuda")
    for path in (None, "persistent", "cells", "triton"):
        with br.kernels.force(path) if path else nullcontext():
            (q(x)[0].sum() + br.kl(q)).backward()
        assert {name: p.data_ptr() for name, p in q.named_parameters()} == places
