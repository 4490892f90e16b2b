"""Layers whose weights torch computes from other parameters: weight_norm (both kinds), parametrisations, pruning.

And subclasses of torch's layers with a `forward` of their own, inside a posterior.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

import bayesrnn as br

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


class Double(nn.Module):
    def forward(self, w):
        return 2 * w


def parametrised(layer):
    parametrize.register_parametrization(layer, "weight_hh_l0", Double())


CHANGES = {
    "weight_norm": lambda layer: parametrizations.weight_norm(layer, "weight_hh_l0"),
    "old weight_norm": lambda layer: nn.utils.weight_norm(layer, "weight_hh_l0"),
    "parametrised": parametrised,
    "pruned": lambda layer: prune.l1_unstructured(layer, "weight_hh_l0", amount=0.5),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_kl_of_dropout_is_of_the_weight_in_use(change):
    layer = br.LSTM(3, 4, recurrent_dropout=0.25)
    CHANGES[change](layer)
    expected = 0.75 / 2 * layer.weight_hh_l0.square().sum()
    torch.testing.assert_close(br.kl(layer), expected)
    with torch.no_grad():
        for p in layer.parameters():
            p.mul_(2)  # g of weight_norm as v: the weight is twice what it was
    torch.testing.assert_close(br.kl(layer), 4 * expected)  # without a call in between
    br.kl(layer).backward()
    assert any(p.grad is not None and p.grad.any() for p in layer.parameters())


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU, br.LSTM])
def test_bayes_by_backprop_around_it(change, cell):
    torch.manual_seed(0)
    layer, x = cell(3, 4), torch.randn(5, 2, 3)
    CHANGES[change](layer)
    q = br.BayesByBackprop(layer, init_sigma=0.3)
    names = [name for name in q.means if "weight_hh_l0" in name]
    assert names, "the parameters behind the weight are random"
    with br.draw(q, seed=0):
        out = q(x)[0]
        assert torch.equal(out, q(x)[0])
    assert not torch.equal(q(x)[0], q(x)[0])
    (out.square().sum() + br.kl(q)).backward()
    assert all(q.posterior.rho[name].grad.any() for name in names)
    expected = sum(
        torch.distributions.kl_divergence(torch.distributions.Normal(m, s), torch.distributions.Normal(0.0, 1.0)).sum()
        for _, m, s in q.named_posteriors()
    )
    torch.testing.assert_close(br.kl(q), expected)  # and no L2 form of the computed weight beside it
    torch.testing.assert_close(q.eval()(x)[0], layer(x)[0])


def test_a_noisy_parametrised_layer_has_one_kl():
    layer = br.LSTM(3, 4, input_dropout=0.5, recurrent_dropout=0.5)
    parametrizations.weight_norm(layer, "weight_hh_l0")
    q = br.BayesByBackprop(layer, prior=br.Normal(1.0))
    plain = br.BayesByBackprop(copy.deepcopy(layer), prior=br.Normal(1.0))
    plain.module.rates = br.LSTM(3, 4).rates
    torch.testing.assert_close(br.kl(q), br.kl(plain))


class Scaled(nn.LSTM):
    """A `forward` of its own, with another signature."""

    def forward(self, x, scale=3.0, *, hx=None):
        out, state = super().forward(x, hx)
        return scale * out, state


class Stacked(nn.GRU):
    def forward(self, inputs, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(inputs, lengths, enforce_sorted=False)
        out, _ = super().forward(packed)
        return nn.utils.rnn.pad_packed_sequence(out)[0]


@pytest.mark.parametrize("path", [None, "reference", "loop"])
def test_a_subclass_keeps_its_forward(path):
    x, plain = torch.randn(5, 2, 3), Scaled(3, 4)
    q = br.BayesByBackprop(plain, init_sigma=1e-4)
    with br.kernels.force(path) if path else br.draw(q):
        out, _ = q(x, scale=2.0)
        out.sum().backward()
    torch.testing.assert_close(out, plain(x, scale=2.0)[0], rtol=1e-2, atol=1e-2)
    assert q.posterior.rho["weight_hh_l0"].grad.any()
    assert "forward" not in q.module.__dict__
    lengths = torch.tensor([5, 3])
    q = br.BayesByBackprop(Stacked(3, 4), init_sigma=1e-4)
    torch.testing.assert_close(q(x, lengths), q.mean_module()(x, lengths), rtol=1e-2, atol=1e-2)


def test_an_instance_with_a_forward_of_its_own_keeps_it():
    layer = nn.LSTM(3, 4)
    layer.forward = lambda x: (x.sum() + layer.weight_hh_l0.sum(), None)
    q = br.BayesByBackprop(nn.Sequential(layer), init_sigma=0.5)
    assert q(torch.ones(2, 1, 3))[0].shape == ()


def test_the_padding_row_has_no_noise_at_either_level():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 3, padding_idx=2), nn.Linear(3, 2))
    s = br.PosteriorSharpening(br.BayesByBackprop(model, init_sigma=0.5), sigma0=0.5)
    x, y = torch.tensor([0, 2, 4]), torch.tensor([0, 1, 0])
    with s.sharpen(lambda: br.Categorical().nll(s(x), y)):
        theta = s._placed["0.weight"]
    assert torch.equal(theta[2], s.q.module[0].weight[2])
    assert (theta[[0, 1, 3, 4]] != s.q.module[0].weight[[0, 1, 3, 4]]).all()
