"""Random modules, nested, wrapped, subclassed, shared and tied: what must hold for each of them."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import bayesrnn as br
from tests.compat.test_wrappers import Posing, Proxy, Twice

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
WIDTH = 4


class Own(nn.Linear):
    def forward(self, input):
        return super().forward(input) * 0.5


class Residual(nn.Module):
    """The same module twice: its weights are shared."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.again = inner, nn.ModuleList([inner])

    def forward(self, x):
        return x + self.inner(self.again[0](x)) / 2


class First(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)[0]


def tied():
    first, second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    second.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), second)


LEAVES = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "own": lambda: Own(WIDTH, WIDTH),
    "tied": tied,
    "lstm": lambda: First(nn.LSTM(WIDTH, WIDTH)),
    "gru": lambda: First(nn.GRU(WIDTH, WIDTH, bias=False)),
    "norm": lambda: nn.LayerNorm(WIDTH),
}
leaves = st.sampled_from(sorted(LEAVES))
modules = st.recursive(
    leaves,
    lambda inner: st.tuples(st.sampled_from(["chain", "residual"]), st.lists(inner, min_size=1, max_size=3)),
    max_leaves=5,
)
POSTERIORS = {
    "plain": lambda m: m,
    "gaussian": lambda m: br.BayesByBackprop(m, prior=br.Normal(0.7), init_sigma=0.3),
    "biases": lambda m: br.BayesByBackprop(m, prior=br.Normal(0.7), init_sigma=0.3, include=last_name(m)),
    "dropped": lambda m: nn.Sequential(m, First(br.LSTM(WIDTH, WIDTH, recurrent_dropout=0.5))),
}
WRAPPERS = {"none": lambda m: m, "proxy": Proxy, "posing": Posing, "twice": Twice, "sequential": nn.Sequential}


def last_name(module):
    return [name for name, _ in module.named_parameters()][-1]


def build(plan):
    if isinstance(plan, str):
        return LEAVES[plan]()
    kind, parts = plan
    inner = nn.Sequential(*map(build, parts))
    return Residual(inner) if kind == "residual" else inner


def analytic(model):
    """The KL, summed by hand over the posteriors and the dropout layers of the model."""
    total, seen = torch.zeros(()), set()
    for part in model.modules():
        if id(part) in seen:
            continue
        seen.add(id(part))
        if type(part) is br.BayesByBackprop:
            for _, mean, sigma in part.named_posteriors():
                q, p = torch.distributions.Normal(mean, sigma), torch.distributions.Normal(0.0, 0.7)
                total = total + torch.distributions.kl_divergence(q, p).sum()
        if type(part) is br.LSTM:
            total = total + 0.5 / 2 * part.weight_hh_l0.square().sum()
    return total


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    plans=st.lists(modules, min_size=1, max_size=2), kind=st.sampled_from(sorted(POSTERIORS)),
    wrapper=st.sampled_from(sorted(WRAPPERS)), seed=st.integers(0, 1000),
)  # fmt: skip
def test_random_modules(plans, kind, wrapper, seed):
    torch.manual_seed(seed)
    inner = nn.Sequential(*[POSTERIORS[kind](build(plan)) for plan in plans])
    model, x = WRAPPERS[wrapper](inner), torch.randn(3, 2, WIDTH)
    torch.testing.assert_close(br.kl(model), analytic(inner), rtol=1e-4, atol=1e-4)
    model.train()
    with br.draw(inner, seed=1):
        held = inner(x)
        assert torch.equal(inner(x), held)  # a draw is held
    with br.draw(inner, seed=1):
        assert torch.equal(inner(x), held)  # and found again by its seed
    random = kind != "plain"
    assert torch.equal(inner(x), inner(x)) != random  # noise where it was promised, and nowhere else
    inner(x).sum().backward()
    torch.testing.assert_close(br.kl(model), analytic(inner), rtol=1e-4, atol=1e-4)
    model.eval()
    mean = model(x)
    with br.mean(model.train()):
        torch.testing.assert_close(model(x), mean, rtol=0, atol=0)
    model.eval()
    if random:
        found = [
            br.predict(inner, x, samples=5, seed=2, likelihood=br.Gaussian(), batch_dim=1, memory_limit=limit).samples
            for limit in (1, 1 << 30)
        ]
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)  # however the draws are cut
        assert torch.equal(copy.deepcopy(model)(x), mean)
