"""torch's own noise inside draws: subclasses and functions keep their meaning, seeds decide, nothing leaks."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

import bayesrnn as br

REAL = br.Gaussian(1.0)  # outputs are taken as they are


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


class ScaledLSTM(nn.LSTM):
    def forward(self, input, hx=None):
        out, state = super().forward(input, hx)
        return 3 * out, state


class InputVariationalDropout(nn.Dropout):
    """As in AllenNLP: one mask for all steps of a sequence."""

    def forward(self, input_tensor):
        ones = input_tensor.new_ones(input_tensor.shape[0], input_tensor.shape[-1])
        mask = F.dropout(ones, self.p, self.training, inplace=False)
        return mask.unsqueeze(1) * input_tensor


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5, inplace=True)

    def forward(self, x):
        x = x.clone()
        self.drop(x)  # the return value is not used
        return x


class Keyword(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(input=x)


class Functional(nn.Module):
    def __init__(self, function, *args):
        super().__init__()
        self.function, self.args = function, args

    def forward(self, x):
        return self.function(x, *self.args, training=self.training)


def test_a_subclass_of_lstm_keeps_its_forward():
    layer = ScaledLSTM(4, 5, 2, dropout=0.3).eval()
    plain = nn.LSTM(4, 5, 2, dropout=0.3).eval()
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(6, 3, 4)
    ours, theirs = (br.predict(m, x, samples=6, seed=1, likelihood=REAL).samples for m in (layer, plain))
    assert ours.std(0).max() > 0
    assert_close(ours, 3 * theirs)


@pytest.mark.parametrize("limit", [1, None])
def test_a_subclass_of_dropout_keeps_its_forward(limit):
    layer = InputVariationalDropout(0.5)
    samples = br.predict(
        nn.Sequential(layer), torch.ones(3, 7, 40), samples=8, seed=1, memory_limit=limit, likelihood=REAL
    ).samples
    assert (samples == samples[:, :, :1]).all()  # one mask for all 7 steps
    assert 0.3 < (samples == 0).double().mean() < 0.7
    assert not torch.equal(samples[0], samples[1])
    q = br.BayesByBackprop(nn.Sequential(nn.Linear(40, 40), layer)).train()
    assert (q(torch.ones(3, 7, 40)) == 0).any()


@pytest.mark.parametrize("model", [InPlace(), Keyword()], ids=lambda m: type(m).__name__)
def test_how_dropout_is_called_does_not_matter(model):
    samples = br.predict(model, torch.ones(4, 50), samples=6, seed=1, likelihood=REAL).samples
    assert_close(samples.unique(), torch.tensor([0.0, 2.0]))
    assert not torch.equal(samples[0], samples[1])
    with br.draw(model, seed=1):
        assert_close(model(torch.ones(4, 50)).unique(), torch.tensor([0.0, 2.0]))


FUNCTIONS = [
    (F.dropout, 0.5),
    (F.dropout1d, 0.5),
    (F.dropout3d, 0.5),
    (F.alpha_dropout, 0.5),
    (F.feature_alpha_dropout, 0.5),
    (F.rrelu, 0.1, 0.9),
]


@pytest.mark.parametrize("case", FUNCTIONS, ids=lambda c: c[0].__name__)
def test_functional_noise_is_on_in_a_draw_and_off_in_the_mean(case):
    model, x = Functional(*case), -torch.rand(6, 8, 5, *[3, 2] * (case[0] is F.dropout3d))
    expected = model.eval()(x)
    for training in (True, False):
        model.train(training)
        before = torch.get_rng_state()
        with br.draw(model, seed=3):
            first, second = model(x), model(x)
        with br.draw(model, seed=3):
            assert torch.equal(model(x), first)
        assert not torch.equal(first, second)
        with br.mean(model):
            assert_close(model(x), expected)
        assert torch.equal(torch.get_rng_state(), before)
    whole = br.predict(model, x, samples=7, seed=2)
    assert whole.samples.std(0).max() > 0
    assert_close(br.predict(model, x, samples=7, seed=2, memory_limit=1).samples, whole.samples)


@pytest.mark.parametrize(
    "layer",
    [nn.Dropout(0.3), nn.Dropout2d(0.3), nn.AlphaDropout(0.3), nn.FeatureAlphaDropout(0.3), nn.RReLU()],
    ids=lambda m: type(m).__name__,
)
def test_moments_are_torch_s(layer):
    x = torch.linspace(-2, 2, 24).view(1, 24, 1, 1).expand(4000, 24, 1, 1)
    theirs = layer.train()(x.clone())
    with br.draw(layer, seed=1):
        ours = layer(x.clone())
    # standard errors of a mean and a mean square of 4,000 values of size up to 4
    assert_close(ours.mean(0), theirs.mean(0), atol=0.2, rtol=0)
    assert_close(ours.square().mean(0), theirs.square().mean(0), atol=0.6, rtol=0)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("need_weights", [True, False])
def test_attention_dropout(heads, need_weights):
    layer = nn.MultiheadAttention(8, heads, dropout=0.4, batch_first=True).eval()
    x = torch.randn(3, 5, 8)
    expected = layer(x, x, x, need_weights=need_weights)[0]
    with br.draw(layer, seed=1):
        first = layer(x, x, x, need_weights=need_weights)[0]
    with br.draw(layer, seed=1):
        assert torch.equal(layer(x, x, x, need_weights=need_weights)[0], first)
    assert not torch.allclose(first, expected)
    with br.mean(layer.train()):
        assert_close(layer(x, x, x, need_weights=need_weights)[0], expected)


def test_scaled_dot_product_attention_averages_to_the_one_without_dropout():
    class Attention(nn.Module):
        def forward(self, x):
            return F.scaled_dot_product_attention(x, x, x, dropout_p=0.2, is_causal=True)

    model, x = Attention(), torch.randn(2, 6, 4)
    found = br.predict(model, x, samples=3000, seed=1, likelihood=REAL)
    expected = F.scaled_dot_product_attention(x, x, x, is_causal=True)
    assert_close(found.mean, expected, atol=0.15, rtol=0)


def test_another_model_in_the_block_is_left_alone():
    model, other = nn.Dropout(0.5), nn.Dropout(0.5).eval()
    x = torch.ones(30)
    with br.draw(model, seed=1):
        assert torch.equal(other(x), x)
        torch.manual_seed(5)
        noisy = other.train()(x)
        torch.manual_seed(5)
        assert torch.equal(F.dropout(x, 0.5), noisy)
    with br.mean(model):
        assert (other(x) == 0).any()


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_scripted_dropout_is_refused_by_name():
    model = nn.Sequential(nn.Linear(3, 3), torch.jit.script(nn.Dropout(0.5)))
    with pytest.raises(TypeError, match="module '1' is dropout in TorchScript, whose noise cannot be controlled"):
        br.predict(model, torch.randn(4, 3))
    plain = nn.Sequential(torch.jit.script(nn.Linear(3, 3)))
    assert br.predict(plain, torch.randn(4, 3), samples=1).mean.shape == (4, 3)
    assert "_bayesrnn_blocks" not in model[0].__dict__


def test_packed_input_of_torch_s_lstm_with_dropout():
    layer = nn.LSTM(3, 4, 2, dropout=0.5, bidirectional=True).eval()
    packed = nn.utils.rnn.pack_sequence([torch.randn(n, 3) for n in (4, 2, 5)], enforce_sorted=False)
    with br.draw(layer, seed=1):
        first = layer(packed)[0].data
    with br.draw(layer, seed=1):
        again, (h, c) = layer(packed)
    assert_close(again.data, first)
    assert not torch.allclose(first, layer(packed)[0].data)
    assert h.shape == c.shape == (4, 3, 4)


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_layers_run_one_by_one_are_the_whole(cell, batch_first, bidirectional):
    layer = cell(3, 4, 3, dropout=1e-9, batch_first=batch_first, bidirectional=bidirectional)
    x = torch.randn(5, 2, 3, requires_grad=True)
    expected = layer.eval()(x)
    with br.draw(layer.train(), seed=1):
        found = layer(x)
    assert_close(found, expected)
    grads = [torch.autograd.grad(o[0].sum(), [x, *layer.parameters()]) for o in (found, expected)]
    assert_close(*grads)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf", "ignore::DeprecationWarning")
def test_a_compiled_model_has_the_draws_of_the_model():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.drop, self.b = nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 3)

        def forward(self, x):
            return self.b(self.drop(torch.relu(self.a(x))))

    torch._dynamo.reset()
    model, x = Model().eval(), torch.randn(5, 4)
    compiled = torch.compile(model, backend="eager")
    assert_close(compiled(x), model(x))
    for _ in range(2):
        with br.draw(model, seed=1):
            expected = model(x)
        with br.draw(compiled, seed=1):
            assert_close(compiled(x), expected)
    assert_close(compiled(x), model(x))
    assert not torch.allclose(expected, model(x))
    torch._dynamo.reset()
