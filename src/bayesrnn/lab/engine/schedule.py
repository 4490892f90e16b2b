"""What changes from epoch to epoch: the learning rate, and when weights are averaged."""

import math
from collections.abc import Sequence

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
    return settings.average_stall is not None and _stalled(results, settings.average_stall)


def _stalled(results: Sequence[float], patience: int) -> bool:
    """Whether any result was worse than the best one of more than ``patience`` epochs before it."""
    best = math.inf
    for old, new in zip(results, results[patience + 1 :], strict=False):
        best = min(best, old)
        if new > best:
            return True
    return False
