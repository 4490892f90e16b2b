"""What a number in a record means: tasks declare a list of :class:`Metric`, generic code reads it."""

from collections.abc import Iterable
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

    Example:
        >>> Metric("test_perplexity", "test perplexity", paper_key="test").lower_is_better
        True
    """

    key: str
    label: str
    unit: str = ""
    lower_is_better: bool | None = True
    paper_key: str = ""


def by_key(metrics: Iterable[Metric]) -> dict[str, Metric]:
    """Metrics by their keys in a record."""
    return {metric.key: metric for metric in metrics}
