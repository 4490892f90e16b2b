"""Targets' log-probabilities: torch's operations row by row and the GPU's kernels, against cross-entropy."""

from __future__ import annotations

import os

import pytest
import torch
from torch.testing import assert_close

from bayesrnn import kernels
from bayesrnn.kernels.decoder import loop, reference

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
CUDA = torch.cuda.is_available()
TRITON = pytest.mark.skipif(not INTERPRETED and not CUDA, reason="needs Triton's interpreter or a CUDA device")
ROWS = loop.Rows(loop._score, loop._error)
WAYS = ["loop", pytest.param("triton", marks=[TRITON, pytest.mark.gpu] if CUDA else TRITON)]


def way(name):
    if name == "loop":
        return lambda *inputs: loop.by_rows(ROWS, *inputs)
    from bayesrnn.kernels.gpu import decoder

    return decoder.target_logs


def problem(rows, size, words, dtype=torch.float32, scale=1.0, device=None):
    generator = torch.Generator().manual_seed(rows + size)
    where = device or ("cuda" if CUDA else "cpu")
    leaves = [
        (scale * torch.randn(shape, generator=generator, dtype=torch.float64)).to(where, dtype).requires_grad_()
        for shape in ((rows, size), (words, size), (words,))
    ]
    return leaves, torch.randint(words, (rows,), generator=generator).to(where)


def outcome(function, leaves, target):
    found = function(*leaves, target)
    direction = torch.linspace(-1, 2, len(target), dtype=found.dtype, device=found.device)
    return [found.detach(), *torch.autograd.grad(found, leaves, direction)]


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize(("rows", "size", "words"), [(7, 4, 5), (9, 6, 13), (5, 8, 4101), (1, 3, 2)])
@pytest.mark.parametrize("kept", [True, False], ids=["kept", "again"])
def test_values_and_gradients_are_those_of_cross_entropy(monkeypatch, name, rows, size, words, kept):
    """With rows and columns that fill 16 bytes and that do not; in pieces of 4 rows, logits kept and computed again."""
    monkeypatch.setattr(loop, "_ROWS", 4)
    if not kept:
        monkeypatch.setattr(loop, "_KEPT", 0)
    leaves, target = problem(rows, size, words, torch.float64)
    assert_close(outcome(way(name), leaves, target), outcome(reference.target_logs, leaves, target))


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("kept", [True, False], ids=["kept", "again"])
def test_in_bfloat16_it_errs_as_products_in_bfloat16_do(monkeypatch, name, kept):
    if not kept:
        monkeypatch.setattr(loop, "_KEPT", 0)
    leaves, target = problem(40, 30, 200, scale=0.3)
    device = leaves[0].device.type
    with torch.autocast(device, torch.bfloat16):
        ours = outcome(way(name), leaves, target)
        assert ours[0].dtype == torch.float32
    exact = outcome(reference.target_logs, [x.detach().double().requires_grad_() for x in leaves], target)
    for found, wanted in zip(ours, exact, strict=True):
        assert found.dtype == torch.float32
        assert float((found - wanted).norm() / wanted.norm()) < 1e-2


@pytest.mark.parametrize("name", WAYS)
def test_logits_far_from_zero(name):
    leaves, target = problem(6, 4, 9, scale=100.0)
    found, *gradients = outcome(way(name), leaves, target)
    wanted, *theirs = outcome(reference.target_logs, leaves, target)
    assert float(wanted.min()) < -1e4
    assert_close(found, wanted, rtol=1e-3, atol=1e-2)
    assert_close(gradients, theirs, rtol=1e-3, atol=1e-2)


@pytest.mark.filterwarnings("ignore:invalid value encountered")  # numpy, in the interpreter
@pytest.mark.parametrize("name", WAYS)
def test_a_logit_that_is_no_number_shows(name):
    leaves, target = problem(3, 4, 5)
    with torch.no_grad():
        leaves[0][1, 2] = float("nan")
    found, gradient = outcome(way(name), leaves, target)[:2]
    assert found.isnan().tolist() == [False, True, False]
    assert gradient.isnan().any(1).tolist() == [False, True, False]


def test_memory_does_not_grow_with_rows_times_words(monkeypatch):
    monkeypatch.setattr(loop, "_KEPT", 0)
    leaves, target = problem(48, 3, 500, device="cpu")
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        loop.by_rows(ROWS, *leaves, target)
    assert sum(kept) < 2 * sum(each.numel() for each in (*leaves, target)) < 48 * 500


@pytest.mark.parametrize("name", WAYS)
def test_the_second_derivative_is_an_error_and_not_a_missing_term(name):
    leaves, target = problem(3, 4, 5)
    (first,) = torch.autograd.grad(way(name)(*leaves, target).sum(), leaves[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="differentiated once"):
        torch.autograd.grad(first.sum(), leaves[1])


def test_few_logits_on_a_cpu_are_those_of_torch():
    leaves, target = problem(3, 4, 5, device="cpu")
    assert kernels.path("cpu", name="decoder") == "loop"
    score = kernels.kernel("decoder", "cpu")
    assert torch.equal(score(*leaves, target), reference.target_logs(*leaves, target))


def test_under_a_transform_it_is_the_reference():
    leaves, target = problem(3, 4, 5, torch.float64, device="cpu")
    x, weight, bias = leaves
    found = torch.func.vmap(lambda row: loop.by_rows(ROWS, row[None], weight, bias, target[:1]))(x)
    assert_close(found[:, 0], reference.target_logs(x, weight, bias, target[:1].expand(3)))
