"""`br.predict`: the same draws however the work is cut, right averages, and nothing left changed behind."""

import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

import bayesrnn as br
from bayesrnn.draws import Draw
from bayesrnn.prediction import memory as footprint
from bayesrnn.prediction import montecarlo
from bayesrnn.prediction.calls import first_of


class Tagger(nn.Module):
    """Tokens (T, B), or (B, T), -> (logits, state)."""

    def __init__(self, rnn, embed=None, vocabulary=9, size=4, dropout=0.0):
        super().__init__()
        self.embed = embed or nn.Embedding(vocabulary, size)
        self.rnn = rnn
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(rnn.hidden_size * (2 if rnn.bidirectional else 1), 3)

    def forward(self, x, state=None):
        out, state = self.rnn(self.embed(x), state)
        return self.head(self.drop(out)), state


class Last(nn.Module):
    """Sequences -> one output each, without a time axis."""

    def __init__(self, rnn, outputs=3, dropout=0.0):
        super().__init__()
        self.rnn, self.drop, self.head = rnn, nn.Dropout(dropout), nn.Linear(rnn.hidden_size, outputs)

    def forward(self, x):
        out, _ = self.rnn(x)
        return self.head(self.drop(out[:, -1] if self.rnn.batch_first else out[-1]))


class Convolutional(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(1, 4, 3), nn.Dropout2d(0.4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(64, 3)
        )


class Flattened(nn.Module):
    """As many language models do: the output is (T * B, V)."""

    def __init__(self, batch_first):
        super().__init__()
        self.rnn = br.GRU(3, 4, input_dropout=0.3, batch_first=batch_first)
        self.drop, self.head = nn.Dropout(0.3), nn.Linear(4, 5)

    def forward(self, x):
        return self.head(self.drop(self.rnn(x)[0].flatten(0, 1)))


class Transposing(nn.Module):
    """Takes (B, T, F) although its recurrent layer takes (T, B, F): no rule can know."""

    def __init__(self, rnn=nn.LSTM):
        super().__init__()
        self.rnn, self.drop = rnn(3, 4), nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(self.rnn(x.transpose(0, 1))[0]).transpose(0, 1)


def tokens(*shape):
    return torch.randint(9, shape, generator=torch.Generator().manual_seed(0))


def reals(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


NOISE = {"input_dropout": 0.3, "recurrent_dropout": 0.2}
MODELS = {
    "variational": (lambda: Tagger(br.LSTM(4, 5, num_layers=2, **NOISE)), tokens(6, 3)),
    "untied": (lambda: Tagger(br.GRU(4, 5, tied=False, noise="gaussian", **NOISE)), tokens(6, 3)),
    "cell": (lambda: Tagger(br.LSTM(4, 5, cell_dropout=0.3)), tokens(6, 3)),
    "words": (lambda: Tagger(nn.LSTM(4, 5), br.Embedding(9, 4, word_dropout=0.4)), tokens(6, 3)),
    "batch_first": (
        lambda: Tagger(
            br.LSTM(4, 5, batch_first=True, **NOISE), br.Embedding(9, 4, word_dropout=0.4, batch_first=True)
        ),
        tokens(3, 6),
    ),
    "one set for the batch": (lambda: Tagger(br.LSTM(4, 5, share="batch", **NOISE)), tokens(6, 3)),
    "bidirectional": (lambda: Tagger(br.RNN(4, 5, bidirectional=True, **NOISE)), tokens(6, 3)),
    "weight_dropout": (lambda: Tagger(br.LSTM(4, 5, weight_dropout=0.4, input_dropout=0.2)), tokens(6, 3)),
    "sequence dropout": (lambda: nn.Sequential(br.SequenceDropout(0.4), nn.Linear(4, 3)), reals(6, 3, 4)),
    "plain dropout": (lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.4), nn.ReLU(), nn.Linear(8, 3)), reals(5, 4)),
    "dropout 2d": (Convolutional, reals(5, 1, 6, 6)),
    "alpha dropout": (lambda: nn.Sequential(nn.Linear(4, 8), nn.AlphaDropout(0.4), nn.Linear(8, 3)), reals(5, 4)),
    "nn.LSTM dropout": (lambda: Tagger(nn.LSTM(4, 5, num_layers=3, dropout=0.4), dropout=0.3), tokens(6, 3)),
    "nn.LSTM dropout, batch first": (
        lambda: Last(nn.LSTM(4, 5, num_layers=2, dropout=0.4, batch_first=True), dropout=0.3), reals(3, 6, 4),
    ),
    "between layers": (lambda: Tagger(br.GRU(4, 5, num_layers=2, dropout=0.4, recurrent_dropout=0.2)), tokens(6, 3)),
    "last step": (lambda: Last(br.LSTM(4, 5, **NOISE), dropout=0.3), reals(6, 3, 4)),
    "last step, as wide as the batch": (lambda: Last(br.LSTM(4, 3, **NOISE), dropout=0.3), reals(6, 3, 4)),
    "one row, as many outputs as draws": (lambda: Last(br.LSTM(4, 7, **NOISE), outputs=7, dropout=0.3), reals(6, 1, 4)),
    "bayes by backprop": (lambda: br.BayesByBackprop(Tagger(nn.LSTM(4, 5)), init_sigma=0.3), tokens(6, 3)),
    "bayes by backprop with dropout": (
        lambda: br.BayesByBackprop(Tagger(br.LSTM(4, 5, **NOISE), dropout=0.2), init_sigma=0.3), tokens(6, 3),
    ),
    "posterior in a part": (
        lambda: nn.Sequential(nn.Dropout(0.3), br.BayesByBackprop(nn.Linear(4, 3), init_sigma=0.3)), reals(5, 4),
    ),
    "flattened": (lambda: Flattened(False), reals(6, 2, 3)),
    "flattened, batch first": (lambda: Flattened(True), reals(2, 6, 3)),
    "transposing": (Transposing, reals(2, 6, 3)),
    "unbatched": (lambda: br.LSTM(4, 5, **NOISE), reals(6, 4)),
    "unbatched, batch first": (lambda: nn.Sequential(nn.Dropout(0.3), nn.GRU(4, 5, batch_first=True)), reals(6, 4)),
    "unbatched tokens": (lambda: Tagger(br.LSTM(4, 5, **NOISE)), tokens(6)),
    "batch norm": (lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.4), nn.Linear(4, 3)), reals(5, 4)),
    "transformer": (lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.3), reals(5, 2, 4)),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("training", [True, False])
def test_the_seed_decides_and_the_chunking_does_not(name, training):
    torch.manual_seed(0)
    make, x = MODELS[name]
    model = make().train(training)
    likelihood = br.Gaussian(0.5)
    whole = br.predict(model, x, samples=8, seed=3, likelihood=likelihood)
    assert whole.samples.shape == (8, *whole.mean.shape)
    for limit in (1, 700, 5_000):
        cut = br.predict(model, x, samples=8, seed=3, likelihood=likelihood, memory_limit=limit)
        torch.testing.assert_close(cut.samples, whole.samples, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(cut.mean, whole.mean, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(cut.variance, whole.variance, rtol=1e-4, atol=1e-5)
    # the draws differ from each other, and with the seed
    assert len({tuple(s.flatten().tolist()) for s in whole.samples}) == 8
    other = br.predict(model, x, samples=8, seed=4, likelihood=likelihood)
    assert not torch.allclose(other.samples, whole.samples)
    # the first draws are the same whatever the number of draws
    fewer = br.predict(model, x, samples=3, seed=3, likelihood=likelihood)
    torch.testing.assert_close(fewer.samples, whole.samples[:3], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_nothing_is_left_changed(name):
    torch.manual_seed(0)
    make, x = MODELS[name]
    model = make()
    for k, module in enumerate(model.modules()):
        module.training = k % 2 == 0
    modes = [m.training for m in model.modules()]
    state = {k: v.clone() for k, v in model.state_dict().items()}
    keys = [set(m.__dict__) for m in model.modules()]
    random = torch.get_rng_state()
    prediction = br.predict(model, x, samples=5, seed=1, likelihood=br.Gaussian())
    assert torch.equal(torch.get_rng_state(), random)  # with a seed, torch's own generator is not touched
    assert modes == [m.training for m in model.modules()]
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert keys == [set(m.__dict__) for m in model.modules()]
    assert not any(m._forward_hooks for m in model.modules())
    assert not prediction.mean.requires_grad
    assert not prediction.samples.requires_grad
    assert all(p.grad is None for p in model.parameters())


def test_dropout_draws_are_folded_into_the_batch():
    """32 draws take far fewer than 32 passes, also for torch's own layers."""
    for name in ("variational", "words", "plain dropout", "dropout 2d", "nn.LSTM dropout", "last step", "batch_first"):
        make, x = MODELS[name]
        model, calls = make(), []
        model.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        br.predict(model, x, samples=32, seed=0, likelihood=br.Gaussian())
        assert len(calls) <= 3, name


def test_chunks_keep_to_the_memory_limit():
    make, x = MODELS["variational"]
    model, rows = make(), []
    model.rnn.register_forward_hook(lambda m, i, o: rows.append(i[0].shape[1]))
    br.predict(model, x, samples=20, seed=0, memory_limit=1)
    assert set(rows) == {3}
    rows.clear()
    br.predict(model, x, samples=20, seed=0, memory_limit=50_000)
    assert 3 < max(rows) < 60


def test_draws_of_weights_are_not_all_kept():
    q = br.BayesByBackprop(nn.Linear(30, 20), init_sigma=0.1)
    br.predict(q, torch.ones(2, 30), samples=40, seed=0)
    assert len(q.posterior._pool._buffers) < 20


def test_without_a_seed_torch_manual_seed_rules():
    make, x = MODELS["variational"]
    model = make()
    torch.manual_seed(1)
    a, b = br.predict(model, x, samples=4).mean, br.predict(model, x, samples=4).mean
    torch.manual_seed(1)
    c = br.predict(model, x, samples=4).mean
    assert torch.equal(a, c)
    assert not torch.equal(a, b)


@pytest.mark.parametrize("limit", [1, 1 << 30])
@pytest.mark.parametrize(
    "rnn", [br.LSTM(4, 5, **NOISE), br.GRU(4, 5, **NOISE), nn.LSTM(4, 5, num_layers=2, dropout=0.4)]
)
def test_a_given_state_is_used_by_every_draw(rnn, limit):
    torch.manual_seed(0)
    model, x = Tagger(rnn).eval(), tokens(6, 3)
    _, state = model(x)
    state = torch.utils._pytree.tree_map(lambda s: 3 * s.detach() + 1, state)
    with_state = br.predict(model, x, state, samples=6, seed=1, memory_limit=limit)
    again = br.predict(model, x, state, samples=6, seed=1)
    torch.testing.assert_close(with_state.samples, again.samples)
    assert not torch.allclose(with_state.samples, br.predict(model, x, samples=6, seed=1).samples)
    if isinstance(state, tuple):
        as_list = br.predict(model, x, list(state), samples=6, seed=1)
        torch.testing.assert_close(with_state.samples, as_list.samples)


def test_a_state_of_another_batch_size_is_an_error():
    model = Tagger(br.LSTM(4, 5, **NOISE))
    _, state = model(tokens(6, 2))
    with pytest.raises(RuntimeError, match="a state goes with the batch it came from"):
        br.predict(model, tokens(6, 3), state, samples=4)


@pytest.mark.parametrize("make", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("bayesian", [False, True])
@pytest.mark.parametrize("inside", [False, True], ids=["the layer", "inside a model"])
def test_a_state_of_another_batch_size_for_torch_s_own_layers(make, bayesian, inside):
    layer = make(4, 5)
    model, x = (Tagger(layer), tokens(6, 3)) if inside else (layer, reals(6, 3, 4))
    _, state = layer(reals(6, 2, 4))
    with pytest.raises(RuntimeError, match=r"size \(1, 3, 5\), got \[1, 2, 5\]: a state goes with the batch it came"):
        br.predict(br.BayesByBackprop(model) if bayesian else model, x, state, samples=4)


def test_packed_sequences():
    model = br.LSTM(4, 5, **NOISE)
    x = pack_sequence([reals(6, 4), reals(3, 4), reals(5, 4)], enforce_sorted=False)
    a = br.predict(model, x, samples=4, seed=1, likelihood=br.Gaussian())
    assert a.samples.shape == (4, 14, 5)
    assert torch.equal(a.samples, br.predict(model, x, samples=4, seed=1, likelihood=br.Gaussian()).samples)


def test_batch_dim_can_be_given():
    model = Transposing(lambda i, h: br.LSTM(i, h, **NOISE))
    x = reals(2, 6, 3)
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    a = br.predict(model, x, samples=8, seed=1, likelihood=br.Gaussian(), batch_dim=0)
    assert len(calls) <= 3
    b = br.predict(model, x, samples=8, seed=1, likelihood=br.Gaussian(), batch_dim=0, memory_limit=1)
    torch.testing.assert_close(a.samples, b.samples)


def test_average_is_of_probabilities_not_of_logits():
    torch.manual_seed(0)
    make, x = MODELS["variational"]
    model = make()
    with torch.no_grad():
        model.head.weight.mul_(60)
    raw = br.predict(model, x, samples=16, seed=2, likelihood=br.Gaussian()).samples
    found = br.predict(model, x, samples=16, seed=2)
    torch.testing.assert_close(found.samples, raw.softmax(-1))
    torch.testing.assert_close(found.mean, raw.softmax(-1).mean(0))
    assert not torch.allclose(found.mean, raw.mean(0).softmax(-1), atol=1e-2)


@pytest.mark.parametrize("kind", ["bernoulli", "gaussian"])
def test_moments_of_a_linear_model_with_known_dropout_variance(kind):
    # y = w . (z * x): mean w . x, variance p / (1 - p) sum (w x)^2 for both kinds of noise. 20,000 draws: the mean's
    # standard error is 0.7% of the standard deviation, the variance's about 1%; limits at 5 of them. A rate wrong by
    # 10% (p = 0.33 for 0.3 changes the variance by 15%) is caught with power > 0.999.
    torch.manual_seed(0)
    n, p = 20_000, 0.3
    x = torch.randn(1, 2, 6)
    model = nn.Sequential(br.SequenceDropout(p, noise=kind), nn.Linear(6, 1, bias=False))
    prediction = br.predict(model, x, samples=n, seed=5)
    terms = (x * model[1].weight).detach()
    variance = p / (1 - p) * terms.square().sum(-1, keepdim=True)
    assert bool(((prediction.mean - terms.sum(-1, keepdim=True)).abs() < 5 * (variance / n).sqrt()).all())
    kurtosis = (prediction.samples - prediction.mean).pow(4).mean(0) / prediction.epistemic.square()
    assert bool(((prediction.epistemic / variance - 1).abs() < 5 * ((kurtosis - 1) / n).sqrt()).all())


def test_moments_of_plain_dropout_and_of_gaussian_weights():
    # As above, with 20,000 and 2,000 draws.
    torch.manual_seed(0)
    x = torch.randn(2, 6)
    plain = nn.Sequential(nn.Dropout(0.4), nn.Linear(6, 1, bias=False))
    terms = (x * plain[1].weight).detach()
    found = br.predict(plain, x, samples=20_000, seed=1)
    exact = 0.4 / 0.6 * terms.square().sum(-1, keepdim=True)
    torch.testing.assert_close(found.epistemic, exact, rtol=0.06, atol=0)
    assert bool(((found.mean - terms.sum(-1, keepdim=True)).abs() < 5 * (exact / 20_000).sqrt()).all())
    q = br.BayesByBackprop(nn.Linear(6, 1, bias=False), init_sigma=0.2)
    found = br.predict(q, x, samples=2_000, seed=1)
    exact = 0.04 * x.square().sum(-1, keepdim=True)
    torch.testing.assert_close(found.epistemic, exact, rtol=5 * math.sqrt(2 / 2_000), atol=0)
    assert bool(((found.mean - q.mean_module()(x).detach()).abs() < 5 * (exact / 2_000).sqrt()).all())


def test_agrees_with_a_loop_over_held_draws():
    # Two independent estimates of the same probabilities from 800 draws each: their difference stays within 5
    # standard errors of it (45 numbers: a right pair fails with probability < 3e-5).
    torch.manual_seed(0)
    make, x = MODELS["variational"]
    model = make()
    with torch.no_grad():
        model.head.weight.mul_(5)
    n = 800
    found = br.predict(model, x, samples=n, seed=1)
    loop = []
    with torch.no_grad():
        for seed in range(n):
            with br.draw(model, seed=seed):
                loop.append(model(x)[0].softmax(-1))
    loop = torch.stack(loop)
    error = ((found.variance + loop.var(0)) / n).sqrt()
    assert bool(((found.mean - loop.mean(0)).abs() < 5 * error + 1e-6).all())


def test_fold_of_torch_dropout_has_the_same_law_as_torch_itself():
    # Dropout2d drops whole channels: 3,000 draws of 3 x 5 channels; the rate's standard error is 0.23%, limit 5 of it.
    model, x = nn.Sequential(nn.Dropout2d(0.4)), torch.ones(3, 5, 2, 2)
    samples = br.predict(model, x, samples=3000, seed=1, likelihood=br.Gaussian()).samples
    assert set(samples.unique().tolist()) == {0.0, samples.max().item()}
    assert samples.max().item() == pytest.approx(1 / 0.6)
    per_channel = samples.flatten(3)
    assert bool((per_channel == per_channel[..., :1]).all())
    assert abs(float((samples == 0).float().mean()) - 0.4) < 5 * math.sqrt(0.24 / 42_000)


@pytest.mark.parametrize(
    ("module", "x"),
    [
        (Tagger(nn.LSTM(4, 5, num_layers=2)), tokens(6, 3)),
        (Tagger(br.GRU(4, 5, bidirectional=True)), tokens(6, 3)),
        (Tagger(nn.LSTM(4, 5), br.Embedding(9, 4, padding_idx=1)), tokens(6, 3)),
        (nn.Embedding(9, 4), tokens(6)),
        (nn.RNN(4, 5, batch_first=True), reals(3, 6, 4)),
        (nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)), reals(3, 4)),
        (nn.Sequential(nn.Conv1d(4, 5, 3), nn.Flatten()), reals(3, 4, 6)),
    ],
    ids=lambda v: type(v).__name__,
)
def test_batched_weight_draws_equal_sequential_ones(module, x):
    q = br.BayesByBackprop(module, init_sigma=0.3).eval()
    with torch.no_grad():
        batched = montecarlo.batched_weight_draws(q, x, montecarlo.Rest(), [Draw(s) for s in (1, 2, 3)])
        for k, seed in enumerate((1, 2, 3)):
            with br.draw(q, seed=seed):
                out = q(x)
            torch.testing.assert_close(batched[k], out[0] if isinstance(out, tuple) else out, rtol=1e-4, atol=1e-5)
    assert not any("forward" in m.__dict__ for m in q.modules())
    plain = q(x)  # and the fused kernels are back
    torch.testing.assert_close(plain[0] if isinstance(plain, tuple) else plain, first_of(q.mean_module().eval()(x)))


def test_keep_samples_false_keeps_the_averages():
    make, x = MODELS["variational"]
    model = make()
    kept, dropped = (br.predict(model, x, samples=9, seed=1, keep_samples=k, memory_limit=2000) for k in (True, False))
    for name in ("mean", "variance", "entropy", "aleatoric", "epistemic", "mutual_information"):
        torch.testing.assert_close(getattr(kept, name), getattr(dropped, name))
    with pytest.raises(RuntimeError, match="keep_samples=True"):
        dropped.samples
    with pytest.raises(RuntimeError, match="keep_samples=True"):
        dropped.interval()


@pytest.mark.parametrize("name", ["variational", "bayes by backprop", "alpha dropout"])
def test_progress_is_reported(name, capsys):
    make, x = MODELS[name]
    seen = []
    br.predict(make(), x, samples=7, seed=1, progress=lambda done, total: seen.append((done, total)), memory_limit=2000)
    assert seen[-1] == (7, 7)
    assert all(t == 7 for _, t in seen)
    assert [d for d, _ in seen] == sorted({d for d, _ in seen})
    br.predict(make(), x, samples=3, progress=True)
    br.predict(make(), x, samples=3)


def test_an_error_in_the_progress_function_leaves_the_model_clean():
    make, x = MODELS["variational"]
    model = make().train()

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        br.predict(model, x, samples=7, progress=stop)
    assert model.training
    assert not any(m._forward_hooks for m in model.modules())
    assert not any("_bayesrnn_source" in m.__dict__ for m in model.modules())


def test_one_sample_and_deterministic_models():
    model, x = nn.Linear(4, 3), reals(5, 4)
    with pytest.warns(UserWarning, match="the model has no noise, so all 3 draws are equal"):
        found = br.predict(model, x, samples=3)
    torch.testing.assert_close(found.mean, model(x).softmax(-1))
    torch.testing.assert_close(found.variance, torch.zeros(5, 3), atol=1e-12, rtol=0)
    torch.testing.assert_close(found.epistemic, torch.zeros(5), atol=1e-6, rtol=0)
    assert br.predict(nn.Dropout(0.5), x, samples=1, seed=0).count == 1
    with pytest.raises(TypeError, match=r"x is a numpy array, and the model takes tensors: pass torch.as_tensor\(x\)"):
        br.predict(model, x.numpy())


def test_the_likelihood_is_guessed_from_the_last_axis():
    assert br.predict(nn.Linear(4, 3), reals(5, 4), samples=1).kind == "classifier"
    assert br.predict(nn.Linear(4, 1), reals(5, 4), samples=1).kind == "regressor"


def test_bad_input_says_what_is_wrong():
    model, x = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3)), reals(5, 4)
    for samples in (0, -1, 2.5, True, None):
        with pytest.raises(ValueError, match="samples must be a whole number of draws, at least 1"):
            br.predict(model, x, samples=samples)
    for limit in (0, "1 GB", math.nan):
        with pytest.raises(ValueError, match="memory_limit must be a positive"):
            br.predict(model, x, memory_limit=limit)
    for axis in ("a", 2, -1, 0.5, True):
        with pytest.raises(ValueError, match="batch_dim must be an axis of the input, a whole number from 0 below 2"):
            br.predict(model, x, batch_dim=axis)
    for bad in (math.nan, math.inf):
        broken = x.clone()
        broken[2, 1] = bad
        with pytest.raises(ValueError, match="the input has NaN or infinite values"):
            br.predict(model, broken)
        with pytest.raises(ValueError, match="the input has NaN or infinite values"):
            br.predict(Tagger(br.LSTM(4, 5)), tokens(6, 3), (torch.full((1, 3, 5), bad), torch.zeros(1, 3, 5)))
    for wrong in (nn.CrossEntropyLoss(), "categorical", br.Categorical):
        with pytest.raises(TypeError, match=r"likelihood must be br.Categorical\(\) or br.Gaussian\(\)"):
            br.predict(model, x, likelihood=wrong)
    with pytest.raises(ValueError, match="at least two classes"):
        br.predict(nn.Linear(4, 1), x, likelihood=br.Categorical())
    with torch.no_grad():
        model[1].weight.fill_(math.nan)
    with pytest.raises(FloatingPointError, match="the model's output has NaN"):
        br.predict(model, x)

    class Odd(nn.Module):
        def forward(self, x):
            return {"logits": x}

    with pytest.raises(TypeError, match="must return a tensor or a tuple that starts with one, got dict"):
        br.predict(Odd(), x)


def test_wrong_shapes_are_the_models_own_error():
    with pytest.raises(RuntimeError):
        br.predict(nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3)), reals(5, 9))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", MODELS)
def test_chunking_does_not_matter_on_a_gpu(name):
    torch.manual_seed(0)
    make, x = MODELS[name]
    model, x = make().cuda().eval(), x.cuda()
    likelihood = br.Gaussian(0.5).cuda()
    whole = br.predict(model, x, samples=8, seed=3, likelihood=likelihood)
    cut = br.predict(model, x, samples=8, seed=3, likelihood=likelihood, memory_limit=1)
    torch.testing.assert_close(cut.samples, whole.samples, rtol=1e-3, atol=1e-3)  # products with 10 bits of mantissa
    assert whole.samples.is_cuda
    other = br.predict(model, x, samples=8, seed=4, likelihood=likelihood)
    assert (other.samples - whole.samples).abs().max() > 0.02  # what another draw changes


def test_threads_that_predict_with_one_model_take_turns():
    import threading

    q = br.BayesByBackprop(torch.nn.Linear(8, 2), init_sigma=0.1).eval()
    x = torch.randn(4, 8)
    before = q.module.weight.detach().clone()
    expected = br.predict(q, x, samples=2, seed=5).mean
    wrong = []

    def work():
        for _ in range(60):
            if not torch.equal(br.predict(q, x, samples=2, seed=5).mean, expected):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert isinstance(q.module.weight, torch.nn.Parameter)
    assert torch.equal(q.module.weight, before)


def test_memory_is_a_quarter_of_what_a_gpu_has_free_and_a_gib_elsewhere(monkeypatch):
    assert footprint.default_limit(nn.Linear(2, 2)) == footprint.default_limit(nn.Sequential()) == 1 << 30

    class OnAGPU:
        device = torch.device("cuda")

        def parameters(self):
            return iter([self])

    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 3 << 30)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 1 << 30)
    for free, expected in ((10 << 30, 3 << 30), (0, 1 << 30)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, 80 << 30))
        assert footprint.default_limit(OnAGPU()) == expected


def test_draws_of_whole_weights_are_cut_into_few_batches_of_one_size(monkeypatch):
    q, x = br.BayesByBackprop(nn.Linear(4, 3), init_sigma=0.3).eval(), reals(5, 4)
    sizes, real = [], montecarlo.batched_weight_draws
    monkeypatch.setattr(montecarlo, "gains_from_batches", lambda q: True)
    monkeypatch.setattr(
        montecarlo,
        "batched_weight_draws",
        lambda q, x, rest, part: (sizes.append(len(part)), real(q, x, rest, part))[1],
    )
    whole = br.predict(q, x, samples=30, seed=1)
    assert sizes == [4, 26]
    sizes.clear()
    # one draw: 15 weights and three times the 15 outputs, 4 bytes each; six times the outputs for the averages
    cut = br.predict(q, x, samples=30, seed=1, memory_limit=10 * 4 * (15 + 3 * 15) + 4 * 6 * 15)
    assert sizes == [10, 10, 9]  # after one alone, as little memory is left
    torch.testing.assert_close(cut.samples, whole.samples)
    sizes.clear()
    br.predict(q, x, samples=1, seed=1)
    assert sizes == []


def test_a_model_that_vmap_does_not_know_runs_draw_by_draw(monkeypatch):
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            out = self.layer(x)
            return out if float(out.sum()) > 0 else -out

    q, x = br.BayesByBackprop(Branching(), init_sigma=0.3).eval(), reals(5, 4)
    monkeypatch.setattr(montecarlo, "gains_from_batches", lambda q: True)
    found = br.predict(q, x, samples=3, seed=1, likelihood=br.Gaussian()).samples
    monkeypatch.setattr(montecarlo, "gains_from_batches", lambda q: False)
    assert torch.equal(found, br.predict(q, x, samples=3, seed=1, likelihood=br.Gaussian()).samples)


def test_samples_may_be_numpys():
    torch.manual_seed(0)
    q, x = br.BayesByBackprop(nn.Linear(2, 3)), torch.randn(4, 2)
    a, b = (br.predict(q, x, samples=n, seed=np.int64(1)) for n in (3, np.int64(3)))
    assert torch.equal(a.samples, b.samples)
    for wrong in (np.int64(0), np.float64(3), np.bool_(True), True):
        with pytest.raises(ValueError, match="samples must be a whole number of draws"):
            br.predict(q, x, samples=wrong)


@pytest.mark.parametrize("rnn", [br.LSTM(4, 5, **NOISE), nn.LSTM(4, 5)])
@pytest.mark.parametrize("bayesian", [False, True])
@pytest.mark.filterwarnings("ignore:the model has no noise")
def test_keyword_arguments_go_to_the_model(rnn, bayesian):
    torch.manual_seed(0)
    model, x = Tagger(rnn).eval(), tokens(6, 3)
    if bayesian:
        model = br.BayesByBackprop(model, init_sigma=0.3)
    state = tuple(torch.randn(1, 3, 5) for _ in range(2))
    by_place = br.predict(model, x, state, samples=6, seed=1)
    by_name = br.predict(model, x, samples=6, seed=1, kwargs={"state": state})
    assert torch.equal(by_name.samples, by_place.samples)
    assert not torch.allclose(by_name.samples, br.predict(model, x, samples=6, seed=1).samples)
    with pytest.raises(TypeError, match="unexpected keyword argument 'stat'"):
        br.predict(model, x, kwargs={"stat": state})
    broken = (state[0], torch.full_like(state[1], math.nan))
    with pytest.raises(ValueError, match="NaN or infinite"):
        br.predict(model, x, kwargs={"state": broken})


def test_users_do_not_see_what_vmap_says_about_its_speed(monkeypatch):
    class Renormed(nn.Linear):
        def forward(self, x):
            return torch.renorm(super().forward(x), 2, 0, 1.0)

    q, x = br.BayesByBackprop(Renormed(4, 3), init_sigma=0.3).eval(), reals(5, 4)
    with pytest.warns(UserWarning, match="There is a performance drop"):
        torch.vmap(lambda t: torch.renorm(t, 2, 0, 1.0))(torch.randn(2, 4, 4))
    monkeypatch.setattr(montecarlo, "gains_from_batches", lambda q: True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        many = montecarlo.batched_weight_draws(q, x, montecarlo.Rest(), [Draw(1), Draw(2)])
    monkeypatch.setattr(montecarlo, "gains_from_batches", lambda q: False)
    one = montecarlo.Passes(q, list(q.modules()), x, montecarlo.Rest()).one(Draw(1))
    torch.testing.assert_close(many[0], one)


def test_a_sharpened_model_has_the_same_draws_at_once_and_in_turns(monkeypatch):
    x = reals(7, 2, 4)
    s = br.PosteriorSharpening(br.BayesByBackprop(nn.LSTM(4, 5), init_sigma=0.3)).eval()
    monkeypatch.setattr(montecarlo, "gains_from_batches", lambda q: False)
    in_turns = br.predict(s, x, samples=6, seed=1).samples
    monkeypatch.setattr(montecarlo, "gains_from_batches", lambda q: True)
    sizes, real = [], montecarlo.batched_weight_draws
    monkeypatch.setattr(montecarlo, "batched_weight_draws", lambda *args: (sizes.append(len(args[3])), real(*args))[1])
    torch.testing.assert_close(br.predict(s, x, samples=6, seed=1).samples, in_turns)
    assert sum(sizes) == 6


class RareNoise(nn.Module):
    def forward(self, x):
        return nn.functional.dropout(x, 0.02, self.training)


@pytest.mark.parametrize("seed", range(5))
def test_noise_that_few_draws_show_is_noise(seed):
    assert float(br.predict(RareNoise(), torch.ones(1, 8), samples=64, seed=seed).epistemic.sum()) > 0
