from dataclasses import dataclass

import pytest
import torch
from torch import nn

from bayesrnn.errors import UserError
from bayesrnn.lab.tasks.language.loop import Epoch, History, detach, fit
from bayesrnn.lab.tasks.language.task import LanguageModel, perplexity
from bayesrnn.lab.tasks.language.text import batchify, windows


@dataclass
class Terms:
    loss: torch.Tensor
    nll: torch.Tensor


def objective(output, target):
    nll = nn.functional.cross_entropy(output.flatten(0, 1), target.flatten(), reduction="sum")
    return Terms(loss=nll / target.numel(), nll=nll)


class Recorder(nn.Module):
    """Hands back a state that says how many calls came before, and keeps every state it was given."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.given = []

    def forward(self, x, state):
        self.given.append(state)
        output = self.weight * x
        return output, (output.sum(), [output.sum()])


def mean_square(output, target):
    loss = (output - target).square().mean()
    return Terms(loss=loss, nll=loss)


def run(model, objective, batches, lr=0.1, **options):
    options = {"epochs": 2, "validate": lambda: (0.0, 0.0)} | options
    return fit(model, objective, batches, optimizer=torch.optim.SGD(model.parameters(), lr=lr), **options)


def test_learns_a_periodic_text():
    torch.manual_seed(0)
    stream = batchify(torch.arange(5).repeat(80), 4)
    model = LanguageModel(5, 16)
    history = fit(
        model,
        objective,
        lambda: windows(stream, 10),
        optimizer=torch.optim.Adam(model.parameters(), lr=0.02),
        epochs=8,
        clip=1.0,
        validate=lambda: (perplexity(model, stream), perplexity(model, stream)),
    )
    assert history.last.valid < 1.2
    assert [epoch.number for epoch in history.epochs] == list(range(1, 9))


def test_state_is_carried_detached_and_reset_each_epoch():
    model = Recorder()
    run(model, mean_square, lambda: [(torch.ones(2), torch.ones(2))] * 3)
    first = model.given[:3]
    assert first[0] is None
    assert model.given[3] is None
    for state in first[1:]:
        assert not state[0].requires_grad
        assert not state[1][0].requires_grad


def test_keeps_the_weights_of_the_best_epoch():
    model = nn.LSTM(1, 1)
    metric = iter([3.0, 1.0, 2.0])
    snapshots = []

    def validate():
        assert not model.training
        snapshots.append(model.weight_hh_l0.detach().clone())
        return 0.0, next(metric)

    history = run(
        model, mean_square, lambda: [(torch.ones(2, 1, 1), torch.zeros(2, 1, 1))], epochs=3, validate=validate
    )
    assert history.best.number == 2
    assert history.last.number == 3
    assert torch.equal(history.best_state["weight_hh_l0"], snapshots[1])
    assert not torch.equal(history.best_state["weight_hh_l0"], snapshots[2])


def test_schedule_multiplies_the_initial_rate():
    history = run(
        Recorder(),
        mean_square,
        lambda: [(torch.ones(2), torch.ones(2))],
        lr=0.5,
        epochs=3,
        learning_rate=lambda n: 1 / n,
    )
    assert [epoch.lr for epoch in history.epochs] == pytest.approx([0.5, 0.25, 0.5 / 3])


def test_clip_bounds_the_step():
    model = Recorder()
    run(model, mean_square, lambda: [(torch.ones(2), torch.full((2,), 1e4))], lr=1.0, epochs=1, clip=0.25)
    assert model.weight.item() == pytest.approx(1.25, rel=1e-4)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_refuses_a_loss_that_is_not_a_number(bad):
    batches = [(torch.ones(2), torch.ones(2)), (torch.ones(2), torch.full((2,), bad))]
    with pytest.raises(UserError, match="at epoch 1, step 2; lower the learning rate"):
        run(Recorder(), mean_square, lambda: batches)


def test_names_the_step_when_the_objective_itself_refuses():
    def refuses(output, target):
        raise FloatingPointError("not finite")

    with pytest.raises(UserError, match="at epoch 1, step 1"):
        run(Recorder(), refuses, lambda: [(torch.ones(2), torch.ones(2))])


def test_refuses_no_batches_and_no_epochs():
    with pytest.raises(UserError, match="nothing to train on"):
        run(Recorder(), mean_square, list)
    with pytest.raises(ValueError, match="at least 1"):
        run(Recorder(), mean_square, list, epochs=0)


def test_tells_of_progress():
    steps, epochs = [], []
    run(
        Recorder(),
        mean_square,
        lambda: [(torch.ones(2), torch.ones(2))] * 2,
        on_step=lambda epoch, step: steps.append((epoch, step)),
        on_epoch=epochs.append,
    )
    assert steps == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert [epoch.number for epoch in epochs] == [1, 2]


def test_best_passes_over_nan():
    def epoch(number, valid):
        return Epoch(number=number, objective=0, train=0, valid=valid, lr=0, seconds=0)

    assert History([epoch(1, float("nan")), epoch(2, 5.0)]).best.number == 2


def test_detach_leaves_what_is_no_tensor():
    assert detach(None) is None
