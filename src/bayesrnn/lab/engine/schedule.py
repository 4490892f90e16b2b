"""What changes from epoch to epoch: the learning rate, and when weights are averaged."""

import math
from collections.abc import Sequence
from itertools import accumulate

from bayesrnn.lab.recipes.schema import Train


def rate(settings: Train, epoch: int) -> float:
    """The learning rate of an epoch (from 1), without the inverse decay per step."""
    found = settings.lr * settings.decay ** max(0, epoch - settings.decay_after)
    first = settings.cosine_from
    if first is not None and epoch > first:
        found *= (1 + math.cos(math.pi * (epoch - first) / (settings.epochs + 1 - first))) / 2
    return found


def averages(settings: Train, results: Sequence[float], epoch: int) -> bool:
    """Whether the weights of this epoch's steps are averaged; ``results`` are the validation results before it."""
    if settings.average_from is not None and epoch >= settings.average_from:
        return True
    if settings.average_stall is None:
        return False
    # Has any result been worse than the best one of more than this many epochs before it?
    bests = accumulate(results, min)
    return any(new > best for best, new in zip(bests, results[settings.average_stall + 1 :], strict=False))
