"""The hand-written simple recurrence against the plain one, finite differences and torch.nn."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from bayesrnn.kernels.rnn import compiled, loop, reference

MASKS = ("none", "tied", "untied")
KINDS = ("tanh", "relu")
RAGGED = [3, 3, 2, 1, 1]


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=7),
    hidden=st.integers(1, 7),
    kind=st.sampled_from(KINDS),
    masks=st.sampled_from(MASKS),
    reverse=st.booleans(),
    seed=st.integers(0, 99),
)
def test_outputs_and_gradients_are_the_reference_s(problem, sizes, hidden, kind, masks, reverse, seed):
    case = problem(
        "RNN", sorted(sizes, reverse=True), hidden, nonlinearity=kind, masks=masks, reverse=reverse, seed=seed
    )  # fmt: skip
    assert_close(case.outcome(loop.rnn), case.outcome(reference.rnn), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("used", [(0,), (1,)], ids=["out", "h"])
@pytest.mark.parametrize("sizes", [[3] * 4, RAGGED], ids=["equal", "ragged"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_each_output_alone(problem, used, sizes, reverse, kind):
    case = problem("RNN", sizes, 5, masks="tied", reverse=reverse, nonlinearity=kind)
    assert_close(case.outcome(loop.rnn, used), case.outcome(reference.rnn, used), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("kind", KINDS)
def test_backward_agrees_with_finite_differences(problem, masks, kind):
    # relu: none of these seeds puts a unit within a finite difference's reach of the kink
    for sizes, reverse in product(([2, 2, 2], [3, 2, 1]), (False, True)):
        case = problem("RNN", sizes, 3, masks=masks, nonlinearity=kind, reverse=reverse)
        options, extra = case.options, case.masks

        def run(gx, h, w_hh, extra=extra, options=options):
            return loop.rnn(gx.clone(), h, w_hh, *extra, **options)

        assert torch.autograd.gradcheck(run, tuple(case.tensors))


def test_reference_can_be_differentiated_twice(problem):
    case = problem("RNN", [2, 1], 2, masks="untied")

    def run(gx, h, w_hh):
        return reference.rnn(gx, h, w_hh, *case.masks, **case.options)

    assert torch.autograd.gradgradcheck(run, tuple(case.tensors))


def test_second_derivative_of_the_loop_is_refused_not_wrong(problem):
    case = problem("RNN", [2, 2], 2)
    out, _ = case.run(loop.rnn)
    (d_w,) = torch.autograd.grad(out.square().sum(), case.tensors[2], create_graph=True)
    with pytest.raises(RuntimeError, match="can be differentiated once"):
        d_w.sum().backward()


@pytest.mark.parametrize("fast", [compiled.rnn, loop.rnn], ids=["compiled", "loop"])
@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("sizes", [[5] * 7, [5, 5, 4, 4, 2, 1]], ids=["equal", "ragged"])
@pytest.mark.parametrize("reverse", [False, True])
def test_float32_with_packed_matrices(problem, fast, masks, sizes, reverse):
    # 130 * 130 weights: past the size from which the matrix is packed; an odd size
    case = problem("RNN", sizes, 130, masks=masks, reverse=reverse, dtype=torch.float32)
    assert_close(case.outcome(fast), case.outcome(reference.rnn), rtol=1e-4, atol=3e-5)


@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("sizes", [[3] * 4, RAGGED], ids=["equal", "ragged"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("nan_allocations")
def test_nothing_is_read_before_it_is_written(problem, masks, sizes, kind):
    for reverse in (False, True):
        case = problem("RNN", sizes, 5, masks=masks, nonlinearity=kind, reverse=reverse)
        assert_close(case.outcome(loop.rnn), case.outcome(reference.rnn), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("masks", MASKS)
def test_backward_twice_through_a_kept_graph(problem, masks):
    case = problem("RNN", RAGGED, 4, masks=masks)
    loss = sum(out.square().sum() for out in case.run(loop.rnn))
    first = torch.autograd.grad(loss, case.tensors, retain_graph=True)
    assert_close(torch.autograd.grad(loss, case.tensors), first, rtol=0, atol=0)


@pytest.mark.parametrize("recurrence", [loop.rnn, reference.rnn], ids=["loop", "reference"])
def test_finished_sequences_keep_their_last_state(problem, recurrence):
    out, h = problem("RNN", [3, 2, 1], 4).run(recurrence)
    # time-major rows 0 1 2 | 3 4 | 5: the last rows of sequences 0, 1, 2 are 5, 4, 2
    assert_close(h, out[[5, 4, 2]])


@pytest.mark.parametrize("recurrence", [loop.rnn, reference.rnn], ids=["loop", "reference"])
@pytest.mark.parametrize("kind", KINDS)
def test_without_masks_it_is_torch_s_rnn(recurrence, kind):
    theirs = torch.nn.RNN(3, 5, nonlinearity=kind, dtype=torch.float64)
    x, h = torch.randn(6, 2, 3, dtype=torch.float64), torch.randn(1, 2, 5, dtype=torch.float64)
    gx = x.flatten(0, 1) @ theirs.weight_ih_l0.t() + theirs.bias_ih_l0 + theirs.bias_hh_l0
    out, h_n = recurrence(gx, h[0], theirs.weight_hh_l0, nonlinearity=kind, batch_sizes=[2] * 6)
    expected, h_t = theirs(x, h)
    assert_close((out.view(6, 2, 5), h_n), (expected, h_t[0]))
