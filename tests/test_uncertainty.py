"""Entropy gap, calibration, selective prediction and detection, against brute force."""

import math

import pytest
import torch
from torch import nn

import bayesrnn as br
from bayesrnn import uncertainty
from bayesrnn.draws import mix
from bayesrnn.prediction.result import entropy_of


class LanguageModel(nn.Module):
    def __init__(self, rnn, vocabulary=8, size=12):
        super().__init__()
        self.embed, self.rnn, self.head = nn.Embedding(vocabulary, size), rnn, nn.Linear(size, vocabulary)

    def forward(self, x, state=None):
        out, state = self.rnn(self.embed(x), state)
        return self.head(out), state


class Unigram(nn.Module):
    """The same prediction everywhere."""

    def __init__(self):
        super().__init__()
        self.logits = nn.Parameter(torch.randn(8))

    def forward(self, x, state=None):
        return self.logits.expand(*x.shape, 8), state


# ---- entropy gap


def test_gap_is_zero_where_direction_cannot_matter():
    torch.manual_seed(0)
    stream = torch.randint(8, (60,))
    assert float(br.entropy_gap(Unigram(), stream)) == pytest.approx(0, abs=1e-6)
    model = LanguageModel(nn.LSTM(12, 12))
    palindrome = torch.cat([stream, stream.flip(0)])
    result = br.entropy_gap(model, palindrome)
    assert result.gap == pytest.approx(0, abs=1e-6)
    assert float(br.entropy_gap(model, stream)) != pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("window", [1, 7, 35, 500])
def test_entropies_by_hand_whatever_the_window(window):
    torch.manual_seed(0)
    model, stream = LanguageModel(nn.LSTM(12, 12)).double(), torch.randint(8, (50, 2))
    with torch.no_grad():
        forward = entropy_of(model(stream[:-1])[0].softmax(-1)).mean()
        backward = entropy_of(model(stream.flip(0)[:-1])[0].softmax(-1)).mean()
    result = br.entropy_gap(model, stream, window=window)
    assert result.forward == pytest.approx(float(forward), rel=1e-10)
    assert result.reversed == pytest.approx(float(backward), rel=1e-10)
    assert result.gap == pytest.approx(float(backward - forward))


def trained(rnn):
    torch.manual_seed(0)
    model = LanguageModel(rnn)
    stream = torch.arange(8).repeat(30).view(-1, 1)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(60):
        optimiser.zero_grad()
        logits, _ = model(stream[:24])
        nn.functional.cross_entropy(logits.flatten(0, 1), stream[1:25].flatten()).backward()
        optimiser.step()
    return model, stream.flatten()


def test_gap_is_positive_for_a_trained_model():
    model, stream = trained(nn.LSTM(12, 12))
    result = br.entropy_gap(model, stream)
    assert result.forward < 1.0
    assert result.gap > 0.1


def test_gap_of_averaged_draws():
    model, stream = trained(br.LSTM(12, 12, input_dropout=0.3, recurrent_dropout=0.3))
    mean = br.entropy_gap(model, stream[:60])
    a, b = (br.entropy_gap(model, stream[:60], samples=5, seed=1, window=w) for w in (10, 100))
    assert a.forward == pytest.approx(b.forward, rel=1e-5)  # a draw is held over the whole stream
    assert a.reversed == pytest.approx(b.reversed, rel=1e-5)
    assert a.forward > mean.forward  # averaging draws that disagree makes it less certain
    other = br.entropy_gap(model, stream[:60], samples=5, seed=2)
    assert other.forward != a.forward
    assert model.training


def test_gap_of_averaged_draws_by_hand():
    torch.manual_seed(0)
    q = br.BayesByBackprop(LanguageModel(nn.LSTM(12, 12)), init_sigma=0.3)
    stream, probabilities = torch.randint(8, (30,)), []
    with torch.no_grad():
        for k in range(3):
            with br.draw(q, seed=mix(7, k)):
                probabilities.append(q(stream[:-1].unsqueeze(1))[0].softmax(-1))
    expected = entropy_of(torch.stack(probabilities).mean(0)).mean()
    assert br.entropy_gap(q, stream, samples=3, seed=7).forward == pytest.approx(float(expected), rel=1e-5)
    predicted = br.predict(q, stream[:-1].unsqueeze(1), samples=3, seed=7).entropy.mean()
    assert float(predicted) == pytest.approx(float(expected), rel=1e-5)


def test_draws_of_neighbouring_seeds_are_not_shared(monkeypatch):
    seen, make = [], uncertainty.draws.Draw
    monkeypatch.setattr(uncertainty.draws, "Draw", lambda seed: seen.append(seed) or make(seed))
    for seed in (7, 8, 9):
        br.entropy_gap(Unigram(), torch.zeros(5).long(), samples=4, seed=seed)
    assert len(set(seen)) == 3 * 4  # forward and backward share theirs


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 8)

    def forward(self, x, state=None):
        return self.head(self.norm(self.embed(x).flatten(0, 1)).view(*x.shape, 4)), state


@pytest.mark.parametrize("samples", [0, 2])
def test_the_gap_leaves_batch_norm_and_modes_alone(samples):
    torch.manual_seed(0)
    model = br.BayesByBackprop(Normed())
    model.module.head.eval()
    modes = [m.training for m in model.modules()]
    before = {k: v.clone() for k, v in model.state_dict().items()}
    stream = torch.randint(8, (40, 3))
    gap = br.entropy_gap(model, stream, samples=samples, seed=0, window=7)
    assert [m.training for m in model.modules()] == modes
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert gap == br.entropy_gap(model.eval(), stream, samples=samples, seed=0, window=7)


def test_the_gap_of_a_model_with_nan_is_refused():
    model = Unigram()
    model.logits.data[3] = math.nan
    with pytest.raises(FloatingPointError, match="output has NaN or infinite values"):
        br.entropy_gap(model.train(), torch.zeros(5).long())
    assert model.training
    model.logits.data[3] = -math.inf  # a class that never comes
    assert br.entropy_gap(model, torch.zeros(5).long()).forward < math.log(7)


def test_gap_of_a_model_that_returns_its_logits_alone():
    model = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 8))
    assert abs(float(br.entropy_gap(model, torch.randint(8, (40,)), window=2))) < 1


def test_gap_arguments():
    model = Unigram()
    for stream in (torch.zeros(1).long(), torch.zeros(3, 2, 2).long(), torch.tensor(3), torch.zeros(5, 0).long()):
        with pytest.raises(ValueError, match="stream must be tokens of shape"):
            br.entropy_gap(model, stream)
    tokens = torch.zeros(5).long()
    for samples in (-1, 1.5, True, None):
        with pytest.raises(ValueError, match=r"samples must be a whole number of draws"):
            br.entropy_gap(model, tokens, samples=samples)
    for window in (0, -3, 2.0, "35"):
        with pytest.raises(ValueError, match="window must be a whole number of steps per call"):
            br.entropy_gap(model, tokens, window=window)
    with pytest.raises(ValueError, match="seed must be a whole number"):
        br.entropy_gap(model, tokens, samples=1, seed=0.5)


# ---- calibration


def predictions(n=500, classes=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    p = (2 * torch.randn(n, classes, generator=generator)).softmax(-1)
    return p, torch.randint(classes, (n,), generator=generator)


def by_hand(p, y, bins):
    rows = []
    confidence, predicted = p.max(-1)
    for k in range(bins):
        inside = (confidence >= k / bins) & ((confidence < (k + 1) / bins) | (k == bins - 1))
        if inside.any():
            right = (predicted[inside] == y[inside]).double().mean()
            rows.append((float(confidence[inside].mean()), float(right), int(inside.sum())))
    return rows


@pytest.mark.parametrize("bins", [1, 5, 15])
def test_reliability_and_calibration_error_by_hand(bins):
    p, y = predictions()
    rows = by_hand(p, y, bins)
    found = uncertainty.reliability(p, y, bins=bins)
    assert found.count.tolist() == [r[2] for r in rows]
    torch.testing.assert_close(found.confidence, torch.tensor([r[0] for r in rows]))
    torch.testing.assert_close(found.accuracy, torch.tensor([r[1] for r in rows]))
    expected = sum(abs(c - a) * n for c, a, n in rows) / 500
    assert uncertainty.calibration_error(p, y, bins=bins) == pytest.approx(expected, abs=1e-5)


def test_calibration_takes_any_leading_shape_and_its_extremes():
    p, y = predictions()
    shaped = uncertainty.calibration_error(p.view(50, 10, 4), y.view(50, 10))
    assert shaped == pytest.approx(uncertainty.calibration_error(p, y))
    sure = torch.eye(4)[torch.tensor([0, 1, 2, 3])]
    assert uncertainty.calibration_error(sure, torch.arange(4)) == pytest.approx(0, abs=1e-6)
    assert uncertainty.calibration_error(sure, (torch.arange(4) + 1) % 4) == pytest.approx(1, abs=1e-6)
    assert uncertainty.reliability(sure, torch.arange(4)).count.tolist() == [4]


def test_calibrated_predictions_have_a_small_error():
    # Targets drawn from the predictions: 20,000 of them; each of 10 bins has a standard error of about 1%.
    p, _ = predictions(20_000)
    y = torch.multinomial(p, 1, generator=torch.Generator().manual_seed(1)).flatten()
    assert uncertainty.calibration_error(p, y, bins=10) < 0.02
    assert uncertainty.calibration_error((p**3) / (p**3).sum(-1, keepdim=True), y, bins=10) > 0.1


def test_calibration_shapes_are_checked():
    p, y = predictions()
    for function in (uncertainty.calibration_error, uncertainty.reliability):
        with pytest.raises(ValueError, match="do not go together"):
            function(p, y[:10])
        with pytest.raises(ValueError, match="do not go together"):
            function(p[:0], y[:0])


@pytest.mark.parametrize("function", [uncertainty.calibration_error, uncertainty.reliability])
def test_calibration_values_are_checked(function):
    p, y = predictions()
    for label in (-100, 4):
        with pytest.raises(ValueError, match=r"targets must be classes 0 to 3, got .*: leave padding out"):
            function(p, torch.where(torch.arange(500) == 7, label, y))
    with pytest.raises(ValueError, match="targets must be class indices"):
        function(p, y.float())
    with_nan = p.clone()
    with_nan[3, 1] = math.nan
    for wrong in (p.log(), 2 * p, p - 0.25, with_nan):
        with pytest.raises(ValueError, match="at least 0 and sum to 1"):
            function(wrong, y)
    with pytest.raises(ValueError, match="probabilities must be real numbers"):
        function(torch.eye(4).long(), torch.arange(4))
    for bins in (0, -1, 2.5, True, "15"):
        with pytest.raises(ValueError, match="bins must be a whole number of bins, at least 1"):
            function(p, y, bins=bins)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_calibration_takes_rounded_probabilities(dtype):
    generator = torch.Generator().manual_seed(0)
    p = torch.randn(50, 1000, generator=generator).softmax(-1).to(dtype)
    assert uncertainty.reliability(p, torch.zeros(50).long()).count.sum() == 50
    # a rounding above 1 is 1; torchmetrics would take the row for logits
    above = torch.eye(4) * (1 + 1e-6)
    assert uncertainty.calibration_error(above, torch.arange(4)) == pytest.approx(0, abs=1e-6)


# ---- selective prediction


def test_risk_coverage_by_hand():
    uncertain, loss = torch.tensor([0.3, 0.1, 0.9, 0.5]), torch.tensor([0.0, 0.0, 1.0, 1.0])
    curve = uncertainty.risk_coverage(uncertain, loss)
    assert curve.coverage.tolist() == [0.25, 0.5, 0.75, 1.0]
    torch.testing.assert_close(curve.risk, torch.tensor([0, 0, 1 / 3, 0.5], dtype=torch.float64))
    assert curve.area == pytest.approx((0 + 0 + 1 / 3 + 0.5) / 4)
    assert [curve.risk_at(c) for c in (0.25, 0.5, 0.51, 1.0)] == pytest.approx([0, 0, 1 / 3, 0.5])


def test_risk_coverage_against_brute_force():
    generator = torch.Generator().manual_seed(0)
    score, loss = torch.rand(20, 10, generator=generator), torch.rand(20, 10, generator=generator)
    curve = uncertainty.risk_coverage(score, loss)
    order = sorted(range(200), key=lambda k: float(score.flatten()[k]))
    for k in (1, 2, 17, 200):
        expected = sum(float(loss.flatten()[i]) for i in order[:k]) / k
        assert float(curve.risk[k - 1]) == pytest.approx(expected)
    assert float(curve.risk[-1]) == pytest.approx(float(loss.double().mean()))
    best = uncertainty.risk_coverage(loss, loss).area
    worst = uncertainty.risk_coverage(-loss, loss).area
    assert best < curve.area < worst


def test_risk_coverage_arguments():
    with pytest.raises(ValueError, match="one shape and at least one entry"):
        uncertainty.risk_coverage(torch.zeros(3), torch.zeros(4))
    with pytest.raises(ValueError, match="one shape and at least one entry"):
        uncertainty.risk_coverage(torch.zeros(0), torch.zeros(0))
    bad = torch.tensor([0.0, math.nan, 1.0])
    for name, pair in (("uncertainty", (bad, torch.zeros(3))), ("losses", (torch.zeros(3), bad))):
        with pytest.raises(ValueError, match=f"{name} has NaN"):
            uncertainty.risk_coverage(*pair)
    curve = uncertainty.risk_coverage(torch.zeros(3), torch.zeros(3))
    for coverage in (0, -1, 1.1, math.nan):
        with pytest.raises(ValueError, match=r"coverage must be in \(0, 1\]"):
            curve.risk_at(coverage)


# ---- detection and intervals


def pairs_won(familiar, unfamiliar):
    difference = unfamiliar.view(-1, 1) - familiar.view(1, -1)
    return float(((difference > 0).double() + 0.5 * (difference == 0).double()).mean())


@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e4])
@pytest.mark.parametrize("ties", [False, True])
def test_auroc_is_the_share_of_pairs_in_order(scale, ties):
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(80, generator=generator), torch.randn(60, generator=generator) + 0.7
    if ties:
        a, b = a.round(), b.round()
    a, b = a * scale, b * scale
    assert uncertainty.detection_auroc(a, b) == pytest.approx(pairs_won(a, b), abs=1e-5)


def test_auroc_extremes():
    low, high = torch.zeros(4, 2), torch.ones(5)
    assert uncertainty.detection_auroc(low, high) == pytest.approx(1)
    assert uncertainty.detection_auroc(high, low) == pytest.approx(0)
    assert uncertainty.detection_auroc(low, low) == pytest.approx(0.5)


def test_interval_coverage_counts_both_ends():
    low, high = torch.zeros(4), torch.ones(4)
    assert uncertainty.interval_coverage(low, high, torch.tensor([0.0, 1.0, 0.5, 2.0])) == 0.75


def test_auroc_and_interval_arguments():
    fine, bad = torch.rand(5), torch.tensor([0.0, math.nan])
    for name, pair in (("uncertainty_in", (bad, fine)), ("uncertainty_out", (fine, bad))):
        with pytest.raises(ValueError, match=f"{name} has NaN"):
            uncertainty.detection_auroc(*pair)
    for name, pair in (("uncertainty_in", (fine[:0], fine)), ("uncertainty_out", (fine, fine[:0]))):
        with pytest.raises(ValueError, match=f"{name} is empty"):
            uncertainty.detection_auroc(*pair)
    column = fine.view(5, 1)
    for low, high, targets in ((column, column, fine), (column, fine, fine), (fine[:0], fine[:0], fine[:0])):
        with pytest.raises(ValueError, match="low, high and targets must have one shape"):
            uncertainty.interval_coverage(low, high, targets)
    with pytest.raises(ValueError, match="targets has NaN"):
        uncertainty.interval_coverage(fine[:2], fine[:2], bad)
