"""`SequenceDropout`: one mask per sequence, the same at every step."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.testing import assert_close

import bayesrnn as br

T, B, F = 6, 4, 30


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    steps=st.integers(1, 6),
    rows=st.integers(1, 4),
    features=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    noise=st.sampled_from(["bernoulli", "gaussian"]),
    share=st.sampled_from(["sequence", "batch"]),
    batch_first=st.booleans(),
)
def test_shapes_and_constancy_over_time(steps, rows, features, noise, share, batch_first):
    layer = br.SequenceDropout(0.5, noise=noise, share=share, batch_first=batch_first)
    x = torch.ones((rows, steps, *features) if batch_first else (steps, rows, *features))
    out = layer(x)
    assert out.shape == x.shape
    out = out.transpose(0, 1) if batch_first else out
    assert torch.equal(out, out[:1].expand_as(out))
    if share == "batch":
        assert torch.equal(out, out[:, :1].expand_as(out))


def test_sequences_and_calls_have_masks_of_their_own():
    layer = br.SequenceDropout(0.5)
    rows = torch.cat([layer(torch.ones(T, B, 60))[0] for _ in range(3)])
    assert len(rows.unique(dim=0)) == 3 * B  # two equal rows of 60 fair coins: chance 6e-17


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
def test_rates_and_scale(p):
    torch.manual_seed(0)
    mask = br.SequenceDropout(p)(torch.ones(1, 20, 1000))
    # 20,000 units: standard error <= 0.0035; a rate off by 0.04 is found with power > 0.9999
    assert abs((mask == 0).double().mean() - p) < 5 * (p * (1 - p) / 20_000) ** 0.5
    assert_close(mask[mask != 0].unique(), torch.tensor([1 / (1 - p)]))
    # 190 pairs of sequences, 1000 units each: a correlation of 0.35 in any is found with power > 0.9999
    together = torch.corrcoef(mask[0].double())
    assert (together - torch.eye(20)).abs().max() < 5.5 * 1000**-0.5


@pytest.mark.parametrize("p", [0.2, 0.6])
def test_gaussian_mean_and_variance(p):
    torch.manual_seed(0)
    mask = br.SequenceDropout(p, noise="gaussian")(torch.ones(1, 20, 1000)).double()
    variance = p / (1 - p)
    # 20,000 units: an error of 10 % in the variance, or of 0.1 standard deviations in the mean: power > 0.9999
    assert abs(mask.mean() - 1) < 5 * (variance / 20_000) ** 0.5
    assert abs(mask.var() / variance - 1) < 5 * (2 / 20_000) ** 0.5


@pytest.mark.parametrize("share", ["sequence", "batch"])
@pytest.mark.parametrize("sort", [True, False])
def test_packed_input_has_the_masks_of_padded_input(share, sort):
    layer = br.SequenceDropout(0.5, share=share)
    lengths = [6, 4, 3, 1] if sort else [3, 6, 1, 4]
    x = torch.randn(T, B, F)
    for b, n in enumerate(lengths):
        x[n:, b] = float("nan")
    with br.draw(layer):
        packed = layer(pack_padded_sequence(x, lengths, enforce_sorted=sort))
        padded = layer(x)
    out, found = pad_packed_sequence(packed)
    assert found.tolist() == lengths
    for b, n in enumerate(lengths):
        assert_close(out[:n, b], padded[:n, b])
    assert packed.data.isfinite().all()


def test_two_dimensional_input_is_one_sequence():
    layer = br.SequenceDropout(0.5)
    x = torch.randn(T, F)
    with br.draw(layer, seed=1):
        alone = layer(x)
    with br.draw(layer, seed=1):
        assert_close(layer(x.unsqueeze(1)).squeeze(1), alone)
    shared = br.SequenceDropout(0.5, share="batch")(torch.ones(T, F))
    assert torch.equal(shared, shared[:1].expand_as(shared))


@pytest.mark.parametrize("make", [lambda: br.SequenceDropout(0.5).eval(), lambda: br.SequenceDropout(0.0)])
def test_without_noise_nothing_happens(make):
    x = torch.randn(T, B, F)
    assert torch.equal(make()(x), x)
    packed = pack_padded_sequence(x, [6, 4, 3, 1])
    assert torch.equal(make()(packed).data, packed.data)


def test_mean_in_train_mode_is_eval():
    layer, x = br.SequenceDropout(0.5), torch.randn(T, B, F)
    with br.mean(layer):
        assert torch.equal(layer(x), x)


def test_the_gradient_is_the_mask():
    layer = br.SequenceDropout(0.5)
    x = torch.randn(T, B, F, requires_grad=True)
    out = layer(x)
    out.sum().backward()
    assert_close(x.grad * x, out)


@pytest.mark.parametrize("bad", [-0.1, 1.0, math.nan, None])
def test_bad_rates(bad):
    with pytest.raises(ValueError, match=r"p must be a number in \[0, 1\)"):
        br.SequenceDropout(bad)


def test_bad_options_and_shapes():
    with pytest.raises(ValueError, match="noise must be one of 'bernoulli', 'gaussian', got 'poisson'"):
        br.SequenceDropout(0.5, noise="poisson")
    with pytest.raises(ValueError, match="share must be one of 'sequence', 'batch', got 'all'"):
        br.SequenceDropout(0.5, share="all")
    with pytest.raises(ValueError, match=r"needs \(T, B, F\) or \(T, F\), got shape \(3,\)"):
        br.SequenceDropout(0.5)(torch.ones(3))


def test_a_held_draw_with_another_batch_or_width():
    layer = br.SequenceDropout(0.5)
    with br.draw(layer):
        layer(torch.ones(T, B, F))
        with pytest.raises(ValueError, match=r"made for a batch of 4 but the input is a batch of 2: .*new draw"):
            layer(torch.ones(T, 2, F))
        with pytest.raises(ValueError, match=r"units of shape \(30,\) but the input has \(5,\)"):
            layer(torch.ones(T, B, 5))
