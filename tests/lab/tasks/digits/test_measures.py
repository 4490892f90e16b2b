"""Measures of a classifier of digits, against their definitions."""

import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import bayesrnn as br
from bayesrnn.lab.tasks.digits import measures
from bayesrnn.nn import Dropout


def images(count=12, seed=0):
    return torch.randint(256, (count, 28, 28), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def network(p=0.5):
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 20), nn.ReLU(), Dropout(p), nn.Linear(20, 10))


def test_pixels():
    x = measures.pixels(images(), 128.0)
    assert x.shape == (12, 1, 28, 28)
    assert_close(x[3, 0], images()[3].float() / 128)


@pytest.mark.parametrize("batch", [1, 5, 12])
def test_beliefs_of_the_mean_do_not_depend_on_the_batches(batch):
    model = network()  # in train mode: it is measured in eval mode all the same
    found = measures.beliefs(model, images(), scale=255.0, batch=batch)
    assert model.training
    model.eval()
    assert_close(found.probabilities, model(measures.pixels(images(), 255.0)).softmax(-1).detach())
    assert_close(found.mutual_information, torch.zeros(12))
    assert_close(found.entropy, torch.distributions.Categorical(found.probabilities).entropy())


def test_beliefs_of_draws_are_those_of_predict():
    found = measures.beliefs(network(), images(), scale=255.0, samples=9, seed=3)
    expected = br.predict(network(), measures.pixels(images(), 255.0), samples=9, seed=3)
    assert_close(found.probabilities, expected.mean)
    assert_close(found.mutual_information, expected.mutual_information)
    assert_close(found.entropy, expected.entropy)
    assert found.mutual_information.min() > 0


def test_weight_draws_are_the_same_in_every_batch():
    """One draw of whole weights is one network for all images, however they are batched."""
    q = br.BayesByBackprop(network(0.0), br.Normal(1.0), init_sigma=0.1)
    whole = measures.beliefs(q, images(), scale=255.0, samples=4, seed=2)
    parts = measures.beliefs(q, images(), scale=255.0, samples=4, seed=2, batch=5)
    assert_close(whole.probabilities, parts.probabilities)


def believed(p, expected_entropy):
    entropy = torch.special.entr(p).sum(-1)
    return measures.Beliefs(p, entropy, (entropy - expected_entropy).clamp_min(0))


def test_figures_by_hand():
    p = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.6, 0.3, 0.1], [0.0, 0.0, 1.0]])
    found = measures.metrics(believed(p, torch.zeros(4)), torch.tensor([0, 1, 1, 2]))
    assert found["error"] == 25.0
    assert math.isclose(found["nll"], -(math.log(0.7) + math.log(0.8) + math.log(0.3)) / 4, rel_tol=1e-6)
    # confidences .7, .8, .6, 1 in four bins, right but for the third
    assert math.isclose(found["calibration_error"], (0.3 + 0.2 + 0.6 + 0.0) / 4, rel_tol=1e-5)


def test_a_certain_mistake_has_a_finite_price():
    found = measures.metrics(believed(torch.tensor([[1.0, 0.0]]), torch.zeros(1)), torch.tensor([1]))
    assert found["error"] == 100
    assert math.isfinite(found["nll"])
    assert found["nll"] > 80


def test_detection():
    sure, unsure = torch.eye(10), torch.full((10, 10), 0.1)
    drawn = torch.zeros(10)
    drawn[0] = -1e-3  # one digit that draws disagree on a little
    familiar = believed(sure, drawn)
    draws_disagree = believed(unsure, torch.zeros(10))
    draws_agree = believed(unsure, torch.full((10,), math.log(10)))
    a, b, c = measures.detection(familiar, {"a": draws_disagree, "b": draws_agree, "c": familiar})
    assert (a["kind"], a["entropy_auroc"], a["mutual_information_auroc"]) == ("a", 1.0, 1.0)
    assert b["entropy_auroc"] == 1.0
    assert math.isclose(b["mutual_information_auroc"], 0.45, rel_tol=1e-6)  # ties, but for the one digit
    assert c["entropy_auroc"] == c["mutual_information_auroc"] == 0.5
    assert math.isclose(a["mean_entropy"], math.log(10), rel_tol=1e-6)
    (without,) = measures.detection(believed(sure, torch.zeros(10)), {"a": draws_agree})
    assert without["mutual_information_auroc"] is None


def test_unfamiliar_images():
    made = measures.unfamiliar(images())
    assert set(made) == {"uniform noise", "permuted pixels", "shuffled tiles", "letters", "shapes"}
    assert all(found.shape == (12, 28, 28) and found.dtype == torch.uint8 for found in made.values())


def test_pruning():
    q = br.BayesByBackprop(network(0.0), br.Normal(1.0), init_sigma=0.1)
    before = {name: tensor.clone() for name, tensor in q.state_dict().items()}
    x = images()
    labels = measures.beliefs(q, x, scale=255.0).probabilities.argmax(1)
    rows = measures.pruning(q, {"test": (x, labels)}, scale=255.0)
    assert [row["fraction"] for row in rows] == list(measures.FRACTIONS)
    assert rows[0]["test_error"] == 0.0  # nothing removed: what the model says itself
    assert rows[-1]["test_error"] > 50
    assert all(torch.equal(tensor, before[name]) for name, tensor in q.state_dict().items())
