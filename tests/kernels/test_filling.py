"""Filled-up copies in one launch are those that torch's operations make."""

from __future__ import annotations

import os

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from bayesrnn.kernels.shared import alignment

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
CUDA = torch.cuda.is_available()

if INTERPRETED or CUDA:
    if CUDA:
        pytestmark = [pytest.mark.gpu]
    from bayesrnn.kernels.gpu.filling import filled

    WHERE = torch.device("cuda" if CUDA else "cpu")
    TYPES = [torch.float32, torch.bfloat16]

    def same(found, wanted):
        if INTERPRETED and found.dtype == torch.bfloat16:  # the interpreter cuts off what does not fit
            torch.testing.assert_close(found, wanted, rtol=2**-7, atol=0)
        else:
            assert torch.equal(found, wanted)

    def both(monkeypatch, function, *given):
        monkeypatch.setattr(alignment, "_launch", lambda x: filled)
        found = function(*given)
        monkeypatch.setattr(alignment, "_launch", lambda x: None)
        return found, function(*given)

    @pytest.mark.parametrize(("kind", "dtype"), [(TYPES[0], TYPES[0]), (TYPES[0], TYPES[1]), (TYPES[1], TYPES[1])])
    @pytest.mark.parametrize("masks", ["none", "tied", "untied"])
    @pytest.mark.parametrize(("steps", "batch", "columns"), [(3, 5, 6), (1, 7, 261)])
    def test_inputs(monkeypatch, dtype, kind, masks, steps, batch, columns):
        x = torch.randn(steps * batch, columns, device=WHERE).to(kind)
        shape = {"none": (), "tied": (batch, columns), "untied": (batch, 3, columns)}[masks]
        mask = torch.rand(shape, device=WHERE) if shape else None
        found, wanted = both(monkeypatch, alignment.masked_inputs, x, mask, [batch] * steps, dtype)
        assert found.dtype == wanted.dtype == dtype
        assert found.shape == wanted.shape
        same(found, wanted)

    @pytest.mark.parametrize("dtype", TYPES)
    @pytest.mark.parametrize("gates", [1, 4])
    @pytest.mark.parametrize(("rows", "columns", "bias"), [(5, 6, True), (3, 8, True), (8, 255, False), (4, 8, False)])
    def test_weights(monkeypatch, dtype, gates, rows, columns, bias):
        weight = torch.randn(gates * rows, columns, device=WHERE)
        shift = torch.randn(gates * rows, device=WHERE) if bias else None
        found, wanted = both(monkeypatch, alignment.filled_weights, weight, gates, dtype, shift)
        assert found.dtype == wanted.dtype == dtype
        same(found, wanted)

    def test_a_matrix_with_other_strides(monkeypatch):
        wide = torch.randn(6, 20, device=WHERE)
        for x in (wide[:, :7], wide[:, ::2], wide.t()[:7]):
            found, wanted = both(monkeypatch, alignment.masked_inputs, x, None, [len(x)], torch.bfloat16)
            same(found, wanted)
