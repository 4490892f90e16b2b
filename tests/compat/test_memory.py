"""How much memory stays behind: buffers are used again, and do not pile up."""

import gc

import pytest
import torch
from torch import nn

import bayesrnn as br
from bayesrnn.kernels.cpu import build, memory, recurrent
from bayesrnn.kernels.cpu.memory import Pool

pytestmark = pytest.mark.skipif(
    build.why_not() is not None or memory._use_count is None, reason="no compiled kernels, or no pooled buffers"
)
CELLS = [br.LSTM, br.GRU, br.RNN]


@pytest.fixture(autouse=True)
def own_scratch(monkeypatch):
    monkeypatch.setattr(recurrent, "_scratch", Pool())
    monkeypatch.setattr(memory, "_SMALL", 0)  # pools small memory too


@pytest.mark.parametrize("cell", CELLS)
def test_batches_of_every_size_leave_no_more_than_two_of_the_largest(cell):
    """Before: the scratch of every batch size, 518 MB for batches of 1 to 256 at 512 units."""
    units, most = 48, 96
    layer = cell(4, units, recurrent_dropout=0.2, tied=False)
    for rows in [*range(1, most + 1), *range(most, 0, -7)]:
        layer(torch.randn(2, rows, 4))[0].sum().backward()
    held = recurrent._scratch.bytes
    recurrent._scratch.clear()
    layer(torch.randn(2, most, 4))[0].sum().backward()
    assert held <= 2 * recurrent._scratch.bytes


def test_predictions_of_many_sizes_do_not_pile_up():
    q = br.BayesByBackprop(nn.LSTM(3, 20))
    numbers = sum(m.numel() for m in q.means.values())
    noises = [q.posterior.noise(None) for _ in range(64)]
    for count in range(1, 65):
        q.posterior.weights_many(q.means, noises[:count])
        gc.collect()
    assert q.posterior._pool.bytes <= 2 * 64 * numbers * 4 * 1.1


def test_a_training_step_takes_no_new_memory():
    torch.manual_seed(0)
    q, x = br.BayesByBackprop(br.LSTM(4, 30, recurrent_dropout=0.2)), torch.randn(6, 5, 4)

    def step():
        q.zero_grad()
        (q(x)[0].sum() + br.kl(q)).backward()

    for _ in range(3):
        step()
    gc.collect()
    places = [{id(b) for b in pool._buffers} for pool in (q.posterior._pool, recurrent._scratch)]
    for _ in range(3):
        step()
    assert places == [{id(b) for b in pool._buffers} for pool in (q.posterior._pool, recurrent._scratch)]


def test_memory_that_is_in_use_is_never_taken_back_or_shared():
    pool, like = Pool(), torch.empty(())
    kept = [pool.take((100 + k,), like) for k in range(50)]
    for k, tensor in enumerate(kept):
        tensor.fill_(k)
    for size in range(200, 400):
        pool.take((size,), like).fill_(-1)
    assert [float(t.mean()) for t in kept] == list(map(float, range(50)))


def test_buffers_that_nobody_asks_for_are_given_back(monkeypatch):
    monkeypatch.setattr(memory, "_PATIENCE", 20)
    pool, like = Pool(), torch.empty(())
    pool.take((10_000,), like)
    for size in range(1, 40):
        pool.take((size,), like)
    assert pool.bytes < 10_000


@pytest.mark.parametrize("mode", ["inference", "vmap", "meta"])
def test_tensors_of_other_kinds_are_not_pooled(mode):
    pool, like = Pool(), torch.empty(3)
    if mode == "inference":
        with torch.inference_mode():
            pool.take((3,), like)
    elif mode == "vmap":
        torch.vmap(lambda x: x + pool.take((3,), like))(torch.zeros(2, 3))
    else:
        pool.take((3,), like.to("meta"))
    assert pool.bytes == 0
