"""Time-major rows, the input products over them, repeated products with one matrix, and the choice of kernels."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.utils.rnn import pack_sequence
from torch.testing import assert_close

from bayesrnn import kernels
from bayesrnn.kernels.input.loop import project
from bayesrnn.kernels.shared.matmul import repeated_product
from bayesrnn.kernels.shared.rows import is_rectangular, offsets, order, per_row, previous_rows, times_rows

batch_sizes = st.lists(st.integers(1, 5), min_size=1, max_size=6).map(lambda sizes: sorted(sizes, reverse=True))


def who_and_when(sizes):
    """(sequence, step) of every time-major row, from torch's own packing."""
    lengths = [sum(n > b for n in sizes) for b in range(sizes[0])]
    packed = pack_sequence([torch.stack([torch.full((n,), b), torch.arange(n)], 1) for b, n in enumerate(lengths)])
    return packed.data.tolist()


@settings(max_examples=25, deadline=None, derandomize=True)
@given(sizes=batch_sizes)
def test_rows_of_a_mask_follow_their_sequences(sizes):
    mask = torch.randn(sizes[0], 3, dtype=torch.float64)
    rows = torch.stack([mask[b] for b, _ in who_and_when(sizes)])
    assert torch.equal(per_row(mask, sizes), rows)
    x = torch.randn(sum(sizes), 3, dtype=torch.float64)
    assert torch.equal(times_rows(x, mask, sizes), x * rows)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(sizes=batch_sizes, reverse=st.booleans())
def test_previous_rows(sizes, reverse):
    out, first = torch.randn(sum(sizes), 2), torch.randn(sizes[0], 2)
    at = {(b, t): row for row, (b, t) in enumerate(who_and_when(sizes))}
    step = 1 if reverse else -1
    expected = [out[at[b, t + step]] if (b, t + step) in at else first[b] for b, t in at]
    assert torch.equal(previous_rows(out, first, sizes, reverse=reverse), torch.stack(expected))


@settings(max_examples=25, deadline=None, derandomize=True)
@given(sizes=batch_sizes, gates=st.integers(1, 4), bias=st.booleans(), kind=st.sampled_from(["none", "tied", "untied"]))
def test_input_products_of_every_row_and_gate(sizes, gates, bias, kind):
    hidden, features = 3, 2
    x = torch.randn(sum(sizes), features, dtype=torch.float64)
    weight = torch.randn(gates * hidden, features, dtype=torch.float64)
    b = torch.randn(gates * hidden, dtype=torch.float64) if bias else None
    shape = {"none": (), "tied": (sizes[0], features), "untied": (sizes[0], gates, features)}[kind]
    mask = torch.randn(*shape, dtype=torch.float64) if shape else None
    rows = []
    for row, (s, _) in zip(x, who_and_when(sizes), strict=True):
        for g in range(gates):
            z = 1 if mask is None else mask[s] if kind == "tied" else mask[s, g]
            rows.append(weight[g * hidden : (g + 1) * hidden] @ (row * z))
    expected = torch.stack(rows).view(sum(sizes), -1) + (0 if b is None else b)
    assert_close(project(x, weight, b, mask, sizes), expected)


def test_order_and_offsets():
    assert offsets([3, 2, 1]) == [0, 3, 5, 6]
    assert order([3, 2, 1], reverse=False) == [(0, 3), (3, 2), (5, 1)]
    assert order([3, 2, 1], reverse=True) == [(5, 1), (3, 2), (0, 3)]
    assert is_rectangular([2, 2])
    assert not is_rectangular([2, 1])


@pytest.mark.parametrize("shape", [(3, 5), (260, 130), (127, 257)])
@pytest.mark.parametrize("repeats", [1, 9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_repeated_products_with_one_matrix(shape, repeats, dtype):
    weight = torch.randn(*shape, dtype=dtype)
    for matrix in (weight, weight.t()):
        product = repeated_product(matrix, rows=6, repeats=repeats)
        for rows in (6, 4, 1):
            x = torch.randn(rows, matrix.shape[1], dtype=dtype)
            assert_close(product(x), x @ matrix.t(), rtol=1e-4, atol=1e-4)


def test_force_names_the_path_and_ends_with_its_block(monkeypatch):
    monkeypatch.delenv("BAYESRNN_KERNEL", raising=False)
    usual = kernels.path()
    with pytest.raises(RuntimeError), kernels.force("reference"):
        assert kernels.path() == "reference"
        with kernels.force("loop"):
            assert kernels.path() == "loop"
        assert kernels.path() == "reference"
        raise RuntimeError
    assert kernels.path() == usual
    assert not kernels.forced()


def test_unknown_paths_are_refused():
    with pytest.raises(ValueError, match=r"path must be one of .*'reference'.*, got 'quick'"), kernels.force("quick"):
        pass


def test_the_environment_chooses_the_path(monkeypatch):
    monkeypatch.setenv("BAYESRNN_KERNEL", "reference")
    assert kernels.path() == "reference"
