"""Layers inside other people's modules: subclasses, wrappers, weights that are made anew, state, odd attributes."""

from __future__ import annotations

import copy
import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, prune
from torch.testing import assert_close

import bayesrnn as br
from bayesrnn import kernels
from bayesrnn.nn import NoisyLayer

REAL = br.Gaussian(1.0)
CELLS = [br.LSTM, br.GRU, br.RNN]
FOLDED = [
    {"weight_dropout": 0.5},
    {"recurrent_dropout": 0.5, "share": "batch"},
    {"input_dropout": 0.5, "share": "batch"},
]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def weight_norm(layer):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return torch.nn.utils.weight_norm(layer, "weight_hh_l0")


class Functional(nn.Module):
    """Calls the layer through `functional_call`, with weights that are copies of its own."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        weights = {n: p.clone() for n, p in self.layer.named_parameters()}
        return torch.func.functional_call(self.layer, weights, (x,))


WRAPPERS = {
    "alone": lambda layer: layer,
    "bayes by backprop": lambda layer: br.BayesByBackprop(layer, init_sigma=1e-6),
    "dropconnect": lambda layer: br.DropConnect(layer, 1e-9),
    "weight_norm": weight_norm,
    "parametrised weight_norm": lambda layer: parametrizations.weight_norm(layer, "weight_hh_l0"),
    "pruned": lambda layer: prune.l1_unstructured(layer, "weight_hh_l0", amount=0.1),
    "functional_call": Functional,
}


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("rates", FOLDED, ids=str)
@pytest.mark.parametrize("wrap", WRAPPERS)
def test_noise_in_the_weights_is_there_behind_every_wrapper(cell, rates, wrap):
    torch.manual_seed(1)
    layer = cell(16, 16, **rates)
    model, x = WRAPPERS[wrap](copy.deepcopy(layer)), torch.randn(5, 3, 16)
    model.train()
    a, b = model(x)[0], model(x)[0]
    assert (a - b).abs().max() > 1e-3
    a.sum().backward()
    for mode in (True, False):
        model.train(mode)
        with br.draw(model, seed=1):
            first, again = model(x)[0], model(x)[0]
        with br.draw(model, seed=2):
            other = model(x)[0]
        assert_close(first, again)
        assert (first - other).abs().max() > 1e-3
    samples = br.predict(model, x, samples=4, seed=1, likelihood=REAL).samples
    assert samples.std(0).max() > 1e-3
    assert_close(br.predict(model, x, samples=4, seed=1, likelihood=REAL, memory_limit=1).samples, samples)
    with br.mean(model):
        mean = model(x)[0]
    if wrap not in ("pruned", "bayes by backprop", "dropconnect"):
        assert_close(mean, layer.eval()(x)[0])


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("rates", FOLDED, ids=str)
def test_noisy_weights_have_the_noise_and_gradients_of_the_steps(cell, rates):
    layer, x = cell(4, 6, 2, bidirectional=True, **rates), torch.randn(5, 3, 4, requires_grad=True)
    found = []
    for path in (None, "reference"):
        with br.draw(layer, seed=3), kernels.force(path) if path else torch.enable_grad():
            out, _ = layer(x)
            found.append((out, torch.autograd.grad(out.square().sum(), [x, *layer.parameters()])))
    assert_close(*found)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("form", ["batch_first", "one sequence", "packed"])
def test_every_form_of_input_on_noisy_weights(cell, form):
    layer = cell(4, 6, batch_first=form == "batch_first", weight_dropout=0.5)
    x = torch.randn(5, 3, 4)
    given = {"batch_first": x, "one sequence": x[:, 0]}.get(form)
    if given is None:
        given = nn.utils.rnn.pack_sequence([x[:n, k] for k, n in enumerate((2, 5, 3))], enforce_sorted=False)
    with br.draw(layer, seed=1):
        out, state = layer(given)
        carried, _ = layer(given, state)
        with kernels.force("reference"):
            expected, last = layer(given)
            expected_carried, _ = layer(given, last)
    assert_close((out, state), (expected, last))
    assert_close(carried, expected_carried)


class Odd(nn.Module):
    """Names that mean something to layers of this library."""

    word_dropout, share, rates, p, tied = "often", 0.3, None, "p-value", object()

    def __init__(self):
        super().__init__()
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.drop(input=x))


class Proxy(nn.Module):
    """Forwards every attribute that it lacks to the module inside."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)

    def forward(self, *args):
        return self.inner(*args)


def test_attributes_of_other_modules_mean_nothing():
    found = br.predict(Odd(), torch.randn(5, 4), samples=6, seed=1)
    assert found.mean.shape == (5, 3)
    assert found.epistemic.max() > 0
    odd = nn.Sequential(Odd())
    assert br.predict(br.BayesByBackprop(odd), torch.randn(5, 4), samples=3).mean.shape == (5, 3)


def test_a_proxy_is_no_layer():
    layer = br.LSTM(4, 6, recurrent_dropout=0.5)
    proxy, x = Proxy(layer), torch.randn(5, 3, 4)
    assert isinstance(layer, NoisyLayer)
    assert not isinstance(proxy, NoisyLayer)
    samples = br.predict(proxy, x, samples=4, seed=1, likelihood=REAL).samples
    assert samples.std(0).max() > 0


class ScaledGRU(br.GRU):
    def forward(self, input, hx=None):
        out, state = super().forward(input, hx)
        return 2 * out, state


def test_a_subclass_of_our_layer_keeps_its_forward():
    layer, x = ScaledGRU(4, 5, recurrent_dropout=0.5), torch.randn(6, 3, 4)
    plain = br.GRU(4, 5, recurrent_dropout=0.5)
    plain.load_state_dict(layer.state_dict())
    ours, theirs = (br.predict(m, x, samples=5, seed=1, likelihood=REAL).samples for m in (layer, plain))
    assert_close(ours, 2 * theirs)
    q = br.BayesByBackprop(layer)
    assert_close(q.eval()(x)[0], layer.eval()(x)[0])


class Remembers(nn.Module):
    """Keeps its state from call to call, and a list of what it has seen."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.head = layer, nn.Linear(5, 3)
        self.state, self.seen = None, []
        self.register_buffer("last", torch.zeros(3, 3))

    def forward(self, x):
        out, self.state = self.layer(x, self.state)
        out = self.head(out)
        self.seen.append(out)
        self.last = out[-1]
        return out


@pytest.mark.parametrize("layer", [nn.GRU(4, 5), br.GRU(4, 5, recurrent_dropout=0.4)], ids=["torch", "ours"])
@pytest.mark.parametrize("bayesian", [True, False])
@pytest.mark.filterwarnings("ignore:the model has no noise")
def test_a_model_with_a_state_of_its_own_comes_back_as_it_was(layer, bayesian):
    model, x = Remembers(copy.deepcopy(layer)), torch.randn(6, 3, 4)
    if bayesian:
        model = br.BayesByBackprop(model, init_sigma=0.3)
    inner = model.module if bayesian else model
    first = br.predict(model, x, samples=9, seed=1)
    assert inner.state is None
    assert inner.seen == []
    assert inner.last.eq(0).all()
    again = br.predict(copy.deepcopy(model), x, samples=9, seed=1, memory_limit=1)
    assert_close(again.samples, first.samples)
    model.eval()
    model(x)  # now it has a state, which every draw starts from
    kept = inner.state
    br.predict(model, x, samples=5, seed=1)
    assert inner.state is kept
    assert len(inner.seen) == 1
    model(x)


@dataclass
class Output:
    logits: torch.Tensor
    loss: None = None


@pytest.mark.parametrize(
    ("make", "named"), [(lambda y: {"logits": y}, "dict of 'logits'"), (Output, "Output of logits, loss")]
)
def test_other_outputs_are_refused_by_name(make, named):
    class Model(nn.Module):
        def forward(self, x):
            return make(F.dropout(x, 0.5, self.training))

    with pytest.raises(TypeError, match=f"got {named}: wrap it in a module whose forward returns the tensor"):
        br.predict(Model(), torch.randn(4, 3))


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("path", ["compiled", "reference", "loop", None])
@pytest.mark.parametrize("rates", [{"recurrent_dropout": 0.5}, *FOLDED], ids=str)
def test_outputs_may_be_changed_in_place(cell, path, rates):
    """None: the path that the layer chooses, torch's own kernel where the weights hold the noise."""
    layer, x = cell(4, 4, **rates), torch.randn(5, 3, 4)
    grads = []
    for in_place in (True, False):
        layer.zero_grad()
        with br.draw(layer, seed=1), kernels.force(path) if path else nullcontext():
            h, _ = layer(x)
        if in_place:
            h += x
        else:
            h = h + x
        h.square().sum().backward()
        grads.append([p.grad.clone() for p in layer.parameters()])
    assert_close(*grads)


def test_a_large_embedding_in_another_default_dtype():
    torch.set_default_dtype(torch.bfloat16)
    try:
        layer = br.Embedding(40_000, 4, word_dropout=0.5)
        out = layer(torch.randint(40_000, (50, 4)))
    finally:
        torch.set_default_dtype(torch.float32)
    assert out.dtype == torch.bfloat16
    assert 0.2 < (out == 0).all(-1).double().mean() < 0.8


def test_ema_and_swa_copies_draw_like_the_model():
    model, x = br.LSTM(4, 5, recurrent_dropout=0.4), torch.randn(6, 3, 4)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    averaged.update_parameters(model)
    with br.draw(averaged.module, seed=1):
        found = averaged(x)[0]
    with br.draw(model, seed=1):
        assert_close(found, model(x)[0])


def test_weights_that_are_assigned_are_used():
    layer, other = br.GRU(4, 5, weight_dropout=0.3), br.GRU(4, 5, weight_dropout=0.3)
    layer.load_state_dict(other.state_dict(), assign=True)
    x = torch.randn(6, 3, 4)
    with br.draw(layer, seed=1), br.draw(other, seed=1):
        assert_close(layer(x), other(x))


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("rates", [*FOLDED, {"recurrent_dropout": 0.5}], ids=str)
def test_replicas_of_data_parallel_have_noise(cell, rates):
    """What `torch.nn.parallel.replicate` does: a replica's weights are attributes, and it has no parameters."""
    layer = cell(4, 6, **rates)
    replica = layer._replicate_for_data_parallel()
    for name, parameter in layer.named_parameters():
        setattr(replica, name, parameter.clone())
    x = torch.randn(5, 3, 4)
    with br.draw(layer, seed=1):
        expected = layer(x)
    with br.draw(replica, seed=1):
        assert_close(replica(x), expected)
    assert br.predict(replica, x, samples=3).mean.isfinite().all()


def test_a_model_with_copies_of_parameters_in_half_precision_and_autocast():
    layer, x = br.LSTM(4, 8, recurrent_dropout=0.4), torch.randn(6, 3, 4)
    with br.draw(layer, seed=1):
        expected = layer(x)[0]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = layer(x)[0]
    assert_close(found.float(), expected, atol=0.03, rtol=0.05)


class Cache:
    """A user's own holder of state."""

    latest = None


class RemembersElsewhere(nn.Module):
    """Keeps its state in an object, and in attributes of a layer of torch's."""

    def __init__(self):
        super().__init__()
        self.layer, self.cache, self.more = nn.GRU(3, 4), Cache(), SimpleNamespace(seen=[])

    def forward(self, x):
        out, _ = self.layer(x)
        self.cache.latest = self.layer.latest = out
        self.more.seen.append(out)
        return out


@pytest.mark.parametrize("bayesian", [br.BayesByBackprop, br.DropConnect])
def test_no_tensor_of_a_prediction_stays_in_objects_of_the_model(bayesian):
    model, x = bayesian(RemembersElsewhere()), torch.randn(5, 2, 3)
    br.predict(model, x, samples=6)
    inner = model.module
    assert inner.cache.latest is None
    assert not hasattr(inner.layer, "latest")
    assert inner.more.seen == []
    copy.deepcopy(model)


def test_masks_inside_a_dict_may_be_infinite():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 4))

        def forward(self, batch):
            return self.head(batch["x"]) + batch["mask"]

    mask = torch.tensor([0.0, -torch.inf, 0.0, 0.0])
    found = br.predict(Masked(), {"x": torch.randn(2, 3), "mask": mask}, samples=5)
    assert bool((found.mean[:, 1] == 0).all())
    assert bool(torch.isfinite(found.entropy).all())
    with pytest.raises(ValueError, match="NaN or infinite"):
        br.predict(Masked(), {"x": torch.full((2, 3), torch.nan), "mask": mask}, samples=5)
