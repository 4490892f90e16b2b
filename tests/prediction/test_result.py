"""`Prediction`: averages and the two kinds of uncertainty, against brute force."""

import math

import pytest
import torch
from torch import nn
from torch.distributions import Normal

import bayesrnn as br
from bayesrnn.prediction.result import Summary, entropy_of


def summary(outputs, likelihood, *, chunks=1, keep=True):
    made = Summary(likelihood, keep)
    for part in outputs.chunk(chunks):
        made.add(part)
    return made.prediction()


def classifier(draws=40, shape=(5, 3, 7), scale=2.0, chunks=3):
    torch.manual_seed(0)
    logits = scale * torch.randn(draws, *shape, dtype=torch.float64)
    return logits, summary(logits, br.Categorical(), chunks=chunks)


def test_probabilities_and_entropies_of_a_classifier():
    logits, prediction = classifier()
    p = logits.softmax(-1)
    torch.testing.assert_close(prediction.samples, p)
    torch.testing.assert_close(prediction.mean, p.mean(0))
    torch.testing.assert_close(prediction.mean.sum(-1), torch.ones(5, 3, dtype=torch.float64))
    torch.testing.assert_close(prediction.entropy, -(p.mean(0) * p.mean(0).log()).sum(-1))
    torch.testing.assert_close(prediction.aleatoric, -(p * p.log()).sum(-1).mean(0))
    torch.testing.assert_close(prediction.variance, p.var(0, correction=0))
    kl = (p * (p.log() - p.mean(0).log())).sum(-1).mean(0)  # mutual information is the mean KL from the average
    torch.testing.assert_close(prediction.mutual_information, kl)
    torch.testing.assert_close(prediction.epistemic, prediction.mutual_information)
    torch.testing.assert_close(prediction.entropy, prediction.aleatoric + prediction.mutual_information)
    assert bool((prediction.mutual_information >= 0).all())
    assert bool((prediction.entropy <= math.log(7) + 1e-9).all())
    assert prediction.kind == "classifier"
    assert prediction.count == 40


def test_certain_predictions_have_no_entropy():
    assert float(entropy_of(torch.tensor([1.0, 0.0, 0.0]))) == 0
    logits = torch.tensor([[[200.0, -200.0]]] * 3)
    prediction = summary(logits, br.Categorical())
    assert float(prediction.entropy) == 0
    assert float(prediction.mutual_information) == 0


def test_draws_that_disagree_are_epistemic_and_flat_draws_are_aleatoric():
    disagree = summary(torch.tensor([[[30.0, -30.0]], [[-30.0, 30.0]]]), br.Categorical())
    assert float(disagree.epistemic) == pytest.approx(math.log(2))
    assert float(disagree.aleatoric) == pytest.approx(0, abs=1e-6)
    flat = summary(torch.zeros(2, 1, 2), br.Categorical())
    assert float(flat.epistemic) == pytest.approx(0, abs=1e-6)
    assert float(flat.aleatoric) == pytest.approx(math.log(2))


@pytest.mark.parametrize("chunks", [1, 2, 7, 40])
@pytest.mark.parametrize("likelihood", [br.Categorical(), br.Gaussian(0.5), None])
def test_running_averages_do_not_depend_on_chunks(chunks, likelihood):
    torch.manual_seed(0)
    outputs = torch.randn(40, 4, 3, dtype=torch.float64) + 1e3  # far from 0: a naive sum of squares would lose it
    whole, cut = summary(outputs, likelihood), summary(outputs, likelihood, chunks=chunks)
    for name in ("mean", "variance", "samples", "entropy", "aleatoric", "epistemic"):
        torch.testing.assert_close(getattr(cut, name), getattr(whole, name))


def regressor(sigma=0.5, draws=50):
    torch.manual_seed(0)
    outputs = torch.randn(draws, 6, 1, dtype=torch.float64) * torch.linspace(0.01, 3, 6, dtype=torch.float64).view(6, 1)
    return outputs, summary(outputs, br.Gaussian(sigma).double(), chunks=4)


def test_variance_of_a_regressor_is_aleatoric_plus_epistemic():
    outputs, prediction = regressor()
    torch.testing.assert_close(prediction.mean, outputs.mean(0))
    torch.testing.assert_close(prediction.epistemic, outputs.var(0, correction=0))
    torch.testing.assert_close(prediction.aleatoric, torch.full((6, 1), 0.25, dtype=torch.float64))
    torch.testing.assert_close(prediction.variance, prediction.aleatoric + prediction.epistemic)
    torch.testing.assert_close(prediction.entropy, Normal(0.0, prediction.variance.sqrt()).entropy())
    torch.testing.assert_close(
        prediction.mutual_information, prediction.entropy - Normal(0.0, prediction.aleatoric.sqrt()).entropy()
    )
    assert prediction.kind == "regressor"


def test_regressor_without_noise():
    outputs, _ = regressor()
    prediction = summary(outputs, None)
    assert not prediction.aleatoric.any()
    torch.testing.assert_close(prediction.variance, outputs.var(0, correction=0))
    low, high = prediction.interval(0.8)
    levels = torch.tensor([0.1, 0.9], dtype=torch.float64)
    expected = torch.quantile(outputs, levels, dim=0)
    torch.testing.assert_close(torch.stack([low, high]), expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(RuntimeError, match=r"give predict likelihood=br.Gaussian"):
        prediction.mutual_information


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95, 0.999])
def test_interval_of_a_gaussian_mixture_has_its_level(level):
    outputs, prediction = regressor()
    low, high = prediction.interval(level)
    cdf = lambda v: torch.special.ndtr((v - outputs) / 0.5).mean(0)  # noqa: E731
    torch.testing.assert_close(cdf(low), torch.full_like(low, (1 - level) / 2), rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(cdf(high), torch.full_like(low, (1 + level) / 2), rtol=1e-8, atol=1e-10)


def test_interval_agrees_with_brute_force_quantiles():
    # Quantiles of 400,000 numbers drawn from the mixture; at the 2.5% tails their standard error is below 1% of the
    # mixture's standard deviation; the limit is 3%.
    outputs, prediction = regressor()
    index = torch.randint(50, (400_000,))
    drawn = outputs[index, :, 0] + 0.5 * torch.randn(400_000, 6, dtype=torch.float64)
    drawn = drawn.sort(0).values
    low, high = prediction.interval(0.95)
    spread = prediction.variance.sqrt().flatten()
    assert bool(((drawn[10_000] - low.flatten()).abs() < 0.03 * spread).all())
    assert bool(((drawn[390_000] - high.flatten()).abs() < 0.03 * spread).all())


def test_interval_of_a_classifier_is_of_each_probability():
    logits, prediction = classifier()
    low, high = prediction.interval(0.9)
    p = logits.softmax(-1)
    expected = torch.quantile(p, torch.tensor([0.05, 0.95], dtype=torch.float64), dim=0)
    torch.testing.assert_close(torch.stack([low, high]), expected, rtol=1e-5, atol=1e-6)
    assert low.dtype == torch.float64


@pytest.mark.parametrize("level", [0, 1, -0.5, 95, math.nan])
def test_level_is_a_probability(level):
    with pytest.raises(ValueError, match="level must be between 0 and 1"):
        regressor()[1].interval(level)


def test_prediction_intervals_of_a_linear_model_cover_what_they_say():
    # Targets from the model itself: 1,500 of them, 90% intervals; the share's standard error is 0.8%, the limit 4%.
    torch.manual_seed(0)
    q = br.BayesByBackprop(nn.Linear(3, 1), init_sigma=0.3)
    x = torch.randn(1500, 3)
    prediction = br.predict(q, x, samples=400, seed=1, likelihood=br.Gaussian(0.4))
    with torch.no_grad():
        weights = q.module.weight + 0.3 * torch.randn(1500, 3)
        biases = q.module.bias + 0.3 * torch.randn(1500)
        y = ((weights * x).sum(-1) + biases + 0.4 * torch.randn(1500)).unsqueeze(1)
    share = br.uncertainty.interval_coverage(*prediction.interval(0.9), y)
    assert abs(share - 0.9) < 0.04


def test_learnt_noise_is_taken_from_the_likelihood():
    likelihood = br.Gaussian(0.3)
    prediction = br.predict(nn.Linear(2, 1), torch.zeros(4, 2), samples=1, likelihood=likelihood)
    torch.testing.assert_close(prediction.aleatoric, torch.full((4, 1), 0.09))
    assert not prediction.variance.requires_grad


def test_nan_outputs_are_refused_and_repr_is_short():
    with pytest.raises(FloatingPointError, match="NaN or infinite"):
        summary(torch.tensor([[1.0, math.nan]]), br.Categorical())
    assert repr(classifier()[1]) == "Prediction(classifier, 40 draws, shape (5, 3, 7))"
