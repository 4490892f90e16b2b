"""`torch.compile` over our layers: the numbers of the model itself, in every mode, and few pieces."""

from __future__ import annotations

import copy
import pickle
import shutil

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import bayesrnn as br

V, H = 13, 6
pytestmark = [  # of the compiler's own making
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]


class Tagger(nn.Module):
    def __init__(self, cell=br.LSTM, **rates):
        super().__init__()
        self.embed, self.rnn = br.Embedding(V, H, word_dropout=0.3), cell(H, H, **rates)
        self.drop, self.head = br.SequenceDropout(0.4), nn.Linear(H, V)

    def forward(self, tokens, state=None):
        hidden, state = self.rnn(self.embed(tokens), state)
        return self.head(self.drop(hidden)), state


MODELS = {
    "variational": lambda: Tagger(input_dropout=0.3, recurrent_dropout=0.2),
    "shared": lambda: Tagger(recurrent_dropout=0.2, share="batch"),
    "gru": lambda: Tagger(br.GRU, recurrent_dropout=0.2, weight_dropout=0.1),
    "bayes_by_backprop": lambda: br.BayesByBackprop(Tagger(), prior=br.ScaleMixture(0.5, 1.0, 0.1)),
    "sharpened": lambda: br.PosteriorSharpening(br.BayesByBackprop(Tagger(br.RNN))),
}


@pytest.fixture(autouse=True)
def clean():
    torch._dynamo.reset()
    counters.clear()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield
    torch._dynamo.reset()


def tokens():
    return torch.randint(V, (3, 3))


def pieces():
    return counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_eval_is_one_graph_where_recurrent_layers_are_allowed(name):
    """torch's compiler leaves every recurrent layer out, torch's own too, unless `allow_rnn` is set."""
    model, x = MODELS[name]().eval(), tokens()
    with torch._dynamo.config.patch(allow_rnn=True):
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        for rows in (3, 2):
            torch.testing.assert_close(compiled(x[:, :rows]), model(x[:, :rows]))
    assert pieces()[1] == 0


@pytest.mark.parametrize("name", MODELS)
def test_eval_breaks_at_recurrent_layers_alone(name):
    model, x = MODELS[name]().eval(), tokens()
    compiled = torch.compile(model, backend="eager")
    torch.testing.assert_close(compiled(x), model(x), rtol=0, atol=0)
    assert all("RNN, GRU, or LSTM" in reason for reason in counters["graph_break"])


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_training_gives_the_same_draws_gradients_and_kl(name):
    model, x = MODELS[name](), tokens()
    compiled = torch.compile(model, backend="aot_eager" if name == "variational" else "eager")
    found = []
    for run in (model, compiled):
        torch.manual_seed(1)
        for _ in range(2):  # the second call has another draw
            logits, _ = run(x)
            loss = logits.square().sum() + br.kl(model)
            gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
            found.append((logits, loss, gradients))
    for one, other in zip(found[:2], found[2:], strict=True):
        torch.testing.assert_close(one, other)
    assert not torch.equal(found[2][0], found[3][0])
    assert pieces()[0] <= 4


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("name", ["variational", "bayes_by_backprop"])
def test_held_draws_and_the_mean_are_seen_by_compiled_code(name, mode):
    model, x = MODELS[name](), tokens()
    getattr(model, mode)()
    compiled = torch.compile(model, backend="eager")
    compiled(x)  # compiled outside any block
    for seed in (1, 2):
        with br.draw(model, seed=seed):
            expected = model(x)[0]
            torch.testing.assert_close(compiled(x)[0], expected, rtol=0, atol=0)
            torch.testing.assert_close(compiled(x)[0], expected, rtol=0, atol=0)
    with br.mean(model):
        torch.testing.assert_close(compiled(x)[0], model(x)[0], rtol=0, atol=0)
    if mode == "train":
        assert not torch.equal(compiled(x)[0], compiled(x)[0])  # outside the blocks: fresh draws again


@pytest.mark.slow
def test_predictions_of_a_compiled_model_are_the_model_s():
    model, x = MODELS["variational"]().eval(), tokens()
    compiled = torch.compile(model, backend="eager")
    expected = br.predict(model, x, samples=3, seed=4)
    torch.testing.assert_close(br.predict(compiled, x, samples=3, seed=4).mean, expected.mean, rtol=0, atol=0)


def test_importing_and_running_layers_does_not_load_the_compiler():
    import subprocess
    import sys

    code = """
import sys, torch, bayesrnn as br
br.LSTM(3, 4, recurrent_dropout=0.2)(torch.randn(5, 2, 3))
br.BayesByBackprop(torch.nn.Linear(3, 4))(torch.randn(2, 3))
print("torch._dynamo" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "False", done.stderr


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
@pytest.mark.filterwarnings("ignore")
def test_inductor():
    """The mean, and drawn weights with their gradients. Its own dropout masks would be others, of the same law."""
    q, x = br.BayesByBackprop(Tagger(), include="head.*"), tokens()
    for part in (q.module.embed, q.module.drop):
        part.eval()
    compiled = torch.compile(q)
    found = []
    for run in (q, compiled):
        torch.manual_seed(1)
        out = run(x)[0]
        found.append((out, torch.autograd.grad(out.square().sum(), list(q.parameters()))))
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", ["bayes", "sharpened"])
def test_a_model_compiled_in_place_is_copied_and_pickled_without_it(kind):
    torch.manual_seed(0)
    q = br.BayesByBackprop(nn.Linear(3, 2))
    m = br.PosteriorSharpening(q) if kind == "sharpened" else q
    x = torch.randn(4, 3)
    m.eval().compile(backend="eager")
    expected = m(x)
    for other in (copy.deepcopy(m), pickle.loads(pickle.dumps(m))):
        torch.testing.assert_close(other(x), expected)
        inner = other.q if kind == "sharpened" else other
        with torch.no_grad():
            inner.means["bias"].add_(5.0)
        torch.testing.assert_close(other(x), expected + 5)
    torch.testing.assert_close(m(x), expected)


@pytest.mark.parametrize("layer", [nn.LSTM, br.LSTM])
def test_a_layer_compiled_in_place_is_exported_without_it(layer):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = layer(3, 4)

        def forward(self, x):
            return self.rnn(x)[0]

    m, x = Model().eval(), torch.randn(5, 2, 3)
    m.rnn.compile(backend="eager")
    expected, made = m(x), br.to_torch(m)
    torch.testing.assert_close(made(x), expected)
    with torch.no_grad():
        made.rnn.weight_hh_l0.zero_()
    assert not torch.allclose(made(x), expected)
    torch.testing.assert_close(m(x), expected)
