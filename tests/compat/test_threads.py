"""Threads, generators, coroutines and processes, each with a draw of its own."""

from __future__ import annotations

import asyncio
import copy
import os
import threading
from contextlib import ExitStack, contextmanager

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import bayesrnn as br
from bayesrnn.prediction import calls


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def both():
    """Noise of ours and torch's own."""
    return nn.Sequential(br.Dropout(0.5), nn.Linear(8, 8), nn.Dropout(0.5), nn.AlphaDropout(0.2))


def alone(model, seed, x):
    with br.draw(model, seed=seed):
        return model(x)


@pytest.mark.parametrize("kind", ["draw", "predict"])
def test_threads_with_copies_of_their_own_get_the_numbers_of_the_seed(kind):
    model, x = both().eval(), torch.randn(16, 8)

    def run(model, seed):
        if kind == "draw":
            return torch.stack([alone(model, seed, x) for _ in range(20)])
        return br.predict(model, x, samples=9, seed=seed).samples

    expected = [run(model, seed) for seed in range(4)]
    found = [[] for _ in range(4)]

    def work(k):
        own = copy.deepcopy(model)
        for _ in range(6):
            found[k].append(run(own, k))
            torch.rand(3)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k in range(4):
        for one in found[k]:
            assert torch.equal(one, expected[k])


def test_threads_that_share_a_model_keep_their_draws():
    model, x = both().eval(), torch.randn(16, 8)
    expected = [alone(model, seed, x) for seed in range(2)]
    inside, found = threading.Barrier(2), [None, None]

    def work(k):
        with br.draw(model, seed=k):
            inside.wait()  # both blocks are open
            found[k] = model(x)
            inside.wait()

    threads = [threading.Thread(target=work, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert_close(found, expected)
    assert torch.equal(model(x), model(x))


def held(model, seed, x):
    with br.draw(model, seed=seed):
        while True:
            yield model[0](x)


def test_generators_that_hold_draws_of_one_model_keep_them():
    model, x = both().eval(), torch.randn(16, 8)
    expected = [alone(model[:1], seed, x) for seed in (1, 2)]
    first, second = held(model, 1, x), held(model, 2, x)
    for _ in range(3):
        assert_close([next(first), next(second)], expected)
    first.close()  # not the one that was opened last
    assert_close(next(second), expected[1])
    second.close()
    assert torch.equal(model(x), model(x))
    assert torch.equal(nn.Dropout(0.5).eval()(x), x)


def test_a_generator_s_draw_does_not_reach_into_another_block():
    model, x = both().eval(), torch.randn(16, 8)
    expected = alone(model[:1], 1, x)
    with br.draw(model, seed=1):
        generator = held(model, 2, x)
        other = next(generator)
        assert_close(model[0](x), expected)
        assert not torch.equal(other, expected)
    assert_close(next(generator), other)
    generator.close()


def test_generators_hold_torch_s_noise_too():
    model, x = nn.Dropout(0.5).eval(), torch.ones(40)

    def twice(seed):
        with br.draw(model, seed=seed):
            yield model(x)
            yield model(x)

    expected = [list(twice(seed)) for seed in (1, 2)]
    one, two = twice(1), twice(2)
    found = [next(one), next(two), next(one), next(two)]
    assert_close([found[0], found[2]], expected[0])
    assert_close([found[1], found[3]], expected[1])
    for generator in (one, two):
        generator.close()
    assert torch.equal(model(x), x)
    assert torch.overrides._len_torch_function_stack() == 0


def test_coroutines_keep_their_draws():
    model, x = both().eval(), torch.randn(16, 8)
    expected = [alone(model, seed, x) for seed in range(3)]

    async def work(seed):
        with br.draw(model, seed=seed):
            await asyncio.sleep(0)
            out = model(x)
            await asyncio.sleep(0)
            return out

    async def together():
        return await asyncio.gather(*(work(seed) for seed in range(3)))

    assert_close(asyncio.run(together()), expected)


def test_context_managers_and_exit_stacks_of_others_hold_a_draw():
    model, x = both().eval(), torch.randn(16, 8)
    expected = alone(model, 1, x)

    @contextmanager
    def mine():
        with br.draw(model, seed=1):
            yield

    with mine():
        assert_close(model(x), expected)
    with ExitStack() as stack:
        stack.enter_context(mine())
        assert_close(model(x), expected)
    with br.draw(model, seed=5), mine():
        assert_close(model(x), expected)


def test_a_worker_thread_inside_a_block_sees_the_draw():
    """As the threads of DataParallel do: our noise comes from the block that is open on the module."""
    model, x = br.Dropout(0.5).eval(), torch.randn(16, 8)
    expected, found = alone(model, 1, x), []
    with br.draw(model, seed=1):
        thread = threading.Thread(target=lambda: found.append(model(x)))
        thread.start()
        thread.join()
    assert_close(found[0], expected)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_predicts_the_same():
    model, x = both().eval(), torch.randn(4, 8)
    expected = br.predict(model, x, samples=5, seed=1).mean
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            torch.set_num_threads(1)
            code = 0 if torch.equal(br.predict(model, x, samples=5, seed=1).mean, expected) else 2
        finally:
            os.write(write, bytes([code]))
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 1) == b"\0"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("waits", [True, False])
def test_a_fork_during_a_prediction(waits, monkeypatch):
    """It waits for the prediction to end; where that takes too long, the new process refuses the model."""
    monkeypatch.setattr(calls, "_PATIENCE", 60.0 if waits else 0.0)
    model, x = br.BayesByBackprop(nn.Linear(4, 3)).eval(), torch.randn(2, 4)
    expected = model(x)
    begun, go_on = threading.Event(), threading.Event()

    def pause(done, total):
        begun.set()
        go_on.wait(30)

    thread = threading.Thread(target=lambda: br.predict(model, x, samples=9, seed=1, progress=pause))
    thread.start()
    begun.wait(30)
    timer = threading.Timer(0.2, go_on.set)
    if waits:
        timer.start()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            torch.set_num_threads(1)
            if waits:
                br.predict(model, x, samples=2)
                code = 0 if torch.equal(model(x), expected) else 2
            else:
                with pytest.raises(RuntimeError, match="forked while another thread was predicting"):
                    br.predict(model, x, samples=2)
                code = 0
        finally:
            os.write(write, bytes([code]))
            os._exit(0)
    os.waitpid(child, 0)
    go_on.set()
    thread.join()
    assert os.read(read, 1) == b"\0"
    assert torch.equal(model(x), expected)


def test_a_generator_keeps_its_draw_inside_a_draw_of_its_caller():
    model, x = br.LSTM(3, 4, input_dropout=0.5).eval(), torch.randn(5, 2, 3)

    def one(seed):
        with br.draw(model, seed=seed):
            return model(x)[0]

    def held(seed):
        with br.draw(model, seed=seed):
            yield model(x)[0]
            yield model(x)[0]
            yield one(7)

    generator = held(1)
    assert torch.equal(next(generator), one(1))
    with br.draw(model, seed=2):
        assert torch.equal(next(generator), one(1))
        assert torch.equal(model(x)[0], one(2))
        assert torch.equal(next(generator), one(7))
    generator.close()
