"""torch's own noise layers under draws: switched on, seeded, held to nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import bayesrnn as br
from bayesrnn.draws import Draw, Stacked, Unfoldable, bind, differentiable_in_eval
from bayesrnn.draws.torch_noise import torch_noise_layers

LAYERS = {
    "Dropout": (nn.Dropout(0.5), (6, 40)),
    "Dropout1d": (nn.Dropout1d(0.5), (6, 40, 3)),
    "Dropout2d": (nn.Dropout2d(0.5), (6, 40, 3, 2)),
    "Dropout3d": (nn.Dropout3d(0.5), (6, 40, 3, 2, 2)),
    "AlphaDropout": (nn.AlphaDropout(0.5), (6, 40)),
    "FeatureAlphaDropout": (nn.FeatureAlphaDropout(0.5), (6, 40, 3)),
    "RReLU": (nn.RReLU(), (6, 40)),
    "LSTM": (nn.LSTM(40, 5, 2, dropout=0.5), (6, 3, 40)),
    "GRU": (nn.GRU(40, 5, 2, dropout=0.5), (6, 3, 40)),
    "ours": (br.LSTM(40, 5, 2, dropout=0.5), (6, 3, 40)),
    "ours with noise": (br.GRU(40, 5, 2, dropout=0.5, input_dropout=0.1), (6, 3, 40)),
    "ours in one": (br.GRU(40, 5, 2, dropout=0.5, input_dropout=0.1, share="batch"), (6, 3, 40)),
    "TransformerEncoderLayer": (nn.TransformerEncoderLayer(40, 2, 16, dropout=0.5, batch_first=True), (3, 6, 40)),
    "TransformerEncoder": (
        nn.TransformerEncoder(nn.TransformerEncoderLayer(40, 2, 16, dropout=0.5, batch_first=True), 2),
        (3, 6, 40),
    ),
}


class Wrapped(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        out = self.layer(x)
        return out[0] if isinstance(out, tuple) else out


@pytest.fixture(params=LAYERS)
def case(request):
    layer, shape = LAYERS[request.param]
    x = -torch.rand(shape) if request.param == "RReLU" else torch.randn(shape)
    return Wrapped(layer), x


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("gradients", [True, False])
def test_on_inside_a_draw_and_the_same_for_one_seed(case, training, gradients):
    model, x = case
    model.train(training)
    results = []
    with torch.set_grad_enabled(gradients):
        for seed in (1, 1, 2):
            with br.draw(model, seed=seed):
                results.append((model(x), model(x)))
    (first, again), repeated, (other, _) = results
    assert_close(repeated, (first, again), rtol=0, atol=0)
    assert not torch.equal(first, again)  # ordinary dropout is new at every call
    assert not torch.equal(first, other)
    assert all(m.training == training for m in model.modules())


def test_off_in_eval_mode_and_inside_mean(case):
    model, x = case
    expected = model.eval()(x)
    assert torch.equal(model(x), expected)
    with br.mean(model):
        assert_close(model(x), expected)
    model.train()
    with br.mean(model):
        assert_close(model(x), expected)
        assert all(m.training for m in model.modules())
    assert not torch.equal(model(x), model(x))


def test_a_draw_leaves_torch_s_generator_alone(case):
    model, x = case
    before = torch.get_rng_state()
    with br.draw(model, seed=1):
        model(x)
    assert torch.equal(torch.get_rng_state(), before)


def test_layers_do_not_share_their_noise():
    model = nn.ModuleList([nn.Dropout(0.5), nn.Dropout(0.5)])
    with br.draw(model, seed=1):
        assert not torch.equal(model[0](torch.ones(60)), model[1](torch.ones(60)))


def identity_stack(kind, **options):
    """Two ReLU layers that pass ones on, so that the output shows torch's dropout between them."""
    layer = kind(50, 50, 2, "relu", bias=False, dropout=0.4, **options)
    with torch.no_grad():
        for k in (0, 1):
            getattr(layer, f"weight_ih_l{k}").copy_(torch.eye(50))
            getattr(layer, f"weight_hh_l{k}").zero_()
    return layer


@pytest.mark.parametrize(("kind", "options"), [(nn.RNN, {}), (br.RNN, {}), (br.RNN, {"recurrent_dropout": 0.1})])
@pytest.mark.parametrize("training", [True, False])
def test_dropout_between_layers_is_new_at_every_step(kind, options, training):
    layer = identity_stack(kind, **options).train(training)
    with br.draw(layer, seed=1), torch.no_grad():
        out = layer(torch.ones(20, 10, 50))[0]
    assert_close(out.unique(), torch.tensor([0.0, 1 / 0.6]))
    # 10,000 units: standard error 0.0049; a rate off by 0.05 is found with power > 0.9999
    assert abs((out == 0).double().mean() - 0.4) < 5 * 0.0049
    # 190 pairs of steps of 500 units: a correlation of 0.45 in any is found with power > 0.9999
    steps = torch.corrcoef(out.flatten(1).double())
    assert (steps - torch.eye(20)).abs().max() < 5.5 * 500**-0.5


def test_a_rate_of_one_drops_everything_as_in_torch():
    layer = br.GRU(3, 4, 2, bias=False, dropout=1.0, input_dropout=0.5)
    assert layer(torch.randn(5, 2, 3))[0].count_nonzero() == 0


def test_packed_input_with_dropout_between_layers():
    layer = br.GRU(3, 4, 2, dropout=0.5, input_dropout=0.5)
    packed = nn.utils.rnn.pack_sequence([torch.randn(n, 3) for n in (4, 2, 1)])
    out, _ = layer(packed)
    assert out.data.shape == (7, 4)
    assert out.data.isfinite().all()


def test_which_layers_are_noisy():
    model = nn.ModuleDict(
        {
            "drop": nn.Dropout(0.1),
            "none": nn.Dropout(0.0),
            "rnn": nn.LSTM(2, 2, 2, dropout=0.1),
            "plain": nn.LSTM(2, 2),
            "attention": nn.MultiheadAttention(4, 2, dropout=0.1),
            "linear": nn.Linear(2, 2),
        }
    )
    assert [name for name, _ in torch_noise_layers(model)] == ["drop", "rnn", "attention"]


@pytest.mark.parametrize(
    "name",
    [
        "Dropout",
        "Dropout1d",
        "Dropout2d",
        "Dropout3d",
        "AlphaDropout",
        "FeatureAlphaDropout",
        "RReLU",
        "LSTM",
        "GRU",
        "ours",
    ],
)
def test_folded_draws_have_a_mask_each(name):
    """Rows s * B .. (s + 1) * B of the folded batch belong to draw s: what it gives there, it gives alone."""
    layer, shape = LAYERS[name]
    model = Wrapped(layer).eval()
    axis = 1 if isinstance(layer, nn.RNNBase) else 0
    x = -torch.ones(shape)
    rows = shape[axis]

    def folded(seeds):
        many = Stacked([Draw(s) for s in seeds], rows=len(seeds) * rows, batch_dim=axis)
        wide = torch.cat([x] * len(seeds), dim=axis)
        with bind(model, many, torchs=many):
            return model(wide).split(rows, dim=axis)

    together, alone = folded([1, 2, 3]), [folded([s])[0] for s in (1, 2, 3)]
    assert_close(list(together), alone)
    assert not torch.equal(together[0], together[1])


@pytest.mark.parametrize(
    ("layer", "shape", "message"),
    [
        (nn.Dropout(0.5), (5, 3), "layer has no batch axis of 8 rows"),
        (nn.Dropout1d(0.5), (8, 3), "layer sees unbatched input"),
        (nn.MultiheadAttention(4, 2, dropout=0.5), (3, 8, 4), "layer has no batch axis of 8 rows"),
    ],
)
def test_what_cannot_be_folded_says_so(layer, shape, message):
    many = Stacked([Draw(1), Draw(2)], rows=8)
    model, x = Wrapped(layer), torch.ones(shape)
    if isinstance(layer, nn.MultiheadAttention):
        model.forward = lambda x: layer(x, x, x)
    with bind(model, many, torchs=many), pytest.raises(Unfoldable, match=message):
        model(x)


def test_gradients_in_eval_mode_keep_a_held_draw_and_bring_no_noise_without_one():
    torch.manual_seed(0)
    layer = torch.nn.Sequential(br.LSTM(4, 5, num_layers=2, dropout=0.5)).eval()
    x = torch.randn(3, 2, 4)
    with br.draw(layer, seed=1):
        noisy = layer(x)[0]
    with br.draw(layer, seed=1), differentiable_in_eval(layer):
        assert_close(layer(x)[0], noisy)
    with differentiable_in_eval(layer):
        assert_close(layer(x)[0], layer.eval()(x)[0])
    assert not layer[0].training
    assert layer[0].dropout == 0.5
