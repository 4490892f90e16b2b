"""CUDA graphs: nothing disturbs a capture, and one that fails leaves the process as it was."""

import contextlib
import gc
import weakref

import pytest
import torch

import bayesrnn as br
from bayesrnn import kernels
from bayesrnn.kernels.shared import precision


class FakeGraph:
    def reset(self):
        pass


@pytest.fixture
def recorder(monkeypatch):
    """torch's capture without a GPU: what was recorded, and the current stream."""
    state = {"stream": "own", "captures": 0, "broken": False}

    @contextlib.contextmanager
    def graph(made, stream=None, **options):
        state["stream"] = "capture"
        yield
        state["captures"] += 1
        if state["broken"]:
            state["broken"] = False
            raise RuntimeError("operation failed due to a previous error during capture")
        state["stream"] = "own"

    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: state["stream"])
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: state.update(stream=stream))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    real = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *size, device=None: real(*size))
    return state


def garbage(seen):
    """An object in a reference cycle, whose end is noted."""

    class Cycle:
        def __init__(self):
            self.own = self

        def __del__(self):
            seen.append(kernels.is_recording())

    Cycle()


def test_no_garbage_is_collected_during_a_capture(recorder):
    """The collector would free older CUDA graphs, which torch forbids there."""
    seen, before = [], gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        with kernels.capture(torch.cuda.CUDAGraph()):
            assert kernels.is_recording()
            for _ in range(50):
                garbage(seen)
                [[] for _ in range(20)]
            assert seen == []
    finally:
        gc.set_threshold(*before)
    gc.collect()
    assert seen == [False] * 50
    assert gc.isenabled()


def test_the_collector_stays_off_where_it_was_off(recorder):
    gc.disable()
    try:
        with kernels.capture(torch.cuda.CUDAGraph()):
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.parametrize("where", ["inside", "at the end"])
def test_a_capture_that_fails_leaves_the_process_usable(recorder, where):
    recorder["broken"] = where == "at the end"
    with pytest.raises(RuntimeError, match=r"previous error|not this"), kernels.capture(torch.cuda.CUDAGraph()):
        if where == "inside":
            raise RuntimeError("not this")
    assert recorder["stream"] == "own"  # torch leaves the stream of the capture current
    assert recorder["captures"] == (1 if where == "inside" else 2)  # one more, which frees the random generator
    assert gc.isenabled()
    assert not kernels.is_recording()


def test_a_step_is_not_in_a_reference_cycle(line_recipe):
    """So that its CUDA graph goes when the step goes, not at some later time inside another capture."""
    from bayesrnn.lab.engine.step import Step
    from bayesrnn.lab.recipes import load
    from bayesrnn.lab.tasks.base import task_class

    recipe = load(line_recipe)
    task = task_class(recipe.task)(recipe, None, torch.device("cpu"))
    task.attach(task.build(recipe, {}).train())
    step = Step(task, recipe.train)
    step()
    gc.collect()
    gc.disable()
    try:
        ended = weakref.ref(step)
        del step
        assert ended() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("rounded", [True, False, None])
def test_precision_is_restored(first, rounded):
    def settings():
        newer = [torch._C._get_fp32_precision_getter(*switch) for switch in precision._SWITCHES]
        return [*newer, torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32]

    begin = settings()
    with br.kernels.float32_precision(first):
        before = settings()
        with br.kernels.float32_precision(rounded):
            if rounded is not None:
                assert kernels.tf32(products=True) is kernels.tf32(products=False) is rounded
            kernels.round_float32(not first)
        assert settings() == before
    assert settings() == begin
