import math
import os
import subprocess
import sys
from itertools import pairwise

import pytest
import torch
from torch import nn

from bayesrnn.errors import UserError
from bayesrnn.lab import quickstart, recipes
from bayesrnn.lab.quickstart import ModelRow, Word, findings, guesses, row, typical_sentence
from bayesrnn.lab.tasks.language.scoring import scores

PROBABILITIES = [[0.92, 0.05, 0.03], [0.26, 0.54, 0.20], [0.36, 0.34, 0.30]]


class Table(nn.Module):
    """Predicts the next of three words from the one before it."""

    def forward(self, tokens, state=None):
        return torch.tensor(PROBABILITIES).log()[tokens], state


def test_calibration_is_what_counting_by_hand_gives():
    text = [0, 0, 1, 1, 2, 0, 0, 2, 1, 0]
    pairs = list(pairwise(text))
    stream = torch.tensor(text).unsqueeze(1)
    found = row("table", scores(Table(), stream, bins=quickstart.BINS))
    tops = {0: (0, 0.92), 1: (1, 0.54), 2: (0, 0.36)}
    # After 0 (0.92 sure of 0): 0, 1, 0, 2. After 1 (0.54 sure of 1): 1, 2, 0. After 2 (0.36 sure of 0): 0, 1.
    accuracy = {before: [after for b, after in pairs if b == before].count(tops[before][0]) for before in tops}
    assert accuracy == {0: 2, 1: 1, 2: 1}
    error = (4 * abs(0.92 - 2 / 4) + 3 * abs(0.54 - 1 / 3) + 2 * abs(0.36 - 1 / 2)) / 9
    assert found.calibration_error == pytest.approx(error, rel=1e-5)
    assert [(b.accuracy, b.count) for b in found.reliability] == [(1 / 2, 2), (1 / 3, 3), (1 / 2, 4)]
    assert found.sure == 7
    assert found.said == pytest.approx((4 * 0.92 + 3 * 0.54) / 7, rel=1e-5)
    assert found.right == pytest.approx(3 / 7)
    assert found.perplexity == pytest.approx(math.exp(-sum(math.log(PROBABILITIES[a][b]) for a, b in pairs) / 9))


def test_guesses_are_the_most_likely_words():
    stream = torch.tensor([0, 1, 2, 2]).unsqueeze(1)
    found = guesses(Table(), stream, ["a", "b", "c"], samples=0, seed=0)
    assert [(w.text, w.guess) for w in found] == [("b", "a"), ("c", "b"), ("c", "a")]
    assert [w.confidence for w in found] == pytest.approx([0.92, 0.54, 0.36])


def test_a_model_that_is_never_sure():
    unsure = nn.Module()
    unsure.forward = lambda tokens, state=None: (torch.zeros(*tokens.shape, 4), state)
    found = row("unsure", scores(unsure, torch.tensor([0, 1, 2]).unsqueeze(1), bins=quickstart.BINS))
    assert (found.said, found.right, found.sure) == (None, None, 0)


def line(model, *, perplexity=100.0, error=0.05, said=0.7, right=0.5):
    return ModelRow(
        model=model, perplexity=perplexity, calibration_error=error, said=said, right=right, sure=1, reliability=[]
    )


def test_findings_follow_from_the_numbers_whoever_wins():
    rows = [line("plain LSTM", error=0.01), line("good LSTM", perplexity=90.0, said=0.6, right=0.6)]
    rows += [line("shy LSTM", said=None, right=None), line("plain LSTM at epoch 2", perplexity=95.0, error=0.02)]
    curves = {"plain LSTM": [120.0, 100.0, 150.0], "good LSTM": [99.0, 90.0, 90.5], "shy LSTM": [99.0, 98.0, 97.0]}
    said = findings(rows, curves)
    assert said[0] == (
        "When sure of the next word, the plain LSTM says 70% and is right 50% of the time; the good LSTM says 60% and "
        "is right 60% of the time; the shy LSTM is never sure."
    )
    assert said[1].startswith("Perplexity on unseen text, the best first: good LSTM 90.0; plain LSTM at epoch 2 95.0;")
    assert said[2].startswith("Calibration error on unseen text, the best first: plain LSTM 0.010;")
    assert said[3] == "The plain LSTM overfits: validation perplexity 100.0 in epoch 2, 150.0 at the end (epoch 3)."
    assert "good LSTM does not overfit: validation perplexity 90.0 in epoch 2, 90.5 at the end" in said[4]
    assert said[5] == "The shy LSTM does not overfit: validation perplexity 97.0 in epoch 3, the last."


def words(texts, confidence):
    return [Word(text=text, guess="x", confidence=confidence) for text in texts]


def test_the_sentence_shown_is_typical_and_has_no_rare_words():
    usual, rare = [f"w{k}" for k in range(9)], ["<unk>", *"bcdefghi"]
    text = words(usual, 0.9) + words(["<eos>"], 0.5) + words(rare, 0.5) + words(["<eos>"], 0.5)
    text += words(usual[::-1], 0.6) + words(["<eos>"], 0.5)
    found = typical_sentence({"one": text, "two": text})
    assert [w.text for w in found["one"]] == usual[::-1]
    assert found["one"] == found["two"]
    assert typical_sentence({"one": words("ab", 0.5)})["one"] == words("ab", 0.5)  # a text without sentences


def test_the_three_recipes_differ_in_nothing_but_the_method():
    flat = [recipes.flatten(recipes.load(f"quickstart-{name}")) for name in quickstart.MODELS]
    different = {key for key in flat[0] if len({str(each[key]) for each in flat}) > 1}
    assert all(key.startswith(("posterior.", "model.")) or key == "description" for key in different)
    assert {key for key in different if key.startswith("model.")} <= {
        f"model.{place}_dropout" for place in ("word", "input", "recurrent", "output")
    }


def test_an_error_in_a_process_reaches_the_parent(tmp_path, monkeypatch):
    monkeypatch.setattr(quickstart, "MODELS", {"plain": "plain LSTM"})
    (tmp_path / "plain").write_text("a file where the run folder should be")
    with pytest.raises(UserError, match="plain is a file"):
        quickstart.train(tmp_path, seed=0, fast=True, told=lambda *_: None)


def test_a_process_that_dies_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(quickstart, "_process", os._exit)  # refuses its arguments, and ends
    with pytest.raises(UserError, match=r"process that trains the .* LSTM died"):
        quickstart.train(tmp_path, seed=0, fast=True, told=lambda *_: None)


def test_the_parent_imports_no_torch():
    """The first line is printed before the seconds that importing torch takes."""
    code = "import sys, bayesrnn.lab.quickstart, bayesrnn.lab.runs.folder; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
