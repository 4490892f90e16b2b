"""Dynamic evaluation: predict first, learn after, leave the model alone."""

import collections
import copy
import functools
import math

import pytest
import torch
from torch import nn

import bayesrnn as br
from bayesrnn.dynamic import mean_squared_gradients


class LanguageModel(nn.Module):
    def __init__(self, rnn=None, vocabulary=8, size=6):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, size)
        self.rnn = rnn or nn.LSTM(size, size)
        self.head = nn.Linear(size, vocabulary)

    def forward(self, x, state=None):
        out, state = self.rnn(self.embed(x), state)
        return self.head(out), state


def model(seed=0, **kwargs):
    torch.manual_seed(seed)
    return LanguageModel(**kwargs).double()


def stream(n=71, batch=None):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(8, (n,) if batch is None else (n, batch), generator=generator)


def ordinary(model, inputs, targets):
    model = model.eval()
    with torch.no_grad():
        logits, _ = model(inputs if inputs.dim() == 2 else inputs.unsqueeze(1))
    return float(nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum"))


@pytest.mark.parametrize("batch", [None, 3])
@pytest.mark.parametrize("window", [1, 7, 35, 1000])
def test_without_learning_it_is_ordinary_evaluation(batch, window):
    s, m = stream(batch=batch), model()
    result = br.dynamic_evaluation(m, s[:-1], s[1:], lr=0.0, window=window)
    assert result.nll == pytest.approx(ordinary(m, s[:-1], s[1:]), rel=1e-10)
    assert result.count == s[1:].numel()
    assert result.mean_nll == pytest.approx(result.nll / result.count)
    assert result.perplexity == pytest.approx(math.exp(result.mean_nll))


@pytest.mark.parametrize("batch", [None, 2])
def test_each_window_is_scored_before_it_is_learnt_from(batch):
    s, m, lr, window = stream(30, batch), model(), 0.3, 8
    result = br.dynamic_evaluation(m, s[:-1], s[1:], lr=lr, window=window)
    hand, state, total = model(), None, 0.0
    s = s if batch else s.unsqueeze(1)
    for x, y in zip(s[:-1].split(window), s[1:].split(window), strict=True):
        out, state = hand(x, state)
        state = tuple(v.detach() for v in state)
        nll = nn.functional.cross_entropy(out.flatten(0, 1), y.flatten(), reduction="sum")
        total += float(nll.detach())
        hand.zero_grad()
        (nll / (batch or 1)).backward()
        with torch.no_grad():
            for p in hand.parameters():
                p.sub_(lr * p.grad)
    assert result.nll == pytest.approx(total, rel=1e-10)
    for a, b in zip(result.model.parameters(), hand.parameters(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("kind", ["plain", "variational", "bayes", "sharpened"])
def test_the_model_is_not_changed(kind):
    m = model(rnn=br.LSTM(6, 6, input_dropout=0.3, recurrent_dropout=0.3) if kind == "variational" else None)
    if kind in ("bayes", "sharpened"):
        m = br.BayesByBackprop(m, init_sigma=0.3)
    if kind == "sharpened":
        m = br.PosteriorSharpening(m)
    before = {k: v.clone() for k, v in m.state_dict().items()}
    random, s = torch.get_rng_state(), stream()
    result = br.dynamic_evaluation(m, s[:-1], s[1:], lr=0.1)
    again = br.dynamic_evaluation(m, s[:-1], s[1:], lr=0.1)
    assert result.nll == again.nll  # the posterior mean: nothing is drawn, also in train mode
    assert torch.equal(random, torch.get_rng_state())
    assert all(torch.equal(v, before[k]) for k, v in m.state_dict().items())
    assert all(p.grad is None for p in m.parameters())
    assert m.training
    mean = m.mean_module() if hasattr(m, "mean_module") else m
    still = br.dynamic_evaluation(m, s[:-1], s[1:], lr=0.0)
    assert still.nll == pytest.approx(ordinary(mean, s[:-1], s[1:]), rel=1e-10)


def test_it_helps_on_a_repetitive_stream():
    s, m = torch.arange(8).repeat(60), model()
    plain = br.dynamic_evaluation(m, s[:-1], s[1:], lr=0.0, window=10)
    sgd = br.dynamic_evaluation(m, s[:-1], s[1:], lr=0.1, window=10)
    assert sgd.perplexity < 0.6 * plain.perplexity
    scale = mean_squared_gradients(m, s[:-1], s[1:], window=10)
    rms = br.dynamic_evaluation(m, s[:-1], s[1:], lr=0.02, window=10, rule="rms", gradient_scale=scale)
    assert rms.perplexity < 0.6 * plain.perplexity


def test_mean_squared_gradients_by_hand():
    s, m = stream(17, batch=2), model()
    found = mean_squared_gradients(m, s[:-1], s[1:], window=8)
    sums, state = {n: 0.0 for n, _ in m.named_parameters()}, None
    for x, y in zip(s[:-1].split(8), s[1:].split(8), strict=True):
        out, state = m(x, state)
        state = tuple(v.detach() for v in state)
        m.zero_grad()
        (nn.functional.cross_entropy(out.flatten(0, 1), y.flatten(), reduction="sum") / 2).backward()
        sums = {n: sums[n] + p.grad.square() for n, p in m.named_parameters()}
    for name, total in sums.items():
        torch.testing.assert_close(found[name], total / 2)


@pytest.mark.parametrize("rule", ["sgd", "rms"])
def test_one_step_of_each_rule_by_hand(rule):
    # Krause et al. 2018: theta - lr g / (sqrt(MS) + eps) + decay (theta_0 - theta) * sqrt(MS) / mean sqrt(MS); the
    # pull is zero on the first step, so the second window shows it.
    s, m, lr, decay, eps = stream(17), model(), 0.05, 0.02, 1e-3
    scale = mean_squared_gradients(m, s[:-1], s[1:], window=8)
    extra = {"gradient_scale": scale, "epsilon": eps} if rule == "rms" else {}
    result = br.dynamic_evaluation(m, s[:-1], s[1:], lr=lr, window=8, rule=rule, decay=decay, **extra)
    hand, state = model(), None
    start = {n: p.detach().clone() for n, p in hand.named_parameters()}
    average = torch.cat([v.sqrt().flatten() for v in scale.values()]).mean()
    for x, y in zip(s[:-1].unsqueeze(1).split(8), s[1:].unsqueeze(1).split(8), strict=True):
        out, state = hand(x, state)
        state = tuple(v.detach() for v in state)
        hand.zero_grad()
        nn.functional.cross_entropy(out.flatten(0, 1), y.flatten(), reduction="sum").backward()
        with torch.no_grad():
            for n, p in hand.named_parameters():
                rms = scale[n].sqrt()
                strength = (rms / average).clamp(max=1 / decay) if rule == "rms" else 1.0
                pull = decay * (start[n] - p) * strength
                p.sub_(lr * (p.grad / (rms + eps) if rule == "rms" else p.grad)).add_(pull)
    for (name, a), b in zip(result.model.named_parameters(), hand.parameters(), strict=True):
        torch.testing.assert_close(a, b, msg=name)


def test_rms_with_parameters_that_never_get_a_gradient():
    m = model()
    m.spare = nn.Linear(2, 2).double()
    s = stream()
    scale = mean_squared_gradients(m, s[:-1], s[1:])
    result = br.dynamic_evaluation(m, s[:-1], s[1:], lr=0.01, rule="rms", gradient_scale=scale, decay=0.01)
    assert all(torch.isfinite(p).all() for p in result.model.parameters())
    torch.testing.assert_close(result.model.spare.weight, m.spare.weight)


def test_the_sgd_rule_does_not_use_a_gradient_scale():
    s, m = stream(), model()
    scale = mean_squared_gradients(m, s[:-1], s[1:])
    a = br.dynamic_evaluation(m, s[:-1], s[1:], lr=0.05)
    b = br.dynamic_evaluation(m, s[:-1], s[1:], lr=0.05, gradient_scale=scale)
    assert a.nll == b.nll


def test_decay_pulls_back_and_clip_limits():
    s, m = stream(), model()

    def distance(**kwargs):
        adapted = br.dynamic_evaluation(m, s[:-1], s[1:], window=10, **kwargs).model
        moved = zip(adapted.parameters(), m.parameters(), strict=True)
        return math.sqrt(sum(float((a - b).detach().square().sum()) for a, b in moved))

    assert distance(lr=0.1, decay=0.5) < distance(lr=0.1)
    assert distance(lr=0.1, clip=0.01) <= 7 * 0.1 * 0.01 + 1e-9
    assert distance(lr=0.0) == 0


def test_a_given_state_and_other_likelihoods():
    s, m = stream(), model()
    _, state = m(s[:20].unsqueeze(1))
    state = tuple(v.detach() for v in state)
    whole = br.dynamic_evaluation(m, s[:-1], s[1:], lr=0.0, window=10)
    first = br.dynamic_evaluation(m, s[:20], s[1:21], lr=0.0, window=10)
    rest = br.dynamic_evaluation(m, s[20:-1], s[21:], lr=0.0, window=10, state=state)
    assert first.nll + rest.nll == pytest.approx(whole.nll)

    class Forecaster(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.head = nn.GRU(1, 4), nn.Linear(4, 1)

        def forward(self, x, state=None):
            out, state = self.rnn(x, state)
            return self.head(out), state

    torch.manual_seed(0)
    wave = torch.sin(torch.arange(200) / 5).view(-1, 1, 1)
    results = [
        br.dynamic_evaluation(
            Forecaster(), wave[:-1], wave[1:], lr=lr, window=10, likelihood=br.Gaussian(0.3, learn=False)
        ).nll
        for lr in (0.0, 0.003)
    ]
    assert results[1] < results[0]


def test_a_model_without_state():
    m = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 8))
    s = stream()
    assert br.dynamic_evaluation(m, s[:-1], s[1:], lr=0.1).count == 70


def test_runs_where_gradients_are_off():
    s, m = stream(), model()
    with torch.no_grad():
        a = br.dynamic_evaluation(m, s[:-1], s[1:], lr=0.1)
    assert a.nll == br.dynamic_evaluation(m, s[:-1], s[1:], lr=0.1).nll


def test_arguments_are_checked():
    s, m = stream(), model()
    with pytest.raises(ValueError, match="rule must be one of 'sgd', 'rms', got 'adam'"):
        br.dynamic_evaluation(m, s[:-1], s[1:], rule="adam")
    with pytest.raises(ValueError, match="rule='rms' needs gradient_scale"):
        br.dynamic_evaluation(m, s[:-1], s[1:], rule="rms")
    with pytest.raises(ValueError, match=r"gradient_scale has nothing for 'embed.weight'"):
        scale = mean_squared_gradients(m, s[:-1], s[1:])
        del scale["embed.weight"]
        br.dynamic_evaluation(m, s[:-1], s[1:], rule="rms", gradient_scale=scale)
    for lr in (-0.1, math.nan, math.inf, "0.1", None, True):
        with pytest.raises(ValueError, match="lr must be a finite number >= 0"):
            br.dynamic_evaluation(m, s[:-1], s[1:], lr=lr)
    for clip in (0, -1, math.nan, "5", True):
        with pytest.raises(ValueError, match="clip must be a number > 0, the largest norm of a gradient, or None"):
            br.dynamic_evaluation(m, s[:-1], s[1:], clip=clip)
    for decay in (-0.1, 1, 1.5, math.nan, "0.1", None):
        with pytest.raises(ValueError, match=r"decay must be a number in \[0, 1\)"):
            br.dynamic_evaluation(m, s[:-1], s[1:], decay=decay)
    for window in (0, -1, 2.5, "35", True, None):
        for function in (br.dynamic_evaluation, mean_squared_gradients):
            with pytest.raises(ValueError, match="window must be at least 1, a whole number"):
                function(m, s[:-1], s[1:], window=window)
    for inputs, targets in ((s, s[1:]), (s[:0], s[:0]), (s[0], s[0])):
        with pytest.raises(ValueError, match="equally long streams of at least one step"):
            br.dynamic_evaluation(m, inputs, targets)
    with pytest.raises(FloatingPointError, match=r"diverged after \d+ targets: lower lr"):
        br.dynamic_evaluation(m.float(), s[:-1], s[1:], lr=1e300, window=5)  # float32: weights overflow
    assert br.dynamic.mean_squared_gradients is mean_squared_gradients


@pytest.mark.parametrize("function", [br.dynamic_evaluation, mean_squared_gradients])
def test_a_stream_without_targets_is_refused(function):
    s, m = stream(batch=2), model()
    for inputs, targets in ((s, torch.full_like(s, -100)), (s[:, :0], s[:, :0])):
        with pytest.raises(ValueError, match="no target of this stream counts"):
            function(m, inputs, targets)
    with pytest.raises(ValueError, match="the inputs have NaN or infinite values"):
        function(nn.Linear(1, 8), torch.full((4, 1, 1), math.nan), s[:4, :1])
    some = torch.where(torch.arange(71).view(-1, 1) < 40, -100, s)  # whole windows of padding are fine
    assert br.dynamic_evaluation(m, s, some, lr=0.1, window=10).count == 62


@pytest.mark.parametrize("token", [0, 7])
def test_nan_weights_are_not_blamed_on_the_rate(token):
    m, s = model(), torch.arange(8).repeat_interleave(5)  # token 7 comes after some steps were taken
    m.embed.weight.data[token] = math.nan
    for lr in (0.0, 0.1):
        with pytest.raises(FloatingPointError, match=r"^the model's output has NaN or infinite values, not by dynamic"):
            br.dynamic_evaluation(m, s[:-1], s[1:], lr=lr, window=5)


def test_targets_are_not_blamed_on_the_rate():
    x, y = torch.zeros(4, 1, 1), torch.tensor([0.0, 0.0, 0.0, math.nan]).view(4, 1, 1)
    with pytest.raises(ValueError, match="the targets have NaN or infinite values"):
        br.dynamic_evaluation(nn.Linear(1, 1), x, y, likelihood=br.Gaussian(1.0), window=1)
    with pytest.raises(FloatingPointError, match="not by dynamic evaluation: the model's output is too far off"):
        br.dynamic_evaluation(nn.Linear(1, 1), x, torch.full_like(x, 1e30), likelihood=br.Gaussian(1.0))


def test_a_state_of_another_batch_is_an_error():
    m, s = model(), stream(20, 3)
    _, state = m(stream(5, 2))
    with pytest.raises(RuntimeError, match="a state goes with the batch it came from"):
        br.dynamic_evaluation(m, s[:-1], s[1:], state=state)


def test_looking_at_the_losses_now_and_then_finds_the_same(monkeypatch):
    """On a GPU they are looked at every 100 windows, so as not to wait for each."""
    made, text = model(), stream(41)
    inputs, targets = text[:-1], text[1:]
    seen = br.dynamic_evaluation(made, inputs, targets, lr=0.5, window=3, clip=0.5)
    monkeypatch.setattr(br.dynamic._Score, "add", lambda self, nll, count, output: self._pending.append((nll, count)))
    late = br.dynamic_evaluation(made, inputs, targets, lr=0.5, window=3, clip=0.5)
    assert late.nll == pytest.approx(seen.nll, rel=1e-12)
    assert late.count == seen.count == targets.numel()
    with pytest.raises(FloatingPointError, match=r"diverged after \d+ targets: lower lr"):
        br.dynamic_evaluation(made, inputs, targets, lr=1e308, window=3)


def sharpened(longest=None, seed=0):
    q = br.BayesByBackprop(model(seed), init_sigma=0.3)
    m = br.PosteriorSharpening(q, sigma0=0.1, max_gradient_norm=longest).double()
    generator = torch.Generator().manual_seed(seed)
    for eta in m.eta.parameters():
        eta.data.uniform_(0, 2e-2, generator=generator)
    return m


def by_hand(m, s, lr, window, carry_state):
    """The posterior's own bound, window by window; its means go on learning."""
    m, total, state = copy.deepcopy(m).eval(), 0.0, None
    for x, y in zip(s[:-1].split(window), s[1:].split(window), strict=True):
        before = state if carry_state else None

        def nll(x=x, y=y, before=before):
            return nn.functional.cross_entropy(m(x, before)[0].flatten(0, 1), y.flatten(), reduction="sum")

        with torch.no_grad(), m.sharpen(nll):
            total += float(nll() + m.sharpening_kl())
            state = m(x, before)[1]
        if lr is None:
            continue
        plain = m.q.mean_module().train()
        out, _ = plain(x, before)
        (nn.functional.cross_entropy(out.flatten(0, 1), y.flatten(), reduction="sum") / x.shape[1]).backward()
        with torch.no_grad():
            for name, p in plain.named_parameters():
                m.q.means[name].sub_(lr * p.grad)
    return total, m.q.mean_module()


@pytest.mark.parametrize("carry_state", [True, False])
@pytest.mark.parametrize("longest", [None, 0.5])
@pytest.mark.parametrize(("batch", "lr"), [(1, 0.0), (1, 0.3), (3, 0.3)])
def test_the_bound_of_a_sharpened_model_that_learns_on(batch, lr, longest, carry_state):
    s, m = stream(40, batch), sharpened(longest)
    expected, learnt = by_hand(m, s, lr, 8, carry_state)
    kept = {name: value.clone() for name, value in m.state_dict().items()}
    result = br.dynamic_evaluation(m, s[:-1], s[1:], lr=lr, window=8, carry_state=carry_state, bound=True)
    assert result.nll == pytest.approx(expected, rel=1e-10)
    for name, p in result.model.named_parameters():
        torch.testing.assert_close(p, learnt.get_parameter(name))
    assert all(torch.equal(kept[name], value) for name, value in m.state_dict().items())
    plain = br.dynamic_evaluation(m, s[:-1], s[1:], lr=lr, window=8, carry_state=carry_state)
    assert abs(result.nll / plain.nll - 1) > 1e-4


def test_the_bound_with_weights_that_are_not_random_and_the_rms_rule():
    torch.manual_seed(0)
    q = br.BayesByBackprop(LanguageModel(), include="rnn.*")
    m, s = br.PosteriorSharpening(q), stream()
    scale = mean_squared_gradients(m, s[:-1], s[1:])
    learns = {"rule": "rms", "gradient_scale": scale, "decay": 0.01, "lr": 1e-3}
    bound = br.dynamic_evaluation(m, s[:-1], s[1:], **learns, bound=True)
    plain = br.dynamic_evaluation(m, s[:-1], s[1:], **learns)
    assert bound.nll != plain.nll
    assert bound.nll == pytest.approx(plain.nll, rel=0.05)


def test_without_a_carried_state_windows_are_apart():
    s, m = stream(30), model()
    apart = sum(ordinary(m, x, y) for x, y in zip(s[:-1].split(10), s[1:].split(10), strict=True))
    result = br.dynamic_evaluation(m, s[:-1], s[1:], lr=0.0, window=10, carry_state=False)
    assert result.nll == pytest.approx(apart, rel=1e-10)
    one = mean_squared_gradients(m, s[:20], s[1:21], window=10, carry_state=False)
    parts = [mean_squared_gradients(m, s[k : k + 10], s[k + 1 : k + 11], window=10) for k in (0, 10)]
    for name, value in one.items():
        torch.testing.assert_close(value, (parts[0][name] + parts[1][name]) / 2)


def test_what_cannot_go_together():
    s, m = stream(), model()
    with pytest.raises(TypeError, match="PosteriorSharpening, got LanguageModel"):
        br.dynamic_evaluation(m, s[:-1], s[1:], bound=True)
    state = (torch.zeros(1, 1, 6).double(), torch.zeros(1, 1, 6).double())
    with pytest.raises(ValueError, match="carry_state=False"):
        br.dynamic_evaluation(m, s[:-1], s[1:], state=state, carry_state=False)


class Twice(LanguageModel):
    """One layer under two names."""

    def __init__(self):
        super().__init__()
        self.again = self.head


class Tied(LanguageModel):
    def __init__(self):
        super().__init__()
        self.head.weight = nn.Parameter(torch.empty(8, 6).uniform_(-1, 1))
        self.embed.weight = self.head.weight


class Unused(LanguageModel):
    def __init__(self):
        super().__init__()
        self.unused = nn.Linear(3, 3)


@pytest.mark.parametrize(
    ("kind", "include", "frozen"),
    [
        (Twice, None, None), (Tied, "head.*", None), (Tied, ["head.*", "rnn.*"], None), (Unused, "unused.*", None),
        (LanguageModel, None, "head.weight"), (LanguageModel, None, ""),
    ],
)  # fmt: skip
def test_every_sharpened_weight_is_in_the_bound(kind, include, frozen):
    """Whatever its names are, and whether it learns on or not."""
    torch.manual_seed(0)
    m = br.PosteriorSharpening(br.BayesByBackprop(kind(), include=include), sigma0=0.1, max_gradient_norm=5.0).double()
    for eta in m.eta.parameters():
        eta.data.fill_(1e-2)
    if frozen is not None:
        for name, mean in m.q.means.items():
            mean.requires_grad_(frozen not in name)
    s, m = stream(40, 2), m.eval()
    kept = m.q.mean_module()
    result = br.dynamic_evaluation(m, s[:-1], s[1:], lr=0.0, window=8, bound=True)
    expected, _ = by_hand(m, s, None, 8, True)
    assert result.nll == pytest.approx(expected, rel=1e-10)
    for name, p in result.model.named_parameters():
        assert torch.equal(p, kept.get_parameter(name))
        assert p.requires_grad == kept.get_parameter(name).requires_grad
    learnt = br.dynamic_evaluation(m, s[:-1], s[1:], lr=0.1, window=8, bound=True).model
    still = [n for n, p in learnt.named_parameters() if torch.equal(p, kept.get_parameter(n))]
    assert still == [n for n, p in kept.named_parameters() if not p.requires_grad or n.startswith("unused")]


@pytest.mark.parametrize("sharpen", [False, True])
def test_a_layer_compiled_in_place_learns_on(sharpen):
    """torch's copy of a compiled recurrent layer runs on the original's weights."""
    s, m = stream(), sharpened() if sharpen else model()
    inner = m.q.module if sharpen else m
    expected = br.dynamic_evaluation(m, s[:-1], s[1:], window=20, bound=sharpen)
    inner.rnn.compile(backend="eager")
    result = br.dynamic_evaluation(m, s[:-1], s[1:], window=20, bound=sharpen)
    assert result.nll == pytest.approx(expected.nll, rel=1e-10)
    torch.testing.assert_close(result.model.rnn.weight_hh_l0, expected.model.rnn.weight_hh_l0)
    q = br.BayesByBackprop(copy.copy(inner)).double()
    q(s[:5, None])[0].sum().backward()
    assert all(mean.grad is not None for name, mean in q.means.items() if name.startswith("rnn"))


State = collections.namedtuple("State", "hidden cell")


@pytest.mark.parametrize("kind", [list, State._make, lambda pair: {"both": tuple(pair)}])
def test_states_of_any_kind(kind):
    class Other(LanguageModel):
        def forward(self, x, state=None):
            pair = state["both"] if isinstance(state, dict) else state
            out, state = super().forward(x, pair if pair is None else tuple(pair))
            return out, kind(state)

    torch.manual_seed(0)
    s, m = stream(), Other().double()
    expected = br.dynamic_evaluation(model(), s[:-1], s[1:], window=20)
    assert br.dynamic_evaluation(m, s[:-1], s[1:], window=20).nll == pytest.approx(expected.nll, rel=1e-10)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_a_model_with_nothing_to_learn_is_scored(decay):
    s, m = stream(), model().requires_grad_(False)
    result = br.dynamic_evaluation(m, s[:-1], s[1:], lr=0.1, decay=decay)
    assert result.nll == pytest.approx(ordinary(m, s[:-1], s[1:]), rel=1e-10)
    assert mean_squared_gradients(m, s[:-1], s[1:]) == {}


def unused_alone():
    """Its one parameter that may learn has no part in the output."""
    m = Unused().double().requires_grad_(False)
    m.unused.requires_grad_()
    return m


def test_only_what_is_not_used_may_learn():
    torch.manual_seed(0)
    s, m = stream(), unused_alone()
    for rule in ("sgd", "rms"):
        scale = mean_squared_gradients(m, s[:-1], s[1:])
        assert all(not value.any() for value in scale.values())
        result = br.dynamic_evaluation(m, s[:-1], s[1:], rule=rule, decay=0.1, gradient_scale=scale)
        assert result.nll == pytest.approx(ordinary(m, s[:-1], s[1:]), rel=1e-10)


@pytest.mark.parametrize("bound", [False, True])
def test_inside_autocast(bound):
    """Its lowered copies of weights are made anew after every step, as they are without a cache."""
    torch.manual_seed(0)
    s, m = stream(batch=2), br.PosteriorSharpening(br.BayesByBackprop(LanguageModel()), sigma0=0.1, init_eta=2e-2)
    run = functools.partial(br.dynamic_evaluation, m, s[:-1], s[1:], window=20, bound=bound)
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        expected = {lr: run(lr=lr).nll for lr in (0.0, 0.3)}
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.is_autocast_cache_enabled()
        assert {lr: run(lr=lr).nll for lr in (0.0, 0.3)} == expected
        assert torch.is_autocast_cache_enabled()
    assert abs(expected[0.3] / expected[0.0] - 1) > 1e-3


def test_inference_mode_is_refused():
    s, m = stream(), model()
    with torch.inference_mode():
        for learn in (br.dynamic_evaluation, mean_squared_gradients):
            with pytest.raises(RuntimeError, match=r"which torch.inference_mode\(\) forbids"):
                learn(m, s[:-1], s[1:])


class ReadsAValue(LanguageModel):
    """Looks at its input on the host, which a CUDA graph cannot."""

    def forward(self, x, state=None):
        assert int(x.max()) < 8
        return super().forward(x, state)


class Replay:
    """Stands for a CUDA graph: does the recorded work again."""

    def __init__(self, work):
        self.replay = work


def recorded_anyhow(parts, written, *, warm_up, device):
    """`kernels.record` without a GPU."""
    before = [t.detach().clone() for t in written()]
    for part in parts:
        part()
    with torch.no_grad():
        for tensor, kept in zip(written(), before, strict=True):
            tensor.copy_(kept)
    return [Replay(part) for part in parts]


on_a_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.mark.parametrize("where", ["cpu", pytest.param("cuda", marks=on_a_gpu)])
@pytest.mark.parametrize("carry_state", [True, False])
@pytest.mark.parametrize("kind", ["sgd", "rms", "bound", "reads a value"])
def test_a_recorded_window_gives_the_same_numbers(kind, carry_state, where, monkeypatch):
    outcomes = []
    record = br.kernels.graphs.record if where == "cuda" else recorded_anyhow

    def watched(*args, **kwargs):
        try:
            made = record(*args, **kwargs)
        except RuntimeError as error:
            outcomes.append(str(error))
            raise
        outcomes.append("recorded")
        return made

    monkeypatch.setattr(br.kernels.graphs, "record", watched)
    monkeypatch.setattr(br.kernels.Windows, "can_record", staticmethod(lambda x: True))
    m = (ReadsAValue() if kind == "reads a value" else LanguageModel()).to(where)
    m = br.PosteriorSharpening(br.BayesByBackprop(m)) if kind == "bound" else m
    s = stream(133, batch=2).to(where)
    options = {"window": 5, "carry_state": carry_state}
    scales = [mean_squared_gradients(m, s[:-1], s[1:], graph=graph, **options) for graph in (False, True)]
    for name, found in scales[1].items():
        torch.testing.assert_close(found, scales[0][name], rtol=1e-4, atol=1e-8)
    if kind == "rms":
        options |= {"rule": "rms", "gradient_scale": scales[0], "lr": 0.01, "decay": 0.01}
    eager, replayed = (
        br.dynamic_evaluation(m, s[:-1], s[1:], clip=1.0, bound=kind == "bound", graph=graph, **options)
        for graph in (False, True)
    )
    assert (replayed.nll, replayed.count) == (pytest.approx(eager.nll, rel=1e-5), eager.count)
    for a, b in zip(eager.model.parameters(), replayed.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert len(outcomes) == 2
    assert all(o == "recorded" for o in outcomes) == (kind != "reads a value" or where == "cpu"), outcomes
