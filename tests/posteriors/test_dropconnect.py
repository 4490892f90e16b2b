"""DropConnect: independent noise on every weight, one draw per call, the L2 form of the KL."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

import bayesrnn as br
from bayesrnn.draws import Draw
from bayesrnn.posteriors import DropConnect
from bayesrnn.prediction import montecarlo


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 6), nn.ReLU(), nn.Linear(6, 4)
    ).double()


X = torch.randn(5, 1, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def masks_of(q, seed):
    with br.draw(q, seed=seed) as held:
        q(X)
    return held._held[".weights"]


@pytest.mark.parametrize("p", [0.2, 0.5])
@pytest.mark.parametrize("noise", ["bernoulli", "gaussian"])
def test_every_weight_has_noise_of_its_own(p, noise):
    q = DropConnect(nn.Linear(200, 100, bias=False), p, noise=noise)
    with torch.no_grad():
        q.module.weight.fill_(1.0)
    torch.manual_seed(0)
    drawn = q.posterior.weights(q.means, q.posterior.noise(None))["weight"].detach().double()
    # 20,000 weights: a rate off by 0.04, or a variance off by 10 %, is found with power > 0.999
    if noise == "bernoulli":
        assert abs((drawn == 0).double().mean() - p) < 5 * (p * (1 - p) / 20_000) ** 0.5
        assert_close(drawn[drawn != 0].unique().float(), torch.tensor([1 / (1 - p)]))
    else:
        assert abs(drawn.mean() - 1) < 5 * (p / (1 - p) / 20_000) ** 0.5
        assert abs(drawn.var() / (p / (1 - p)) - 1) < 5 * (2 / 20_000) ** 0.5


def test_a_draw_is_the_plain_network_with_masked_weights():
    q = DropConnect(network(), 0.4)
    masks = masks_of(q, seed=2)
    assert set(masks) == {"0.weight", "3.weight", "5.weight"}  # biases are left alone
    plain = network()
    with torch.no_grad():
        for name, weight in plain.named_parameters():
            weight.mul_(masks.get(name, 1.0))
    with br.draw(q, seed=2):
        assert_close(q(X), plain(X))
        assert torch.equal(q(X), q(X))  # held


def test_train_eval_and_mean():
    q, plain = DropConnect(network(), 0.5), network()
    assert not torch.equal(q(X), q(X))
    with br.mean(q):
        assert_close(q(X), plain(X))
    assert_close(q.eval()(X), plain(X))
    assert_close(q.mean_module()(X), plain(X))


def test_gradients_go_through_the_mask():
    """Against finite differences, at one draw."""
    q, y = DropConnect(network(), 0.5), torch.tensor([0, 1, 2, 3, 0])

    def loss():
        with br.draw(q, seed=5):
            return F.cross_entropy(q(X), y)

    masks = masks_of(q, seed=5)
    loss().backward()
    for name, weight in q.module.named_parameters():
        for at in range(0, weight.numel(), max(weight.numel() // 5, 1)):
            flat = weight.data.view(-1)
            kept = float(flat[at])
            ends = []
            for step in (1e-6, -1e-6):
                flat[at] = kept + step
                ends.append(float(loss().detach()))
            flat[at] = kept
            assert abs((ends[0] - ends[1]) / 2e-6 - float(weight.grad.view(-1)[at])) < 1e-7
        if name in masks:
            assert not weight.grad[masks[name] == 0].any()


def test_the_kl_is_the_l2_form():
    q = DropConnect(network(), 0.3, prior=br.Normal(0.5))
    squares = sum(w.square().sum() for n, w in q.module.named_parameters() if n.endswith("weight"))
    assert_close(br.kl(q), 0.7 * squares / (2 * 0.5**2))
    q(X)
    assert_close(br.kl(q), 0.7 * squares / (2 * 0.5**2))  # whatever was called
    elbo = br.ELBO(q, br.Categorical(), num_data=100)
    terms = elbo(q(X), torch.zeros(5, dtype=torch.long))
    assert_close(terms.loss, terms.nll / 5 + terms.kl / 100)


def test_prediction_averages_draws():
    q = DropConnect(network(), 0.5).eval()
    found = br.predict(q, X, samples=6, seed=3)
    alone = []
    for k in range(6):
        with br.draws.using(q, Draw(br.draws.mix(3, k))):
            alone.append(q(X).softmax(-1))
    assert_close(found.samples, torch.stack(alone))
    batched = montecarlo.batched_weight_draws(q, X, montecarlo.Rest(), [Draw(br.draws.mix(3, k)) for k in range(6)])
    assert_close(batched.softmax(-1), found.samples)  # what an accelerator runs
    assert found.mutual_information.min() > 0


def test_inside_a_larger_model():
    model = nn.Sequential(nn.Flatten(), DropConnect(nn.Linear(36, 4).double(), 0.5))
    found = br.predict(model, X, samples=5, seed=0)
    assert found.samples.std(0).min() > 0
    assert found.samples.shape == (5, 5, 4)


def test_which_weights():
    q = DropConnect(network(), 0.5, include="3.*")
    assert set(q.means) == {"3.weight", "3.bias"}
    q = DropConnect(network(), 0.5, exclude="5.weight")
    assert set(q.means) == {"0.weight", "3.weight"}
    frozen = network()
    frozen[0].weight.requires_grad_(False)
    assert set(DropConnect(frozen, 0.5).means) == {"3.weight", "5.weight"}


def test_padding_rows_stay():
    q = DropConnect(nn.Embedding(5, 3, padding_idx=2), 0.9)
    for _ in range(5):
        assert (q.posterior.noise(None)["weight"][2] == 1).all()


def test_copies_dtypes_and_checkpoints():
    q = DropConnect(network(), 0.5)
    other = copy.deepcopy(q).float()
    with br.draw(other, seed=1):
        low = other(X.float())
    with br.draw(q, seed=1):
        assert_close(q(X).float(), low, rtol=1e-4, atol=1e-5)  # the same draw in another dtype
    assert all(key.startswith("module.") for key in q.state_dict())
    other = DropConnect(network(), 0.5)
    other.load_state_dict(q.state_dict())


def test_refusals():
    with pytest.raises(ValueError, match=r"p must be a number in \[0, 1\)"):
        DropConnect(network(), 1.0)
    with pytest.raises(ValueError, match="noise must be one of"):
        DropConnect(network(), 0.5, noise="uniform")
    with pytest.raises(TypeError, match=r"known for br\.Normal priors, got ScaleMixture"):
        DropConnect(network(), 0.5, prior=br.ScaleMixture(0.5, 1.0, 0.1))
    with pytest.raises(ValueError, match="no weight with two or more axes"):
        DropConnect(nn.LayerNorm(4), 0.5)
    with pytest.raises(TypeError, match="lazy parameters"):
        DropConnect(nn.LazyLinear(4), 0.5)
    with pytest.raises(TypeError, match=r"expected a torch\.nn\.Module"):
        DropConnect("network", 0.5)
    with pytest.raises(TypeError, match="Bayesian already"):
        DropConnect(DropConnect(network(), 0.5), 0.5)
