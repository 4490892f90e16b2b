"""Likelihoods: sums of -log p, counts, and what they refuse."""

import math

import pytest
import torch
from torch import nn
from torch.distributions import Categorical, Normal

import bayesrnn as br


@pytest.mark.parametrize("shape", [(), (4,), (5, 3), (2, 3, 4)])
def test_categorical_is_the_sum_of_log_probabilities(shape):
    logits, target = torch.randn(*shape, 7, dtype=torch.float64), torch.randint(7, shape)
    likelihood = br.Categorical()
    torch.testing.assert_close(likelihood.nll(logits, target), -Categorical(logits=logits).log_prob(target).sum())
    assert int(likelihood.count(target)) == math.prod(shape)


@pytest.mark.parametrize("padding", [-100, 0, -1])
def test_padding_does_not_count(padding):
    logits, target = torch.randn(5, 3, 7, requires_grad=True), torch.randint(1, 7, (5, 3))
    target[2:, 1] = padding
    likelihood = br.Categorical(ignore_index=padding)
    real = target != padding
    expected = -Categorical(logits=logits[real]).log_prob(target[real]).sum()
    torch.testing.assert_close(likelihood.nll(logits, target), expected)
    assert int(likelihood.count(target)) == 12
    likelihood.nll(logits, target).backward()
    assert not logits.grad[~real].any()
    target[:] = padding
    assert int(likelihood.count(target)) == 0


@pytest.mark.parametrize("sigma", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("learn", [True, False])
def test_gaussian_is_the_sum_of_log_densities(sigma, learn):
    output, target = torch.randn(2, 5, 3, dtype=torch.float64)
    likelihood = br.Gaussian(sigma, learn=learn).double()
    torch.testing.assert_close(
        likelihood.nll(output, target), -Normal(output, torch.full_like(output, sigma)).log_prob(target).sum()
    )
    assert likelihood.count(target) == 15
    assert len(list(likelihood.parameters())) == int(learn)
    assert float(likelihood.sigma.detach()) == pytest.approx(sigma)
    assert "log_sigma" in likelihood.state_dict()


def test_learnt_noise_finds_the_maximum_likelihood():
    torch.manual_seed(0)
    output, target = torch.zeros(200, 1), 0.37 * torch.randn(200, 1) + 0.1
    likelihood = br.Gaussian(3.0)
    elbo = br.ELBO(nn.Identity(), likelihood, num_data=200)
    assert set(elbo.parameters()) == {likelihood.log_sigma}
    optimiser = torch.optim.LBFGS(elbo.parameters(), max_iter=100, line_search_fn="strong_wolfe")

    def closure():
        optimiser.zero_grad()
        loss = elbo(output, target).loss
        loss.backward()
        return loss

    optimiser.step(closure)
    assert float(likelihood.sigma.detach()) == pytest.approx(float(target.square().mean().sqrt()), rel=1e-3)


def test_gaussian_gradients_match_finite_differences():
    output, target = torch.randn(2, 4, dtype=torch.float64)
    likelihood = br.Gaussian(0.7).double()

    def f(output, log_sigma):
        likelihood._parameters["log_sigma"] = log_sigma
        return likelihood.nll(output, target)

    log_sigma = likelihood.log_sigma
    assert torch.autograd.gradcheck(f, (output.requires_grad_(), log_sigma))


def test_wrong_shapes_and_types_say_what_to_do():
    with pytest.raises(
        ValueError, match=r"without its last axis, \(5, 3\), got \(5, 3, 7\): targets are class indices"
    ):
        br.Categorical().nll(torch.randn(5, 3, 7), torch.zeros(5, 3, 7))
    with pytest.raises(ValueError, match=r"\(5, 3\), got \(3, 5\)"):
        br.Categorical().nll(torch.randn(5, 3, 7), torch.zeros(3, 5).long())
    with pytest.raises(ValueError, match=r"for real values use br.Gaussian"):
        br.Categorical().nll(torch.randn(5, 7), torch.zeros(5))
    with pytest.raises(ValueError, match=r"output's shape \(5, 1\), got \(5,\).*not broadcast"):
        br.Gaussian().nll(torch.randn(5, 1), torch.zeros(5))
    for sigma in (0, -1, math.nan):
        with pytest.raises(ValueError, match="sigma must be a positive number"):
            br.Gaussian(sigma)


@pytest.mark.parametrize("kind", [torch.int32, torch.int16, torch.uint8, torch.bool])
def test_class_indices_may_be_of_any_whole_type(kind):
    logits, target = torch.randn(5, 3), torch.tensor([0, 1, 1, 0, 1])
    assert torch.equal(br.Categorical().nll(logits, target.to(kind)), br.Categorical().nll(logits, target))


@pytest.mark.parametrize(("classes", "said"), [([0, 3], "got 0 to 3"), ([-1, 2], "got -1 to 2")])
def test_targets_that_are_no_class_are_named(classes, said):
    logits, target = torch.randn(2, 3), torch.tensor(classes)
    for check in (br.Categorical().nll, br.Categorical()._check_range):
        with pytest.raises(ValueError, match=f"targets must be classes from 0 to 2, as the output has 3, {said}"):
            check(logits, target)
    ignoring = br.Categorical(ignore_index=3 if 3 in classes else -1)
    assert ignoring.nll(logits, target).isfinite()
    ignoring._check_range(logits, target)
    ignoring._check_range(logits[:0], target[:0])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_targets_that_are_no_class_are_named_before_a_gpu_stops():
    model = torch.nn.Linear(2, 3, device="cuda")
    elbo = br.ELBO(model, br.Categorical(), num_data=5)
    with pytest.raises(ValueError, match="targets must be classes from 0 to 2"):
        elbo(model(torch.ones(2, 2, device="cuda")), torch.tensor([0, 3], device="cuda"))
    assert elbo(model(torch.ones(2, 2, device="cuda")), torch.tensor([0, 2], device="cuda")).loss.isfinite()


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64]
)
def test_class_indices_of_any_whole_type(dtype):
    """-100 as uint8 is 156, which is a class like any other."""
    most = min(torch.iinfo(dtype).max, 199)
    target = torch.arange(most - 100, most + 1)
    assert (most < 156) or (156 in target)
    output = torch.randn(101, 200)
    likelihood = br.Categorical()
    assert int(likelihood.count(target.to(dtype))) == 101
    torch.testing.assert_close(likelihood.nll(output, target.to(dtype)), likelihood.nll(output, target))
    padded = br.Categorical(ignore_index=most)
    assert int(padded.count(target.to(dtype))) == 100
    torch.testing.assert_close(padded.nll(output, target.to(dtype)), padded.nll(output, target))
