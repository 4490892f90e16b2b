"""What a report must compute from a run's weights: signal-to-noise, words with their uncertainty, entropy gaps."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesrnn.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from bayesrnn.lab.runs.opening import OpenedRun

SENTENCES = 5
DRAWS = (0, 1, 2, 5, 10)
WORDS = 1500  # of the test text, for entropy gaps


@dataclass(frozen=True)
class Word:
    """One word of a text: -log p of it, and entropy and mutual information of the prediction, in nats."""

    text: str
    surprisal: float
    entropy: float
    mutual_information: float


@dataclass
class Measured:
    """Of one run; empty where it has no such thing."""

    ratios: "dict[str, Tensor]" = field(default_factory=dict)
    sentences: list[list[Word]] = field(default_factory=list)
    gaps: list[tuple[int, float]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Why something is missing."""


def measure(folder: Path, *, with_gaps: bool, say: Callable[[str], None]) -> Measured:
    """Open the run on the CPU and measure what its kind has."""
    import torch

    import bayesrnn as br
    from bayesrnn.lab.runs.opening import open_run

    found = Measured()
    try:
        run = open_run(folder, torch.device("cpu"))
    except UserError as error:
        found.notes.append(str(error))
        return found
    if run.recipe.posterior.kind != "none":
        model: Any = run.model
        found.ratios = br.signal_to_noise(model)
    if run.recipe.task == "language":
        try:
            task: Any = run.task(None, torch.device("cpu"), advice="make the report where it is")
        except UserError as error:
            found.notes.append(f"Words are not shown: {error}")
            return found
        say(f"{folder}: words of the test text")
        found.sentences = _sentences(run, task.streams.test)
        if with_gaps:
            found.gaps = _gaps(run, task.streams.test, say)
    return found


def _sentences(run: "OpenedRun", stream: "Tensor") -> list[list[Word]]:
    """Sentences of 6 to 24 words, evenly spread over the first part of the test text, each in its context."""
    from bayesrnn.lab.tasks.language.evaluation import reset_of
    from bayesrnn.lab.tasks.language.task import vocabulary_of
    from bayesrnn.lab.tasks.language.text import EOS

    ids = stream[: WORDS + 1]
    tokens = vocabulary_of(run.files).decode(ids[1:, 0])
    words = _scored(run, ids, tokens, reset_of(run))
    ends = [-1, *(i for i, token in enumerate(tokens) if token == EOS)]
    spans = [(a + 1, b) for a, b in itertools.pairwise(ends) if 6 <= b - a - 1 <= 24]
    if not spans:  # a text without ends of sentences
        spans = [(k, min(k + 20, len(words))) for k in range(0, len(words), 20)]
    step = max(1, len(spans) // SENTENCES)
    return [words[a:b] for a, b in spans[::step][:SENTENCES]]


def _scored(run: "OpenedRun", ids: "Tensor", tokens: list[str], reset: int | None) -> list[Word]:
    from bayesrnn.lab.tasks.language import scoring

    words: list[Word] = []
    with scoring.word_dropout(run.model, on=False):
        for y, logs in scoring.log_probabilities(run.model, ids, samples=10, seed=1, reset=reset):
            mean = logs.logsumexp(0) - math.log(len(logs))
            surprisal = -mean.gather(-1, y.unsqueeze(-1)).squeeze(-1)
            entropy = scoring.entropy_of_logs(mean)
            information = (entropy - scoring.entropy_of_logs(logs).mean(0)).clamp_min(0)
            for s, h, i in zip(surprisal.tolist(), entropy.tolist(), information.tolist(), strict=True):
                words.append(Word(tokens[len(words)], s, h, i))
    return words


def _gaps(run: "OpenedRun", stream: "Tensor", say: Callable[[str], None]) -> list[tuple[int, float]]:
    """Entropy on the reversed text less that on the text, for several numbers of draws; 0 is the posterior mean."""
    import torch

    from bayesrnn.lab.tasks.language import scoring
    from bayesrnn.lab.tasks.language.evaluation import reset_of
    from bayesrnn.lab.tasks.language.task import is_random

    text, reset = stream[: WORDS + 1], reset_of(run)
    backwards = torch.flip(text, (0,))
    found = []
    with scoring.word_dropout(run.model, on=False):
        for most in (0, DRAWS[-1]) if is_random(run.recipe) else (0,):
            say(f"{run.path}: entropy gap with {most or 'no'} draws")
            forward = scoring.scores(run.model, text, samples=most, seed=1, reset=reset)
            reverse = scoring.scores(run.model, backwards, samples=most, seed=1, reset=reset)
            gaps = [r - f for r, f in zip(reverse.entropies, forward.entropies, strict=True)]
            found += [(count, gaps[count - 1]) for count in DRAWS[1:]] if most else [(0, gaps[0])]
    return found
