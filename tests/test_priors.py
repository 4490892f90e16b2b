"""Log-densities of the priors, against distributions and brute force in float64."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.distributions import Normal

import bayesrnn as br


def normal(sigma):
    return Normal(torch.zeros((), dtype=torch.float64), torch.tensor(sigma, dtype=torch.float64))


def brute_force(w, pi, sigma1, sigma2, groups):
    """Mixture log-density of each group of weights, a list of flat index tensors; float64 log-sum-exp."""
    w = w.detach().double().flatten()
    out = []
    for group in groups:
        parts = [math.log(p) + normal(s).log_prob(w[group]).sum() for p, s in ((pi, sigma1), (1 - pi, sigma2))]
        out.append(torch.logsumexp(torch.stack(parts), 0))
    return torch.stack(out)


def groups_of(shape, axis):
    index = torch.arange(math.prod(shape)).view(shape)
    return [index.flatten()] if axis is None else [index.select(axis, k).flatten() for k in range(shape[axis])]


@pytest.mark.parametrize("sigma", [1e-3, 0.5, 7.0])
def test_normal_is_the_normal(sigma):
    w = torch.randn(4, 5, dtype=torch.float64)
    torch.testing.assert_close(br.Normal(sigma).log_prob(w), normal(sigma).log_prob(w))


def test_mixture_far_out_is_not_floored():
    # 0.5 N(0, 1) + 0.5 N(0, small): at 20 only the wide part is left, log 0.5 - 200 - 0.5 log 2 pi = -201.6
    for group in ("weight", "input"):
        prior = br.ScaleMixture(0.5, 1.0, math.exp(-6), group=group)
        found = float(prior.log_prob(torch.tensor([20.0])).sum())
        assert found == pytest.approx(math.log(0.5) - 200 - 0.5 * math.log(2 * math.pi), abs=1e-4)
        assert found == pytest.approx(-201.6, abs=0.02)


@pytest.mark.parametrize("group", ["weight", "input"])
@pytest.mark.parametrize("w", [0.0, 1e-30, 1e-9, 1e-3, 0.1, 1.0, 20.0, 1e3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mixture_of_one_weight_at_any_size(w, group, dtype):
    prior = br.ScaleMixture(0.25, math.exp(-1), math.exp(-7), group=group)
    value = torch.tensor([w], dtype=dtype, requires_grad=True)
    found = prior.log_prob(value).sum()
    expected = brute_force(value, 0.25, math.exp(-1), math.exp(-7), [torch.tensor([0])])[0]
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    (slope,) = torch.autograd.grad(found, value)
    assert torch.isfinite(slope).all()
    if w == 20.0:
        assert float(slope) == pytest.approx(-20 / math.exp(-2), rel=1e-5)
    if w == 1e-9:
        assert float(slope) == pytest.approx(-1e-9 / math.exp(-14), rel=2e-3)  # the narrow part rules near 0


@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 4), (2, 3, 4, 5), (1, 6), (6, 1)])
def test_one_indicator_per_weight(shape):
    w = torch.randn(shape, dtype=torch.float64) * 0.1
    prior = br.ScaleMixture(0.3, 0.4, 0.01, group="weight")
    expected = brute_force(w, 0.3, 0.4, 0.01, [torch.tensor([k]) for k in range(w.numel())])
    torch.testing.assert_close(prior.log_prob(w).flatten(), expected)
    assert prior.log_prob(w).shape == w.shape


@pytest.mark.parametrize(
    ("shape", "axis"), [((3, 4), 1), ((3, 4), 0), ((2, 3, 4), 1), ((2, 3, 4, 5), -3), ((7,), None)]
)
def test_one_indicator_per_input_unit(shape, axis):
    w = torch.randn(shape, dtype=torch.float64) * 0.05
    prior = br.ScaleMixture(0.3, 0.4, 0.01)
    found = prior.log_prob(w, group_dim=axis)
    expected = brute_force(w, 0.3, 0.4, 0.01, groups_of(shape, axis))
    torch.testing.assert_close(found.flatten(), expected)


def test_default_axis_is_the_input_of_matrices_and_convolutions():
    prior = br.ScaleMixture(0.3, 0.4, 0.01)
    for shape in ((5, 3), (5, 3, 2, 2)):
        w = torch.randn(shape) * 0.05
        torch.testing.assert_close(prior.log_prob(w), prior.log_prob(w, group_dim=1))
        assert prior.log_prob(w).shape == (3,)


@pytest.mark.parametrize(
    ("module", "name", "axis"),
    [
        (nn.Embedding(7, 3), "weight", 0),  # per word
        (br.Embedding(7, 3, word_dropout=0.1), "weight", 0),
        (nn.Linear(4, 3), "weight", 1),  # per input unit
        (nn.Linear(4, 3), "bias", None),  # one per vector
        (nn.Conv1d(4, 3, 2), "weight", 1),
        (nn.Conv2d(4, 3, 2), "weight", 1),
        (nn.ConvTranspose1d(4, 3, 2), "weight", 0),  # (in, out, kernel)
        (nn.LSTM(4, 3), "weight_ih_l0", 1),
        (nn.LSTM(4, 3), "weight_hh_l0", 1),
        (nn.LSTM(4, 3), "bias_ih_l0", None),
        (br.GRU(4, 3), "weight_hh_l0", 1),
    ],
)
def test_posteriors_group_each_kind_of_weight_as_promised(module, name, axis):
    """With a tiny sigma the KL estimate moves with the weights as -log p of the right groups does."""
    torch.manual_seed(0)
    module = module.double()
    w = getattr(module, name)
    prior = br.ScaleMixture(0.25, math.exp(-1), math.exp(-4))
    values = []
    for scale in (0.05, 0.3):
        with torch.no_grad():
            w.normal_(0, scale)
        q = br.BayesByBackprop(module, prior, init_sigma=1e-9, include=name)
        q.train()
        with br.draw(q, seed=1):
            kl = float(br.kl(q).detach())
        log_p = float(brute_force(w, 0.25, math.exp(-1), math.exp(-4), groups_of(tuple(w.shape), axis)).sum())
        values.append(kl + log_p)
    assert values[0] == pytest.approx(values[1], abs=1e-4)


@settings(max_examples=30, deadline=None)
@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    pi=st.floats(0.01, 0.99),
    logs=st.tuples(st.floats(-8, 1), st.floats(-8, 1)),
    scale=st.floats(-10, 3),
    data=st.data(),
)
def test_mixture_against_brute_force(shape, pi, logs, scale, data):
    axis = data.draw(st.integers(0, len(shape) - 1)) if len(shape) > 1 else None
    w = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * math.exp(scale)
    sigmas = [math.exp(v) for v in logs]
    found = br.ScaleMixture(pi, *sigmas).log_prob(w, group_dim=axis)
    torch.testing.assert_close(found.flatten(), brute_force(w, pi, *sigmas, groups_of(shape, axis)))


@pytest.mark.parametrize("group", ["weight", "input"])
@pytest.mark.parametrize("shape", [(4,), (3, 2), (2, 3, 2)])
def test_gradients_match_finite_differences(group, shape):
    w = (torch.randn(shape, dtype=torch.float64) * 0.2).requires_grad_()
    prior = br.ScaleMixture(0.25, 0.5, 0.1, group=group)
    assert torch.autograd.gradcheck(prior.log_prob, (w,))


def test_standard_deviation_of_the_mixture():
    # 400,000 weights: the standard error of the standard deviation is about 0.2%; the limit is 1%.
    prior = br.ScaleMixture(0.3, 0.5, 0.05)
    n = 400_000
    torch.manual_seed(0)
    drawn = torch.randn(n) * torch.where(torch.rand(n) < 0.3, 0.5, 0.05)
    assert float(drawn.std()) == pytest.approx(prior.sigma, rel=0.01)


def test_mixture_integrates_to_one():
    grid = torch.linspace(-6, 6, 60_001, dtype=torch.float64)
    for group in ("weight", "input"):
        prior = br.ScaleMixture(0.3, 0.8, 0.05, group=group)
        total = sum(float(prior.log_prob(part.view(-1, 1)[:, 0:1].t()).exp().sum()) for part in grid.split(10_001))
        assert total * float(grid[1] - grid[0]) == pytest.approx(1, abs=1e-6)


def test_arguments_are_checked():
    for sigma in (0, -1, math.nan, math.inf, "1", None):
        with pytest.raises(ValueError, match="standard deviation"):
            br.Normal(sigma)
        with pytest.raises(ValueError, match="sigma2 must be a positive number"):
            br.ScaleMixture(0.5, 1.0, sigma)
        with pytest.raises(ValueError, match="sigma1 must be a positive number"):
            br.ScaleMixture(0.5, sigma, 1.0)
    for pi in (0, 1, -0.1, 1.5, math.nan, "half"):
        with pytest.raises(ValueError, match="pi must be a number in"):
            br.ScaleMixture(pi, 1.0, 0.1)
    with pytest.raises(ValueError, match="group must be one of 'input', 'weight', got 'row'"):
        br.ScaleMixture(0.5, 1.0, 0.1, group="row")


def test_reprs_say_what_they_are():
    assert repr(br.Normal(0.5)) == "Normal(sigma=0.5)"
    assert "group='input'" in repr(br.ScaleMixture(0.25, 1, 0.1))


def test_numpy_numbers_are_numbers():
    assert br.Normal(np.float32(0.5)).sigma == br.Normal(np.int64(1)).sigma / 2 == 0.5
    mixture = br.ScaleMixture(np.float32(0.25), np.float64(0.5), np.float16(0.125))
    assert (mixture.pi, mixture.sigma1, mixture.sigma2) == (0.25, 0.5, 0.125)
    assert all(type(v) is float for v in (mixture.pi, mixture.sigma1, mixture.sigma2, br.Normal(np.float32(1)).sigma))
    for wrong in (np.float32("nan"), np.float32(0), np.bool_(True), True, "1"):
        with pytest.raises(ValueError, match="sigma must be a positive number"):
            br.Normal(wrong)
