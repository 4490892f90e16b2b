"""The masks of the recurrent layers, seen from outside: where they act, how long they hold, how they are distributed.

Layers with weights that let the mask through unchanged make it visible in the output. Statistical tests run on fixed
seeds; a bound of 5 standard errors gives a false alarm once in 1.7 million seeds, and the power is stated beside each.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import bayesrnn as br


def identity_rnn(units, **options):
    """ReLU layer with out_t = relu(x_t * z_x + h_{t-1} * z_h): masks of non-negative values come out as they are."""
    layer = br.RNN(units, units, nonlinearity="relu", bias=False, **options)
    with torch.no_grad():
        layer.weight_ih_l0.copy_(torch.eye(units))
        layer.weight_hh_l0.copy_(torch.eye(units))
    return layer


def input_mask(layer, rows, steps=1):
    """(steps, rows, units): what multiplies the input at each step."""
    with torch.no_grad():
        layer.weight_hh_l0.zero_()
        return layer(torch.ones(steps, rows, layer.input_size))[0]


def recurrent_mask(layer, rows, steps=1):
    """(steps, rows, units): the running product of what multiplies h_{t-1}."""
    with torch.no_grad():
        return layer(torch.zeros(steps, rows, layer.input_size), torch.ones(1, rows, layer.hidden_size))[0]


def cell_mask(layer, rows, steps=1):
    """(rows, units): the product over steps of what multiplies c_t, with the forget gate open and the input shut."""
    units = layer.hidden_size
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
        layer.bias_ih_l0[:units] = -1e4
        layer.bias_ih_l0[units : 2 * units] = 1e4
        x, h, c = torch.zeros(steps, rows, 1), torch.zeros(1, rows, units), torch.ones(1, rows, units)
        return layer(x, (h, c))[1][1][0]


def correlations(rows):
    """Correlation coefficients of all pairs of rows (n rows of m values each)."""
    together = torch.corrcoef(rows.double())
    return together[torch.triu(torch.ones_like(together, dtype=torch.bool), diagonal=1)]


def test_the_input_mask_is_the_same_at_every_step_and_another_for_every_sequence_and_call():
    layer = identity_rnn(50, input_dropout=0.5)
    first, second = input_mask(layer, rows=4, steps=6), input_mask(layer, rows=4, steps=6)
    assert set(first.unique().tolist()) == {0.0, 2.0}
    assert torch.equal(first, first[:1].expand_as(first))
    rows = torch.cat([first[0], second[0]])
    assert len(rows.unique(dim=0)) == 8  # two equal rows of 50 fair coins: chance 2e-14


def test_the_recurrent_mask_is_the_same_at_every_step_and_another_for_every_sequence_and_call():
    layer = identity_rnn(50, recurrent_dropout=0.5)
    first, second = recurrent_mask(layer, rows=4, steps=5), recurrent_mask(layer, rows=4, steps=5)
    for t in range(5):  # one mask z: h_t = z^t; a fresh mask per step would shut every unit in the end
        assert torch.equal(first[t], first[0] ** (t + 1))
    assert len(torch.cat([first[0], second[0]]).unique(dim=0)) == 8


def test_the_cell_mask_is_the_same_at_every_step_and_another_for_every_sequence_and_call():
    layer = br.LSTM(1, 50, cell_dropout=0.5)
    first, second = cell_mask(layer, rows=4, steps=3), cell_mask(layer, rows=4, steps=3)
    assert set(first.unique().tolist()) == {0.0, 1.0}  # kept cells keep their state; fresh masks would shut 7 of 8
    assert 60 < first.count_nonzero() < 140  # of 200 fair coins: 5.7 standard deviations
    assert len(torch.cat([first, second]).unique(dim=0)) == 8


def test_kept_cells_do_not_grow_over_a_long_sequence():
    layer = br.LSTM(1, 50, cell_dropout=0.5)
    with torch.no_grad():
        out, (_, c) = layer(torch.randn(2000, 4, 1))
    assert c.abs().max() < 100
    assert out.abs().max() <= 2  # 1 / (1 - p) on what leaves a cell


def test_share_batch_is_one_mask_for_all_sequences_and_another_for_every_call():
    layer = identity_rnn(60, input_dropout=0.5, share="batch")
    first, second = input_mask(layer, rows=4, steps=3), input_mask(layer, rows=4, steps=3)
    assert torch.equal(first, first[:1, :1].expand_as(first))
    assert not torch.equal(first, second)
    layer = identity_rnn(60, recurrent_dropout=0.5, share="batch")
    first = recurrent_mask(layer, rows=4)
    assert torch.equal(first, first[:, :1].expand_as(first))
    layer = br.LSTM(1, 60, cell_dropout=0.5, share="batch")
    first = cell_mask(layer, rows=4)
    assert torch.equal(first, first[:1].expand_as(first))


def test_weight_dropout_is_one_mask_of_single_weights_per_draw():
    units = 40
    layer = identity_rnn(units, weight_dropout=0.25)

    def weights():
        with torch.no_grad():  # h_0 runs through the unit vectors: row b of the output is column b of the weights
            return layer(torch.zeros(1, units, units), torch.eye(units).unsqueeze(0))[0][0].t()

    with torch.no_grad():
        layer.weight_hh_l0.fill_(0.75)
    first, second = weights(), weights()
    assert_close(first.unique(), torch.tensor([0.0, 1.0]))
    assert not torch.equal(first, second)
    with br.draw(layer):
        assert torch.equal(weights(), weights())
    # 1600 weights: standard error 0.011; a rate off by 0.1 (or whole rows or columns at once) is found with
    # probability > 0.9999
    assert abs((first == 0).float().mean() - 0.25) < 5 * 0.011
    for axis in (0, 1):
        assert 0.05 < (first == 0).float().mean(axis).std() < 0.09  # sqrt(.25 * .75 / 40) = 0.068; 0.43 for whole lines


RATE_CASES = {
    "input": lambda p, n, **o: input_mask(identity_rnn(n, input_dropout=p, **o), rows=20)[0],
    "recurrent": lambda p, n, **o: recurrent_mask(identity_rnn(n, recurrent_dropout=p, **o), rows=20)[0],
    "cell": lambda p, n, **o: cell_mask(br.LSTM(1, n, cell_dropout=p, **o), rows=20),
}


@pytest.mark.parametrize("where", RATE_CASES)
@pytest.mark.parametrize("p", [0.1, 0.35, 0.8])
def test_bernoulli_rates(where, p):
    torch.manual_seed(int(100 * p))
    mask = RATE_CASES[where](p, 400)
    n = mask.numel()
    standard_error = (p * (1 - p) / n) ** 0.5
    dropped = (mask == 0).double().mean().item()
    # n = 8000: standard error <= 0.0054; a rate off by 0.05 is found with power > 0.9999
    assert abs(dropped - p) < 5 * standard_error
    kept = 1.0 if where == "cell" else 1 / (1 - p)  # the scale of a kept cell goes on what leaves it
    assert_close(mask[mask != 0], torch.full_like(mask[mask != 0], kept))


def test_gaussian_noise_has_mean_one_and_bernoulli_s_variance():
    torch.manual_seed(0)
    p, units, rows = 0.2, 500, 40
    with torch.no_grad():  # a bias keeps relu open: N(1, 1/4) is never below -10
        layer = br.RNN(units, units, nonlinearity="relu", input_dropout=p, noise="gaussian")
        layer.weight_ih_l0.copy_(torch.eye(units))
        layer.bias_ih_l0.fill_(10.0)
        layer.bias_hh_l0.zero_()
        mask = input_mask(layer, rows)[0].double() - 10
    n, variance = mask.numel(), p / (1 - p)
    # n = 20,000. Mean: standard error 0.0035; variance: 1 % of itself. An error of 0.035 in the mean or of 10 % in
    # the variance is found with power > 0.9999; p instead of p / (1 - p) would be 20 % off.
    assert abs(mask.mean() - 1) < 5 * (variance / n) ** 0.5
    assert abs(mask.var() / variance - 1) < 5 * (2 / n) ** 0.5
    kurtosis = ((mask - mask.mean()) ** 4).mean() / mask.var() ** 2
    assert abs(kurtosis - 3) < 5 * (24 / n) ** 0.5  # two-valued noise: 3.25
    assert correlations(mask).abs().max() < 5.5 * units**-0.5  # 780 pairs of sequences


@pytest.mark.parametrize("noise", ["bernoulli", "gaussian"])
@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
def test_masks_of_sequences_gates_layers_directions_and_kinds_are_independent(held_masks, noise, name):
    layer = getattr(br, name)(
        50, 50, 2, bidirectional=True, input_dropout=0.5, recurrent_dropout=0.5, tied=False, noise=noise
    )  # fmt: skip
    values = []
    for seed in range(60):
        with br.draw(layer, seed=seed) as draw, torch.no_grad():
            layer(torch.zeros(1, 2, 50))
        # the upper layer's input is 100 wide: its first half serves
        values.append(torch.cat([mask[..., :50].reshape(-1, 50) for mask in held_masks(draw).values()]))
    rows = torch.cat(values, dim=1)  # one row per sequence, gate, layer, direction and kind
    assert len(rows) == 2 * {"LSTM": 4, "GRU": 3, "RNN": 1}[name] * 2 * 2 * 2
    # 3000 values each: standard error 0.018; up to 2016 pairs, so 6 standard errors; a correlation of 0.2 in any pair
    # is found with power > 0.9999
    assert correlations(rows).abs().max() < 6 * 3000**-0.5
    # and successive units of one mask: lag-one correlation
    assert correlations(torch.stack([rows[:, :-1].flatten(), rows[:, 1:].flatten()])).abs() < 5 * rows.numel() ** -0.5


def test_one_seed_is_one_draw_and_another_seed_another():
    layer = br.LSTM(20, 20, 2, input_dropout=0.5, recurrent_dropout=0.5, weight_dropout=0.5, cell_dropout=0.5)
    x = torch.randn(3, 2, 20)

    def run(seed):
        with br.draw(layer, seed=seed):
            return layer(x)[0]

    first = run(1)
    torch.manual_seed(99)
    assert torch.equal(run(1), first)
    assert not torch.equal(run(2), first)


def test_torch_s_seed_rules_fresh_noise():
    layer = br.GRU(20, 20, input_dropout=0.5, recurrent_dropout=0.5)
    x = torch.randn(3, 2, 20)

    def run(seed):
        torch.manual_seed(seed)
        return layer(x)[0]

    assert torch.equal(run(1), run(1))
    assert not torch.equal(run(1), run(2))


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
def test_the_mask_on_h_acts_in_the_recurrent_product_only(name):
    """With the recurrent weights at zero it can change nothing: not h as it goes up, not the state handed on, not c."""
    torch.manual_seed(0)
    layer = getattr(br, name)(5, 5, 2, recurrent_dropout=0.9)
    plain = getattr(nn, name)(5, 5, 2)
    with torch.no_grad():
        for parameter in ("weight_hh_l0", "weight_hh_l1"):
            getattr(layer, parameter).zero_()
    plain.load_state_dict(layer.state_dict())
    x, h = torch.randn(4, 3, 5), torch.randn(2, 3, 5)
    hx = (h, torch.randn(2, 3, 5)) if name == "LSTM" else h  # in the GRU h_{t-1} also goes on by the update gate
    assert_close(layer(x, hx), plain(x, hx))


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
def test_h_goes_up_unmasked(name):
    """From a zero state the first step has nothing to mask, in any layer."""
    layer = getattr(br, name)(5, 5, 3, recurrent_dropout=0.9)
    plain = getattr(nn, name)(5, 5, 3)
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(2, 3, 5)
    ours, theirs = layer(x)[0], plain(x)[0]
    assert_close(ours[0], theirs[0])
    assert not torch.allclose(ours[1], theirs[1])


def test_c_is_never_masked_without_cell_dropout():
    layer = br.LSTM(1, 50, input_dropout=0.9, recurrent_dropout=0.9, weight_dropout=0.9)
    assert torch.equal(cell_mask(layer, rows=3, steps=4), torch.ones(3, 50))


def test_every_layer_masks_its_own_input():
    """Two identity layers with an input mask each: 0 where either drops, 4 where neither does."""
    layer = br.RNN(300, 300, 2, nonlinearity="relu", bias=False, input_dropout=0.5)
    with torch.no_grad():
        for k in (0, 1):
            getattr(layer, f"weight_ih_l{k}").copy_(torch.eye(300))
            getattr(layer, f"weight_hh_l{k}").zero_()
        out = layer(torch.ones(2, 10, 300))[0]
    assert set(out.unique().tolist()) == {0.0, 4.0}
    # 3000 units: standard error 0.0079; one mask for both layers would keep 0.5
    assert abs((out[0] != 0).double().mean() - 0.25) < 5 * 0.0079


def test_the_mean_over_draws_is_the_input_s_own_product():
    """E[z] = 1: the expectation of a linear layer's output over draws is its output at the mean."""
    torch.manual_seed(0)
    layer = identity_rnn(20, input_dropout=0.3)
    mean = torch.stack([input_mask(layer, rows=50)[0] for _ in range(100)]).mean()
    # 100,000 multipliers of variance 3/7: standard error 0.0021; a missing 1 / (1 - p) would give 0.7
    assert abs(mean - 1) < 5 * 0.0021


def test_rates_can_be_changed_after_construction():
    layer, x = br.LSTM(3, 4, input_dropout=0.2), torch.randn(5, 2, 3)
    layer.input_dropout, layer.recurrent_dropout, layer.tied = 0.5, 0.25, False
    layer.noise, layer.share, layer.cell_dropout, layer.weight_dropout = "gaussian", "batch", 0.1, 0.3
    wanted = br.LSTM(
        3, 4, input_dropout=0.5, recurrent_dropout=0.25, weight_dropout=0.3, cell_dropout=0.1, tied=False,
        noise="gaussian", share="batch",
    )  # fmt: skip
    assert layer.rates == wanted.rates
    assert (layer.input_dropout, layer.tied, layer.noise) == (0.5, False, "gaussian")
    wanted.load_state_dict(layer.state_dict())
    found = []
    for each in (layer, wanted):
        with br.draw(each, seed=1):
            found.append(each(x)[0])
    assert torch.equal(*found)
    layer.input_dropout = layer.recurrent_dropout = layer.weight_dropout = layer.cell_dropout = 0.0
    plain = torch.nn.LSTM(3, 4)
    plain.load_state_dict(layer.state_dict())
    torch.testing.assert_close(layer(x)[0], plain(x)[0])


def test_a_changed_rate_is_checked_as_in_the_constructor():
    layer = br.GRU(3, 4, recurrent_dropout=0.2)
    for name, value, message in (
        ("input_dropout", 1.0, "input_dropout must be a number in"),
        ("noise", "uniform", "noise must be one of"),
        ("tied", "yes", "tied must be one of"),
        ("cell_dropout", 0.5, "cell_dropout is an option of br.LSTM: a GRU has no cell state"),
    ):
        with pytest.raises(ValueError, match=message):
            setattr(layer, name, value)
    assert layer.rates == br.GRU(3, 4, recurrent_dropout=0.2).rates


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: br.LSTM(2, 3, recurent_dropout=0.1),
            "LSTM has no argument 'recurent_dropout': did you mean 'recurrent_",
        ),
        (lambda: br.GRU(2, 3, nonlinearity="relu"), r"GRU has no argument 'nonlinearity'$"),
        (lambda: br.RNN(2, 3, foo=1), r"RNN has no argument 'foo'$"),
    ],
)
def test_unknown_arguments_are_refused_with_the_nearest_name(make, message):
    with pytest.raises(TypeError, match=message):
        make()
