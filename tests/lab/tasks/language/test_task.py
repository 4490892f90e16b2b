import math

import pytest
import torch
from torch import nn

from bayesrnn.lab.recipes import load, override
from bayesrnn.lab.tasks.language.settings import Model
from bayesrnn.lab.tasks.language.task import LanguageModel, build, perplexity
from bayesrnn.lab.text import batchify


@pytest.fixture
def model():
    torch.manual_seed(0)
    return LanguageModel(11, Model(hidden=8, layers=2))


def test_shapes_and_plain_layers(model):
    logits, (h, c) = model(torch.randint(11, (5, 3)))
    assert logits.shape == (5, 3, 11)
    assert h.shape == c.shape == (2, 3, 8)
    assert type(model.rnn) is nn.LSTM
    assert type(model.embed) is nn.Embedding


def test_perplexity_is_that_of_one_long_pass_whatever_the_window(model):
    stream = batchify(torch.randint(11, (200,)), 4)
    logits, _ = model(stream[:-1])
    expected = math.exp(nn.functional.cross_entropy(logits.flatten(0, 1), stream[1:].flatten()).item())
    for window in (1, 7, 49, 1000):
        assert perplexity(model, stream, window=window) == pytest.approx(expected, rel=1e-5)


def test_perplexity_of_a_uniform_model_is_the_vocabulary(model):
    nn.init.zeros_(model.decoder.weight)
    nn.init.zeros_(model.decoder.bias)
    assert perplexity(model, batchify(torch.randint(11, (60,)), 1)) == pytest.approx(11, rel=1e-5)


def test_perplexity_restores_the_mode(model):
    stream = torch.randint(11, (20, 1))
    for mode in (True, False):
        model.train(mode)
        perplexity(model, stream)
        assert model.training is mode


def test_tied_weights_are_one_parameter():
    model = LanguageModel(11, Model(hidden=8, layers=1, tied=True))
    assert model.decoder.weight is model.embed.weight
    assert "decoder.weight" not in dict(model.named_parameters())


class TestVariational:
    @pytest.fixture
    def noisy(self):
        torch.manual_seed(0)
        return LanguageModel(11, Model(hidden=8, layers=1, word_dropout=0.2, input_dropout=0.3, recurrent_dropout=0.2))

    def test_same_parameters_as_the_plain_model(self, noisy):
        plain = LanguageModel(11, Model(hidden=8, layers=1))
        plain.load_state_dict(noisy.state_dict())
        tokens = torch.randint(11, (6, 2))
        noisy.eval()
        torch.testing.assert_close(noisy(tokens)[0], plain(tokens)[0])

    def test_random_in_training_and_not_in_evaluation(self, noisy):
        tokens = torch.randint(11, (6, 2))
        noisy.train()
        assert not torch.equal(noisy(tokens)[0], noisy(tokens)[0])
        noisy.eval()
        assert torch.equal(noisy(tokens)[0], noisy(tokens)[0])


@pytest.mark.parametrize("rates", [{}, {"recurrent_dropout": 0.2}])
@pytest.mark.parametrize("forget", [0.0, 1.5])
def test_one_bias_per_gate(rates, forget):
    model = LanguageModel(7, Model(hidden=4, layers=2, init=0.05, forget_bias=forget, one_bias=True, **rates))
    tokens = torch.randint(7, (6, 2))
    torch.nn.functional.cross_entropy(model(tokens)[0].flatten(0, 1), tokens.flatten()).backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is None) is ("bias_hh" in name)
        if "bias_hh" in name:
            assert torch.equal(parameter, torch.tensor([0.0, forget, 0.0, 0.0]).repeat_interleave(4))
            assert not parameter.requires_grad


def test_bayes_by_backprop_with_one_bias_per_gate():
    recipe = override(load("brnn-medium"), ["model.hidden=4"])
    random = {}
    for one in (True, False):
        q = build(override(recipe, [f"model.one_bias={one}"]), 7)
        random[one] = {name for name, _, _ in q.named_posteriors()}
    assert random[False] - random[True] == {"rnn.bias_hh_l0", "rnn.bias_hh_l1"}
    assert "decoder.bias" not in random[False]


@pytest.mark.parametrize("rates", [{}, {"recurrent_dropout": 0.2}])
def test_a_forget_bias_moves_the_forget_gates_alone(rates):
    models = []
    for bias in (0.0, 1.5):
        torch.manual_seed(0)
        models.append(LanguageModel(7, Model(hidden=4, layers=2, init=0.05, forget_bias=bias, **rates)))
    plain, moved = (dict(model.named_parameters()) for model in models)
    for name, value in moved.items():
        step = torch.zeros_like(value)
        if "bias_hh" in name:
            step[4:8] = 1.5
        assert torch.equal(value, plain[name] + step)
