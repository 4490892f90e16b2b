"""The compiled recurrences against the plain ones in float64, and what they leave to other paths."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

import bayesrnn as br
from bayesrnn import kernels
from bayesrnn.kernels import cpu
from bayesrnn.kernels.cpu import build, recurrent
from bayesrnn.kernels.gru import compiled as gru
from bayesrnn.kernels.gru import reference as gru_reference
from bayesrnn.kernels.lstm import compiled as lstm
from bayesrnn.kernels.lstm import reference as lstm_reference
from bayesrnn.kernels.rnn import compiled as rnn
from bayesrnn.kernels.rnn import reference as rnn_reference

if cpu.why_not() is not None:
    pytest.skip(f"no compiled kernels: {cpu.why_not()}", allow_module_level=True)

FAST = {"LSTM": lstm.lstm, "GRU": gru.gru, "RNN": rnn.rnn}
PLAIN = {"LSTM": lstm_reference.lstm, "GRU": gru_reference.gru, "RNN": rnn_reference.rnn}
CELLS = tuple(FAST)
MASKS = ("none", "tied", "untied")
RAGGED = [3, 3, 2, 1, 1]


def outcome(case, recurrence, dtype=torch.float32, used=None):
    """Outputs and gradients of the same problem, computed in `dtype`."""
    tensors = [None if t is None else t.detach().to(dtype).requires_grad_() for t in case.tensors]
    masks = [None if m is None else m.to(dtype) for m in case.masks]
    outputs = recurrence(tensors[0].clone(), *tensors[1:], *masks, **case.options)
    generator = torch.Generator().manual_seed(7)
    loss = torch.zeros((), dtype=dtype)
    for k, out in enumerate(outputs):
        weights = torch.randn(out.shape, generator=generator).to(dtype)
        if used is None or k in used:
            loss = loss + (out * weights).sum()
    found = torch.autograd.grad(loss, [t for t in tensors if t is not None])
    return [t.detach().double() for t in (*outputs, *found)]


def assert_same(case, cell, used=None):
    """As close to the float64 result as sums in float32 can be: relative to the size of each tensor."""
    for ours, exact in zip(
        outcome(case, FAST[cell], used=used), outcome(case, PLAIN[cell], torch.float64, used), strict=True
    ):
        assert float((ours - exact).norm()) <= 3e-6 * float(exact.norm()) + 1e-6


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    cell=st.sampled_from(CELLS),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=7),
    hidden=st.integers(1, 40),
    masks=st.sampled_from(MASKS),
    option=st.booleans(),
    reverse=st.booleans(),
    seed=st.integers(0, 99),
)
def test_outputs_and_gradients_are_the_reference_s(problem, cell, sizes, hidden, masks, option, reverse, seed):
    options = {
        "LSTM": {"cell_mask": option},
        "GRU": {"bias": option},
        "RNN": {"nonlinearity": ("tanh", "relu")[option]},
    }
    case = problem(
        cell, sorted(sizes, reverse=True), hidden, masks=masks, reverse=reverse, seed=seed, dtype=torch.float32,
        **options[cell],
    )  # fmt: skip
    assert_same(case, cell)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("hidden", [63, 64, 130, 210])
@pytest.mark.parametrize("sizes", [[1] * 3, [20] * 3, [13, 12, 7, 6, 5, 1]], ids=["one", "twenty", "ragged"])
def test_sizes_around_vectors_and_rows_of_a_tile(problem, cell, hidden, sizes):
    for masks in MASKS:
        assert_same(problem(cell, sizes, hidden, masks=masks, dtype=torch.float32), cell)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("sizes", [[3] * 4, RAGGED], ids=["equal", "ragged"])
@pytest.mark.parametrize("reverse", [False, True])
def test_gradients_of_each_output_alone(problem, cell, sizes, reverse):
    case = problem(cell, sizes, 5, masks="tied", reverse=reverse, dtype=torch.float32)
    for used in ((0,), (1,), *(((2,), (1, 2)) if cell == "LSTM" else ())):
        assert_same(case, cell, used)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.usefixtures("nan_allocations")
def test_nothing_is_read_before_it_is_written(problem, cell, masks, monkeypatch):
    monkeypatch.setattr(recurrent, "_scratch", type(recurrent._scratch)())
    for sizes in ([3] * 4, RAGGED):
        for reverse in (False, True):
            assert_same(problem(cell, sizes, 37, masks=masks, reverse=reverse, dtype=torch.float32), cell)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("masks", MASKS)
def test_numbers_do_not_depend_on_the_number_of_threads(problem, cell, masks, monkeypatch):
    case = problem(cell, [11, 11, 9, 4, 1], 150, masks=masks, dtype=torch.float32)
    found = []
    for threads in (1, 2, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        monkeypatch.setattr(recurrent, "_WORK", 1)
        found.append(outcome(case, FAST[cell]))
    assert_close(found[0], found[1], rtol=0, atol=0)
    assert_close(found[0], found[2], rtol=0, atol=0)


@pytest.mark.parametrize("cell", CELLS)
def test_the_second_derivative_is_refused_not_wrong(problem, cell):
    case = problem(cell, [2, 2], 2, dtype=torch.float32)
    out = case.run(FAST[cell])[0]
    weight = case.tensors[3 if cell == "LSTM" else 2]
    (d_w,) = torch.autograd.grad(out.square().sum(), weight, create_graph=True)
    with pytest.raises(RuntimeError, match="can be differentiated once"):
        d_w.sum().backward()


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("masks", MASKS)
def test_backward_twice_through_a_kept_graph_and_inputs_unchanged(problem, cell, masks):
    case = problem(cell, RAGGED, 4, masks=masks, dtype=torch.float32)
    leaves = [t for t in case.tensors if t is not None]
    before = [t.detach().clone() for t in [*leaves[1:], *case.masks] if t is not None]
    loss = sum(out.square().sum() for out in case.run(FAST[cell]))
    first = torch.autograd.grad(loss, leaves, retain_graph=True)
    assert_close(torch.autograd.grad(loss, leaves), first, rtol=0, atol=0)
    assert_close([t.detach() for t in [*leaves[1:], *case.masks] if t is not None], before, rtol=0, atol=0)


@pytest.mark.parametrize("cell", CELLS)
def test_tensors_in_any_memory_layout(problem, cell):
    case = problem(cell, [4] * 3, 6, masks="tied", dtype=torch.float32)

    def strange(t):
        return t if t is None or t.ndim < 2 else t.detach().t().contiguous().t().requires_grad_(t.requires_grad)

    other = type(case)([strange(t) for t in case.tensors], [strange(m) for m in case.masks], case.options)
    assert not other.tensors[1].is_contiguous()
    assert_close(outcome(other, FAST[cell]), outcome(case, FAST[cell]), rtol=0, atol=0)
    out = case.run(FAST[cell])[0]
    leaves = [t for t in case.tensors if t is not None]
    expanded = torch.autograd.grad(out.sum(), leaves, retain_graph=True, allow_unused=True)  # a gradient with stride 0
    assert_close(torch.autograd.grad(out, leaves, torch.ones_like(out), allow_unused=True), expanded, rtol=0, atol=0)


@pytest.mark.parametrize("cell", CELLS)
def test_shapes_that_do_not_fit_are_refused_before_they_reach_c(problem, cell):
    case = problem(cell, RAGGED, 4, masks="tied", dtype=torch.float32)
    (gx, *rest), masks, options = case.tensors, case.masks, case.options
    at = 2 if cell == "LSTM" else 1  # of w_hh in rest

    def wrong(gx=gx, sizes=RAGGED, **changes):
        changed = [changes.get(f"t{k}", t) for k, t in enumerate(rest)]
        return FAST[cell](
            gx.clone(), *changed, changes.get("mask", masks[0]), *masks[1:], **{**options, "batch_sizes": sizes}
        )

    wrong()
    for change, message in (
        ({"sizes": [3, 3, 2, 1]}, "gx must be of shape"),
        ({"sizes": [2, 3, 3, 1, 1]}, "batch_sizes must fall"),
        ({"sizes": [4, 3, 1, 1, 1]}, "batch_sizes must fall, from the batch of h"),
        ({"gx": gx[:, :-1]}, "gx must be of shape"),
        ({f"t{at}": rest[at][:, :-1]}, "w_hh must be of shape"),
        ({"mask": masks[0][:2]}, "z_h must be of shape"),
    ):
        with pytest.raises(ValueError, match=message):
            wrong(**change)


@pytest.mark.parametrize("cell", CELLS)
def test_nan_and_infinity_come_through(problem, cell):
    case = problem(cell, [2] * 3, 20, dtype=torch.float32)
    gx = case.tensors[0].detach().clone()
    gx[1, 3] = float("nan")
    gx[0, ::2] = float("inf")
    gx[0, 1::2] = -float("inf")
    out = FAST[cell](gx.clone(), *case.tensors[1:], *case.masks, **case.options)[0].view(3, 2, -1)
    exact = PLAIN[cell](gx.double(), *(None if t is None else t.detach().double() for t in case.tensors[1:]),
                        *case.masks, **case.options)[0].view(3, 2, -1)  # fmt: skip
    assert out[0, 1].isnan().any()
    assert not out[0, 0].isnan().any()
    assert_close(out[:, 0].double(), exact[:, 0].detach(), rtol=1e-5, atol=1e-6)
    assert torch.equal(out[:, 1].isnan(), exact[:, 1].isnan())


def test_activations_are_accurate_to_a_few_units_in_the_last_place():
    # through one step of an LSTM without recurrent weights: c = sigmoid(i) tanh(g), and sigmoid(100) = tanh(100) = 1
    x = torch.cat([torch.linspace(-30, 30, 4032), torch.logspace(-30, 1, 2048), -torch.logspace(-30, 1, 2048)])
    rows = x.view(-1, 64)
    one, zero, w = torch.full_like(rows, 100.0), torch.zeros_like(rows), torch.zeros(256, 64)
    for gates, exact, bound in (
        ([one, one, rows, one], rows.double().tanh(), 5e-7),
        ([rows, one, one, one], rows.double().sigmoid(), 1e-6),
    ):
        _, _, c = lstm.lstm(torch.cat(gates, dim=1), zero, zero, w, batch_sizes=[rows.shape[0]])
        assert_close(c.double(), exact, rtol=bound, atol=0)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("sizes", [[3] * 4, RAGGED], ids=["equal", "ragged"])
def test_many_draws_under_vmap_are_each_draw_alone(problem, cell, reverse, sizes):
    cases = [problem(cell, sizes, 21, reverse=reverse, seed=k, dtype=torch.float32) for k in range(5)]
    stacked = [
        None if ts[0] is None else torch.stack([t.detach() for t in ts])
        for ts in zip(*(c.tensors for c in cases), strict=True)
    ]
    options, masks = cases[0].options, cases[0].masks

    def run(*tensors):
        return FAST[cell](*tensors, *masks, **options)

    with torch.no_grad():
        alone = [case.run(FAST[cell]) for case in cases]
        dims = tuple(None if t is None else 0 for t in stacked)
        found = torch.vmap(run, dims)(*(None if t is None else t.clone() for t in stacked))
        for k, outputs in enumerate(alone):
            assert_close([out[k] for out in found], list(outputs), rtol=0, atol=0)
        # a state that all draws share
        shared = (0, None, *dims[2:])
        found = torch.vmap(run, shared)(stacked[0].clone(), stacked[1][0], *stacked[2:])
        assert_close(found[0][0], alone[0][0], rtol=0, atol=0)


def test_under_vmap_what_has_no_kernel_takes_the_plain_one(problem):
    case = problem("LSTM", RAGGED, 5, masks="tied", cell_mask=True, dtype=torch.float32)
    gx, h, c, w, _ = (None if t is None else t.detach() for t in case.tensors)
    exact = case.run(lstm_reference.lstm)
    with torch.no_grad():
        found = torch.vmap(lambda g: lstm.lstm(g, h, c, w, None, *case.masks, **case.options))(gx.expand(3, *gx.shape))
    assert_close(found[0][2], exact[0].detach(), rtol=1e-5, atol=1e-6)
    slope = torch.vmap(torch.func.grad(lambda g: lstm.lstm(g, h, c, w, **case.options)[0].sum()))(
        gx.expand(2, *gx.shape)
    )
    loss = lstm_reference.lstm(case.tensors[0], h, c, w, **case.options)[0].sum()
    assert_close(slope[1], torch.autograd.grad(loss, case.tensors[0])[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, "compiled"),
        ({"dtype": torch.float64}, "loop"),
        ({"projection": True}, "loop"),
        ({"recurrent_mask": "untied", "cell_mask": True, "ragged": True}, "compiled"),
    ],
)
def test_the_table_chooses_it_for_float32_without_projection(change, expected, monkeypatch):
    monkeypatch.delenv("BAYESRNN_KERNEL", raising=False)
    assert kernels.path("cpu", **change) == expected
    monkeypatch.setenv("BAYESRNN_COMPILE", "0")
    assert kernels.path("cpu", **change) == "loop"
    assert "BAYESRNN_COMPILE=0" in kernels.explain("LSTM")


@pytest.mark.parametrize("cell", CELLS)
def test_called_directly_it_hands_over_what_it_cannot_do(problem, cell, monkeypatch):
    case = problem(cell, RAGGED, 5, masks="tied", **({"projection": 2} if cell == "LSTM" else {}))
    assert_close(case.outcome(FAST[cell]), case.outcome(PLAIN[cell]), rtol=1e-10, atol=1e-12)  # float64
    monkeypatch.setenv("BAYESRNN_COMPILE", "0")
    case = problem(cell, RAGGED, 5, masks="tied", dtype=torch.float32)
    assert_close(case.outcome(FAST[cell]), case.outcome(PLAIN[cell]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("tied", [True, False])
def test_layers_give_the_same_on_all_paths(cell, tied):
    torch.manual_seed(0)
    layer = getattr(br, cell)(12, 18, 2, bidirectional=True, input_dropout=0.3, recurrent_dropout=0.2, tied=tied)
    x = nn.utils.rnn.pack_sequence([torch.randn(n, 12) for n in (6, 4, 4, 1)])
    results = []
    for path in ("compiled", "loop", "reference"):
        layer.zero_grad()
        with br.draw(layer, seed=0), kernels.force(path):
            out = layer(x)[0].data
            out.square().sum().backward()
        results.append([out.detach(), *(p.grad.clone() for p in layer.parameters())])
    assert_close(results[0], results[1], rtol=1e-4, atol=1e-5)
    assert_close(results[0], results[2], rtol=1e-4, atol=1e-5)


def test_a_forked_process_uses_one_thread(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert build.threads() == 4
    monkeypatch.setattr(build, "_forked", True)
    assert build.threads() == 1
