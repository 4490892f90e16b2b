import copy

import pytest
import torch
from torch import nn

from bayesrnn.lab.engine.step import Step
from bayesrnn.lab.recipes import load, override
from bayesrnn.lab.tasks.language import task as language


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


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("carry", [True, False])
def test_steps_are_those_of_torch(optimizer, carry, make):
    model, step, stream = make(f"optimizer={optimizer}", "clip=0.05", "l2=0.1", f"carry_state={carry}")
    theirs = copy.deepcopy(model)
    rate = 0.5 if optimizer == "sgd" else 0.01
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[optimizer]
    torch_optimizer = kind(theirs.parameters(), lr=rate, weight_decay=0.1)
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
    low = step.settings.model_copy(update={"precision": "bf16"})
    assert Step(step.task, low).reason == "not a CUDA device; in float32, since bf16 needs one"


def test_an_epoch_starts_from_zero(make):
    _, step, _ = make()
    step()
    step.start_epoch()
    assert all(float(t.abs().sum()) == 0 for t in (step.position, *step.state, step.totals))


def torch_steps(model, stream, optimizer, count, after=lambda k: None):
    """The same windows by torch's own optimiser."""
    state = None
    for k in range(count):
        x, y = stream[5 * k : 5 * k + 5], stream[5 * k + 1 : 5 * k + 6]
        logits, (h, c) = model(x, state)
        state = (h.detach(), c.detach())
        optimizer.zero_grad()
        (nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum") / 3).backward()
        optimizer.step()
        after(k)


def same(a, b):
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x.detach(), y.detach(), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["momentum", "l2", "both", "adam"])
def test_momentum_and_l2_are_those_of_torch(kind, make):
    momentum, l2 = (0.9 if kind in ("momentum", "both") else 0.0), (0.05 if kind != "momentum" else 0.0)
    adam = kind == "adam"
    model, step, stream = make(f"momentum={momentum}", f"l2={l2}", f"optimizer={'adam' if adam else 'sgd'}")
    theirs = copy.deepcopy(model)
    if adam:
        optimizer = torch.optim.Adam(theirs.parameters(), lr=0.01, weight_decay=l2)
    else:
        optimizer = torch.optim.SGD(theirs.parameters(), lr=0.01, momentum=momentum, weight_decay=l2)
    step.lr.fill_(0.01)
    for _ in range(4):
        step()
    torch_steps(theirs, stream, optimizer, 4)
    same(model.parameters(), theirs.parameters())


def test_the_inverse_schedule_falls_with_every_step(make):
    model, step, stream = make("inverse_gamma=0.5", "inverse_power=0.75")
    theirs = copy.deepcopy(model)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda it: 0.2 * (1 + 0.5 * it) ** -0.75)
    step.lr.fill_(0.2)
    rates = []
    for _ in range(4):
        rates.append(float(step.rate()))
        step()
    assert rates == pytest.approx([0.2 * (1 + 0.5 * k) ** -0.75 for k in range(4)])
    torch_steps(theirs, stream, optimizer, 4, after=lambda k: schedule.step())
    same(model.parameters(), theirs.parameters())
    step.start_epoch()
    assert float(step.rate()) == pytest.approx(0.2 * 3**-0.75)  # an epoch does not start it over


def test_no_clipping(make):
    for clip in ("null", "1e-3"):
        model, step, stream = make(f"clip={clip}")
        theirs = copy.deepcopy(model)
        step.lr.fill_(0.1)
        step()
        torch_steps(theirs, stream, torch.optim.SGD(theirs.parameters(), lr=0.1), 1)
        if clip == "null":
            same(model.parameters(), theirs.parameters())
            norm = torch.cat([p.grad.flatten() for p in theirs.parameters()]).norm()
            assert step.read_totals()["gradient_norm"] == pytest.approx(float(norm), rel=1e-5)
        else:
            with pytest.raises(AssertionError):
                same(model.parameters(), theirs.parameters())


@pytest.mark.parametrize("decay", [None, 0.6])
def test_weights_are_averaged_over_the_steps_that_count(decay, make):
    model, step, _ = make("average_from=2", f"average_decay={'null' if decay is None else decay}")
    step.lr.fill_(0.3)
    step()
    assert not step.has_average
    first = [p.detach().clone() for p in model.parameters()]
    with step.averaged_weights():
        same(model.parameters(), first)  # nothing to put in their place yet
    step.averaging.fill_(1.0)
    path = []
    for _ in range(5):
        step()
        path.append([p.detach().clone() for p in model.parameters()])
    expected = path[0]
    for n, weights in enumerate(path[1:], start=2):
        share = 1 / n if decay is None else max(1 / n, 1 - decay)
        expected = [e + share * (w - e) for e, w in zip(expected, weights, strict=True)]
    if decay is None:
        same(expected, [torch.stack(each).mean(0) for each in zip(*path, strict=True)])
    with step.averaged_weights():
        same(model.parameters(), expected)
    same(model.parameters(), path[-1])
    assert step.has_average


def test_what_needs_no_gradient_stays(make, folder):
    _, step, _ = make("l2=0.1", "weight_decay=0.1", "average_from=1")
    task = step.task
    task.model.embed.weight.requires_grad_(False)
    before = task.model.embed.weight.detach().clone()
    step = Step(task, task.recipe.train)
    step()
    assert torch.equal(task.model.embed.weight, before)
    assert len(step.params) == len(list(task.model.parameters())) - 1
