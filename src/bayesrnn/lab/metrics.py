"""What a number in a record means: tasks declare a list of :class:`Metric`, generic code reads it."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """One number that a task measures.

    Args:
        key: its name in a record's ``metrics``, such as ``test_perplexity``; a dot goes one level down.
        label: its name in words, for tables and plots.
        unit: such as ``"%"`` or ``"nats"``; empty: the number has none.
        lower_is_better: whether a smaller value is the better one; None where neither is.
        paper_key: the key of the published value in a recipe's ``paper`` section; empty: no paper reports it.
        pattern: a ``str.format`` pattern for one value.

    Example:
        >>> test = Metric("test_perplexity", "test perplexity", paper_key="test")
        >>> test.mean([78.25, 78.75])
        '78.50 ± 0.35'
    """

    key: str
    label: str
    unit: str = ""
    lower_is_better: bool | None = True
    paper_key: str = ""
    pattern: str = "{:.2f}"

    def mean(self, values: Sequence[float]) -> str | None:
        """The mean over seeds, with their standard deviation where there are several; None without values."""
        return mean(values, self.pattern)


def mean(values: Sequence[float], pattern: str) -> str | None:
    """The mean of values, with their standard deviation where there are several; None without values."""
    if not values:
        return None
    spread = f" ± {pattern.format(statistics.stdev(values))}" if len(values) > 1 else ""
    return pattern.format(statistics.fmean(values)) + spread


def by_key(metrics: Iterable[Metric]) -> dict[str, Metric]:
    """Metrics by their keys in a record."""
    return {metric.key: metric for metric in metrics}
