"""The consensus of several draws' captions: the caption with the greatest expected agreement under the posterior.

That is the decision of least expected loss. The caption of the averaged probabilities need not be what any draw says.
"""

from collections import Counter
from collections.abc import Hashable, Sequence

_LENGTHS = (1, 2)  # words, and pairs of neighbours

Words = Sequence[Hashable]
Grams = list[Counter[tuple[Hashable, ...]]]


def grams(words: Words) -> Grams:
    """The words of a caption and the pairs of neighbours, with their counts."""
    return [Counter(zip(*(words[i:] for i in range(n)), strict=False)) for n in _LENGTHS]


def overlap(a: Grams, b: Grams) -> float:
    """How much two captions have in common, 0 to 1: the mean F1 of their words and their pairs, if they have any."""
    scores = []
    for ours, theirs in zip(a, b, strict=True):
        total = ours.total() + theirs.total()
        if total:
            scores.append(2 * sum(min(count, theirs[gram]) for gram, count in ours.items()) / total)
    return sum(scores) / len(scores) if scores else 1.0


def most_typical(captions: Sequence[Words]) -> int:
    """Which caption has the greatest mean overlap with the others; the first of equal ones."""
    each = [grams(words) for words in captions]
    total = [0.0] * len(captions)
    for i, one in enumerate(each):
        for j in range(i):
            shared = overlap(one, each[j])
            total[i] += shared
            total[j] += shared
    return max(range(len(captions)), key=lambda i: total[i])
