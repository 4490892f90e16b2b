"""One caption out of several draws' own: the one that is most like the others.

Each draw of the weights is a model that might be true, and says its caption. A caption is good as far as it agrees with
what would be said, so the one to give is that with the greatest expected agreement under the posterior: the decision of
least expected loss. The caption of the averaged probabilities, by contrast, need not be what any draw would say.
"""

from collections import Counter
from collections.abc import Hashable, Sequence

_LENGTHS = (1, 2)  # words, and pairs of neighbours

Words = Sequence[Hashable]
Grams = list[Counter[tuple[Hashable, ...]]]


def overlap(a: Words, b: Words) -> float:
    """How much two captions have in common, 0 to 1: F1 of their words and of their pairs of words, averaged.

    Of captions too short for a pair, the words alone.
    """
    return _overlap(_grams(a), _grams(b))


def _grams(words: Words) -> Grams:
    return [Counter(zip(*(words[i:] for i in range(n)), strict=False)) for n in _LENGTHS]


def _overlap(a: Grams, b: Grams) -> float:
    scores = []
    for ours, theirs in zip(a, b, strict=True):
        total = ours.total() + theirs.total()
        if total:
            scores.append(2 * sum(min(count, theirs[gram]) for gram, count in ours.items()) / total)
    return sum(scores) / len(scores) if scores else 1.0


def most_typical(captions: Sequence[Words]) -> int:
    """Which caption has the greatest mean overlap with the others; of equal ones the first."""
    if not captions:
        raise ValueError("there are no captions to choose from")
    grams = [_grams(words) for words in captions]
    total = [0.0] * len(captions)
    for i, one in enumerate(grams):
        for j in range(i):
            shared = _overlap(one, grams[j])
            total[i] += shared
            total[j] += shared
    return max(range(len(captions)), key=lambda i: total[i])
