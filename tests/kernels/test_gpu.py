"""The recurrences on a GPU against the plain one on the CPU, in float64 and at odd sizes."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

import bayesrnn as br

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def outcome(layer, x, path):
    layer.zero_grad()
    x = x.clone().requires_grad_()
    with br.draw(layer, seed=1), br.kernels.force(path):
        out, state = layer(x)
        state = state if isinstance(state, tuple) else (state,)
        (out.square().sum() + sum(s.sin().sum() for s in state)).backward()
    return [out.detach(), *(s.detach() for s in state), x.grad, *(p.grad for p in layer.parameters())]


@pytest.mark.parametrize("path", ["loop", "cells"])
@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("steps", "rows", "size"), [(1, 1, 65), (2, 3, 65), (63, 20, 130), (5, 127, 33)])
def test_every_path_gives_the_reference_s_outputs_and_gradients(path, cell, tied, steps, rows, size):
    torch.manual_seed(0)
    layer = getattr(br, cell)(
        size, size, 2, bidirectional=True, input_dropout=0.3, recurrent_dropout=0.3, tied=tied,
        device="cuda", dtype=torch.float64,
    )  # fmt: skip
    x = torch.randn(steps, rows, size, device="cuda", dtype=torch.float64)
    assert_close(outcome(layer, x, path), outcome(layer, x, "reference"), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("path", ["loop", "cells"])
def test_packed_sequences(path):
    torch.manual_seed(0)
    layer = br.LSTM(9, 65, input_dropout=0.3, recurrent_dropout=0.3, cell_dropout=0.1, device="cuda").double()
    sequences = [torch.randn(n, 9, device="cuda", dtype=torch.float64) for n in (3, 7, 1, 7)]
    packed = torch.nn.utils.rnn.pack_sequence(sequences, enforce_sorted=False)
    results = []
    for chosen in (path, "reference"):
        layer.zero_grad()
        with br.draw(layer, seed=1), br.kernels.force(chosen):
            out, (h, c) = layer(packed)
            (out.data.square().sum() + h.sum() + c.sum()).backward()
        results.append([out.data, h, c, *(p.grad.clone() for p in layer.parameters())])
    assert_close(*results, rtol=1e-9, atol=1e-9)


def test_a_training_step_is_captured_in_a_graph():
    torch.manual_seed(0)
    layer = br.LSTM(16, 16, 2, input_dropout=0.3, recurrent_dropout=0.3, device="cuda")
    x = torch.randn(5, 3, 16, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        layer(x)[0].sum().backward()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = layer(x)[0]
    graph.replay()
    first = out.clone()
    graph.replay()
    assert torch.isfinite(first).all()
    assert not torch.equal(first, out)  # a new draw at every replay


def test_evaluation_leaves_a_recorded_graph_s_parameters_in_their_place():
    torch.manual_seed(0)
    q = br.BayesByBackprop(torch.nn.LSTM(16, 16, 2)).cuda()
    x = torch.randn(5, 3, 16, device="cuda")
    q(x)[0].sum().backward()
    places = [p.data_ptr() for p in q.parameters()]
    q.eval()
    q(x)
    q.train()
    q(x)
    assert [p.data_ptr() for p in q.parameters()] == places


@pytest.mark.parametrize("options", [{"share": "batch", "input_dropout": 0.3}, {"weight_dropout": 0.3}])
def test_noise_that_the_batch_shares_runs_cudnn_without_a_warning(options):
    layer = br.LSTM(16, 16, 2, device="cuda", **options)
    places = [p.data_ptr() for p in layer.parameters()]
    layer(torch.randn(5, 3, 16, device="cuda"))[0].sum().backward()
    assert [p.data_ptr() for p in layer.parameters()] == places
    assert all(p.grad is not None for p in layer.parameters())
