"""Recurrent layers with noise: every combination of options against a plain loop, packing, windows, bad input."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.overrides import TorchFunctionMode
from torch.testing import assert_close

import bayesrnn as br
from bayesrnn import kernels

F, H, T, B = 3, 4, 4, 3
CELLS = {
    "LSTM": (br.LSTM, {}),
    "LSTM projected": (br.LSTM, {"proj_size": 3}),
    "GRU": (br.GRU, {}),
    "RNN tanh": (br.RNN, {"nonlinearity": "tanh"}),
    "RNN relu": (br.RNN, {"nonlinearity": "relu"}),
}
RATES = {"input_dropout": 0.4, "recurrent_dropout": 0.3, "weight_dropout": 0.2, "cell_dropout": 0.25}


def make(cell, seed=0, **options):
    torch.manual_seed(seed)
    layer, extra = CELLS[cell]
    return layer(F, H, **{"num_layers": 2, "dtype": torch.float64, **extra, **options})


def states_for(layer, rows=B):
    count = layer.num_layers * (2 if layer.bidirectional else 1)
    widths = [layer.proj_size or H, H] if layer.mode == "LSTM" else [H]
    return [torch.randn(count, rows, w, dtype=torch.float64, requires_grad=True) for w in widths]


def as_state(layer, states):
    return tuple(states) if layer.mode == "LSTM" else states[0]


def as_list(state):
    return list(state) if isinstance(state, tuple) else [state]


def rates_in_combination(cell):
    """Every subset of the four noises but the empty one."""
    names = list(RATES) if cell.startswith("LSTM") else list(RATES)[:3]
    for chosen in product((False, True), repeat=len(names)):
        if any(chosen):
            yield {n: RATES[n] for n, on in zip(names, chosen, strict=True) if on}


@pytest.mark.parametrize("noise", ["bernoulli", "gaussian"])
@pytest.mark.parametrize("share", ["sequence", "batch"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("cell", CELLS)
def test_every_option_in_combination_against_a_plain_loop(
    plain_loop, held_masks, cell, bidirectional, tied, share, noise
):
    options = bidirectional, tied, share == "batch", noise == "gaussian"
    for seed, rates in enumerate(rates_in_combination(cell)):
        if (seed + sum(options)) % 2:  # half of the products: every three options are still tried together
            continue
        packed = (seed // 2 + bidirectional + (share == "batch")) % 2 == 1
        layer = make(cell, bidirectional=bidirectional, tied=tied, share=share, noise=noise, **rates)
        x, states = torch.randn(T, B, F, dtype=torch.float64, requires_grad=True), states_for(layer)
        lengths = [2, T, 1] if packed else [T] * B
        given = pack_padded_sequence(x, lengths, enforce_sorted=False) if packed else x
        with br.draw(layer, seed=seed) as draw:
            out, state = layer(given, as_state(layer, states))
        loop = plain_loop(layer, held_masks(draw))
        if packed:
            out, _ = pad_packed_sequence(out)
        found, expected = as_list(state), []
        for b, n in enumerate(lengths):
            one, last = loop(x[:n, b], as_state(layer, [s[:, b] for s in states]), b)
            assert_close(out[:n, b], one, rtol=1e-9, atol=1e-11)
            expected.append([one, *last])
        for k, f in enumerate(found):
            assert_close(f, torch.stack([e[1 + k] for e in expected], 1), rtol=1e-9, atol=1e-11)

        leaves = [x, *states, *layer.parameters()]
        ours = out.square().sum() + sum(f.sum() for f in found)
        theirs = sum(e[0].square().sum() + sum(s.sum() for s in e[1:]) for e in expected)
        assert_close(
            torch.autograd.grad(ours, leaves), torch.autograd.grad(theirs, leaves), rtol=1e-8, atol=1e-10,
        )  # fmt: skip


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("share", ["sequence", "batch"])
def test_all_paths_give_the_same_numbers(cell, tied, share):
    layer = make(cell, bidirectional=True, tied=tied, share=share, input_dropout=0.4, recurrent_dropout=0.4)
    x = torch.randn(T, B, F, dtype=torch.float64)
    results = []
    with br.draw(layer, seed=1):
        results.append(layer(x)[0])
        for path in ("loop", "reference"):
            with kernels.force(path):
                results.append(layer(x)[0])
    assert_close(results[0], results[1])
    assert_close(results[0], results[2])


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("batch_first", [False, True])
def test_padding_never_influences_anything(cell, batch_first):
    lengths = [2, T, 1]
    layer = make(cell, bidirectional=True, batch_first=batch_first, input_dropout=0.4, recurrent_dropout=0.4)
    clean = torch.randn(T, B, F, dtype=torch.float64)
    results = []
    for filler in (0.0, float("nan")):
        x = clean.clone()
        for b, n in enumerate(lengths):
            x[n:, b] = filler
        x.requires_grad_()
        given = x.transpose(0, 1) if batch_first else x
        packed = pack_padded_sequence(given, lengths, batch_first, enforce_sorted=False)
        with br.draw(layer, seed=1):
            out, state = layer(packed)
        loss = out.data.square().sum() + sum(s.sum() for s in as_list(state))
        results.append([out.data, *as_list(state), *torch.autograd.grad(loss, [x, *layer.parameters()])])
    assert_close(results[0], results[1], rtol=0, atol=0)
    assert all(r.isfinite().all() for r in results[1])


@pytest.mark.parametrize("cell", CELLS)
def test_a_packed_sequence_alone_under_its_own_rows_of_the_draw(cell, plain_loop, held_masks):
    lengths = [2, T, 1]
    layer = make(cell, bidirectional=True, input_dropout=0.4, recurrent_dropout=0.4)
    x = torch.randn(T, B, F, dtype=torch.float64)
    with br.draw(layer, seed=1) as draw:
        together, _ = pad_packed_sequence(layer(pack_padded_sequence(x, lengths, enforce_sorted=False))[0])
    masks = held_masks(draw)
    for b, n in enumerate(lengths):
        with br.draw(layer, seed=1) as alone:
            layer(x[:n, b : b + 1])
            for key, mask in masks.items():
                alone._held["." + key] = mask[b : b + 1]
            assert_close(layer(x[:n, b : b + 1])[0][:, 0], together[:n, b])


@pytest.mark.parametrize("cell", CELLS)
def test_a_draw_s_rows_belong_to_sequences_not_to_their_sorted_places(cell):
    """Cutting one sequence short changes the order inside the pack, and no other sequence's numbers."""
    layer = make(cell, input_dropout=0.4, recurrent_dropout=0.4)
    x = torch.randn(T, B, F, dtype=torch.float64)
    hx = as_state(layer, states_for(layer))
    outs = []
    with br.draw(layer, seed=1):
        for lengths in ([T, 3, 2], [1, 3, 2], [1, 3, T]):
            out, _ = layer(pack_padded_sequence(x, lengths, enforce_sorted=False), hx)
            outs.append(pad_packed_sequence(out, total_length=T)[0])
        outs.append(layer(x, hx)[0])
    for out in outs:
        assert_close(out[:3, 1], outs[0][:3, 1])
        assert_close(out[:2, 2], outs[0][:2, 2])
        assert_close(out[:1, 0], outs[0][:1, 0])


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("share", ["sequence", "batch"])
def test_windows_under_one_draw_are_one_long_pass(cell, share):
    rates = {n: r for n, r in RATES.items() if n != "cell_dropout" or cell.startswith("LSTM")}
    layer = make(cell, share=share, **rates)
    x = torch.randn(9, B, F, dtype=torch.float64)
    with br.draw(layer):
        whole, last = layer(x)
        state, parts = None, []
        for window in x.split([4, 1, 4]):
            part, state = layer(window, state)
            parts.append(part)
        assert_close(torch.cat(parts), whole)
        assert_close(as_list(state), as_list(last))
    with br.draw(layer):
        assert not torch.allclose(layer(x)[0], whole)


@pytest.mark.parametrize("cell", CELLS)
def test_the_layout_of_the_batch_changes_nothing(cell):
    x = torch.randn(T, B, F, dtype=torch.float64)
    first, second = (
        make(cell, batch_first=b, bidirectional=True, input_dropout=0.4, recurrent_dropout=0.4) for b in (False, True)
    )
    with br.draw(first, seed=1), br.draw(second, seed=1):
        a, state_a = first(x)
        b, state_b = second(x.transpose(0, 1))
        assert_close(b.transpose(0, 1), a)
        assert_close(as_list(state_b), as_list(state_a))
    with br.draw(first, seed=1), br.draw(second, seed=1):
        a, state_a = first(x[:, 0])
        b, state_b = second(x[:, 0])
        assert_close(b, a)
        assert a.shape == (T, a.shape[-1])
    with br.draw(first, seed=1):
        c, state_c = first(x[:, :1])
    assert_close(c.squeeze(1), a)
    assert_close([s.squeeze(1) for s in as_list(state_c)], as_list(state_a))


@pytest.mark.parametrize("share", ["sequence", "batch"])
@pytest.mark.parametrize("noise", ["bernoulli", "gaussian"])
def test_a_held_draw_survives_casts(share, noise):
    layer = make("LSTM", share=share, noise=noise, **RATES)
    x = torch.randn(T, B, F, dtype=torch.float64)
    with br.draw(layer):
        before = layer(x)[0].clone()
        assert_close(layer.float()(x.float())[0], before.float(), rtol=1e-4, atol=1e-5)
        layer.bfloat16()(x.bfloat16())
        layer.double().load_state_dict(make("LSTM").state_dict())
        assert_close(layer.to("cpu")(x)[0], before, rtol=0, atol=0)


def test_eval_is_deterministic():
    layer = make("LSTM", **RATES).eval()
    x = torch.randn(T, B, F, dtype=torch.float64)
    before = torch.get_rng_state()
    assert torch.equal(layer(x)[0], layer(x)[0])
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("noise", ["bernoulli", "gaussian"])
def test_a_layer_in_eval_mode_is_noisy_inside_a_draw(noise):
    layer = make("GRU", input_dropout=0.5, noise=noise).eval()
    x = torch.randn(T, B, F, dtype=torch.float64)
    with br.draw(layer):
        assert not torch.allclose(layer(x)[0], make("GRU")(x)[0])


class Counting(TorchFunctionMode):
    """Counts calls of torch's fused recurrent functions."""

    calls = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.calls += func in (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(
    ("options", "fused"),
    [
        ({"share": "batch", "input_dropout": 0.3, "recurrent_dropout": 0.3}, True),
        ({"share": "batch", "input_dropout": 0.3, "recurrent_dropout": 0.3, "tied": False}, True),
        ({"weight_dropout": 0.3}, True),
        ({"recurrent_dropout": 0.3}, False),
    ],
)
def test_one_set_of_weights_for_the_batch_runs_torch_s_fused_kernel(cell, options, fused):
    with Counting() as counting:
        make(cell, **options)(torch.randn(T, B, F, dtype=torch.float64))
    assert counting.calls == (1 if fused else 0)


def test_fused_weights_are_put_back_after_an_error():
    layer = make("LSTM", share="batch", input_dropout=0.3)
    with pytest.raises(RuntimeError, match="input_size"):
        layer(torch.randn(T, B, F + 1, dtype=torch.float64))
    assert all(a is b for a, b in zip(layer._flat_weights, layer.parameters(), strict=True))


NAMES = ("input_dropout", "recurrent_dropout", "weight_dropout", "cell_dropout")


@pytest.mark.parametrize("bad", [-0.1, 1.0, 1.5, math.nan, math.inf, "0.5", None, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_rate_outside_zero_and_one_is_refused(name, bad):
    with pytest.raises(ValueError, match=rf"^{name} must be a number in \[0, 1\), got .*probability of dropping$"):
        br.LSTM(F, H, **{name: bad})


def test_numpy_rates_are_numbers():
    assert br.LSTM(F, H, input_dropout=np.float32(0.5)).rates.input_dropout == 0.5


@pytest.mark.parametrize("layer", [br.LSTM, br.GRU, br.RNN])
@pytest.mark.parametrize("name", ["noise", "share", "tied"])
def test_unknown_options_are_refused(layer, name):
    with pytest.raises(ValueError, match=rf"^{name} must be one of .*, got 'laplace'$"):
        layer(F, H, input_dropout=0.1, **{name: "laplace"})


@pytest.mark.parametrize("layer", [br.GRU, br.RNN])
def test_cell_dropout_is_for_cells_with_a_cell_state(layer):
    with pytest.raises(TypeError, match="cell_dropout"):
        layer(F, H, cell_dropout=0.1)


@pytest.mark.parametrize("noise", [{}, {"recurrent_dropout": 0.5}, {"weight_dropout": 0.5}])
@pytest.mark.parametrize("cell", CELLS)
class TestBadInput:
    def test_wrong_number_of_features(self, cell, noise):
        with pytest.raises(RuntimeError, match=r"must be equal to input_size. Expected 3, got 5"):
            make(cell, **noise)(torch.zeros(T, B, 5, dtype=torch.float64))

    @pytest.mark.parametrize("shape", [(F,), (T, B, F, 1)])
    def test_wrong_number_of_dimensions(self, cell, noise, shape):
        with pytest.raises(ValueError, match=r"2-?D .*3-?D.*got"):
            make(cell, **noise)(torch.zeros(shape, dtype=torch.float64))

    def test_no_steps(self, cell, noise):
        with pytest.raises(RuntimeError, match=r"(?i)expected (a )?sequence"):
            make(cell, **noise)(torch.zeros(0, B, F, dtype=torch.float64))

    def test_another_dtype(self, cell, noise):
        with pytest.raises(ValueError, match="does not match weight dtype"):
            make(cell, **noise)(torch.zeros(T, B, F))

    @pytest.mark.parametrize("rows", [B - 1, B + 1])
    @pytest.mark.parametrize("form", ["batch", "packed", "packed unsorted"])
    def test_a_state_from_another_batch_size(self, cell, noise, rows, form):
        layer = make(cell, **noise)
        x = torch.randn(T, B, F, dtype=torch.float64)
        if form != "batch":
            lengths = [4, 3, 1] if form == "packed" else [1, 4, 3]
            x = pack_padded_sequence(x, lengths, enforce_sorted=form == "packed")
        with pytest.raises(
            RuntimeError, match=rf"size \(2, 3, \d\), got \(2, {rows}, \d\): a state goes with the batch"
        ):
            layer(x, as_state(layer, states_for(layer, rows)))

    def test_another_kind_of_state(self, cell, noise):
        layer = make(cell, **noise)
        h = torch.zeros(2, B, H, dtype=torch.float64)
        with pytest.raises(TypeError, match=r"state .*is (a pair of|one) tensor.*: pass what the layer returned"):
            layer(torch.randn(T, B, F, dtype=torch.float64), h if layer.mode == "LSTM" else (h, h))

    def test_a_batched_state_for_one_sequence(self, cell, noise):
        layer = make(cell, **noise)
        with pytest.raises(RuntimeError, match=r"(?i)for unbatched 2-D input"):
            layer(torch.randn(T, F, dtype=torch.float64), as_state(layer, states_for(layer)))


@pytest.mark.parametrize("cell", CELLS)
def test_a_held_draw_with_another_batch_size(cell):
    layer = make(cell, recurrent_dropout=0.5)
    with br.draw(layer):
        layer(torch.randn(T, B, F, dtype=torch.float64))
        with pytest.raises(
            ValueError, match=r"this draw was made for a batch of 3 but the input is a batch of 5: .*new draw"
        ):
            layer(torch.randn(T, 5, F, dtype=torch.float64))


def test_draws_of_whole_weights_take_any_batch():
    for options in ({"weight_dropout": 0.5}, {"share": "batch", "input_dropout": 0.5, "recurrent_dropout": 0.5}):
        layer = make("GRU", **options)
        x = torch.randn(T, 5, F, dtype=torch.float64)
        with br.draw(layer):
            assert_close(layer(x[:, :2])[0], layer(x)[0][:, :2])


@pytest.mark.parametrize("cell", [br.LSTM, br.GRU, br.RNN])
@pytest.mark.parametrize("noise", [{"recurrent_dropout": 0.3}, {"input_dropout": 0.3, "tied": False}])
def test_a_state_of_another_dtype_is_an_error(cell, noise):
    layer, x = cell(F, H, **noise), torch.randn(T, B, F)
    h = torch.zeros(1, B, H)
    layer(x, (h, h) if cell is br.LSTM else h)
    for state in [(h.double(), h), (h, h.double())] if cell is br.LSTM else [h.double()]:
        with pytest.raises(
            RuntimeError, match=r"the state has dtype torch.float64 but the layer torch.float32: convert"
        ):
            layer(x, state)
