import pytest
import torch
from torch import nn

import bayesrnn as br
from bayesrnn.lab.tasks.language.comparison import (
    METHODS,
    Settings,
    Text,
    build,
    compare,
    findings,
    prunable,
    weight_scores,
)
from bayesrnn.lab.tasks.language.task import perplexity
from bayesrnn.lab.tasks.language.text import EOS, Corpus

SMALL = Settings(hidden=6, batch_size=2, window=5, epochs=2, min_count=1, entropy_samples=2)


@pytest.fixture(scope="module")
def text():
    sentence = ["the", "cat", "sat", "on", "the", "mat", EOS]
    return Text(Corpus(train=sentence * 20, valid=sentence * 4, test=sentence * 4), SMALL)


def test_steps_are_those_of_an_epoch(text):
    batches = list(text.batches())
    assert len(batches) == text.steps
    assert sum(y.numel() for _, y in batches) == text.train_targets


def test_the_three_models_have_the_same_weights_to_learn(text):
    models = {method: build(method, len(text.vocabulary), SMALL) for method in METHODS}
    names = [name for name, _ in models["plain"].named_parameters()]
    assert names == [name for name, _ in models["variational"].named_parameters()]
    posteriors = [name for name, _, _ in models["bayes_by_backprop"].named_posteriors()]
    assert sorted(posteriors) == sorted(set(names) - {"decoder.bias"})


def test_compare_reports_every_model(text):
    steps, epochs, rows = [], [], []
    compare(
        text,
        SMALL,
        seed=1,
        on_step=lambda *what: steps.append(what),
        on_epoch=lambda method, epoch: epochs.append((method, epoch)),
        on_model=lambda method, model, row: rows.append((model, row)),
    )
    assert [row["method"] for _, row in rows] == list(METHODS)
    assert len(steps) == 3 * 2 * text.steps
    for model, row in rows:
        own = [epoch for method, epoch in epochs if method == row["method"]]
        assert row["valid_best"] == min(epoch.valid for epoch in own)
        assert row["valid_end"] == own[-1].valid
        assert perplexity(model, text.valid) == pytest.approx(row["valid_best"])
        assert 0 <= row["prunable"] < 1
        assert row["seconds"] > 0


class Table(nn.Module):
    """A language model of one table; 30 of its 100 weights are small and do no good."""

    def __init__(self):
        super().__init__()
        weight = torch.zeros(10, 10)
        weight[torch.arange(10), (torch.arange(10) + 1) % 10] = 4.0
        noise = torch.full((10, 10), 1.0)
        noise[:, :3] = 0.001
        self.weight = nn.Parameter(torch.where(weight > 0, weight, -noise))

    def forward(self, tokens, state=None):
        return self.weight[tokens], state


def test_prunable_finds_how_much_can_go():
    model = Table()
    stream = torch.arange(10).repeat(6).unsqueeze(1)
    before = model.weight.detach().clone()
    # Of the small ones three lie on the path of the text, where they are 4: 27 remain.
    assert prunable(model, stream, tolerance=3e-4) == pytest.approx(0.27)
    assert prunable(model, stream, tolerance=10.0) >= 0.9
    assert torch.equal(model.weight, before)


def test_scores_are_signal_to_noise_or_magnitude(text):
    q = build("bayes_by_backprop", len(text.vocabulary), SMALL)
    module, scores = weight_scores(q)
    assert not isinstance(module, br.BayesByBackprop)
    posterior = {name: (mean / sigma).abs() for name, mean, sigma in q.named_posteriors()}
    torch.testing.assert_close(scores["rnn.weight_hh_l0"], posterior["rnn.weight_hh_l0"].detach())
    assert not any("bias" in name for name in scores)
    plain = build("plain", len(text.vocabulary), SMALL)
    _, scores = weight_scores(plain)
    torch.testing.assert_close(scores["embed.weight"], plain.embed.weight.detach().abs())


def row(model, *, best, end, epoch):
    return {"model": model, "valid_best": best, "valid_end": end, "best_epoch": epoch, "train_end": 10.0}


def test_findings_say_what_happened_either_way():
    plain = row("plain LSTM", best=100.0, end=150.0, epoch=4)
    good = row("good", best=90.0, end=90.5, epoch=8)
    bad = row("bad", best=110.0, end=110.0, epoch=9)
    said = findings([plain, good, bad], epochs=9)
    assert said[0].startswith("The plain LSTM overfits: best in epoch 4, 50% worse at the end")
    assert "does not overfit: best in epoch 8, 0.6% above" in said[1]
    assert "best in the last epoch, 9" in said[2]
    assert said[3] == "good beats the plain LSTM stopped at its best epoch: validation perplexity -10.0%."
    assert said[4] == "bad does not beat the plain LSTM stopped at its best epoch: validation perplexity +10.0%."
