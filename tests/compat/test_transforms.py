"""torch.func, tracers and other programs that run a model in their own way."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing import assert_close

import bayesrnn as br
from bayesrnn import kernels

CELLS = [br.LSTM, br.GRU, br.RNN]
NOISE = [{"recurrent_dropout": 0.5}, {"weight_dropout": 0.5}, {"recurrent_dropout": 0.5, "share": "batch"}]
REAL = br.Gaussian(1.0)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("rates", NOISE, ids=str)
def test_grad_and_functional_call_are_autograd_s(cell, rates):
    layer, x = cell(4, 5, **rates), torch.randn(6, 3, 4)
    weights = dict(layer.named_parameters())

    def loss(weights):
        return torch.func.functional_call(layer, weights, (x,))[0].square().sum()

    with br.draw(layer, seed=1), kernels.force("reference"):
        found = torch.func.grad(loss)({n: w.detach() for n, w in weights.items()})
    with br.draw(layer, seed=1):
        expected = torch.autograd.grad(loss(weights), list(weights.values()))
    assert_close(list(found.values()), list(expected))


@pytest.mark.parametrize("cell", CELLS)
def test_vmap_over_weights_keeps_a_held_draw(cell):
    layer, x = cell(4, 5, recurrent_dropout=0.5), torch.randn(6, 3, 4)
    stacked = {n: torch.stack([w.detach(), 2 * w.detach()]) for n, w in layer.named_parameters()}
    with br.draw(layer, seed=1), kernels.force("reference"):
        layer(x)  # the draw has its noise
        found = torch.vmap(lambda w: torch.func.functional_call(layer, w, (x,))[0])(stacked)
        one = torch.func.functional_call(layer, {n: w[1] for n, w in stacked.items()}, (x,))[0]
    assert_close(found[1], one)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize("cell", CELLS)
def test_jvp_of_a_held_draw(cell):
    layer, x, t = cell(4, 5, recurrent_dropout=0.5).double(), *(torch.randn(6, 3, 4).double() for _ in range(2))
    with br.draw(layer, seed=1), kernels.force("reference"):
        _, found = torch.func.jvp(lambda x: layer(x)[0], (x,), (t,))
        near = (layer(x + 1e-6 * t)[0] - layer(x - 1e-6 * t)[0]) / 2e-6
    assert_close(found, near, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("wrap", [br.BayesByBackprop, br.DropConnect])
def test_vmap_of_drawn_weights_in_torch_s_layers(cell, wrap):
    """torch.nn's own layers have no rule for vmap. Inside a posterior they run in our kernels."""
    q, x = wrap(cell(4, 5)), torch.randn(2, 6, 3, 4)
    with br.draw(q, seed=1):
        found = torch.vmap(lambda x: q(x)[0])(x)
        assert_close(found, torch.stack([q(one)[0] for one in x]))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize("make", [*CELLS, lambda *sizes, **_: br.BayesByBackprop(nn.LSTM(*sizes))])
@pytest.mark.parametrize("rates", [{}, *NOISE], ids=str)
def test_forward_mode_needs_no_block_of_its_own(make, rates):
    layer, x, t = make(4, 5, **rates), *torch.randn(2, 6, 3, 4)
    with br.draw(layer, seed=1):
        _, found = torch.func.jvp(lambda x: layer(x)[0], (x,), (t,))
        with forward_ad.dual_level():
            dual = forward_ad.unpack_dual(layer(forward_ad.make_dual(x, t))[0]).tangent
        with kernels.force("reference"):
            expected = torch.autograd.functional.jvp(lambda x: layer(x)[0], x, t)[1]  # two backward passes
    assert_close(found, expected)
    assert_close(dual, expected)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("rates", NOISE, ids=str)
def test_make_fx_of_a_held_draw_has_its_noise_as_constants(cell, rates):
    layer, x = cell(4, 5, **rates).eval(), torch.randn(6, 3, 4)
    with br.draw(layer, seed=1):
        graph = make_fx(lambda x: layer(x)[0])(x)
        expected = layer(x)[0]
    for _ in range(3):
        torch.full((1000,), 7.0)  # memory that was never written would hold this
        assert_close(graph(x), expected)
    other = torch.randn(6, 3, 4)
    with br.draw(layer, seed=1):
        assert_close(graph(other), layer(other)[0])


def test_make_fx_of_torch_s_dropout():
    model, x = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5)), torch.randn(6, 4)
    with br.draw(model, seed=1):
        graph = make_fx(model)(x)
    with br.draw(model, seed=1):
        assert_close(graph(x), model(x))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("make", [lambda: br.LSTM(4, 5, recurrent_dropout=0.5), lambda: br.Dropout(0.5)])
def test_jit_trace_of_a_held_draw_is_refused_in_one_line(make):
    model, x = make(), torch.randn(6, 3, 4)
    with (
        br.draw(model, seed=1),
        pytest.raises(RuntimeError, match=r"^torch.jit.trace cannot record a held draw: trace br.to_torch\(model\)"),
    ):
        torch.jit.trace(model, x, check_trace=False)


class Reversed(nn.Module):
    """Takes (B, T, F) and reads the time backwards: its first axis is the batch, which the GRU does not tell."""

    def __init__(self, cell=nn.GRU, **options):
        super().__init__()
        self.drop, self.rnn, self.head = nn.Dropout(0.5), cell(4, 5, **options), nn.Linear(5, 3)

    def forward(self, x):
        x = self.drop(x).transpose(0, 1)
        return self.head(self.rnn(x.flip(0))[0].flip(0)).transpose(0, 1)


class Centred(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(4, 3)

    def forward(self, x):
        x = self.drop(x)
        return self.head(x - x.mean(0))


class Pairs(nn.Module):
    """Mixes each half of the batch with the other."""

    def __init__(self):
        super().__init__()
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(4, 3)

    def forward(self, x):
        a, b = self.drop(x).chunk(2)
        return self.head(torch.cat([a + b, a - b]))


class Neighbours(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(4, 3)

    def forward(self, x):
        x = self.drop(x)
        return self.head(x + torch.cat([x[1:], x[:1]]))


@pytest.mark.parametrize(
    "model",
    [Reversed(), Reversed(br.GRU, recurrent_dropout=0.4), Reversed(bidirectional=False, bias=False), Centred(), Pairs(),
     Neighbours()],
    ids=lambda m: type(m).__name__,
)  # fmt: skip
@pytest.mark.parametrize("axis", [0, 1, None])
def test_a_model_that_mixes_rows_is_not_folded(model, axis):
    """Every draw is what it is alone, whatever the memory limit."""
    x = torch.randn(6, 6, 4)
    options = {"samples": 16, "seed": 1, "likelihood": REAL, "batch_dim": axis}
    alone = br.predict(model, x, memory_limit=1, **options).samples
    assert alone.std(0).max() > 0
    for limit in (3_000, 10_000, 30_000, 100_000, None):
        assert_close(br.predict(model, x, memory_limit=limit, **options).samples, alone, rtol=1e-4, atol=1e-4)
    for k in range(3):
        with br.draw(model.eval(), seed=br.draws.mix(1, k)):
            assert_close(model(x), alone[k])


@pytest.mark.parametrize("samples", [1, 2, 3, 4, 5, 6, 7, 33])
def test_every_number_of_draws_and_every_limit_gives_the_same(samples):
    model, x = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.Linear(5, 3)), torch.randn(7, 4)
    alone = br.predict(model, x, samples=samples, seed=3, memory_limit=1)
    for limit in (500, 1000, 2000, 4000, None):
        found = br.predict(model, x, samples=samples, seed=3, memory_limit=limit)
        assert found.samples.shape[0] == samples
        assert_close(found.samples, alone.samples)
        assert_close(found.mean, alone.mean)


class Masked(nn.Module):
    """Attention with a mask of -inf, and logits of -inf for classes that are not allowed."""

    def __init__(self):
        super().__init__()
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(8, 5)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.2, batch_first=True)
        self.rates = "my own"

    def forward(self, x, mask=None):
        x = self.attention(x, x, x, attn_mask=mask)[0]
        logits = self.head(self.drop(x))
        return logits.masked_fill(torch.tensor([False, False, True, False, False]), -torch.inf)


@pytest.mark.parametrize("bayesian", [True, False])
def test_infinite_entries_that_are_legal(bayesian):
    model, x = Masked(), torch.randn(3, 6, 8)
    if bayesian:
        model = br.BayesByBackprop(model)
    mask = torch.full((6, 6), -torch.inf).triu(1)
    for found in (br.predict(model, x, samples=9, kwargs={"mask": mask}), br.predict(model, x, mask, samples=9)):
        for value in (found.mean, found.entropy, found.epistemic, found.aleatoric, found.variance, *found.interval()):
            assert value.isfinite().all()
        assert_close(found.mean.sum(-1), torch.ones(3, 6))
        assert (found.mean[..., 2] == 0).all()


def test_infinite_values_that_are_not_legal():
    class Bad(nn.Module):
        def __init__(self, value):
            super().__init__()
            self.value = value

        def forward(self, x):
            return x * 0 + self.value

    for value in (torch.inf, -torch.inf, torch.nan):
        with pytest.raises(FloatingPointError, match="NaN or infinite"):
            br.predict(Bad(value), torch.ones(3, 4), samples=3)
    with pytest.raises(ValueError, match="NaN or infinite"):
        br.predict(nn.Linear(4, 3), torch.ones(3, 4), torch.full((2, 2), torch.inf))


def test_averages_of_a_model_in_bfloat16():
    model = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.5), nn.Linear(32, 16)).bfloat16()
    with torch.no_grad():
        model[2].weight.mul_(3)
    x = torch.randn(4, 16).bfloat16()
    found = br.predict(model, x, samples=1000, seed=1)
    p = found.samples.double()
    p = p / p.sum(-1, keepdim=True)
    entropy = torch.special.entr(p).sum(-1).mean(0)
    assert_close(found.aleatoric.double(), entropy, atol=0.01, rtol=0)
    total = torch.special.entr(p.mean(0)).sum(-1)
    assert_close(found.mutual_information.double(), total - entropy, atol=0.01, rtol=0)


def test_entropy_gap_of_a_model_in_bfloat16():
    class Language(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.rnn = br.Embedding(20, 8, word_dropout=0.2), br.LSTM(8, 8, recurrent_dropout=0.3)
            self.head = nn.Linear(8, 20)

        def forward(self, tokens, state=None):
            out, state = self.rnn(self.embed(tokens), state)
            return self.head(out), state

    model, stream = Language(), torch.randint(20, (41,))
    expected = br.entropy_gap(model, stream, samples=300, seed=1)
    low = br.entropy_gap(copy.deepcopy(model).bfloat16(), stream, samples=300, seed=1)
    assert max(low.forward, low.reversed) < torch.tensor(20.0).log()
    assert abs(low.forward - expected.forward) < 0.01


def test_float64_intervals_keep_their_precision():
    class Far(nn.Module):
        def forward(self, x):
            return 1e9 + F.dropout(x, 0.5, self.training)

    x = torch.ones(50, 1, dtype=torch.float64)
    low, high = br.predict(Far(), x, samples=200, seed=1).interval(0.9)
    assert low.dtype == torch.float64
    assert_close(high - low, torch.full_like(low, 2.0))


@pytest.mark.parametrize("batch", [2, 7])
def test_a_regressor_without_a_last_axis_is_a_regressor(batch):
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 1), nn.Flatten(0))
    found = br.predict(model, torch.randn(batch, 4), samples=8, seed=1)
    assert found.kind == "regressor"
    assert found.mean.shape == (batch,)
    assert_close(found.mean, found.samples.mean(0))


@pytest.mark.parametrize("cell", CELLS)
def test_a_second_derivative_is_refused_not_left_out(cell):
    layer, x = cell(3, 4, recurrent_dropout=0.5), torch.randn(5, 2, 3, requires_grad=True)
    with br.draw(layer, seed=1):
        (gradient,) = torch.autograd.grad(layer(x)[0].square().sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="differentiated once"):
            torch.autograd.grad(gradient.square().sum() + x.sum(), x)
        with pytest.raises(RuntimeError, match="differentiated once"):
            torch.autograd.functional.hessian(lambda x: layer(x)[0].sum(), x.detach())


def test_a_second_derivative_of_drawn_weights_is_refused_not_left_out():
    q = br.BayesByBackprop(nn.Linear(3, 4))
    rho = next(q.posterior.rho.parameters())
    with br.draw(q, seed=1):
        (gradient,) = torch.autograd.grad(q(torch.randn(5, 3)).square().sum(), rho, create_graph=True)
        with pytest.raises(RuntimeError, match="differentiated once"):
            torch.autograd.grad(gradient.square().sum() + rho.sum(), rho)


@pytest.mark.parametrize("cell", [br.LSTM, br.GRU, br.RNN])
@pytest.mark.parametrize("noise", [{}, {"weight_dropout": 0.4}, {"recurrent_dropout": 0.4, "share": "batch"}])
def test_vmap_of_a_held_draw_whose_noise_the_weights_hold(cell, noise):
    """The noise is made outside of vmap, and torch's fused kernels, which vmap does not know, are left out."""
    torch.manual_seed(0)
    layer, xs = cell(3, 4, **noise), torch.randn(5, 6, 2, 3)

    def run(x):
        with br.draw(layer, seed=0):
            return layer(x)[0]

    torch.testing.assert_close(torch.vmap(run)(xs), torch.stack([run(x) for x in xs]))
    with br.draw(layer, seed=0):
        mapped = torch.vmap(lambda x: layer(x)[0])(xs)
        torch.testing.assert_close(mapped[0], layer(xs[0])[0])  # what vmap left behind serves ordinary calls


EXPORTED = {
    "LSTM": lambda: br.LSTM(3, 4, recurrent_dropout=0.3),
    "GRU": lambda: br.GRU(3, 4, weight_dropout=0.3),
    "Bayes by Backprop": lambda: br.BayesByBackprop(nn.RNN(3, 4)),
    "DropConnect": lambda: br.DropConnect(nn.GRU(3, 4)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", EXPORTED)
def test_export_takes_the_mean_and_refuses_draws(name):
    model, x = EXPORTED[name]().eval(), torch.randn(5, 2, 3)
    for strict in (False, True):
        exported = torch.export.export(model, (x,), strict=strict)
        assert_close(exported.module()(x)[0], model(x)[0])
    with (
        br.draw(model, seed=1),
        pytest.raises(RuntimeError, match=r"^torch\.export cannot record a held draw: [^\n]*$"),
    ):
        torch.export.export(model, (x,), strict=False)
    with pytest.raises(Exception, match="takes a model in eval mode"):
        torch.export.export(model.train(), (x,), strict=True)
