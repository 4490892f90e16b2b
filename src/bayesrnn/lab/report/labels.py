"""Names and numbers of records as a report shows them."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bayesrnn.errors import UserError
from bayesrnn.lab import registry
from bayesrnn.lab.metrics import Metric, by_key
from bayesrnn.lab.runs.record import Record

if TYPE_CHECKING:
    from bayesrnn.lab.tasks.base import Task

_ACRONYMS = {"kl": "KL", "nll": "-log p", "rmse": "RMSE", "mae": "MAE", "crps": "CRPS", "auroc": "AUROC"}
_SPLITS = {"valid": "validation", "train": "training"}
_DRAWS = "_mc"


def task_of(name: str) -> "type[Task] | None":
    """The task of this name; None if it is not installed."""
    try:
        return registry.task_class(name)
    except (UserError, ImportError, AttributeError):
        return None


def declared(name: str) -> dict[str, Metric]:
    """Metrics that a task declares, by key."""
    task = task_of(name)
    return {} if task is None else by_key([*task.metrics, *task.details])


def metric_of(run: Record) -> str:
    """The metric that training watched, without its split, such as ``perplexity``."""
    task = task_of(run.task)
    key = next((k for k in run.curves if k.startswith("valid_")), "") if task is None else task.metric
    return key.removeprefix("valid_")


def paper_of(run: Record) -> dict[str, float]:
    """Published values by the metric that each is to be compared with."""
    task = task_of(run.task)
    return {} if task is None else task.paper_values(run.settings)


def part(settings: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = settings.get(key)
    return value if isinstance(value, dict) else {}


def label(key: str, task: str = "") -> str:
    """A metric's name in words: as its task declares it, or made from its key."""
    if task and key in (known := declared(task)):
        return known[key].label
    head, _, text = key.rpartition(".")
    head = f"{head.replace('_', ' ')}: " if head else ""
    end = ", averaged over draws" if text.endswith(_DRAWS) else ""
    first, *rest = text.removesuffix(_DRAWS).split("_")
    words = [_SPLITS.get(first, _ACRONYMS.get(first, first)), *(_ACRONYMS.get(word, word) for word in rest)]
    return f"{head}{' '.join(words)}{end}"


def number(value: float) -> str:
    """Four significant digits; thousands in groups."""
    if not math.isfinite(value):
        return str(value)
    value += 0.0  # no minus before nothing
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{value:,.0f}"
    if abs(value) >= 1000:
        return f"{value:,.0f}" if abs(value) < 1e15 else f"{value:.4g}"
    return f"{value:.2f}" if abs(value) >= 10 else f"{value:.4g}"


def mean(values: Sequence[float]) -> str:
    """The mean over seeds, and where they differ ± their standard deviation with as many decimals."""
    middle = statistics.fmean(values)
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    if spread == 0:
        return number(middle)
    size = max(abs(middle), spread)
    if not 1e-6 < size < 1e15:
        return f"{number(middle)} ± {number(spread)}"
    decimals = 0 if size >= 1000 else 2 if size >= 10 else 3 - math.floor(math.log10(size))
    return f"{middle:,.{decimals}f} ± {spread:,.{decimals}f}"


def value(key: str, values: Sequence[float]) -> str:
    """The mean over seeds; fractions, such as coverages and shares, in percent."""
    is_share = "coverage" in key.split("_") or key.endswith("_share")
    if is_share and all(0 <= each <= 1 for each in values):
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        return f"{statistics.fmean(values):.1%}" + (f" ± {spread:.1%}" if spread else "")
    return mean(values)
