"""A second derivative through a fast kernel is an error, never a missing term."""

import pytest
import torch
from torch import nn

import bayesrnn as br

LAYERS = [br.LSTM, br.GRU, br.RNN]


def gradient_of_sum(layer, x):
    """Of a loss whose own gradient is constant: what comes in has no history."""
    with br.draw(layer, seed=0):
        out = layer(x)[0]
    return torch.autograd.grad(out.sum(), x, create_graph=True)[0]


@pytest.mark.parametrize("make", LAYERS)
@pytest.mark.parametrize("path", ["compiled", "loop"])
@pytest.mark.parametrize("rates", [{"recurrent_dropout": 0.3}, {"input_dropout": 0.3, "tied": False}])
def test_a_penalty_on_the_gradient_is_refused(make, path, rates):
    x = torch.randn(6, 3, 4, requires_grad=True)
    with br.kernels.force(path):
        gradient = gradient_of_sum(make(4, 3, **rates), x)
    assert gradient.requires_grad
    with pytest.raises(RuntimeError, match=r"can be differentiated once: .*force\('reference'\)"):
        gradient.square().sum().backward()


@pytest.mark.parametrize("make", LAYERS)
def test_the_reference_path_gives_it(make):
    torch.manual_seed(0)
    layer = make(4, 3, recurrent_dropout=0.3, dtype=torch.float64)
    x = torch.randn(3, 2, 4, dtype=torch.float64, requires_grad=True)
    with br.kernels.force("reference"):
        (second,) = torch.autograd.grad(gradient_of_sum(layer, x).square().sum(), x)
        step = torch.randn_like(x) * 1e-6
        ends = [gradient_of_sum(layer, (x + k * step).detach().requires_grad_()).square().sum() for k in (1, -1)]
    torch.testing.assert_close((ends[0] - ends[1]) / 2, (second * step).sum(), rtol=1e-5, atol=0)


def test_first_derivatives_with_a_graph_are_unchanged():
    layer, x = br.LSTM(4, 3, recurrent_dropout=0.3), torch.randn(6, 3, 4, requires_grad=True)
    with br.draw(layer, seed=0):
        (plain,) = torch.autograd.grad(layer(x)[0].sum(), x)
    torch.testing.assert_close(gradient_of_sum(layer, x).detach(), plain, rtol=0, atol=0)


@pytest.mark.parametrize("path", ["compiled", "reference"])
@pytest.mark.parametrize("group", ["weight", "input"])
def test_the_kl_of_a_mixture(path, group):
    q = br.BayesByBackprop(nn.Linear(4, 3).double(), br.ScaleMixture(0.5, 1.0, 0.1, group=group))
    if path == "compiled":
        q = q.float()
    with br.kernels.force(path), br.draw(q, seed=0):
        q(torch.ones(1, 4, dtype=q.module.weight.dtype))
        (gradient,) = torch.autograd.grad(br.kl(q), q.posterior.rho["weight"], create_graph=True)
    if path == "reference":
        gradient.square().sum().backward()
        assert q.module.weight.grad.abs().max() > 0
    else:
        with pytest.raises(RuntimeError, match="can be differentiated once"):
            gradient.square().sum().backward()
