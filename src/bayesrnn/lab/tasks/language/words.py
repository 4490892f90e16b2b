"""Single words of a text: how surprising each was, and how sure the model was of its prediction."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from bayesrnn.lab.tasks.language.scoring import entropy_of_logs, log_probabilities
from bayesrnn.lab.text import word_dropout


@dataclass(frozen=True)
class ScoredWord:
    """A word with -log p of it, and entropy and mutual information of the prediction it was read against, in nats."""

    text: str
    surprisal: float
    entropy: float
    mutual_information: float


def scored_words(
    model: nn.Module, stream: Tensor, words: Sequence[str], *, samples: int, seed: int, reset: int | None,
    models: Sequence[nn.Module] = (),
) -> Iterator[ScoredWord]:  # fmt: skip
    """Score the words that follow the first one of a stream (N + 1, 1); ``words`` are these N words as text.

    Probabilities are averaged over ``samples`` draws (0: the posterior mean). The mutual information of a word and the
    weights is the entropy of that average less the average entropy of the draws. The state starts from zero every
    ``reset`` words; None: never. ``models``: see :func:`log_probabilities`.
    """
    texts = iter(words)
    with word_dropout(model, on=False):
        for y, logs in log_probabilities(model, stream, samples=samples, seed=seed, reset=reset, models=models):
            mean = logs.logsumexp(0) - math.log(len(logs))
            surprisal = -mean.gather(-1, y.unsqueeze(-1)).squeeze(-1)
            entropy = entropy_of_logs(mean)
            information = (entropy - entropy_of_logs(logs).mean(0)).clamp_min(0)
            for values in zip(surprisal.tolist(), entropy.tolist(), information.tolist(), strict=True):
                yield ScoredWord(next(texts), *values)
