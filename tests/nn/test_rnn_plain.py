"""Without noise the recurrent layers are torch.nn's: outputs, states, gradients, parameters."""

from __future__ import annotations

import copy
import inspect
import pickle
import warnings
from itertools import product

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from torch.testing import assert_close

import bayesrnn as br
from bayesrnn import kernels
from bayesrnn.kernels.shared.tensors import in_one_piece, silence_advice

CELLS = {
    "LSTM": (br.LSTM, nn.LSTM, {}),
    "LSTM projected": (br.LSTM, nn.LSTM, {"proj_size": 3}),
    "GRU": (br.GRU, nn.GRU, {}),
    "RNN tanh": (br.RNN, nn.RNN, {"nonlinearity": "tanh"}),
    "RNN relu": (br.RNN, nn.RNN, {"nonlinearity": "relu"}),
}
FORMS = ("batch", "one sequence", "packed", "packed unsorted")
F, H, T, B = 3, 5, 4, 3
NOISE = {"input_dropout": 0.3, "recurrent_dropout": 0.4, "weight_dropout": 0.2}


def combinations():
    names = ("num_layers", "bidirectional", "batch_first", "bias")
    return [dict(zip(names, c, strict=True)) for c in product((1, 2), *[(False, True)] * 3)]


def pair(cell, seed=0, noise=None, **options):
    ours, theirs, extra = CELLS[cell]
    torch.manual_seed(seed)
    plain = theirs(F, H, **extra, **options, dtype=torch.float64)
    layer = ours(F, H, **extra, **options, **(noise or {}), dtype=torch.float64)
    layer.load_state_dict(plain.state_dict())
    return layer, plain


def example(layer, form, with_state):
    """Leaves (padded input, states), and what to call the layer with."""
    rows = () if form == "one sequence" else (B,)
    shape = (*rows, T, F) if layer.batch_first else (T, *rows, F)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    count = layer.num_layers * (2 if layer.bidirectional else 1)
    widths = [layer.proj_size or H, H] if layer.mode == "LSTM" else [H]
    states = [torch.randn(count, *rows, w, dtype=torch.float64, requires_grad=True) for w in widths]
    given = x
    if form.startswith("packed"):
        lengths = [T, 2, 1] if form == "packed" else [2, T, 1]
        given = pack_padded_sequence(x, lengths, layer.batch_first, enforce_sorted=form == "packed")
    hx = (tuple(states) if layer.mode == "LSTM" else states[0]) if with_state else None
    return [x, *states] if with_state else [x], (given, hx)


def outcome(layer, leaves, given):
    out, state = layer(*given)
    data = out.data if isinstance(out, PackedSequence) else out
    found = [data, *(state if isinstance(state, tuple) else [state])]
    generator = torch.Generator().manual_seed(1)
    loss = sum((f * torch.randn(f.shape, generator=generator, dtype=f.dtype)).sum() for f in found)
    return found + list(torch.autograd.grad(loss, [*leaves, *layer.parameters()], retain_graph=True))


def options_and_states(form):
    """Half of the products with a state or none: every three options are still tried together."""
    for k, options in enumerate(combinations()):
        yield options, (k.bit_count() + FORMS.index(form)) % 2 == 0


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("mode", ["all noise zero", "eval", "mean"])
def test_the_same_numbers_as_torch_nn(mode, cell, form):
    for options, with_state in options_and_states(form):
        layer, plain = pair(cell, noise=None if mode == "all noise zero" else NOISE, **options)
        leaves, given = example(plain, form, with_state)
        expected = outcome(plain, leaves, given)
        if mode == "mean":
            with br.mean(layer):
                found = outcome(layer, leaves, given)
        else:
            found = outcome(layer.train(mode != "eval"), leaves, given)
        assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("path", ["loop", "reference"])
def test_layer_by_layer_the_numbers_are_torch_nn_s(path, cell, form):
    for options, with_state in options_and_states(form):
        layer, plain = pair(cell, **options)
        leaves, given = example(plain, form, with_state)
        with kernels.force(path):
            found = outcome(layer, leaves, given)
        assert_close(found, outcome(plain, leaves, given), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("cell", CELLS)
def test_results_have_torch_s_types_and_layout(cell):
    layer, plain = pair(cell, noise=NOISE, num_layers=2, bidirectional=True, batch_first=True)
    for form in FORMS:
        _, given = example(plain, form, True)
        (out, state), (out_t, state_t) = layer(*given), plain(*given)
        assert type(out) is type(out_t)
        assert type(state) is type(state_t)
        if isinstance(out, PackedSequence):
            assert torch.equal(out.batch_sizes, out_t.batch_sizes)
            for ours, theirs in ((out.sorted_indices, out_t.sorted_indices), (out[3], out_t[3])):
                assert ours is theirs is None or torch.equal(ours, theirs)
            out, out_t = out.data, out_t.data
        assert out.shape == out_t.shape
        states = zip(state, state_t, strict=True) if isinstance(state, tuple) else [(state, state_t)]
        assert all(a.shape == b.shape for a, b in states)


@pytest.mark.parametrize("cell", CELLS)
def test_weights_go_both_ways(cell):
    for options in combinations():
        layer, plain = pair(cell, noise=NOISE, **options)
        assert list(layer.state_dict()) == list(plain.state_dict())
        _, fresh = pair(cell, seed=1, **options)
        fresh.load_state_dict(layer.state_dict())
        _, given = example(plain, "batch", True)
        assert_close(fresh(*given)[0], layer.eval()(*given)[0], rtol=0, atol=0)


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
def test_the_same_initial_weights_from_the_same_seed(name):
    layers = []
    for module in (br, nn):
        torch.manual_seed(3)
        layers.append(getattr(module, name)(F, H, 2))
    assert all(torch.equal(a, b) for a, b in zip(layers[0].parameters(), layers[1].parameters(), strict=True))


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
def test_torch_s_positional_arguments_and_defaults(name):
    ours, theirs = getattr(br, name), getattr(nn, name)
    arguments = {"LSTM": (F, H, 2, False, True, 0.0, True, 2), "GRU": (F, H, 2, False, True, 0.0, True)}
    given = arguments.get(name, (F, H, 2, "relu", False, True, 0.0, True))
    a, b = ours(*given), theirs(*given)
    for attribute in ("num_layers", "bias", "batch_first", "dropout", "bidirectional", "proj_size", "mode"):
        assert getattr(a, attribute) == getattr(b, attribute)
    kinds = {p.name: p.kind for p in inspect.signature(ours).parameters.values()}
    for option in ("input_dropout", "recurrent_dropout", "weight_dropout", "tied", "noise", "share"):
        assert kinds[option] is inspect.Parameter.KEYWORD_ONLY
    assert isinstance(a, theirs)


def test_copies_and_pickles_keep_everything():
    layer, _ = pair("LSTM", noise=NOISE, num_layers=2)
    x = torch.randn(T, B, F, dtype=torch.float64)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        with br.draw(layer, seed=1), br.draw(other, seed=1):
            assert_close(other(x)[0], layer(x)[0], rtol=0, atol=0)


def test_dropout_between_layers_is_torch_s_in_train_mode():
    layer, plain = pair("GRU", num_layers=3, dropout=0.5)
    x = torch.randn(T, B, F, dtype=torch.float64)
    torch.manual_seed(0)
    ours = layer(x)[0]
    torch.manual_seed(0)
    assert_close(ours, plain(x)[0], rtol=0, atol=0)


@pytest.mark.parametrize("tied", [True, False])
def test_an_empty_batch_passes_through(tied):
    for ours in (br.LSTM, br.GRU, br.RNN):
        layer = ours(F, H, 2, bidirectional=True, input_dropout=0.5, recurrent_dropout=0.5, tied=tied)
        out, _ = layer(torch.zeros(T, 0, F))
        out.sum().backward()
        assert out.shape == (T, 0, 2 * H)
        assert layer.weight_hh_l0.grad.count_nonzero() == 0


def test_autocast_gives_finite_float32_gradients():
    layer = br.LSTM(F, H, 2, input_dropout=0.3, recurrent_dropout=0.3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, _ = layer(torch.randn(T, B, F))
    out.float().sum().backward()
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in layer.parameters())


def test_runs_in_inference_mode():
    layer = br.LSTM(100, 100, input_dropout=0.3, recurrent_dropout=0.3)
    x = torch.randn(6, B, 100)
    with br.draw(layer, seed=1):
        with torch.inference_mode():
            inference = layer(x)[0].clone()
        assert_close(inference, layer(x)[0].detach())


def test_repr_names_the_noise():
    assert "input_dropout=0.3" in repr(br.LSTM(F, H, input_dropout=0.3))
    assert "tied" not in repr(br.LSTM(F, H))


class OnGpu(torch.Tensor):
    is_cuda = True


def test_the_advice_to_flatten_weights_can_be_silenced():
    """Other warnings are shown as often as before: once for each place."""
    advice = (
        "RNN module weights are not part of single contiguous chunk of memory. This means they need to be compacted"
    )
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default")
        for _ in range(3):
            silence_advice()
            for text in (advice, "something else"):
                warnings.warn(text, stacklevel=1)
    assert [str(w.message) for w in found] == ["something else"]


def test_weights_in_one_piece_of_memory():
    apart = [torch.zeros(4).as_subclass(OnGpu) for _ in range(2)]
    assert not in_one_piece(apart)
    assert in_one_piece([apart[0], apart[0]])
    assert not in_one_piece([torch.zeros(4)] * 2)  # on a CPU nobody asks
