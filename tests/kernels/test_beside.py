"""Gradients of weights that are computed beside the rest of a recorded backward pass are the same gradients."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import bayesrnn as br
from bayesrnn import draws, kernels
from bayesrnn.kernels import graphs
from bayesrnn.kernels.decoder import loop
from bayesrnn.kernels.shared import alignment, beside
from bayesrnn.lab import recipes
from bayesrnn.lab.tasks.language import task as language

ROWS = loop.Rows(loop._score, loop._error)


@pytest.fixture
def everywhere(monkeypatch):
    """Products on filled-up copies for layers of any size; the number of times that work was put aside."""
    monkeypatch.setattr(alignment, "serves", lambda x, height: True)
    seen, real = [], beside.Work.put

    def put(self, compute, *reads):
        seen.append(compute)
        real(self, compute, *reads)

    monkeypatch.setattr(beside.Work, "put", put)
    return seen


class Net(nn.Module):
    def __init__(self, layer, words=11):
        super().__init__()
        self.embed, self.rnn, self.out = nn.Embedding(words, 5), layer, nn.Linear(layer.hidden_size, words)

    def forward(self, x, y):
        hidden = self.rnn(self.embed(x))[0].flatten(0, 1)
        return loop.by_rows(ROWS, hidden, self.out.weight, self.out.bias, y.flatten()).mean()


def gradients(model, x, y, *more):
    with draws.bind(model, draws.HeldNoise()):
        torch.manual_seed(0)
        return torch.autograd.grad(model(x, y), [*model.parameters(), *more])


@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("rates", [{}, {"recurrent_dropout": 0.3, "tied": False}, {"weight_dropout": 0.4}], ids=str)
def test_gradients_are_the_same(cell, rates, everywhere):
    torch.manual_seed(1)
    model = Net(getattr(br, cell)(5, 6, 2, **rates)).double()
    x, y = torch.randint(11, (2, 7, 3))
    with kernels.force("loop"):
        wanted = gradients(model, x, y)
        assert not everywhere
        with kernels.recording():
            found = gradients(model, x, y)
    assert len(everywhere) == 5  # two products and two recurrences, and the decoder
    for a, b in zip(found, wanted, strict=True):
        assert torch.equal(a, b)


def test_a_weight_that_is_used_twice_has_the_sum(everywhere):
    w, x = torch.randn(6, 6, dtype=torch.float64, requires_grad=True), torch.randn(4, 6, dtype=torch.float64)
    heard = []
    w.register_hook(lambda g: heard.append(g.clone()))

    def twice():
        project = kernels.implementation("input", "loop")
        return project(project(x, w, None, None, [4]), w, None, None, [4]).sum()

    (wanted,) = torch.autograd.grad(twice(), w)
    with kernels.recording():
        (found,) = torch.autograd.grad(twice(), w)
    assert len(everywhere) == 2
    assert torch.equal(found, wanted)
    assert torch.equal(*heard)


def test_gradients_of_some_tensors_alone(everywhere):
    project = kernels.implementation("input", "loop")
    x, w, b = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((4, 5), (6, 5), (6,)))
    for wanted in ([x], [w], [b], [w, b]):
        inputs = [t if any(t is one for one in wanted) else t.detach() for t in (x, w, b)]
        expected = torch.autograd.grad(project(*inputs, None, [4]).square().sum(), wanted)
        with kernels.recording():
            found = torch.autograd.grad(project(*inputs, None, [4]).square().sum(), wanted)
        assert_close(found, expected, rtol=0, atol=0)
        with kernels.recording():  # all may have gradients, and one is asked for
            all_may = project(x, w, b, None, [4]).square().sum()
        assert_close(torch.autograd.grad(all_may, wanted), expected, rtol=0, atol=0)


def test_the_second_derivative_is_an_error_there_too(everywhere):
    torch.manual_seed(1)
    model = Net(br.LSTM(5, 6))
    x, y = torch.randint(11, (2, 7, 3))
    with kernels.recording(), kernels.force("loop"):
        found = torch.autograd.grad(model(x, y), list(model.parameters()), create_graph=True)
    for g, p in zip(found[1:3], list(model.parameters())[1:3], strict=True):
        with pytest.raises(RuntimeError, match="differentiated once"):
            torch.autograd.grad(g.sum(), p, allow_unused=True)


def test_two_passes_over_one_graph_are_the_same(everywhere):
    model = Net(br.LSTM(5, 6)).double()
    x, y = torch.randint(11, (2, 7, 3))
    with kernels.recording(), kernels.force("loop"):
        loss = model(x, y)
    first = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    assert_close(torch.autograd.grad(loss, list(model.parameters())), first, rtol=0, atol=0)


def test_work_is_put_once():
    work = beside.Work()
    work.put(list)
    with pytest.raises(RuntimeError, match="owed already"):
        work.put(list)


@pytest.mark.parametrize("used", [True, False])
def test_what_cannot_be_recorded_with_two_streams_is_tried_with_one(monkeypatch, used):
    tried = []

    def recorded(*given):
        with kernels.recording():
            tried.append(beside.pays(torch.zeros(3, 3)))
        if tried[-1]:
            raise RuntimeError("no")
        return []

    monkeypatch.setattr(graphs, "_recorded", recorded)
    monkeypatch.setattr(beside, "_streams", {torch.device("cuda", 0): None} if used else {})
    options = {"warm_up": lambda: None, "device": torch.device("cuda")}
    if used:
        assert kernels.record([], list, **options) == []
        assert tried == [True, False]
    else:
        with pytest.raises(RuntimeError, match="no"):
            kernels.record([], list, **options)


SETTINGS = {
    "tied": ("variational-tied-medium",),
    "untied": ("variational-untied-medium",),
    "Bayes by Backprop": ("brnn-medium",),
    "sharpened": ("brnn-sharpened-medium",),
    "weights dropped, decoder shared": ("awd-24m", "model.embedding=1064"),
    "mixture": ("frontier-24m", "model.units=[1096,1064,200]", "model.softmaxes=3"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_whole_models_have_the_same_gradients(name, everywhere):
    """Drawn, sharpened and dropped weights, and a decoder that shares the embedding's."""
    sizes = ["model.units=[9,8,7]", "model.embedding=5"] if name == "mixture" else ["model.hidden=9"]
    settings = [word for word in SETTINGS[name][1:] if "embedding" not in word and "units" not in word]
    more = ["model.embedding=8"] if "shared" in name else []
    recipe = recipes.override(recipes.load(SETTINGS[name][0]), [*settings, *sizes, *more])
    torch.manual_seed(0)
    model = language.build(recipe, 50).train()
    elbo = language.window_elbo(model, recipe, windows=100)
    x, y = torch.randint(50, (2, 6, 4))
    parameters = [p for p in model.parameters() if p.requires_grad]

    def gradients():
        leaves = beside.leaves(parameters)
        terms, _ = elbo.evaluate(lambda: model(x, None, y), y)
        found = torch.autograd.grad(terms.loss, parameters, allow_unused=True)
        assert len(leaves) == kernels.is_recording() * len(parameters)
        return found

    with draws.bind(model, draws.HeldNoise()), kernels.force("loop"):
        wanted = gradients()
        assert not everywhere
        with kernels.recording():
            found = gradients()
    assert everywhere
    assert all(a is b if a is None or b is None else torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", SETTINGS)
def test_in_a_graph_gradients_are_those_of_eager_steps(monkeypatch, name, precision):
    """At sizes where every product takes its fast path; replayed while other work fills the memory in between."""
    recipe = recipes.override(recipes.load(SETTINGS[name][0]), ["model.hidden=1096", *SETTINGS[name][1:]])
    torch.manual_seed(0)
    model = language.build(recipe, 2000).cuda().train()
    twin = copy.deepcopy(model)  # whose graph may stay alive, on the default stream
    x, y = torch.randint(2000, (2, 35, 20), device="cuda")
    parameters = [p for p in model.parameters() if p.requires_grad]
    kept, streams, second = [], [], beside._second
    monkeypatch.setattr(beside, "_second", lambda device: streams.append(device) or second(device))

    def work(model=model, parameters=parameters):
        elbo = language.window_elbo(model, recipe, windows=100)
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16", cache_enabled=False):
            terms, _ = elbo.evaluate(lambda: model(x, None, y), y)
        kept[:] = torch.autograd.grad(terms.loss, parameters, allow_unused=True)

    noise = draws.HeldNoise()
    with draws.bind(twin, noise):
        work(twin, [p for p in twin.parameters() if p.requires_grad])
        wanted = [None if g is None else g.clone() for g in kept]
    with draws.bind(model, noise):
        (graph,) = kernels.record([work], lambda: parameters, warm_up=work, device=torch.device("cuda"))
        assert streams
        for _ in range(3):
            torch.full((1 << 24,), float("nan"), device="cuda")
            graph.replay()
    for found, expected in zip(kept, wanted, strict=True):
        assert (found is None) is (expected is None)
        if expected is not None:
            off = (found - expected).norm() / expected.norm().clamp_min(1e-30)
            assert float(off) < (1e-4 if precision == "fp32" else 3e-3)
