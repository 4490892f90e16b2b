"""The hand-written LSTM recurrence against the plain one, finite differences and torch.nn."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from bayesrnn.kernels.lstm import cells, compiled, loop, reference

MASKS = ("none", "tied", "untied")
RAGGED = [3, 3, 2, 1, 1]


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=7),
    hidden=st.integers(1, 7),
    projection=st.integers(0, 4),
    masks=st.sampled_from(MASKS),
    cell_mask=st.booleans(),
    reverse=st.booleans(),
    seed=st.integers(0, 99),
)
def test_outputs_and_gradients_are_the_reference_s(problem, sizes, hidden, projection, masks, cell_mask, reverse, seed):
    case = problem(
        "LSTM", sorted(sizes, reverse=True), hidden, projection=projection, masks=masks, cell_mask=cell_mask,
        reverse=reverse, seed=seed,
    )  # fmt: skip
    assert_close(case.outcome(loop.lstm), case.outcome(reference.lstm), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("used", [(0,), (1,), (2,), (1, 2)], ids=["out", "h", "c", "state"])
@pytest.mark.parametrize("sizes", [[3] * 4, RAGGED], ids=["equal", "ragged"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("projection", [0, 2])
def test_gradients_of_each_output_alone(problem, used, sizes, reverse, projection):
    case = problem("LSTM", sizes, 5, masks="tied", cell_mask=True, reverse=reverse, projection=projection)
    assert_close(case.outcome(loop.lstm, used), case.outcome(reference.lstm, used), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("projection", [0, 2])
@pytest.mark.parametrize("cell_mask", [False, True])
def test_backward_agrees_with_finite_differences(problem, masks, projection, cell_mask):
    for sizes, reverse in product(([2, 2, 2], [3, 2, 1]), (False, True)):
        case = problem(
            "LSTM", sizes, 3, masks=masks, projection=projection, cell_mask=cell_mask, reverse=reverse
        )  # fmt: skip
        options, (gx, h, c, w_hh, w_hr), extra = case.options, case.tensors, case.masks

        def run(gx, h, c, w_hh, w_hr=None, extra=extra, options=options):
            return loop.lstm(gx.clone(), h, c, w_hh, w_hr, *extra, **options)

        leaves = (gx, h, c, w_hh) if w_hr is None else (gx, h, c, w_hh, w_hr)
        assert torch.autograd.gradcheck(run, leaves)


def test_reference_can_be_differentiated_twice(problem):
    case = problem("LSTM", [2, 1], 2, masks="untied", cell_mask=True)
    gx, h, c, w_hh, _ = case.tensors

    def run(gx, h, c, w_hh):
        return reference.lstm(gx, h, c, w_hh, None, *case.masks, **case.options)

    assert torch.autograd.gradgradcheck(run, (gx, h, c, w_hh))


def test_second_derivative_of_the_loop_is_refused_not_wrong(problem):
    case = problem("LSTM", [2, 2], 2)
    out, *_ = case.run(loop.lstm)
    (d_w,) = torch.autograd.grad(out.square().sum(), case.tensors[3], create_graph=True)
    with pytest.raises(RuntimeError, match="can be differentiated once"):
        d_w.sum().backward()


@pytest.mark.parametrize("fast", [compiled.lstm, loop.lstm], ids=["compiled", "loop"])
@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("sizes", [[5] * 7, [5, 5, 4, 4, 2, 1]], ids=["equal", "ragged"])
@pytest.mark.parametrize("reverse", [False, True])
def test_float32_with_packed_matrices(problem, fast, masks, sizes, reverse):
    # 4 * 130 * 130 weights: past the size from which the matrices are packed, also gate by gate; an odd size
    case = problem("LSTM", sizes, 130, masks=masks, cell_mask=True, reverse=reverse, dtype=torch.float32)
    assert_close(case.outcome(fast), case.outcome(reference.lstm), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("sizes", [[3] * 4, RAGGED], ids=["equal", "ragged"])
@pytest.mark.parametrize("projection", [0, 2])
@pytest.mark.usefixtures("nan_allocations")
def test_nothing_is_read_before_it_is_written(problem, masks, sizes, projection):
    for reverse in (False, True):
        case = problem("LSTM", sizes, 5, masks=masks, cell_mask=True, projection=projection, reverse=reverse)
        assert_close(case.outcome(loop.lstm), case.outcome(reference.lstm), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("masks", MASKS)
def test_backward_twice_through_a_kept_graph(problem, masks):
    case = problem("LSTM", RAGGED, 4, masks=masks, projection=3)
    loss = sum(out.square().sum() for out in case.run(loop.lstm))
    first = torch.autograd.grad(loss, case.tensors, retain_graph=True)
    assert_close(torch.autograd.grad(loss, case.tensors), first, rtol=0, atol=0)


def test_inputs_other_than_the_scratch_stay_as_they_were(problem):
    case = problem("LSTM", RAGGED, 4, masks="tied", cell_mask=True, projection=3)
    tensors = [t for t in [*case.tensors[1:], *case.masks] if t is not None]
    before = [t.detach().clone() for t in tensors]
    case.outcome(loop.lstm)
    assert_close([t.detach() for t in tensors], before, rtol=0, atol=0)


@pytest.mark.parametrize("recurrence", [loop.lstm, reference.lstm], ids=["loop", "reference"])
def test_finished_sequences_keep_their_last_state(problem, recurrence):
    case = problem("LSTM", [3, 2, 1], 4)
    out, h, _ = case.run(recurrence)
    # time-major rows 0 1 2 | 3 4 | 5: the last rows of sequences 0, 1, 2 are 5, 4, 2
    assert_close(h, out[[5, 4, 2]])


@pytest.mark.parametrize("recurrence", [loop.lstm, reference.lstm], ids=["loop", "reference"])
def test_without_masks_it_is_torch_s_lstm(problem, recurrence):
    theirs = torch.nn.LSTM(3, 5, dtype=torch.float64)
    x, h, c = (torch.randn(*s, dtype=torch.float64) for s in ((6, 2, 3), (1, 2, 5), (1, 2, 5)))
    gx = x.flatten(0, 1) @ theirs.weight_ih_l0.t() + theirs.bias_ih_l0 + theirs.bias_hh_l0
    out, h_n, c_n = recurrence(gx, h[0], c[0], theirs.weight_hh_l0, batch_sizes=[2] * 6)
    expected, (h_t, c_t) = theirs(x, (h, c))
    assert_close((out.view(6, 2, 5), h_n, c_n), (expected, h_t[0], c_t[0]))


def cell(x, product, c):
    """torch's fused cell, which has no kernel on a CPU: the new states, and the gates for its backward."""
    i, f, g, o = (x + product).chunk(4, dim=1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    new = f * c + i * g
    return o * new.tanh(), new, torch.cat([i, f, g, o], dim=1)


def cell_backward(dh, dc, c, new, gates, bias):
    (i, f, g, o), q = gates.chunk(4, dim=1), new.tanh()
    dq = dc + dh * o * (1 - q * q)
    parts = [dq * g * i * (1 - i), dq * c * f * (1 - f), dq * i * (1 - g * g), dh * q * o * (1 - o)]
    return torch.cat(parts, dim=1), dq * f, None


@pytest.mark.parametrize("sizes", [[3] * 4, [4, 3, 1]], ids=["equal", "ragged"])
@pytest.mark.parametrize("masks", ["none", "tied", "untied"])
@pytest.mark.parametrize("reverse", [False, True])
def test_fused_cells_step_by_step(problem, monkeypatch, sizes, masks, reverse):
    monkeypatch.setattr(cells, "_cell", cell)
    monkeypatch.setattr(cells, "_cell_backward", cell_backward)
    monkeypatch.setattr(cells.lstm, "serves", None)  # on a CPU too
    case = problem("LSTM", sizes, 5, masks=masks, reverse=reverse)
    for used in (None, (0,), (1,), (2,)):
        assert_close(case.outcome(cells.lstm, used), case.outcome(reference.lstm, used), rtol=1e-10, atol=1e-12)
