"""The input products with their hand-written backward, and the matrix products below all fast kernels."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from bayesrnn.kernels.input.loop import project as fast
from bayesrnn.kernels.input.reference import project as reference
from bayesrnn.kernels.shared import matmul

MASKS = ("none", "tied", "untied")


def make(sizes, features, hidden, *, gates=4, masks="none", bias=True, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=dtype)

    shape = {"none": (), "tied": (sizes[0], features), "untied": (sizes[0], gates, features)}[masks]
    mask = (normal(*shape) > 0).to(dtype) * 2 if shape else None
    leaves = [normal(sum(sizes), features), normal(gates * hidden, features), normal(gates * hidden) if bias else None]
    return [None if t is None else t.requires_grad_() for t in leaves], mask


def outcome(function, leaves, mask, sizes):
    out = function(*leaves, mask, sizes)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=out.dtype)
    return [out, *torch.autograd.grad((out * weights).sum(), [t for t in leaves if t is not None])]


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=6).map(lambda sizes: sorted(sizes, reverse=True)),
    features=st.integers(1, 6),
    hidden=st.integers(1, 6),
    gates=st.integers(1, 4),
    masks=st.sampled_from(MASKS),
    bias=st.booleans(),
)
def test_outputs_and_gradients_are_the_reference_s(sizes, features, hidden, gates, masks, bias):
    leaves, mask = make(sizes, features, hidden, gates=gates, masks=masks, bias=bias)
    assert_close(outcome(fast, leaves, mask, sizes), outcome(reference, leaves, mask, sizes), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("sizes", [[2, 2], [3, 2, 1]], ids=["equal", "ragged"])
@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("bias", [False, True])
def test_backward_agrees_with_finite_differences(sizes, masks, bias):
    leaves, mask = make(sizes, 3, 2, masks=masks, bias=bias)

    def run(x, weight, b=None):
        return fast(x, weight, b, mask, sizes)

    assert torch.autograd.gradcheck(run, tuple(t for t in leaves if t is not None))


@pytest.mark.parametrize("masks", MASKS)
def test_gradients_are_made_only_where_asked_for(masks):
    leaves, mask = make([3, 2], 4, 2, masks=masks)
    expected = outcome(reference, leaves, mask, [3, 2])[1:]
    for k in range(3):
        some = [t if j == k else t.detach() for j, t in enumerate(leaves)]
        out = fast(*some, mask, [3, 2])
        weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=out.dtype)
        assert_close(torch.autograd.grad((out * weights).sum(), leaves[k])[0], expected[k])


@pytest.mark.parametrize("sizes", [[5] * 4, [5, 4, 2]], ids=["equal", "ragged"])
@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("features", "hidden"), [(129, 130), (530, 500)])  # odd; large enough for every path
def test_float32_at_sizes_of_the_other_library(sizes, masks, bias, features, hidden):
    leaves, mask = make(sizes, features, hidden, masks=masks, bias=bias, dtype=torch.float32)
    found, expected = (outcome(f, leaves, mask, sizes) for f in (fast, reference))
    assert_close(found, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("sizes", [[3] * 3, [3, 2, 1]], ids=["equal", "ragged"])
@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.usefixtures("nan_allocations")
def test_nothing_is_read_before_it_is_written(sizes, masks):
    leaves, mask = make(sizes, 4, 3, masks=masks)
    assert_close(outcome(fast, leaves, mask, sizes), outcome(reference, leaves, mask, sizes))


@pytest.mark.parametrize("shape", [(3, 5), (127, 257), (1030, 1030)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [0, 1, 7])
def test_matrix_products(shape, dtype, rows):
    weight, bias = torch.randn(*shape, dtype=dtype), torch.randn(shape[0], dtype=dtype)
    x, d = torch.randn(rows, shape[1], dtype=dtype), torch.randn(rows, shape[0], dtype=dtype)
    assert_close(matmul.product_transposed(x, weight), x @ weight.t(), rtol=1e-4, atol=1e-3)
    assert_close(matmul.product_transposed(x, weight, bias), x @ weight.t() + bias, rtol=1e-4, atol=1e-3)
    assert_close(matmul.product_transposed(d, weight.t()), d @ weight, rtol=1e-4, atol=1e-3)
    assert_close(matmul.weight_gradient(d, x), d.t() @ x, rtol=1e-4, atol=1e-3)
    wide = torch.randn(rows, 3 * shape[0], dtype=dtype)[:, shape[0] : 2 * shape[0]]  # a gate's part of a wider tensor
    assert_close(matmul.weight_gradient(wide, x), wide.t() @ x, rtol=1e-4, atol=1e-3)


def test_the_product_takes_part_in_autocast():
    leaves, mask = make([2, 2], 3, 2, masks="untied", dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = fast(*leaves, mask, [2, 2])
    assert_close(out.float(), reference(*leaves, mask, [2, 2]), rtol=0.05, atol=0.05)
