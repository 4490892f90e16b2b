"""`Dropout`: one mask per example, held by a draw."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import bayesrnn as br
from bayesrnn import draws
from bayesrnn.draws import Draw
from bayesrnn.nn import Dropout
from bayesrnn.prediction import weights


def convolutional(noise="bernoulli"):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), Dropout(0.4, noise=noise), nn.ReLU(), nn.Flatten(), Dropout(0.3, noise=noise),
        nn.Linear(64, 3),
    ).double()  # fmt: skip


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
def test_rates_and_scale(p):
    mask = Dropout(p)(torch.ones(20, 1000))
    # 20,000 units: standard error <= 0.0035; a rate off by 0.04 is found with power > 0.9999
    assert abs((mask == 0).double().mean() - p) < 5 * (p * (1 - p) / 20_000) ** 0.5
    assert_close(mask[mask != 0].unique(), torch.tensor([1 / (1 - p)]))
    # 190 pairs of examples, 1000 units each: a correlation of 0.35 in any is found with power > 0.9999
    assert (torch.corrcoef(mask.double()) - torch.eye(20)).abs().max() < 5.5 * 1000**-0.5


@pytest.mark.parametrize("p", [0.2, 0.5])
def test_gaussian_mean_and_variance(p):
    mask = Dropout(p, noise="gaussian")(torch.ones(20, 10, 10, 10)).double()
    variance = p / (1 - p)
    # 20,000 units: an error of 10 % in the variance, or of 0.1 standard deviations in the mean: power > 0.9999
    assert abs(mask.mean() - 1) < 5 * (variance / 20_000) ** 0.5
    assert abs(mask.var() / variance - 1) < 5 * (2 / 20_000) ** 0.5


def test_every_unit_of_an_image_has_noise_of_its_own():
    mask = Dropout(0.5)(torch.ones(8, 5, 6, 7))
    assert mask.shape == (8, 5, 6, 7)
    # were a channel or a row dropped as a whole, a flattened example would repeat; chance of two equal rows: 2^-210
    assert len(mask.flatten(1).unique(dim=0)) == 8
    assert not (mask.flatten(2).std(-1) == 0).any()


def test_train_eval_and_mean():
    layer, x = Dropout(0.5), torch.randn(4, 30)
    assert not torch.equal(layer(x), layer(x))
    with br.mean(layer):
        assert torch.equal(layer(x), x)
    assert torch.equal(layer.eval()(x), x)
    assert torch.equal(Dropout(0.0)(x), x)


def test_a_draw_holds_the_masks():
    layer, x = Dropout(0.5).eval(), torch.ones(4, 50)
    with br.draw(layer, seed=3):
        first = layer(x)
        assert torch.equal(layer(x), first)
        with pytest.raises(ValueError, match="made for a batch of 4 but the input is a batch of 2"):
            layer(torch.ones(2, 50))
    with br.draw(layer, seed=3):
        assert torch.equal(layer(x), first)
    with br.draw(layer, seed=4):
        assert not torch.equal(layer(x), first)


@pytest.mark.parametrize("noise", ["bernoulli", "gaussian"])
def test_prediction_is_the_average_of_single_draws(noise):
    model, x = convolutional(noise), torch.randn(5, 1, 6, 6, dtype=torch.float64)
    found = br.predict(model, x, samples=7, seed=1)
    alone = []
    for k in range(7):
        held = Draw(draws.mix(1, k))
        with br.draws.using(model, held):
            alone.append(model(x).softmax(-1))
    assert_close(found.samples, torch.stack(alone))
    assert found.samples.std(0).min() > 0


def test_the_gradient_is_the_mask():
    layer, x = Dropout(0.5), torch.randn(4, 30, requires_grad=True)
    out = layer(x)
    out.sum().backward()
    assert_close(x.grad * x, out)


def test_weight_draws_are_not_batched_past_it():
    """Draws of whole weights are mapped without the units' noise, so a model with both must say so."""
    assert weights.has_unit_noise(convolutional().modules())
    assert weights.has_unit_noise([br.SequenceDropout(0.1)])
    assert not weights.has_unit_noise([Dropout(0.0), br.SequenceDropout(0.0), nn.Linear(2, 2)])


@pytest.mark.parametrize("bad", [-0.1, 1.0, math.nan, None])
def test_bad_rates(bad):
    with pytest.raises(ValueError, match=r"p must be a number in \[0, 1\)"):
        Dropout(bad)


def test_bad_options_and_shapes():
    with pytest.raises(ValueError, match="noise must be one of 'bernoulli', 'gaussian', got 'poisson'"):
        Dropout(0.5, noise="poisson")
    with pytest.raises(ValueError, match=r"needs a batch of examples, \(B, ...\), got shape \(3,\)"):
        Dropout(0.5)(torch.ones(3))
    assert repr(Dropout(0.25)) == "Dropout(p=0.25, noise='bernoulli')"
