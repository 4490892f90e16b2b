import math

import pytest
import torch

import bayesrnn as br
from bayesrnn.recipes import load, override
from bayesrnn.tasks import language, scoring
from bayesrnn.weight_draws import HeldDraws

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
    short = scoring.monte_carlo_perplexity(model, STREAM, samples=3, seed=5)
    monkeypatch.setattr(scoring, "_NUMBERS", 1 << 20)
    assert scoring.monte_carlo_perplexity(model, STREAM, samples=3, seed=5) == pytest.approx(short, rel=1e-5)
    if scoring.draws_weights(model):
        logs = []
        for k in range(3):
            with br.draw(model, seed=(5 + k) * 1_000_003), torch.no_grad():
                logits = model(STREAM[:-1])[0]
            logs.append(logits.log_softmax(-1).gather(-1, STREAM[1:].unsqueeze(-1)))
        mean = torch.stack(logs).exp().mean(0).log().mean()
        assert short == pytest.approx(math.exp(-float(mean)), rel=1e-5)
    whole = scoring.scores(model, STREAM, samples=4, seed=1)
    assert whole.mutual_information > 1e-4


def test_rows_of_a_batch_are_independent_draws():
    model = model_of("variational-tied-medium")
    ((_, logs),) = scoring.log_probabilities(model, STREAM, samples=3, seed=1)
    assert logs.shape == (3, 59, 9)
    assert not torch.allclose(logs[0], logs[1])


def test_word_dropout_can_be_off():
    model = model_of("variational-tied-medium")
    rate = model.embed.word_dropout
    with scoring.word_dropout(model, on=False):
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
    whole = scoring.monte_carlo_perplexity(model, STREAM, samples=5, seed=2)
    monkeypatch.setattr(scoring, "_WEIGHTS", 2)
    assert scoring.monte_carlo_perplexity(model, STREAM, samples=5, seed=2) == pytest.approx(whole, rel=1e-5)


@pytest.mark.parametrize("name", ["brnn-medium", "variational-tied-medium"])
@pytest.mark.parametrize("at_once", [1, 3, 64])
def test_perplexity_by_the_number_of_draws(name, at_once, monkeypatch):
    """The first k of many draws are those of an evaluation of their own, however many run at once."""
    model = model_of(name)
    if name == "brnn-medium":
        monkeypatch.setattr(scoring, "_WEIGHTS", at_once)
        alone = [scoring.monte_carlo_perplexity(model, STREAM, samples=k, seed=2) for k in (1, 2, 5, 7)]
    else:  # draws of units are rows of one batch, and depend on its size: here from the probabilities of each word
        monkeypatch.setattr(scoring, "_ROWS", at_once)
        starts = range(0, 7, at_once)
        chunks = [
            torch.cat(
                [
                    logs.gather(-1, y.expand(len(logs), -1).unsqueeze(-1))[..., 0]
                    for y, logs in scoring.log_probabilities(
                        model, STREAM, samples=min(at_once, 7 - start), seed=2 + start
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
