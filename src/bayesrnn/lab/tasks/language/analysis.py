"""What a report computes from the weights of a language model: words with their uncertainty, and entropy gaps."""

import itertools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bayesrnn.errors import UserError
from bayesrnn.lab.runs.opening import OpenedRun
from bayesrnn.lab.tasks.base import Say, is_random
from bayesrnn.lab.tasks.language import scoring
from bayesrnn.lab.tasks.language.streams import reset_of
from bayesrnn.lab.tasks.language.words import ScoredWord, scored_words
from bayesrnn.lab.text import EOS, noise_of_draws, vocabulary_of

SENTENCES = 5
DRAWS = (0, 1, 2, 5, 10)
WORDS = 1500  # of the test text, for entropy gaps


def analyse(run: OpenedRun, known: Mapping[str, Any], say: Say) -> dict[str, Any]:
    """Sentences of the test text, word by word; entropy gaps if the record has none."""
    try:
        task: Any = run.task(None, torch.device("cpu"), advice="make the report where it is")
    except UserError as error:
        raise UserError(f"Words are not shown: {error}") from None
    say(f"{run.path}: words of the test text")
    found: dict[str, Any] = {"sentences": _sentences(run, task.streams.test)}
    if "entropy_gap_mean" not in known:
        found["gaps"] = _gaps(run, task.streams.test, say)
    return found


def _sentences(run: OpenedRun, stream: Tensor) -> list[list[ScoredWord]]:
    """Sentences of 6 to 24 words, evenly spread over the first part of the test text, each in its context."""
    ids = stream[: WORDS + 1]
    tokens = vocabulary_of(run.files).decode(ids[1:, 0])
    words = list(scored_words(run.model, ids, tokens, samples=10, seed=1, reset=reset_of(run.recipe)))
    ends = [-1, *(i for i, token in enumerate(tokens) if token == EOS)]
    spans = [(a + 1, b) for a, b in itertools.pairwise(ends) if 6 <= b - a - 1 <= 24]
    if not spans:  # a text without ends of sentences
        spans = [(k, min(k + 20, len(words))) for k in range(0, len(words), 20)]
    step = max(1, len(spans) // SENTENCES)
    return [words[a:b] for a, b in spans[::step][:SENTENCES]]


def _gaps(run: OpenedRun, stream: Tensor, say: Say) -> list[tuple[int, float]]:
    """Entropy on the reversed text less that on the text, for several numbers of draws; 0 is the posterior mean."""
    text, reset = stream[: WORDS + 1], reset_of(run.recipe)
    found = []
    with noise_of_draws(run.model):
        for most in (0, DRAWS[-1]) if is_random(run.recipe) else (0,):
            say(f"{run.path}: entropy gap with {most or 'no'} draws")
            gaps = scoring.entropy_gaps(run.model, text, samples=most, seed=1, reset=reset).gaps
            found += [(count, gaps[count - 1]) for count in DRAWS[1:]] if most else [(0, gaps[0])]
    return found
