"""Products from filled-up copies, which serve large ones on a GPU: on the CPU here, and marked `gpu` below on one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

import bayesrnn as br
from bayesrnn import kernels
from bayesrnn.kernels.input import loop as fast_input
from bayesrnn.kernels.input import reference as plain_input
from bayesrnn.kernels.shared import alignment as aligned
from bayesrnn.kernels.shared import recurrent
from bayesrnn.kernels.shared.rows import per_row
from bayesrnn.nn.routing import run_linear

MASKS = ("none", "tied", "untied")
on_a_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def make(sizes, features, hidden, *, gates=4, masks="none", bias=True, device="cpu", dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(device, dtype)

    shape = {"none": (), "tied": (sizes[0], features), "untied": (sizes[0], gates, features)}[masks]
    mask = (normal(*shape) > 0).to(dtype) * 2 if shape else None
    leaves = [normal(sum(sizes), features), normal(gates * hidden, features), normal(gates * hidden) if bias else None]
    return [None if t is None else t.requires_grad_() for t in leaves], mask


def filled(*given):
    """On padded copies, in the precision of the inputs."""
    return aligned.Project.apply(*given, given[0].dtype, None)


def in_bfloat16(*given):
    return aligned.Project.apply(*given, torch.bfloat16, None)


def outcome(function, leaves, mask, sizes):
    out = function(*leaves, mask, sizes)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(out)
    return [out, *torch.autograd.grad((out * weights).sum(), [t for t in leaves if t is not None])]


CASES = {
    "sizes": st.lists(st.integers(1, 5), min_size=1, max_size=6).map(lambda sizes: sorted(sizes, reverse=True)),
    "features": st.integers(1, 9),
    "hidden": st.integers(1, 9),
    "gates": st.integers(1, 4),
    "masks": st.sampled_from(MASKS),
}


@settings(max_examples=60, deadline=None, derandomize=True)
@given(**CASES, bias=st.booleans())
def test_outputs_and_gradients_are_the_reference_s(sizes, features, hidden, gates, masks, bias):
    leaves, mask = make(sizes, features, hidden, gates=gates, masks=masks, bias=bias)
    found = outcome(filled, leaves, mask, sizes)
    assert_close(found, outcome(plain_input.project, leaves, mask, sizes), rtol=1e-10, atol=1e-12)
    assert found[0].is_contiguous()  # the recurrences work in it
    assert found[2].is_contiguous()


@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize(("features", "hidden"), [(5, 3), (4, 4)])
def test_the_output_may_be_worked_in(masks, features, hidden):
    leaves, mask = make([2, 2], features, hidden, masks=masks)
    out = filled(*leaves, mask, [2, 2])
    expected = torch.autograd.grad(out.sum() * 3, leaves, retain_graph=True)
    assert_close(torch.autograd.grad(out.mul_(3).sum(), leaves), expected)


@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("tied", [False, True])
def test_layers_on_every_path(cell, tied, monkeypatch):
    torch.manual_seed(0)
    layer = getattr(br, cell)(5, 6, 2, input_dropout=0.3, recurrent_dropout=0.3, tied=tied, dtype=torch.float64)
    x = torch.randn(4, 3, 5, dtype=torch.float64, requires_grad=True)

    def outcome(path):
        with br.draw(layer, seed=1), kernels.force(path):
            out = layer(x)[0]
            return [out, *torch.autograd.grad(out.square().sum(), [x, *layer.parameters()])]

    expected = outcome("reference")
    monkeypatch.setattr(aligned, "serves", lambda x, height: True)
    assert_close(outcome("loop"), expected)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(**CASES)
def test_gradient_of_recurrent_weights(sizes, features, hidden, gates, masks):
    (h, w, _), mask = make(sizes, features, hidden, gates=gates, masks=masks)
    d = torch.randn(sum(sizes), w.shape[0], dtype=torch.float64)
    found = aligned.recurrent_gradient(d, h.detach(), mask, sizes)
    assert_close(found, recurrent.weight_gradient(d, h.detach(), mask, sizes))


@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("large", [True, False])
def test_gates_in_autocast_s_precision(masks, large, monkeypatch):
    """The recurrence runs in that of the state; its weights' gradient comes from products in the lower one."""
    monkeypatch.setattr(aligned, "serves", lambda x, height: large)
    (h, w, _), mask = make([3], 5, 5, masks=masks, dtype=torch.float32)
    gx = torch.randn(4 * 3, 20).bfloat16().requires_grad_()
    run = kernels.implementation("LSTM", "loop")
    outcomes = []
    for gates in (gx, gx.detach().float().requires_grad_()):
        out, last, cells = run(gates, h, torch.zeros_like(h), w, None, mask, None, batch_sizes=[3] * 4)
        outcomes.append([out, last, cells, *torch.autograd.grad(out.square().sum(), [gates, w, h])])
    (*states, d_gx, d_w, d_h), (*wanted, d_gx_, d_w_, d_h_) = outcomes
    assert_close([*states, d_h], [*wanted, d_h_], rtol=0, atol=0)
    assert torch.equal(d_gx, d_gx_.bfloat16())
    assert d_w.dtype == torch.float32
    assert_close(d_w, d_w_, rtol=0 if not large else 2e-2, atol=0 if not large else 2e-2 * float(d_w_.abs().max()))


@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("sizes", [[2, 2], [3, 2, 1]], ids=["equal", "ragged"])
def test_backward_agrees_with_finite_differences(masks, sizes):
    leaves, mask = make(sizes, 3, 2, masks=masks)
    assert torch.autograd.gradcheck(lambda *tensors: filled(*tensors, mask, sizes), tuple(leaves))


@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("features", [4, 5])
def test_gradients_are_made_only_where_asked_for(masks, features):
    leaves, mask = make([3, 2], features, 2, masks=masks)
    expected = outcome(plain_input.project, leaves, mask, [3, 2])[1:]
    for k in range(3):
        some = [t if j == k else t.detach() for j, t in enumerate(leaves)]
        out = filled(*some, mask, [3, 2])
        weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        assert_close(torch.autograd.grad((out * weights).sum(), leaves[k])[0], expected[k])


@pytest.mark.usefixtures("nan_allocations")
@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("sizes", [[3] * 3, [3, 2, 1]], ids=["equal", "ragged"])
def test_nothing_is_read_before_it_is_written(masks, sizes):
    leaves, mask = make(sizes, 5, 3, masks=masks)
    found, expected = (outcome(f, leaves, mask, sizes) for f in (filled, plain_input.project))
    assert_close(found, expected)


@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("sizes", [[3] * 3, [3, 2, 1]], ids=["equal", "ragged"])
@pytest.mark.parametrize(("features", "hidden"), [(5, 3), (8, 8), (9, 8)])
def test_in_bfloat16_gradients_have_the_types_of_their_tensors(masks, sizes, features, hidden):
    leaves, mask = make(sizes, features, hidden, masks=masks, dtype=torch.float32)
    found = outcome(in_bfloat16, leaves, mask, sizes)
    exact = [t.detach().double().requires_grad_() for t in leaves]
    wanted = outcome(plain_input.project, exact, None if mask is None else mask.double(), sizes)
    assert found[0].dtype == torch.bfloat16
    assert found[0].is_contiguous()
    for a, b in zip(found[1:], wanted[1:], strict=True):
        assert a.dtype == torch.float32
        assert float((a - b).norm()) < 2e-2 * float(b.norm())


@pytest.mark.parametrize(("kind", "numbers"), [(filled, 4), (in_bfloat16, 8)])
@pytest.mark.parametrize("masks", MASKS)
def test_every_matrix_of_a_product_begins_its_rows_on_16_bytes(masks, kind, numbers, monkeypatch):
    seen = []
    real = aligned.product

    def watched(a, b, *dtype):
        out = real(a, b, *dtype)
        for t in (a, b, out):
            seen.append([s for s in t.stride()[1:] if s != 1] + ([t.stride(0)] if t.shape[0] > 1 else []))
        return out

    monkeypatch.setattr(aligned, "product", watched)
    leaves, mask = make([5] * 4, 10, 7, masks=masks)
    outcome(kind, leaves, mask, [5] * 4)
    assert len(seen) >= 6
    assert all(stride % numbers == 0 for strides in seen for stride in strides)


def test_what_is_left_to_torch():
    x = torch.randn(700, 650)
    assert not aligned.serves(x, 10_000)  # a CPU
    on_gpu = torch.empty(700, 650, device="meta")
    assert not aligned.serves(on_gpu, 10_000)


def test_the_layer_s_own_call_on_a_cpu_and_for_changed_layers(monkeypatch):
    layer, x = nn.Linear(6, 5), torch.randn(3, 2, 6)
    assert torch.equal(run_linear(layer, x), layer(x))
    monkeypatch.setattr(aligned, "serves", lambda x, height: True)
    found = run_linear(layer, x)
    assert found.shape == (3, 2, 5)
    assert_close(found, layer(x))
    with kernels.force("reference"):
        assert_close(run_linear(layer, x), layer(x))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert run_linear(layer, x).dtype == torch.bfloat16
        lowered = nn.Linear(6, 5).bfloat16()  # weights that were drawn in autocast's precision
        assert_close(run_linear(lowered, x), lowered(x), rtol=2e-2, atol=2e-2)
    stacked = torch.randn(4, 5, 6)
    mapped = torch.vmap(lambda w: torch.func.functional_call(Caller(layer), {"layer.weight": w}, (x,)))(stacked)
    assert_close(mapped, torch.einsum("tbf,svf->stbv", x, stacked) + layer.bias)
    seen = []
    layer.register_forward_hook(lambda *args: seen.append(1))
    run_linear(layer, x)
    assert seen == [1]


class Caller(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return run_linear(self.layer, x)


@pytest.mark.parametrize("bias", [False, True])
def test_a_layer_s_gradients(bias, monkeypatch):
    monkeypatch.setattr(aligned, "serves", lambda x, height: True)
    layer, x = nn.Linear(6, 5, bias=bias).double(), torch.randn(3, 2, 6, dtype=torch.float64, requires_grad=True)
    inputs = [x, *layer.parameters()]
    d = torch.randn(3, 2, 5, dtype=torch.float64)
    found = torch.autograd.grad((run_linear(layer, x) * d).sum(), inputs)
    assert_close(found, torch.autograd.grad((layer(x) * d).sum(), inputs))


@pytest.mark.parametrize("where", ["cpu", pytest.param("cuda", marks=on_a_gpu)])
def test_a_mask_of_every_row_is_that_of_its_sequence(where):
    mask = torch.rand(3, 2, 5, device=where)
    x = torch.rand(5, 5, device=where)
    made = aligned.masked_inputs(x, mask, [3, 2])
    assert torch.equal(made[..., :5], (x.unsqueeze(1) * per_row(mask, [3, 2])).transpose(0, 1))
    assert bool((made[..., 5:] == 1).all())


@pytest.fixture
def full_precision():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.usefixtures("full_precision")
@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("sizes", [[20] * 35, [20, 19] * 10 + [3]], ids=["equal", "ragged"])
@pytest.mark.parametrize(("features", "hidden"), [(650, 650), (650, 329), (333, 500), (652, 648)])
def test_on_a_gpu_against_the_reference_in_float64(masks, sizes, features, hidden):
    sizes = sorted(sizes, reverse=True)
    leaves, mask = make(sizes, features, hidden, masks=masks, device="cuda", dtype=torch.float32)
    assert aligned.serves(leaves[0], leaves[1].shape[0])
    exact = [t.detach().double().requires_grad_() for t in leaves]
    wanted = outcome(plain_input.project, exact, None if mask is None else mask.double(), sizes)
    for found, expected in zip(outcome(fast_input.project, leaves, mask, sizes), wanted, strict=True):
        assert float((found.detach().double() - expected.detach()).norm() / expected.detach().norm()) < 1e-5


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize(("features", "hidden"), [(650, 650), (333, 500), (656, 648)])
def test_under_autocast_on_a_gpu(masks, features, hidden):
    sizes = [20] * 35
    leaves, mask = make(sizes, features, hidden, masks=masks, device="cuda", dtype=torch.float32)
    with torch.autocast("cuda", torch.bfloat16):
        found = outcome(fast_input.project, leaves, mask, sizes)
        theirs = outcome(plain_input.project, leaves, mask, sizes)
    exact = [t.detach().double().requires_grad_() for t in leaves]
    wanted = outcome(plain_input.project, exact, None if mask is None else mask.double(), sizes)
    assert [t.dtype for t in found[1:]] == [t.dtype for t in theirs[1:]]
    for a, b, expected in zip(found, theirs, wanted, strict=True):
        errors = [float((t.detach().double() - expected.detach()).norm() / expected.detach().norm()) for t in (a, b)]
        assert errors[0] < max(1.5 * errors[1], 4e-3)  # no worse than torch under autocast


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.usefixtures("full_precision")
@pytest.mark.parametrize("words", [10_000, 9_999])
def test_a_decoder_on_a_gpu(words):
    torch.manual_seed(0)
    layer = nn.Linear(650, words, device="cuda")
    x = torch.randn(35, 20, 650, device="cuda", requires_grad=True)
    d = torch.randn(35, 20, words, device="cuda")
    inputs = [x, *layer.parameters()]
    found = [run_linear(layer, x), *torch.autograd.grad((run_linear(layer, x) * d).sum(), inputs)]
    wanted = [layer(x), *torch.autograd.grad((layer(x) * d).sum(), inputs)]
    for a, b in zip(found, wanted, strict=True):
        assert a.is_contiguous() or a.shape == x.shape
        assert float((a - b).detach().norm() / b.detach().norm()) < 1e-5
