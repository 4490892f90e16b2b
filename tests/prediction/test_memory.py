"""`memory_limit` of `br.predict`: what is alive at most, counted tensor by tensor, stays within it."""

import weakref

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import bayesrnn as br
from bayesrnn.prediction import memory as footprint
from bayesrnn.prediction import montecarlo

NOISE = {"input_dropout": 0.3, "recurrent_dropout": 0.3}


class Peak(TorchDispatchMode):
    """Counts the bytes of tensors made inside the block that are alive; `most` is the largest number there was."""

    def __init__(self):
        super().__init__()
        self.now = self.most = 0
        self.alive = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        given = {id(_memory(a)) for a in tree_leaves((args, kwargs)) if isinstance(a, torch.Tensor)}
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                memory = _memory(tensor)
                key = memory._cdata
                if id(memory) not in given and key not in self.alive:
                    self.alive.add(key)
                    self.now += memory.nbytes()
                    self.most = max(self.most, self.now)
                    weakref.finalize(memory, self._gone, key, memory.nbytes())
        return out

    def _gone(self, key, count):
        self.alive.discard(key)
        self.now -= count


def _memory(tensor):
    return tensor.untyped_storage()


class Tagger(nn.Module):
    def __init__(self, vocabulary, hidden, layers=1, plain=False):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, hidden) if plain else br.Embedding(vocabulary, hidden, word_dropout=0.3)
        self.rnn = nn.LSTM(hidden, hidden, layers) if plain else br.LSTM(hidden, hidden, layers, **NOISE)
        self.head = nn.Linear(hidden, vocabulary)

    def forward(self, x, state=None):
        out, state = self.rnn(self.embed(x), state)
        return self.head(out), state


class Curve(nn.Module):
    def __init__(self, rnn):
        super().__init__()
        self.rnn, self.head = rnn, nn.Linear(rnn.hidden_size * (2 if rnn.bidirectional else 1), 1)

    def forward(self, x):
        return self.head(self.rnn(x)[0])


def words(count):
    return torch.randint(count, (20, 4), generator=torch.Generator().manual_seed(0))


SERIES = torch.linspace(-1, 1, 12 * 4 * 8).view(12, 4, 8)
CASES = {
    "many words": (lambda: Tagger(2000, 16), words(2000)),
    "two layers": (lambda: Tagger(300, 64, 2), words(300)),
    "LSTM": (lambda: Curve(br.LSTM(8, 64, 2, **NOISE)), SERIES),
    "LSTM, untied": (lambda: Curve(br.LSTM(8, 64, tied=False, **NOISE)), SERIES),
    "GRU, both ways": (lambda: Curve(br.GRU(8, 64, 2, bidirectional=True, **NOISE)), SERIES),
    "RNN": (lambda: Curve(br.RNN(8, 64, **NOISE)), SERIES),
    "torch's LSTM": (lambda: nn.Sequential(nn.LSTM(8, 64, 2, dropout=0.4)), SERIES),
    "wide input": (lambda: nn.Sequential(nn.Dropout(0.2), nn.Linear(2000, 5)), torch.ones(64, 2000)),
    "deep": (
        lambda: nn.Sequential(
            nn.Linear(50, 400), nn.ReLU(), nn.Dropout(), nn.Linear(400, 400), nn.ReLU(), nn.Dropout(), nn.Linear(400, 9)
        ),
        torch.ones(64, 50),
    ),
    "images": (
        lambda: nn.Sequential(nn.Conv2d(1, 9, 5), nn.Dropout2d(0.3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1296, 9)),
        torch.ones(16, 1, 28, 28),
    ),
    "drawn weights": (lambda: br.BayesByBackprop(Tagger(300, 32, plain=True)), words(300)),
    "drawn weights, many rows": (lambda: br.BayesByBackprop(nn.Sequential(nn.Linear(20, 50), nn.Linear(50, 3))),
                                 torch.ones(200, 20)),
}  # fmt: skip


def peak(model, x, limit, *, keep=False):
    with Peak() as found:
        br.predict(model, x, samples=48, seed=0, memory_limit=limit, keep_samples=keep)
    return found.most


@pytest.mark.parametrize("case", CASES)
def test_the_most_that_is_alive_is_within_the_limit(case, monkeypatch):
    # the mode that counts bytes keeps the kernels in C out, without which a CPU gains nothing
    monkeypatch.setattr(montecarlo, "gains_from_batches", lambda q: True)
    make, x = CASES[case]
    torch.manual_seed(0)
    model = make()
    alone = peak(model, x, 1)  # one draw after the other
    for times in (4, 20):
        most = peak(model, x, times * alone)
        assert 0.2 < most / (times * alone) < 1.2, times


def test_draws_that_are_kept_come_once_on_top():
    torch.manual_seed(0)
    model, x = Tagger(2000, 16), words(2000)
    limit = 4 * peak(model, x, 1)
    kept = 48 * 20 * 4 * 2000 * 4
    assert kept < peak(model, x, limit, keep=True) < kept + 1.2 * limit


def test_what_a_module_hands_on_counts_once():
    model = nn.Sequential(nn.Sequential(nn.Linear(3, 5)))
    with footprint.watch(model.modules()) as found:
        model(torch.ones(2, 3))
    assert (found.outputs, found.inside) == (2 * 5 * 4, 2 * 5 * 4)
    assert found.draws_in(1000, before=10, result=40) == (1000 - 6 * 40) // (10 + 3 * 40)
    assert found.draws_in(1, before=10, result=40) == 1
    assert not model._forward_hooks
