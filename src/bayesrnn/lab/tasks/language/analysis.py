"""What a report computes from the weights of a language model: words with their uncertainty."""

import itertools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bayesrnn.errors import UserError
from bayesrnn.lab.runs.opening import OpenedRun
from bayesrnn.lab.tasks.base import Say
from bayesrnn.lab.tasks.language.streams import reset_of
from bayesrnn.lab.tasks.language.words import ScoredWord, scored_words
from bayesrnn.lab.text import EOS, vocabulary_of

SENTENCES = 5
WORDS = 1500  # of the test text, to choose sentences from


def analyse(run: OpenedRun, known: Mapping[str, Any], say: Say) -> dict[str, Any]:
    """Sentences of the test text, word by word."""
    try:
        task: Any = run.task(None, torch.device("cpu"), advice="make the report where it is")
    except UserError as error:
        raise UserError(f"Words are not shown: {error}") from None
    say(f"{run.path}: words of the test text")
    return {"sentences": _sentences(run, task.streams.test)}


def _sentences(run: OpenedRun, stream: Tensor) -> list[list[ScoredWord]]:
    """Sentences of 6 to 24 words, evenly spread over the first part of the test text, each in its context."""
    ids = stream[: WORDS + 1]
    tokens = vocabulary_of(run.files).decode(ids[1:, 0])
    reset, keep = reset_of(run.recipe), run.recipe.evaluate.keep_weights
    words = list(scored_words(run.model, ids, tokens, samples=10, seed=1, reset=reset, keep_weights=keep))
    ends = [-1, *(i for i, token in enumerate(tokens) if token == EOS)]
    spans = [(a + 1, b) for a, b in itertools.pairwise(ends) if 6 <= b - a - 1 <= 24]
    if not spans:  # a text without ends of sentences
        spans = [(k, min(k + 20, len(words))) for k in range(0, len(words), 20)]
    step = max(1, len(spans) // SENTENCES)
    return [words[a:b] for a, b in spans[::step][:SENTENCES]]
