"""The hand-written GRU recurrence against the plain one, finite differences and torch.nn."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from bayesrnn.kernels.gru import compiled, loop, reference

MASKS = ("none", "tied", "untied")
RAGGED = [3, 3, 2, 1, 1]


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=7),
    hidden=st.integers(1, 7),
    bias=st.booleans(),
    masks=st.sampled_from(MASKS),
    reverse=st.booleans(),
    seed=st.integers(0, 99),
)
def test_outputs_and_gradients_are_the_reference_s(problem, sizes, hidden, bias, masks, reverse, seed):
    case = problem("GRU", sorted(sizes, reverse=True), hidden, bias=bias, masks=masks, reverse=reverse, seed=seed)
    assert_close(case.outcome(loop.gru), case.outcome(reference.gru), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("used", [(0,), (1,)], ids=["out", "h"])
@pytest.mark.parametrize("sizes", [[3] * 4, RAGGED], ids=["equal", "ragged"])
@pytest.mark.parametrize("reverse", [False, True])
def test_gradients_of_each_output_alone(problem, used, sizes, reverse):
    case = problem("GRU", sizes, 5, masks="tied", reverse=reverse)
    assert_close(case.outcome(loop.gru, used), case.outcome(reference.gru, used), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("bias", [False, True])
def test_backward_agrees_with_finite_differences(problem, masks, bias):
    for sizes, reverse in product(([2, 2, 2], [3, 2, 1]), (False, True)):
        case = problem("GRU", sizes, 3, masks=masks, bias=bias, reverse=reverse)
        options, extra = case.options, case.masks

        def run(gx, h, w_hh, b_hn=None, extra=extra, options=options):
            return loop.gru(gx.clone(), h, w_hh, b_hn, *extra, **options)

        assert torch.autograd.gradcheck(run, tuple(t for t in case.tensors if t is not None))


def test_reference_can_be_differentiated_twice(problem):
    case = problem("GRU", [2, 1], 2, masks="untied")

    def run(gx, h, w_hh, b_hn):
        return reference.gru(gx, h, w_hh, b_hn, *case.masks, **case.options)

    assert torch.autograd.gradgradcheck(run, tuple(case.tensors))


def test_second_derivative_of_the_loop_is_refused_not_wrong(problem):
    case = problem("GRU", [2, 2], 2)
    out, _ = case.run(loop.gru)
    (d_w,) = torch.autograd.grad(out.square().sum(), case.tensors[2], create_graph=True)
    with pytest.raises(RuntimeError, match="can be differentiated once"):
        d_w.sum().backward()


@pytest.mark.parametrize("fast", [compiled.gru, loop.gru], ids=["compiled", "loop"])
@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("sizes", [[5] * 7, [5, 5, 4, 4, 2, 1]], ids=["equal", "ragged"])
@pytest.mark.parametrize("reverse", [False, True])
def test_float32_with_packed_matrices(problem, fast, masks, sizes, reverse):
    # 130 * 130 weights per gate: past the size from which the matrices are packed; an odd size
    case = problem("GRU", sizes, 130, masks=masks, reverse=reverse, dtype=torch.float32)
    assert_close(case.outcome(fast), case.outcome(reference.gru), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("sizes", [[3] * 4, RAGGED], ids=["equal", "ragged"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.usefixtures("nan_allocations")
def test_nothing_is_read_before_it_is_written(problem, masks, sizes, bias):
    for reverse in (False, True):
        case = problem("GRU", sizes, 5, masks=masks, bias=bias, reverse=reverse)
        assert_close(case.outcome(loop.gru), case.outcome(reference.gru), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("masks", MASKS)
def test_backward_twice_through_a_kept_graph(problem, masks):
    case = problem("GRU", RAGGED, 4, masks=masks)
    loss = sum(out.square().sum() for out in case.run(loop.gru))
    first = torch.autograd.grad(loss, case.tensors, retain_graph=True)
    assert_close(torch.autograd.grad(loss, case.tensors), first, rtol=0, atol=0)


def test_inputs_other_than_the_scratch_stay_as_they_were(problem):
    case = problem("GRU", RAGGED, 4, masks="tied")
    tensors = [t for t in [*case.tensors[1:], *case.masks] if t is not None]
    before = [t.detach().clone() for t in tensors]
    case.outcome(loop.gru)
    assert_close([t.detach() for t in tensors], before, rtol=0, atol=0)


@pytest.mark.parametrize("recurrence", [loop.gru, reference.gru], ids=["loop", "reference"])
def test_finished_sequences_keep_their_last_state(problem, recurrence):
    out, h = problem("GRU", [3, 2, 1], 4).run(recurrence)
    # time-major rows 0 1 2 | 3 4 | 5: the last rows of sequences 0, 1, 2 are 5, 4, 2
    assert_close(h, out[[5, 4, 2]])


@pytest.mark.parametrize("recurrence", [loop.gru, reference.gru], ids=["loop", "reference"])
def test_without_masks_it_is_torch_s_gru(recurrence):
    theirs = torch.nn.GRU(3, 5, dtype=torch.float64)
    x, h = torch.randn(6, 2, 3, dtype=torch.float64), torch.randn(1, 2, 5, dtype=torch.float64)
    gx = x.flatten(0, 1) @ theirs.weight_ih_l0.t() + theirs.bias_ih_l0
    gx = gx + torch.cat([theirs.bias_hh_l0[:10], torch.zeros(5)])
    out, h_n = recurrence(gx, h[0], theirs.weight_hh_l0, theirs.bias_hh_l0[10:], batch_sizes=[2] * 6)
    expected, h_t = theirs(x, h)
    assert_close((out.view(6, 2, 5), h_n), (expected, h_t[0]))
