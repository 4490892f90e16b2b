import math

import pytest
import torch

import bayesrnn as br
from bayesrnn import draws
from bayesrnn.lab.recipes import load, override
from bayesrnn.lab.tasks.language import scoring
from bayesrnn.lab.tasks.language import task as language
from bayesrnn.lab.text import noise_of_draws
from bayesrnn.prediction.weights import HeldDraws

STREAM = torch.randint(9, (60, 1), generator=torch.Generator().manual_seed(2))
NAMES = ["unregularised-medium", "variational-untied-medium", "brnn-medium", "brnn-sharpened-medium", "zaremba-medium"]


def model_of(name):
    torch.manual_seed(0)
    return language.build(override(load(name), ["hidden=6", "init=0.8"]), 9).eval()


@pytest.mark.parametrize("name", NAMES)
def test_the_mean_is_the_plain_perplexity(name):
    model = model_of(name)
    found = scoring.scores(model, STREAM)
    assert found.perplexity == pytest.approx(language.perplexity(model, STREAM), rel=1e-5)
    assert found.mutual_information == pytest.approx(0, abs=1e-6)
    assert 0 < found.entropy <= math.log(9)
    assert sum(row["count"] for row in found.reliability) == 59


@pytest.mark.parametrize("name", ["variational-untied-medium", "brnn-medium"])
def test_draws_are_held_over_the_stream_and_probabilities_averaged(name, monkeypatch):
    model = model_of(name)
    monkeypatch.setattr(scoring, "_NUMBERS", 9 * 3 * 7)  # windows of a few steps
    short = scoring.monte_carlo_perplexities(model, STREAM, samples=3, seed=5)[3]
    monkeypatch.setattr(scoring, "_NUMBERS", 1 << 20)
    assert scoring.monte_carlo_perplexities(model, STREAM, samples=3, seed=5)[3] == pytest.approx(short, rel=1e-5)
    if scoring.draws_weights(model):
        logs = []
        for k in range(3):
            with br.draw(model, seed=draws.mix(5, k)), torch.no_grad():
                logits = model(STREAM[:-1])[0]
            logs.append(logits.log_softmax(-1).gather(-1, STREAM[1:].unsqueeze(-1)))
        mean = torch.stack(logs).exp().mean(0).log().mean()
        assert short == pytest.approx(math.exp(-float(mean)), rel=1e-5)
    whole = scoring.scores(model, STREAM, samples=4, seed=1)
    assert whole.mutual_information > 1e-4


@pytest.mark.parametrize("name", ["variational-untied-medium", "brnn-medium"])
def test_neighbouring_seeds_share_no_draw(name, monkeypatch):
    """The spread over seeds is the Monte Carlo error: it would be too small if they shared draws."""
    model = model_of(name)
    monkeypatch.setattr(scoring, "_ROWS", 1)
    single = [scoring.monte_carlo_perplexities(model, STREAM, samples=1, seed=seed)[1] for seed in range(4)]
    found = [list(scoring.log_probabilities(model, STREAM, samples=1, seed=0, first=k)) for k in range(4)]
    first = [
        math.exp(-float(torch.cat([log[0].gather(-1, y.unsqueeze(-1)) for y, log in one]).mean())) for one in found
    ]
    assert first[0] == pytest.approx(single[0], rel=1e-6)
    assert len({round(value, 6) for value in single + first[1:]}) == 7


def test_deciles_go_from_sure_to_unsure_and_average_to_the_whole():
    model = model_of(NAMES[0])
    found = scoring.scores(model, STREAM)
    words, tenths = len(STREAM) - 1, found.deciles
    sizes = [words // 10 + (k < words % 10) for k in range(10)]
    assert [row["entropy"] for row in tenths] == sorted(row["entropy"] for row in tenths)
    for key, whole in (("entropy", found.entropy), ("nll", math.log(found.perplexity))):
        assert sum(row[key] * n for row, n in zip(tenths, sizes, strict=True)) / words == pytest.approx(whole)


def test_rows_of_a_batch_are_independent_draws():
    model = model_of("variational-tied-medium")
    ((_, logs),) = scoring.log_probabilities(model, STREAM, samples=3, seed=1)
    assert logs.shape == (3, 59, 9)
    assert not torch.allclose(logs[0], logs[1])


def test_word_dropout_can_be_off():
    model = model_of("variational-tied-medium")
    rate = model.embed.word_dropout
    with noise_of_draws(model):
        assert model.embed.word_dropout == 0
    assert model.embed.word_dropout == rate > 0


def test_the_bound_without_a_step_is_the_mean():
    model = model_of("brnn-sharpened-medium")
    with torch.no_grad():
        for eta in model.eta.parameters():
            eta.zero_()
    plain = language.perplexity(model, STREAM, window=7)
    assert scoring.sharpened_perplexity(model, STREAM, window=7) == pytest.approx(plain, rel=1e-5)
    with torch.no_grad():
        for eta in model.eta.parameters():
            eta.fill_(1e-4)
    # a small step down the gradient gains more than its KL costs
    assert scoring.sharpened_perplexity(model, STREAM, window=7) < plain


@pytest.mark.parametrize("name", ["variational-untied-medium", "brnn-medium"])
def test_entropies_of_the_first_draws(name, monkeypatch):
    """The k-th is that of the average of k draws; taken one by one from all draws' probabilities here."""
    model = model_of(name)
    pieces = list(scoring.log_probabilities(model, STREAM, samples=4, seed=1))
    chances = torch.cat([logs for _, logs in pieces], 1).double().exp()
    expected = [-(p * p.log()).sum(-1).mean() for p in (chances[: k + 1].mean(0) for k in range(4))]
    monkeypatch.setattr(scoring, "_NUMBERS", 9 * 4 * 7)
    found = scoring.scores(model, STREAM, samples=4, seed=1)
    assert found.entropies == pytest.approx([float(e) for e in expected], rel=1e-5)
    assert found.entropies[-1] == found.entropy
    assert found.entropies[0] != pytest.approx(found.entropy, rel=1e-3)
    assert len(scoring.scores(model, STREAM).entropies) == 1


def logs_of(model, **options):
    stream = STREAM.to(next(model.parameters()).device)
    return torch.cat([logs for _, logs in scoring.log_probabilities(model, stream, samples=5, seed=3, **options)], 1)


@pytest.mark.parametrize("reset", [None, 20])
@pytest.mark.parametrize("name", ["brnn-medium", "brnn-sharpened-medium"])
def test_draws_of_weights_at_once_and_in_turns(name, reset, monkeypatch):
    model = model_of(name)
    monkeypatch.setattr(scoring, "_NUMBERS", 9 * 5 * 8)  # windows that hand on their state
    if not HeldDraws.serve(model):
        pytest.skip("no compiled kernels here: draws take turns anyway")
    at_once = logs_of(model, reset=reset)
    monkeypatch.setattr(HeldDraws, "serve", lambda model: False)
    in_turns = logs_of(model, reset=reset)
    assert at_once.shape == in_turns.shape == (5, 59, 9)
    torch.testing.assert_close(at_once, in_turns, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(at_once[0], at_once[1], atol=1e-3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["brnn-medium", "brnn-sharpened-medium"])
def test_draws_of_weights_at_once_on_a_gpu(name, monkeypatch):
    torch.manual_seed(0)
    model = language.build(override(load(name), ["hidden=65", "init=0.3"]), 9).eval().cuda()
    monkeypatch.setattr(scoring, "_NUMBERS", 9 * 5 * 8)
    at_once = logs_of(model)
    monkeypatch.setattr(HeldDraws, "serve", lambda model: False)
    torch.testing.assert_close(at_once, logs_of(model), rtol=2e-2, atol=2e-2)  # products with 10 bits of mantissa


def test_a_perplexity_does_not_depend_on_how_many_draws_run_at_once(monkeypatch):
    model = model_of("brnn-medium")
    whole = scoring.monte_carlo_perplexities(model, STREAM, samples=5, seed=2)[5]
    monkeypatch.setattr(scoring, "_WEIGHTS", 2)
    assert scoring.monte_carlo_perplexities(model, STREAM, samples=5, seed=2)[5] == pytest.approx(whole, rel=1e-5)


@pytest.mark.parametrize("name", ["brnn-medium", "variational-tied-medium"])
@pytest.mark.parametrize("at_once", [1, 3, 64])
def test_perplexity_by_the_number_of_draws(name, at_once, monkeypatch):
    """The first k of many draws are those of an evaluation of their own, however many run at once."""
    model = model_of(name)
    if name == "brnn-medium":
        monkeypatch.setattr(scoring, "_WEIGHTS", at_once)
        alone = [scoring.monte_carlo_perplexities(model, STREAM, samples=k, seed=2)[k] for k in (1, 2, 5, 7)]
    else:  # draws of units are rows of one batch, and depend on its size: here from the probabilities of each word
        monkeypatch.setattr(scoring, "_ROWS", at_once)
        starts = range(0, 7, at_once)
        chunks = [
            torch.cat(
                [
                    logs.gather(-1, y.expand(len(logs), -1).unsqueeze(-1))[..., 0]
                    for y, logs in scoring.log_probabilities(
                        model, STREAM, samples=min(at_once, 7 - start), seed=2, first=start
                    )
                ],
                1,
            )
            for start in starts
        ]
        each = torch.cat(chunks).double().exp()
        alone = [float((-each[:k].mean(0).log()).mean().exp()) for k in (1, 2, 5, 7)]
    found = scoring.monte_carlo_perplexities(model, STREAM, samples=7, seed=2)
    assert list(found) == [1, 2, 5, 7]
    assert list(found.values()) == pytest.approx(alone, rel=1e-5)


def test_round_numbers_of_draws():
    assert scoring._round_counts(1) == [1]
    assert scoring._round_counts(10) == [1, 2, 5, 10]
    assert scoring._round_counts(128) == [1, 2, 5, 10, 20, 50, 100, 128]


class Table(torch.nn.Module):
    """The logits of the next word are a row of a table."""

    def __init__(self, logits):
        super().__init__()
        self.logits = torch.nn.Parameter(logits)

    def forward(self, x, state=None):
        return self.logits[x], state

    def text(self, length, temperature=1.0, seed=0):
        """Words drawn from its own predictions at this temperature."""
        generator, words = torch.Generator().manual_seed(seed), [0]
        chances = (self.logits.detach() / temperature).softmax(-1)
        for _ in range(length):
            words.append(int(torch.multinomial(chances[words[-1]], 1, generator=generator)))
        return torch.tensor(words).unsqueeze(1)


def table(words=7, scale=2.0, seed=0):
    return Table(scale * torch.randn(words, words, generator=torch.Generator().manual_seed(seed)))


def searched(logits, targets):
    """The best temperature by bisection of the slope of -log p, in double precision."""
    logs, low, high = logits.double().log_softmax(-1), 0.1, 10.0
    of_targets = logs.gather(-1, targets.unsqueeze(-1)).sum()
    for _ in range(50):
        middle = math.sqrt(low * high)
        falls = ((middle * logs).softmax(-1) * logs).sum() < of_targets
        low, high = (middle, high) if falls else (low, middle)
    return 1 / low


@pytest.mark.parametrize(("right", "logit"), [(60, 1.5), (75, 0.4), (52, 0.3), (97, 9.0)])
def test_the_temperature_of_constant_predictions(right, logit):
    """Word 1 is `right` of 100 targets, and has this logit: p = right / 100 at T = logit / log(right / wrong)."""
    model = Table(torch.tensor([[0.0, logit], [0.0, logit]]))
    targets = torch.cat([torch.ones(right), torch.zeros(100 - right)]).long()
    stream = torch.cat([torch.zeros(1).long(), targets]).unsqueeze(1)
    found = scoring.best_temperature(model, stream)
    assert found == pytest.approx(logit / math.log(right / (100 - right)), rel=1e-4)
    share = right / 100
    entropy = -share * math.log(share) - (1 - share) * math.log(1 - share)
    tempered = scoring.scores(model, stream, temperature=found)
    assert math.log(tempered.perplexity) == pytest.approx(entropy, rel=1e-5)
    assert tempered.entropy == pytest.approx(entropy, rel=1e-3)
    assert tempered.calibration_error == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize("seed", range(12))
def test_the_temperature_is_that_of_a_search(seed):
    """Right to 1e-3, whatever the logits' scale: small, large, or another in every row."""
    model = table(words=3 + 4 * seed, scale=(0.2, 1.0, 10.0)[seed % 3], seed=seed)
    with torch.no_grad():
        model.logits.mul_(torch.rand(len(model.logits), 1, generator=torch.Generator().manual_seed(seed)) ** (seed % 2))
    stream = model.text(300, temperature=(0.4, 1.0, 3.0)[seed % 3], seed=seed)
    expected = searched(model.logits.detach()[stream[:-1, 0]], stream[1:, 0])
    assert 0.11 < expected < 9
    assert scoring.best_temperature(model, stream) == pytest.approx(expected, rel=2e-4)


@pytest.mark.parametrize("reset", [None, 20])
@pytest.mark.parametrize("name", ["unregularised-medium", "brnn-medium"])
def test_the_temperature_of_a_model_with_a_state(name, reset, monkeypatch):
    """It is that of the posterior mean, its state carried over pieces of the text or not."""
    model = model_of(name)
    logits = torch.cat([logs[0] for _, logs in scoring.log_probabilities(model, STREAM, reset=reset)])
    expected = searched(logits, STREAM[1:, 0])
    plain, tempered = scoring.scores(model, STREAM, reset=reset), (logits / expected).log_softmax(-1)
    monkeypatch.setattr(scoring, "_NUMBERS", 9 * 8)
    monkeypatch.setattr(scoring, "_CACHED", 9 * 3)
    found = scoring.best_temperature(model, STREAM, reset=reset)
    assert found == pytest.approx(expected, rel=1e-4)
    scored = scoring.scores(model, STREAM, reset=reset, temperature=found)
    nll = -tempered.gather(-1, STREAM[1:]).mean()
    assert math.log(scored.perplexity) == pytest.approx(float(nll), rel=1e-5)
    assert scored.entropy == pytest.approx(float(-(tempered.exp() * tempered).sum(-1).mean()), rel=1e-3)
    assert scored.perplexity < plain.perplexity


@pytest.mark.parametrize("factor", [0.25, 3.0])
def test_logits_times_a_factor_have_that_times_the_temperature(factor):
    model, stream = table(), table().text(400, temperature=1.4)
    before = scoring.best_temperature(model, stream)
    tempered = scoring.scores(model, stream, temperature=before)
    with torch.no_grad():
        model.logits.mul_(factor)
    after = scoring.best_temperature(model, stream)
    assert after == pytest.approx(factor * before, rel=2e-4)
    again = scoring.scores(model, stream, temperature=after)
    assert again.perplexity == pytest.approx(tempered.perplexity, rel=1e-6)
    assert again.calibration_error == pytest.approx(tempered.calibration_error, abs=1e-3)


def test_a_model_of_its_own_text_has_temperature_one():
    """Within 4 standard errors, which the curvature of -log p gives: wrong once in 16,000 seeds (of 300 seeds the
    largest error was 2.8). Logits that are a tenth too large are found out: so they were in 99% of 300 seeds."""
    model = table(words=12)
    stream = model.text(4000)
    step = 1e-3
    low, high = scoring._slopes(model, stream, [1 - step, 1 + step], None)
    error = ((high - low) / (2 * step)) ** -0.5
    assert 0.005 < error < 0.02
    assert 1 / scoring.best_temperature(model, stream) == pytest.approx(1, abs=4 * error)
    with torch.no_grad():
        model.logits.mul_(1.1)
    assert 1.1 / scoring.best_temperature(model, stream) == pytest.approx(1, abs=4 * error)
    assert abs(1 / scoring.best_temperature(model, stream) - 1) > 4 * error


@pytest.mark.parametrize(("right", "end"), [(0, 10.0), (1, 0.1)])
def test_a_temperature_beyond_the_range(right, end):
    """The unlikely word always comes, which no temperature predicts; or the likely one does, and colder is better."""
    model = Table(torch.tensor([[0.0, 1.0], [0.0, 1.0]]))
    assert scoring.best_temperature(model, torch.full((30, 1), right)) == pytest.approx(end, rel=1e-12)
