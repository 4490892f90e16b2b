"""Word-type dropout: whole rows of the embedding matrix, anew for every sequence."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

import bayesrnn as br
from bayesrnn.nn import embedding

V, E = 30, 4


@pytest.fixture(scope="module", autouse=True, params=["a mask over all words", "a hash of those that occur"])
def way(request):
    """Every test of this file holds for both ways to decide, of which the layer takes one by the number of words."""
    before = embedding._MANY
    embedding._MANY = 1 << 60 if request.param == "a mask over all words" else 0
    yield request.param
    embedding._MANY = before


def ones(p, vocabulary=V, **options):
    """Every word is the vector of ones, so that the output shows what multiplies it."""
    layer = br.Embedding(vocabulary, E, word_dropout=p, **options)
    nn.init.ones_(layer.weight)
    return layer


@settings(max_examples=25, deadline=None, derandomize=True)
@given(steps=st.integers(1, 20), rows=st.integers(1, 5), p=st.sampled_from([0.0, 0.3, 0.7]), seed=st.integers(0, 9))
def test_all_occurrences_of_a_word_in_a_sequence_share_its_fate(steps, rows, p, seed):
    torch.manual_seed(seed)
    tokens = torch.randint(6, (steps, rows))
    with torch.no_grad():
        out = ones(p)(tokens)
    assert out.shape == (steps, rows, E)
    assert_close(out, out[..., :1].expand_as(out), rtol=0, atol=0)  # the whole row goes
    for b in range(rows):
        for word in tokens[:, b].unique():
            fates = out[tokens[:, b] == word, b]
            assert len(fates.unique()) == 1
            assert math.isclose(fates[0, 0].item(), 1 / (1 - p), rel_tol=1e-6) or fates[0, 0] == 0


@pytest.mark.parametrize("batch_first", [False, True])
def test_right_rate_and_independence_across_words_sequences_and_calls(batch_first):
    torch.manual_seed(0)
    p, rows, words = 0.3, 8, 2000
    tokens = torch.arange(words).unsqueeze(1).expand(words, rows)
    layer = ones(p, words, batch_first=batch_first)
    fates = []
    for _ in range(2):
        with torch.no_grad():
            out = layer(tokens.t() if batch_first else tokens)
        fates.append((out.transpose(0, 1) if batch_first else out)[..., 0].t())
    fates = torch.cat(fates)  # (sequences, words)
    # 32,000 fates: standard error 0.0026; a rate off by 0.03 is found with power > 0.9999
    assert abs((fates == 0).double().mean() - p) < 5 * 0.0026
    assert_close(fates[fates != 0].unique(), torch.tensor([1 / (1 - p)]))
    # 120 pairs of sequences of 2000 words: standard error 0.022; a correlation of 0.25 is found with power > 0.9999
    together = torch.corrcoef(fates.double())
    assert (together - torch.eye(len(fates))).abs().max() < 5.5 * words**-0.5


def test_one_dimensional_tokens_are_one_sequence():
    layer = ones(0.5)
    tokens = torch.tensor([1, 2, 1, 3, 2, 1])
    with br.draw(layer, seed=1):
        alone = layer(tokens)
    with br.draw(layer, seed=1):
        assert_close(layer(tokens.unsqueeze(1)).squeeze(1), alone)
    assert alone.shape == (6, E)
    assert len(alone[[0, 2, 5]].unique()) == 1
    layer.batch_first = True
    with br.draw(layer, seed=1):
        assert_close(layer(tokens), alone)


def test_batch_first_is_the_transposed_layout():
    tokens = torch.randint(V, (7, 3))
    first, second = ones(0.5), ones(0.5, batch_first=True)
    with br.draw(first, seed=1), br.draw(second, seed=1):
        assert_close(second(tokens.t()), first(tokens).transpose(0, 1))


@pytest.mark.parametrize("make", [lambda: br.Embedding(V, E), lambda: br.Embedding(V, E, word_dropout=0.5).eval()])
def test_without_noise_it_is_torch_s(make):
    layer, plain = make(), nn.Embedding(V, E)
    plain.load_state_dict(layer.state_dict())
    for tokens in (torch.randint(V, (5, 3)), torch.randint(V, (5,)), torch.randint(V, (2, 3, 4)), torch.tensor(3)):
        assert torch.equal(layer(tokens), plain(tokens))


def test_mean_in_train_mode_is_eval():
    layer = br.Embedding(V, E, word_dropout=0.5)
    tokens = torch.randint(V, (5, 3))
    with br.mean(layer):
        assert torch.equal(layer(tokens), layer.weight[tokens])


def test_dropped_words_get_no_gradient_and_kept_ones_their_scale():
    layer = br.Embedding(V, E, word_dropout=0.5)
    tokens = torch.arange(V).unsqueeze(1)
    out = layer(tokens)
    out.sum().backward()
    kept = (out != 0).all(-1).squeeze(1)
    assert torch.equal(layer.weight.grad, torch.where(kept, 2.0, 0.0).unsqueeze(1).expand(V, E))


def test_torch_s_other_arguments():
    layer = br.Embedding(V, E, 0, word_dropout=0.5, dtype=torch.float64)
    assert layer.padding_idx == 0
    assert layer(torch.zeros(3, 2, dtype=torch.long)).count_nonzero() == 0
    assert list(layer.state_dict()) == ["weight"]
    assert layer(torch.ones(3, 2, dtype=torch.int32)).dtype == torch.float64


def test_windows_under_one_draw_share_the_words_fates():
    layer = br.Embedding(V, E, word_dropout=0.5)
    tokens = torch.randint(V, (12, 3))
    with br.draw(layer):
        assert_close(torch.cat([layer(w) for w in tokens.split(5)]), layer(tokens), rtol=0, atol=0)
        with pytest.raises(ValueError, match="made for a batch of 3 but the input is a batch of 2"):
            layer(tokens[:, :2])


@pytest.mark.parametrize("bad", [-0.1, 1.0, math.nan, "a"])
def test_bad_rates(bad):
    with pytest.raises(ValueError, match=r"word_dropout must be a number in \[0, 1\)"):
        br.Embedding(V, E, word_dropout=bad)


def test_bad_tokens():
    layer = br.Embedding(V, E, word_dropout=0.5)
    with pytest.raises(ValueError, match=r"needs tokens of shape \(T, B\).*got \(2, 3, 4\)"):
        layer(torch.zeros(2, 3, 4, dtype=torch.long))
    with pytest.raises(IndexError):
        layer(torch.full((2, 3), V))


def test_repr_names_the_rate():
    assert "word_dropout=0.5" in repr(br.Embedding(V, E, word_dropout=0.5))


def test_a_hash_of_a_sequence_and_a_word_has_independent_bits():
    # 64 sequences, seeds as they come from draws; 500 words. Over 32,000 numbers each of the 53 bits is set in half of
    # them (standard error 0.0028), and neighbouring bits agree in half; limits 5.5 of it. A bit that is set in 53 of
    # 100 is found with power > 0.99.
    seeds = torch.randn(64, 2, generator=torch.Generator().manual_seed(0)).view(torch.int64)
    numbers = embedding._hash(torch.arange(500).unsqueeze(1) * embedding._STEP + seeds[:, 0])
    assert len(numbers.unique()) == numbers.numel()
    bits = (numbers.unsqueeze(-1) >> torch.arange(53)) & 1
    assert ((bits.double().mean((0, 1)) - 0.5).abs() < 5.5 * 0.0028).all()
    assert (((bits[..., 1:] == bits[..., :-1]).double().mean((0, 1)) - 0.5).abs() < 5.5 * 0.0028).all()
    for shifted in (bits[1:] == bits[:-1], bits[:, 1:] == bits[:, :-1]):  # the next word, the next sequence
        assert ((shifted.double().mean((0, 1)) - 0.5).abs() < 5.5 * 0.0028).all()


def test_a_large_vocabulary_needs_no_mask_of_its_size(way):
    layer = ones(0.5, 1000)
    with br.draw(layer, seed=1) as draw:
        layer(torch.randint(1000, (5, 3)))
        held = [t.shape[-1] for t in draw._held.values()]
    assert held == [1000 if way == "a mask over all words" else 2]


def test_windows_of_any_length_and_draws_side_by_side_agree_in_a_draw():
    layer, tokens = ones(0.5).eval(), torch.randint(V, (9, 2))
    with br.draw(layer, seed=1):
        whole = layer(tokens)
        assert torch.equal(torch.cat([layer(tokens[:4]), layer(tokens[4:])]), whole)
        assert torch.equal(layer(tokens.int()), whole)
    many = br.predict(layer, tokens, samples=5, seed=3, likelihood=br.Gaussian()).samples
    cut = br.predict(layer, tokens, samples=5, seed=3, likelihood=br.Gaussian(), memory_limit=1).samples
    assert torch.equal(many, cut)
