"""Recurrent layers under autocast: input products in the lower precision, the recurrence in float32."""

from __future__ import annotations

import pytest
import torch

import bayesrnn as br

T, B, F, H = 6, 3, 5, 7


def outcome(layer, x, state, noise_seed=1):
    layer.zero_grad()
    with br.draw(layer, seed=noise_seed):
        out, last = layer(x, state)
    loss = out.float().square().sum()
    loss.backward()
    first = last[0] if isinstance(last, tuple) else last
    return [out.detach(), first.detach(), *(p.grad for p in layer.parameters())]


@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("inputs", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("given", [None, torch.float32, torch.bfloat16])
def test_the_recurrence_runs_in_float32_whatever_comes_in(cell, inputs, given):
    torch.manual_seed(0)
    layer = getattr(br, cell)(F, H, num_layers=2, input_dropout=0.2, recurrent_dropout=0.2)
    x = torch.randn(T, B, F).bfloat16().float()
    h = torch.randn(2, B, H).bfloat16().float()
    state = None if given is None else (h, 0.5 * h) if cell == "LSTM" else h
    plain = outcome(layer, x, state)
    if given is not None:
        state = tuple(s.to(given) for s in state) if cell == "LSTM" else state.to(given)
    with torch.autocast("cpu", torch.bfloat16):
        lower = outcome(layer, x.to(inputs), state)
    assert [t.dtype for t in lower] == [torch.float32] * len(lower)
    # the input products have 8 bits of mantissa, and the rest none less
    for a, b in zip(lower, plain, strict=True):
        assert 0 < float((a - b).norm()) < 2e-2 * float(b.norm())


@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
def test_parameters_in_the_lower_precision_themselves(cell):
    torch.manual_seed(0)
    layer = getattr(br, cell)(F, H, recurrent_dropout=0.2, **({"proj_size": 4} if cell == "LSTM" else {})).bfloat16()
    x = torch.randn(T, B, F).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        lower = outcome(layer, x, None)
    assert lower[0].dtype == torch.float32
    plain = outcome(layer.float(), x.float(), None)
    for a, b in zip(lower, plain, strict=True):
        assert float((a.float() - b).norm()) < 3e-2 * float(b.norm())
