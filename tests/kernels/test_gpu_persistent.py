"""The recurrences in one launch on a GPU: against float64, against themselves (an error that moves is a race), in use.

Every case compiles its own kernels, which is most of the time here; the tests below share a few of them.
"""

from __future__ import annotations

import faulthandler

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence
from torch.testing import assert_close

import bayesrnn as br
from bayesrnn import kernels
from bayesrnn.nn import recurrence as layered
from tests.kernels.rounding import shrink

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

CELLS = ["LSTM", "GRU"]
CASES = [  # batch sizes, units, masks, reverse
    ([1], 65, "none", False),
    ([3] * 63, 65, "untied", False),
    ([60, 33, 33, 20, 2], 65, "tied", True),  # two groups of sequences, rows that join
    ([20] * 63, 650, "tied", False),
    ([127] * 2, 650, "untied", False),
    ([20] * 2, 1500, "tied", False),
    ([700, 300, 33], 65, "tied", False),  # more sequences than there is room for at once, in 14 groups and in one
    ([300] * 3, 650, "untied", True),
]


@pytest.fixture(autouse=True)
def no_hang():
    """A barrier that is never passed would hold the process for ever."""
    faulthandler.dump_traceback_later(120, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True)
def settings(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    monkeypatch.delenv("BAYESRNN_KERNEL", raising=False)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


def kernel_of(cell):
    return kernels.implementation(cell, "persistent")


def reference_of(cell):
    return kernels.implementation(cell, "reference")


def errors(found, expected):
    """Of every output and gradient, relative to its own size."""
    pairs = [(a.detach().double(), b.detach().double()) for a, b in zip(found, expected, strict=True)]
    return [float((a - b).norm() / b.norm()) for a, b in pairs]


def check_same(found, expected, *, made):
    """The first `made` came from the kernel and have the same bits; GEMMs may add in another order inside a graph."""
    assert_close(found[:made], expected[:made], rtol=0, atol=0)
    assert max(errors(found[made:], expected[made:])) < 1e-5


@pytest.fixture
def launches(monkeypatch):
    """How often a kernel of this kind was started, forward and backward."""
    from bayesrnn.kernels.gpu import persistent

    counted, real = [], persistent.launch

    def launch(*args, **kwargs):
        counted.append(args[0])
        real(*args, **kwargs)

    monkeypatch.setattr(persistent, "launch", launch)
    return counted


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(("sizes", "hidden", "masks", "reverse"), CASES)
def test_outputs_and_gradients_are_the_reference_s(problem, cell, sizes, hidden, masks, reverse):
    case = problem(cell, sizes, hidden, masks=masks, reverse=reverse, cell_mask=cell == "LSTM" and len(sizes) == 5)
    expected = case.to("cuda").outcome(reference_of(cell))
    found = case.to("cuda", torch.float32).outcome(kernel_of(cell))
    assert max(errors(found, expected)) < 1e-3  # emulated: 5e-4


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("hidden", [65, 650, 1500])
@pytest.mark.parametrize("batch", [1, 3, 20, 127, 300])
@pytest.mark.usefixtures("nan_allocations")
def test_every_size_in_one_launch_and_on_the_path_that_is_chosen_for_it(problem, cell, batch, hidden):
    masks = "untied" if batch == 127 else "tied"
    for steps in (1, 2, 63) if batch < 300 else (2,):
        facts = {"batch": batch, "hidden": hidden, "steps": steps, "recurrent_mask": masks}
        chosen = kernels.kernel(cell, "cuda", dtype=torch.float32, **facts)
        case = problem(cell, [batch] * steps, hidden, masks=masks, seed=batch * steps)
        expected = case.to("cuda").outcome(reference_of(cell))
        for kernel in dict.fromkeys((kernel_of(cell), chosen)):
            found = case.to("cuda", torch.float32).outcome(kernel)
            assert max(errors(found, expected)) < 2e-3, facts  # some units in the last place of TF32, 2^-11


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(("sizes", "hidden", "masks"), [([3] * 63, 65, "untied"), ([20] * 63, 650, "tied")])
def test_every_run_gives_the_same_bits(problem, cell, sizes, hidden, masks):
    case = problem(cell, sizes, hidden, masks=masks).to("cuda", torch.float32)
    first = case.outcome(kernel_of(cell))
    for _ in range(30):
        assert_close(case.outcome(kernel_of(cell)), first, rtol=0, atol=0)


@pytest.mark.parametrize("cell", CELLS)
def test_a_graph_replays_it_on_new_numbers(problem, cell):
    sizes, kernel = [20] * 63, kernel_of(cell)
    case = problem(cell, sizes, 650, masks="tied").to("cuda", torch.float32)
    other = problem(cell, sizes, 650, masks="tied", seed=1).to("cuda", torch.float32)
    expected = other.outcome(kernel)
    case.outcome(kernel)  # what a graph cannot make is made here
    leaves = [t for t in case.tensors if t is not None]
    cotangents = [torch.ones_like(out) for out in case.run(kernel)]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.autograd.grad(case.run(kernel), leaves, cotangents)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = case.run(kernel)
        gradients = torch.autograd.grad(outputs, leaves, cotangents)
    generator = torch.Generator().manual_seed(7)  # as in Problem.outcome
    with torch.no_grad():
        for cotangent in cotangents:
            cotangent.copy_(torch.randn(cotangent.shape, generator=generator, dtype=torch.float64))
        for old, new in zip(leaves, [t for t in other.tensors if t is not None], strict=True):
            old.copy_(new)
        case.masks[0].copy_(other.masks[0])
    for _ in range(3):
        graph.replay()
        check_same([*outputs, *gradients], expected, made=6 if cell == "LSTM" else 4)


@pytest.mark.parametrize("cell", CELLS)
def test_ten_thousand_launches_in_a_row(problem, cell):
    case = problem(cell, [3] * 2, 65, masks="untied").to("cuda", torch.float32)
    kernel = kernel_of(cell)
    leaves = [t for t in case.tensors if t is not None]

    def both_passes():
        outputs = case.run(kernel)
        return torch.autograd.grad(outputs, leaves, [torch.ones_like(out) for out in outputs])

    first = both_passes()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(50):
            last = both_passes()
    for _ in range(100):
        graph.replay()  # 100 launches each, with no pause between them
    torch.cuda.synchronize()
    check_same(last, first, made=3 if cell == "LSTM" else 2)


@pytest.mark.parametrize("cell", CELLS)
def test_its_error_is_like_that_of_cudnn(cell, launches):
    torch.manual_seed(0)
    layer = getattr(br, cell)(200, 200, device="cuda")
    x = torch.randn(35, 20, 200, device="cuda", requires_grad=True)
    weights = torch.randn(35, 20, 200, device="cuda")

    def outcome(layer, x, weights):
        out, _ = layer(x)
        return [out, *torch.autograd.grad((out * weights).sum(), [x, *layer.parameters()])]

    ours = outcome(layer, x, weights)
    assert len(launches) == 2
    plain = getattr(torch.nn, cell)(200, 200, device="cuda")
    plain.load_state_dict(layer.state_dict())
    theirs = outcome(plain, x, weights)
    exactly = getattr(br, cell)(200, 200, device="cuda", dtype=torch.float64)
    exactly.load_state_dict(layer.state_dict())
    with kernels.force("reference"):
        exact = outcome(exactly, x.detach().double().requires_grad_(), weights.double())
    for a, b in zip(errors(ours, exact), errors(theirs, exact), strict=True):
        assert a < 1.5 * max(b, 2**-11)  # half a unit in the last place of TF32, should cuDNN not use it


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("packed", [False, True])
def test_layers_take_it(cell, training, packed, launches):
    torch.manual_seed(0)
    layer = getattr(br, cell)(7, 65, 2, recurrent_dropout=0.3, tied=False, device="cuda").train(training)
    x = torch.randn(9, 3, 7, device="cuda")
    given = pack_padded_sequence(x, torch.tensor([4, 9, 5]), enforce_sorted=False) if packed else x

    def outcome():
        with br.draw(layer, seed=1):
            out, state = layer(given)
        out = out.data if packed else out
        state = state if isinstance(state, tuple) else (state,)
        loss = out.square().sum() + sum(s.sin().sum() for s in state)
        return [out, *state, *torch.autograd.grad(loss, list(layer.parameters()))]

    assert "path 'persistent'" in kernels.explain(layer, batch=3)
    found = outcome()
    assert len(launches) == 4  # two layers, forward and backward
    with kernels.force("reference"):
        expected = outcome()
    assert len(launches) == 4
    assert max(errors(found, expected)) < 1e-3


def test_in_a_graph_large_plain_layers_run_step_by_step(launches, monkeypatch):
    torch.set_float32_matmul_precision("high")  # the fixture sets it back
    torch.manual_seed(0)
    layer, x = br.LSTM(7, 650, 2, device="cuda"), torch.randn(3, 600, 7, device="cuda", requires_grad=True)

    def outcome():
        out, (h, c) = layer(x)
        loss = out.square().sum() + h.sin().sum() + c.cos().sum()
        gradients = torch.autograd.grad(loss, [x, *layer.parameters()])
        return [t.detach() for t in (out, h, c, *gradients)]  # a graph that is kept holds its stream

    expected = outcome()
    with kernels.recording():
        assert "path 'cells'" in kernels.explain(layer, batch=600, graph=True)
        taken = []
        real = kernels.Path.load
        monkeypatch.setattr(kernels.Path, "load", lambda row: (taken.append((row.kernel, row.name)), real(row))[1])
        found = outcome()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            outcome()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            kept = outcome()
        graph.replay()
    assert taken.count(("LSTM", "cells")) == 6
    assert not launches
    assert max(errors(found, expected)) < 2e-3
    assert max(errors(kept, expected)) < 2e-3


@pytest.mark.parametrize("cell", CELLS)
def test_cases_it_refuses_run_elsewhere(cell, launches, monkeypatch):
    def run(batch=3, hidden=65, dtype=torch.float32):
        layer = getattr(br, cell)(7, hidden, recurrent_dropout=0.3, device="cuda", dtype=dtype)
        layer(torch.randn(2, batch, 7, device="cuda", dtype=dtype))[0].sum().backward()
        return kernels.explain(layer, batch=batch)

    assert "not 'persistent': it takes and gives float32, not torch.float64." in run(dtype=torch.float64)
    assert "not 'persistent': of 20000 sequences" in run(batch=20_000)
    assert "not 'persistent': the recurrent weights of 4000 units do not fit on this chip." in run(hidden=4000)
    plain = getattr(torch.nn, cell)(7, 65, device="cuda")
    assert layered.beats_torch(plain, torch.randn(2, 512, 7, device="cuda"))
    assert not layered.beats_torch(plain, torch.randn(2, 600, 7, device="cuda"))
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert "allow_tf32 forbids." in run()
    assert not launches
    assert not layered.beats_torch(getattr(torch.nn, cell)(7, 65), torch.randn(2, 3, 7, device="cuda"))


@pytest.mark.parametrize("power", [-10, -15])  # the second: 16-bit numbers without all their digits
def test_operands_are_rounded_and_not_cut_off(power):
    assert max(map(abs, shrink("cuda", 2.0**power))) < 1e-4
