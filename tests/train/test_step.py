import copy

import pytest
import torch
from torch import nn

from bayesrnn.recipes import load, override
from bayesrnn.tasks import language
from bayesrnn.train.step import Step


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A text of ten words in no order."""
    path = tmp_path_factory.mktemp("text")
    words = torch.randint(10, (120,), generator=torch.Generator().manual_seed(1)).tolist()
    for split in ("train", "valid", "test"):
        (path / f"{split}.txt").write_text(" ".join(f"w{word}" for word in words))
    return str(path)


@pytest.fixture
def make(folder):
    """(model, step, stream) of a recipe with three streams and windows of five."""

    def made(*overrides, name="unregularised-medium", **kwargs):
        recipe = override(load(name), ["hidden=6", "batch_size=3", "window=5", "clip=null", *overrides])
        task = language.Language(recipe, folder, torch.device("cpu"))
        torch.manual_seed(0)
        task.attach(task.build(recipe, task.files()).train())
        return task.model, Step(task, recipe.train, **kwargs), task.streams.train

    return made


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("carry", [True, False])
def test_steps_are_those_of_torch(optimizer, carry, make):
    model, step, stream = make(f"optimizer={optimizer}", "clip=0.05", f"carry_state={carry}")
    theirs = copy.deepcopy(model)
    rate = 0.5 if optimizer == "sgd" else 0.01
    kind = torch.optim.SGD if optimizer == "sgd" else torch.optim.Adam
    torch_optimizer = kind(theirs.parameters(), lr=rate)
    step.lr.fill_(rate)
    state = None
    for k in range(4):
        step()
        x, y = stream[5 * k : 5 * k + 5], stream[5 * k + 1 : 5 * k + 6]
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
    assert int(step.position) == 4
    assert [bool(part.abs().sum() > 0) for part in step.state] == ([True, True] if carry else [])


def test_two_biases_that_share_a_gradient_are_stepped_once_each(make):
    # The noisy layer adds its two biases; autograd hands out one tensor as the gradient of both.
    model, step, stream = make(name="variational-tied-medium")
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    rng = torch.get_rng_state()
    step.lr.fill_(0.1)
    step()
    torch.set_rng_state(rng)
    theirs = copy.deepcopy(model)
    theirs.load_state_dict(before)
    logits, _ = theirs(stream[:5], (torch.zeros(2, 3, 6), torch.zeros(2, 3, 6)))
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), stream[1:6].flatten(), reduction="sum") / 3
    loss.backward()
    for name, parameter in theirs.named_parameters():
        expected = before[name] - 0.1 * parameter.grad
        torch.testing.assert_close(dict(model.named_parameters())[name].detach(), expected)


def test_weight_decay_is_not_multiplied_by_the_learning_rate(make):
    model, step, _ = make("weight_decay=0.1")
    before = [p.detach().clone() for p in model.parameters()]
    step.lr.fill_(0.0)
    step()
    for old, new in zip(before, model.parameters(), strict=True):
        torch.testing.assert_close(new.detach(), 0.9 * old)


def test_rates_of_sharpening_are_clipped_on_their_own(make):
    _, step, _ = make("clip=5", name="brnn-sharpened-medium", eta_clip=1e-3)
    before = [p.detach().clone() for p in step.etas]
    step()
    moved = torch.cat([(new.detach() - old).flatten() for old, new in zip(before, step.etas, strict=True)]).norm()
    assert 0 < float(moved) <= 1e-3 / 3 * 1.001
    assert step.read_totals()["sharpening"] > 0
    assert step.reason == "not a CUDA device"


def test_an_epoch_starts_from_zero(make):
    _, step, _ = make()
    step()
    step.start_epoch()
    assert all(float(t.abs().sum()) == 0 for t in (step.position, *step.state, step.totals))
