import copy

import pytest
import torch
from torch import nn

from bayesrnn.recipes import load, override
from bayesrnn.tasks import language
from bayesrnn.train.step import Step

STREAM = torch.randint(11, (40, 3), generator=torch.Generator().manual_seed(1))


def make(name="unregularised-medium", overrides=(), **kwargs):
    recipe = override(load(name), ["hidden=6", "batch_size=3", "window=5", *overrides])
    torch.manual_seed(0)
    model = language.build(recipe, 11).train()
    objective = language.Objective(model, recipe, windows=7)
    return model, Step(model, objective, STREAM, state=(2, 3, 6), window=5, **kwargs)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("carry", [True, False])
def test_steps_are_those_of_torch(optimizer, carry):
    model, step = make(optimizer=optimizer, clip=0.05, carry_state=carry)
    theirs = copy.deepcopy(model)
    rate = 0.5 if optimizer == "sgd" else 0.01
    kind = torch.optim.SGD if optimizer == "sgd" else torch.optim.Adam
    torch_optimizer = kind(theirs.parameters(), lr=rate)
    step.lr.fill_(rate)
    state = None
    for k in range(4):
        step()
        x, y = STREAM[5 * k : 5 * k + 5], STREAM[5 * k + 1 : 5 * k + 6]
        logits, (h, c) = theirs(x, state)
        state = (h.detach(), c.detach()) if carry else None
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum") / 3
        torch_optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(theirs.parameters(), 0.05)
        torch_optimizer.step()
    for a, b in zip(model.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=1e-6)
    totals = step.read_totals()
    assert totals["steps"] == 4
    assert float(step.offset) == 20
    assert step.h.abs().sum() > 0 if carry else step.h.abs().sum() == 0


def test_two_biases_that_share_a_gradient_are_stepped_once_each():
    # The noisy layer adds its two biases; autograd hands out one tensor as the gradient of both.
    model, step = make("variational-tied-medium", clip=1e9)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    rng = torch.get_rng_state()
    step.lr.fill_(0.1)
    step()
    torch.set_rng_state(rng)
    theirs = copy.deepcopy(model)
    theirs.load_state_dict(before)
    logits, _ = theirs(STREAM[:5], (torch.zeros(2, 3, 6), torch.zeros(2, 3, 6)))
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), STREAM[1:6].flatten(), reduction="sum") / 3
    loss.backward()
    for name, parameter in theirs.named_parameters():
        expected = before[name] - 0.1 * parameter.grad
        torch.testing.assert_close(dict(model.named_parameters())[name].detach(), expected)


def test_weight_decay_is_not_multiplied_by_the_learning_rate():
    model, step = make(weight_decay=0.1)
    before = [p.detach().clone() for p in model.parameters()]
    step.lr.fill_(0.0)
    step()
    for old, new in zip(before, model.parameters(), strict=True):
        torch.testing.assert_close(new.detach(), 0.9 * old)


def test_rates_of_sharpening_are_clipped_on_their_own():
    _, step = make("brnn-sharpened-medium", eta_clip=1e-3, clip=5.0)
    before = [p.detach().clone() for p in step.etas]
    step()
    moved = torch.cat([(new.detach() - old).flatten() for old, new in zip(before, step.etas, strict=True)]).norm()
    assert 0 < float(moved) <= 1e-3 / 3 * 1.001
    assert step.read_totals()["sharpening"] > 0
    assert step.reason == "not a CUDA device"


def test_an_epoch_starts_from_zero():
    _, step = make()
    step()
    step.start_epoch()
    assert all(float(t.abs().sum()) == 0 for t in (step.offset, step.h, step.c, step.totals))
