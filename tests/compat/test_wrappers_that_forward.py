"""Wrappers that forward attributes to the module inside: they are copied, exported and seeded as themselves."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import bayesrnn as br
from bayesrnn.export import to_exported
from tests.compat.test_wrappers import Proxy


class Doubling(Proxy):
    """Doubles the output of what it holds."""

    def forward(self, x):
        return 2 * self.inner(x) + 1


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.LSTM(3, 4), nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.rnn(x)[0])


@pytest.mark.parametrize("make", [br.BayesByBackprop, br.DropConnect, lambda net: net])
def test_a_copy_and_an_export_keep_the_wrapper(make):
    torch.manual_seed(0)
    model, x = Doubling(make(Net())).eval(), torch.randn(5, 2, 3)
    expected = model(x)
    for made in (copy.deepcopy(model), br.to_torch(model)):
        assert type(made) is Doubling
        assert torch.allclose(made(x), expected)
    assert torch.allclose(to_exported(model, (x,)).module()(x), expected, atol=1e-5)


def test_a_copy_of_another_class_is_refused():
    class Odd(nn.Linear):
        def __deepcopy__(self, memo):
            return nn.Identity()

    with pytest.raises(TypeError, match=r"a copy of this Odd is a Identity"):
        br.to_torch(Odd(2, 2))


def test_a_posterior_is_copied_while_its_weights_have_a_history():
    """Hooks of torch's pruning leave weights with a history behind; a gradient is still to be taken."""
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    prune.random_unstructured(net[0], "weight", 0.5)
    q = br.BayesByBackprop(net)
    loss = q(torch.randn(2, 3)).sum()
    made = copy.deepcopy(q)
    loss.backward()
    assert all(p.grad is not None for p in q.module.parameters())
    assert all(p.grad is None for p in made.parameters())


@pytest.mark.parametrize("wrap", [nn.DataParallel, torch.optim.swa_utils.AveragedModel])
@pytest.mark.parametrize("make", [br.BayesByBackprop, lambda net: nn.Sequential(net, br.Dropout(0.5))])
def test_a_seed_gives_the_same_draw_inside_a_wrapper(wrap, make):
    torch.manual_seed(0)
    model, x = make(Net()), torch.randn(5, 2, 3)
    found = br.predict(wrap(model), x, samples=3, seed=1)
    assert torch.allclose(found.samples, br.predict(model, x, samples=3, seed=1).samples)


def test_attributes_of_a_users_module_mean_nothing_to_explain():
    class Posterior(nn.Linear):
        weights_kernel = "gaussian"
        runs_recurrent = True

        @property
        def posterior(self):
            raise RuntimeError("not ours")

        def kernel_facts(self):
            raise RuntimeError("not ours")

    assert br.kernels.explain(Posterior(2, 2)).startswith("no recurrent layer")
