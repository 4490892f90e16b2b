"""Draws: one setting of all random weights, held for the length of a block and for nothing after it."""

from __future__ import annotations

import copy
import io
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

import bayesrnn as br
from bayesrnn import draws
from bayesrnn.checks import check_probability

V, T, B = 20, 5, 3


class Model(nn.Module):
    """Every kind of unit noise, ours and torch's."""

    def __init__(self, plain_dropout=0.0):
        super().__init__()
        self.embed = br.Embedding(V, 6, word_dropout=0.3)
        self.rnn = br.LSTM(
            6, 6, 2, input_dropout=0.3, recurrent_dropout=0.3, weight_dropout=0.3, cell_dropout=0.3,
            dropout=plain_dropout,
        )  # fmt: skip
        self.drop = br.SequenceDropout(0.3)
        self.plain = nn.Dropout(plain_dropout)
        self.head = nn.Linear(6, 2)

    def forward(self, tokens, state=None):
        out, state = self.rnn(self.embed(tokens), state)
        return self.head(self.plain(self.drop(out))), state


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model()


@pytest.fixture
def noisy_model():
    """With torch's own dropout as well."""
    torch.manual_seed(0)
    return Model(plain_dropout=0.3)


@pytest.fixture
def tokens():
    return torch.randint(V, (T, B), generator=torch.Generator().manual_seed(0))


def run(model, tokens, seed):
    with br.draw(model, seed=seed):
        return model(tokens)[0]


def test_train_mode_draws_anew_eval_mode_is_the_mean(noisy_model, tokens):
    assert not torch.equal(noisy_model(tokens)[0], noisy_model(tokens)[0])
    noisy_model.eval()
    assert torch.equal(noisy_model(tokens)[0], noisy_model(tokens)[0])


@pytest.mark.parametrize("training", [True, False])
def test_a_draw_is_held_over_all_calls_in_both_modes(model, tokens, training):
    model.train(training)
    with br.draw(model):
        first = model(tokens)[0]
        torch.manual_seed(5)
        assert torch.equal(model(tokens)[0], first)
        model.train(not training)
        assert torch.equal(model(tokens)[0], first)
    model.train(training)
    with br.draw(model):
        assert not torch.equal(model(tokens)[0], first)


@pytest.mark.parametrize("name", ["model", "noisy_model"])
@pytest.mark.parametrize("training", [True, False])
def test_the_same_seed_is_the_same_draw(request, tokens, name, training):
    model = request.getfixturevalue(name).train(training)
    first = run(model, tokens, seed=7)
    torch.rand(3)
    model(tokens)
    assert torch.equal(run(model, tokens, seed=7), first)
    assert torch.equal(run(model, tokens, seed=np.int64(7)), first)
    assert not torch.equal(run(model, tokens, seed=8), first)


def test_without_a_seed_torch_s_own_seed_rules(model, tokens):
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        with br.draw(model):
            results.append(model(tokens)[0])
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_a_seeded_draw_leaves_torch_s_generator_alone(noisy_model, tokens):
    noisy_model.eval()
    before = torch.get_rng_state()
    run(noisy_model, tokens, seed=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_order_of_calls_and_other_layers_do_not_matter(model, tokens):
    """Noise is keyed by the layer's name: asking in another order gives every layer the same."""
    x, y = torch.randn(T, B, 6), torch.randn(T, B, 6)
    with br.draw(model, seed=3):
        forwards = model.rnn(x)[0], model.drop(y), model.embed(tokens)
    with br.draw(model, seed=3):
        embedded, dropped, recurrent = model.embed(tokens), model.drop(y), model.rnn(x)[0]
    assert_close((recurrent, dropped, embedded), forwards, rtol=0, atol=0)


def test_equal_layers_under_other_names_have_noise_of_their_own():
    model = nn.ModuleList([br.SequenceDropout(0.5), br.SequenceDropout(0.5)])
    x = torch.ones(1, 4, 60)
    with br.draw(model, seed=1):
        assert not torch.equal(model[0](x), model[1](x))


def test_windows_with_state_are_one_long_pass(model, tokens):
    with br.draw(model):
        whole, last = model(tokens)
        first, state = model(tokens[:2])
        second, state = model(tokens[2:], state)
        assert_close(torch.cat([first, second]), whole)
        assert_close(state, last)


def test_mean_in_train_mode_is_eval(noisy_model, tokens):
    with br.mean(noisy_model):
        inside = noisy_model(tokens)[0]
        assert all(m.training for m in noisy_model.modules())
    assert torch.equal(noisy_model.eval()(tokens)[0], inside)


def test_blocks_nest_and_the_innermost_rules(noisy_model, tokens):
    one, two = (run(noisy_model, tokens, seed=s) for s in (1, 2))
    mean = noisy_model.eval()(tokens)[0]
    noisy_model.train()
    with br.draw(noisy_model, seed=1):
        with br.draw(noisy_model, seed=2):
            assert torch.equal(noisy_model(tokens)[0], two)
            with br.mean(noisy_model):
                assert torch.equal(noisy_model(tokens)[0], mean)
                with br.draw(noisy_model, seed=1):
                    assert torch.equal(noisy_model(tokens)[0], one)
        assert torch.equal(noisy_model(tokens)[0], one)


def test_a_block_around_a_part_binds_that_part_only(model, tokens):
    x = torch.ones(1, B, 60)
    with br.draw(model.drop, seed=4):
        alone = model.drop(x)
    with br.draw(model, seed=1):
        whole = model.drop(x)
        with br.draw(model.drop, seed=4):
            assert torch.equal(model.drop(x), alone)
        assert torch.equal(model.drop(x), whole)
    assert not torch.equal(model.drop(x), model.drop(x))


@pytest.mark.parametrize("block", [br.draw, br.mean])
@pytest.mark.parametrize("training", [True, False])
def test_everything_is_as_before_after_an_exception(noisy_model, tokens, block, training):
    noisy_model.train(training)
    before = [dict(m.__dict__) for m in noisy_model.modules()]
    fast_path = torch.backends.mha.get_fastpath_enabled()
    with pytest.raises(ZeroDivisionError), block(noisy_model):
        noisy_model(tokens)
        raise ZeroDivisionError
    for module, attributes in zip(noisy_model.modules(), before, strict=True):
        assert set(module.__dict__) == set(attributes)
        assert module.training == training
    assert torch.backends.mha.get_fastpath_enabled() == fast_path
    same = torch.equal(noisy_model(tokens)[0], noisy_model(tokens)[0])
    assert same is not training


def test_an_error_in_a_call_leaves_the_draw_in_place(noisy_model, tokens):
    with br.draw(noisy_model, seed=1):
        with pytest.raises(IndexError):
            noisy_model(tokens + V)
        inside = noisy_model(tokens)[0]
    assert torch.equal(run(noisy_model, tokens, seed=1), inside)


def test_a_copy_made_inside_a_draw_shares_it_and_ends_with_it(model, tokens):
    with br.draw(model, seed=1):
        first = model(tokens)[0]
        copied = copy.deepcopy(model)
        assert torch.equal(copied(tokens)[0], first)
    mean = model.eval()(tokens)[0]
    assert torch.equal(copied.eval()(tokens)[0], mean)
    copied.train()
    assert not torch.equal(copied(tokens)[0], copied(tokens)[0])
    assert torch.equal(run(copied, tokens, seed=1), first)


@pytest.mark.parametrize("block", [br.draw, br.mean])
@pytest.mark.parametrize("training", [True, False])
def test_a_copy_made_inside_a_block_is_a_model_of_its_own(noisy_model, tokens, block, training):
    """Also torch's own noise layers: on their own weights, in the mode they were in."""
    noisy_model.train(training)
    with block(noisy_model):
        copied = copy.deepcopy(noisy_model)
        with torch.no_grad():
            copied.head.weight.zero_()
            copied.head.bias.zero_()
        assert copied(tokens)[0].count_nonzero() == 0
        assert noisy_model(tokens)[0].count_nonzero() > 0
    assert all(m.training == training for m in copied.modules())
    copied.load_state_dict(noisy_model.state_dict())
    assert torch.equal(copied.eval()(tokens)[0], noisy_model.eval()(tokens)[0])
    copied.train()
    assert not torch.equal(copied.plain(torch.ones(99)), copied.plain(torch.ones(99)))


def test_a_copy_from_an_inner_block_is_in_the_outer_one_after_it(model, tokens):
    with br.draw(model, seed=1):
        outer = model(tokens)[0]
        with br.draw(model, seed=2):
            copied = copy.deepcopy(model)
        assert torch.equal(copied(tokens)[0], outer)


def test_a_module_saved_inside_a_block_loads_outside_of_it(noisy_model, tokens):
    noisy_model.eval()
    expected = noisy_model(tokens)[0]
    buffer = io.BytesIO()
    with br.draw(noisy_model, seed=1):
        noisy_model(tokens)
        torch.save(noisy_model, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    assert torch.equal(loaded(tokens)[0], expected)
    assert torch.equal(run(loaded, tokens, seed=3), run(noisy_model, tokens, seed=3))


@pytest.mark.parametrize("noise", ["bernoulli", "gaussian"])
def test_a_held_draw_survives_moves(noise):
    layer = br.SequenceDropout(0.5, noise=noise)
    x = torch.ones(1, B, 50)
    with br.draw(layer):
        before = layer(x)
        assert_close(layer(x.double()), before.double(), rtol=0, atol=0)
        assert_close(layer(x.bfloat16()), before.bfloat16(), rtol=0, atol=0)
        assert torch.equal(layer(x), before)


def test_noise_is_the_same_in_any_dtype():
    layer = br.SequenceDropout(0.5, noise="gaussian")
    with br.draw(layer, seed=1):
        single = layer(torch.ones(1, B, 50))
    with br.draw(layer, seed=1):
        assert_close(layer(torch.ones(1, B, 50, dtype=torch.float64)), single.double(), rtol=0, atol=0)


def test_a_draw_begun_in_inference_mode_serves_training(model, tokens):
    with br.draw(model):
        with torch.inference_mode():
            first = model(tokens)[0].clone()
        out = model(tokens)[0]
        out.sum().backward()
    assert torch.equal(out.detach(), first)


def test_gradients_inside_a_draw_are_those_of_the_drawn_weights(model, tokens):
    """Finite differences of one parameter under a held draw, float64."""
    model.double()
    with br.draw(model, seed=1):
        model(tokens)[0].square().sum().backward()
        weight, step = model.rnn.weight_hh_l0, 1e-6
        with torch.no_grad():
            values = []
            for sign in (1, -1):
                weight[2, 3] += sign * step
                values.append(model(tokens)[0].square().sum())
                weight[2, 3] -= sign * step
    assert_close(weight.grad[2, 3], (values[0] - values[1]) / (2 * step), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("bad", ["a", 1.5, [1]])
def test_a_seed_is_a_whole_number(model, bad):
    with pytest.raises(ValueError, match="seed must be a whole number, or None"), br.draw(model, seed=bad):
        pass


def test_any_whole_number_is_a_seed(model, tokens):
    results = [run(model, tokens, seed=s) for s in (-1, 0, 2**80)]
    assert len({r.sum().item() for r in results}) == 3


def test_seeds_next_to_each_other_are_independent_draws():
    layer = br.SequenceDropout(0.5)
    masks = []
    for seed in range(20):
        with br.draw(layer, seed=seed):
            masks.append(layer(torch.ones(1, 1, 2000))[0, 0])
    together = torch.corrcoef(torch.stack(masks).double())
    # 190 pairs of 2000 fair coins: standard error 0.022, bound 5.5 of them; a correlation of 0.25: power > 0.9999
    assert (together - torch.eye(20)).abs().max() < 5.5 * 2000**-0.5


def test_noise_at_rate_one_is_zero_as_in_torch():
    assert draws.Noise(1.0).sample((3,), torch.ones(1)).tolist() == [0, 0, 0]


@pytest.mark.parametrize("p", [0, 0.0, 0.999, np.float32(0.25), np.float64(0.25)])
def test_probabilities_that_are(p):
    assert check_probability("p", p) == p


@pytest.mark.parametrize("p", [-1e-9, 1, 1.0, math.nan, math.inf, None, "0.5", True, torch.tensor(0.5)])
def test_probabilities_that_are_not(p):
    with pytest.raises(
        ValueError, match=r"^rate must be a number in \[0, 1\), got .+: it is the probability of dropping$"
    ):
        check_probability("rate", p)


def test_a_block_that_cannot_begin_leaves_nothing_open():
    from bayesrnn.draws import binding

    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module"), br.draw("no module"):
        pass
    assert not binding._any_open
