"""Names and numbers of records in the words of a report."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from bayesrnn.report.collect import Run

_ACRONYMS = {
    "kl": "KL",
    "nll": "-log p",
    "rmse": "RMSE",
    "mae": "MAE",
    "crps": "CRPS",
    "auroc": "AUROC",
    "cider": "CIDEr",
    **{f"bleu{n}": f"BLEU-{n}" for n in range(1, 5)},
}


def metric_of(run: Run) -> str:
    """The figure that training looked at, without its split: such as ``perplexity``."""
    from bayesrnn.errors import UserError
    from bayesrnn.tasks.base import task_class

    try:
        key = task_class(run.task).metric
    except (UserError, ImportError, AttributeError):
        key = next((k for k in run.curves if k.startswith("valid_")), "")
    return key.removeprefix("valid_")


def paper_of(run: Run) -> dict[str, float]:
    """Published figures by the metric that each is to be compared with."""
    from bayesrnn.errors import UserError
    from bayesrnn.tasks.base import task_class

    try:
        known = task_class(run.task).paper_figures
    except (UserError, ImportError, AttributeError):
        known = {}
    sharpened = part(run.settings, "posterior").get("kind") == "sharpened"
    found = {}
    for key, value in run.paper.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool) and key in known:
            name = known[key]
            found[f"{name}_bound" if sharpened and key in ("valid", "test") else name] = float(value)
    return found


def part(settings: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = settings.get(key)
    return value if isinstance(value, dict) else {}


def spoken(key: str) -> str:
    """A metric's name in words: ``test_perplexity_mc`` is "test perplexity, averaged over draws"."""
    ends = {
        "_mc": ", averaged over draws",
        "_dynamic": ", dynamic evaluation",
        "_bound": ", sharpened bound",
        "_raw": ", before correction",
    }
    head, _, text = key.rpartition(".")
    suffix = next((end for end in ends if text.endswith(end)), "")
    text = text.removesuffix(suffix).replace("valid_", "validation ", 1).replace("train_", "training ", 1)
    words = [_ACRONYMS.get(word, word) for word in text.replace("_", " ").split()]
    return f"{head + ': ' if head else ''}{' '.join(words)}{ends.get(suffix, '')}"


def number(value: float) -> str:
    """Four significant digits; thousands in groups."""
    if not math.isfinite(value):
        return str(value)
    value += 0.0  # no minus before nothing
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{value:,.0f}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) >= 10 else f"{value:.4g}"


def mean(values: Sequence[float]) -> str:
    """The mean over seeds, and where they differ ± their standard deviation with as many decimals."""
    middle = number(statistics.fmean(values))
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    if spread == 0:
        return middle
    decimals = len(middle.partition(".")[2]) if "e" not in middle else 0
    return f"{middle} ± {spread:.{decimals}f}" if decimals and "e" not in middle else f"{middle} ± {number(spread)}"
