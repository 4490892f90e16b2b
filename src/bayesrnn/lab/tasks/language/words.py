"""Single words of a text: how surprising each was, and how sure the model was of its prediction."""

import io
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from bayesrnn.errors import UserError
from bayesrnn.lab.runs.opening import OpenedRun
from bayesrnn.lab.tasks.language.scoring import entropy_of_logs, log_probabilities
from bayesrnn.lab.tasks.language.streams import reset_of
from bayesrnn.lab.tasks.language.text import MAX_BYTES, read_tokens
from bayesrnn.lab.text import EOS, noise_of_draws, vocabulary_of

_PART = 1 << 20


@dataclass(frozen=True)
class ScoredWord:
    """A word with -log p of it, and entropy and mutual information of the prediction it was read against, in nats."""

    text: str
    surprisal: float
    entropy: float
    mutual_information: float


def scored_words(
    model: nn.Module, stream: Tensor, words: Sequence[str], *, samples: int, seed: int, reset: int | None,
    models: Sequence[nn.Module] = (), keep_weights: bool = False,
) -> Iterator[ScoredWord]:  # fmt: skip
    """Score the words that follow the first one of a stream (N + 1, 1); ``words`` are these N words as text.

    Probabilities are averaged over ``samples`` draws (0: the posterior mean). The mutual information of a word and the
    weights is the entropy of that average less the average entropy of the draws. The state starts from zero every
    ``reset`` words; None: never. ``models``: see :func:`log_probabilities`. ``keep_weights``: draws drop no weights.
    """
    texts = iter(words)
    with noise_of_draws(model, weights=not keep_weights):
        for y, logs in log_probabilities(model, stream, samples=samples, seed=seed, reset=reset, models=models):
            mean = logs.logsumexp(0) - math.log(len(logs))
            surprisal = -mean.gather(-1, y.unsqueeze(-1)).squeeze(-1)
            entropy = entropy_of_logs(mean)
            information = (entropy - entropy_of_logs(logs).mean(0)).clamp_min(0)
            for values in zip(surprisal.tolist(), entropy.tolist(), information.tolist(), strict=True):
                yield ScoredWord(next(texts), *values)


def tokens(file: Path | None) -> list[str]:
    """The words of a file; None or "-": those of stdin."""
    found = read_tokens(io.BytesIO(_stdin()) if file is None or file == Path("-") else file)
    if not found:
        raise UserError("There is no text to score; name a file that has words, or pipe them in.")
    return found


def _stdin() -> bytes:
    """All of stdin, up to the largest size of a file; binary input only up to its first zero byte."""
    if sys.stdin is None:
        raise UserError("stdin is closed; send a text to it, or name a file.")
    data = bytearray()
    try:
        while part := sys.stdin.buffer.read(_PART):  # by parts: between them an interrupt is seen
            data += part
            if b"\0" in part:
                return bytes(data[: data.index(0) + 1])
            if len(data) > MAX_BYTES:
                raise UserError(f"stdin has more than {MAX_BYTES / (1 << 30):g} GB, too much to hold in memory.")
    except OSError as error:
        raise UserError(f"stdin cannot be read ({error.strerror or error}).") from None
    return bytes(data)


def score_text(
    run: OpenedRun, words: list[str], *, samples: int, seed: int, models: Sequence[nn.Module] = ()
) -> Iterator[dict[str, Any]]:
    """One line per word; the first is predicted from the end of a sentence.

    With ``data.carry_state: false`` the state starts from zero in every window, as in training. ``models``: see
    :func:`log_probabilities`.
    """
    vocabulary = vocabulary_of(run.files)
    stream = vocabulary.encode([EOS, *words]).unsqueeze(1).to(next(run.model.parameters()).device)
    reset, keep = reset_of(run.recipe), run.recipe.evaluate.keep_weights
    for word in scored_words(
        run.model, stream, words, samples=samples, seed=seed, reset=reset, models=models, keep_weights=keep
    ):
        yield {
            "word": word.text,
            "known": word.text in vocabulary,
            "surprisal": word.surprisal,
            "entropy": word.entropy,
            "mutual_information": word.mutual_information,
        }
