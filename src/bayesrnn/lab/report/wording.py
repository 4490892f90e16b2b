"""Names and numbers of records in the words of a report."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from bayesrnn.lab.runs.record import Record

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
_ENDS = {
    "_mc_all_words": ", averaged over draws that keep all words",
    "_mc_words": ", averaged over draws that drop words",
    "_mc": ", averaged over draws",
    "_dynamic": ", dynamic evaluation",
    "_dynamic_rms": ", dynamic evaluation by the RMS rule",
    "_dynamic_bound": ", dynamic evaluation, sharpened bound",
    "_dynamic_rms_bound": ", dynamic evaluation by the RMS rule, sharpened bound",
    "_bound": ", sharpened bound",
    "_raw": ", before correction",
    "_tempered": ", at the temperature chosen on validation",
}
_OF_DRAWS = ("samples", "draws_seed", "entropy_samples", "entropy_draws_seed", "test_mutual_information")
_GAPS = ("entropy_gap", "reversed_entropy")
_WHOLE = {
    **{f"{name}": f"{name.replace('_', ' ')}, with draws" for name in _GAPS},
    **{f"{name}_1": f"{name.replace('_', ' ')}, one draw" for name in _GAPS},
    **{f"{name}_mean": f"{name.replace('_', ' ')}, posterior mean" for name in _GAPS},
    **{f"{name}_words": f"{name.replace('_', ' ')}, with draws that drop words" for name in _GAPS},
    **{f"{name}_1_words": f"{name.replace('_', ' ')}, one draw that drops words" for name in _GAPS},
    **{f"{name}_words": f"{name.replace('_', ' ')}, draws that drop words" for name in _OF_DRAWS},
}
_PERCENT = {"digits": ("valid_error", "test_error", "train_error")}
"""Measures of a task that are percentages."""
_HEADS = {"end": "after the last epoch", "human": "people's captions"}


def metric_of(run: Record) -> str:
    """The figure that training looked at, without its split: such as ``perplexity``."""
    from bayesrnn.errors import UserError
    from bayesrnn.lab.tasks.base import task_class

    try:
        key = task_class(run.task).metric
    except (UserError, ImportError, AttributeError):
        key = next((k for k in run.curves if k.startswith("valid_")), "")
    return key.removeprefix("valid_")


def paper_of(run: Record) -> dict[str, float]:
    """Published figures by the metric that each is to be compared with."""
    from bayesrnn.errors import UserError
    from bayesrnn.lab.tasks.base import task_class

    try:
        known = task_class(run.task).paper_figures
    except (UserError, ImportError, AttributeError):
        known = {}
    sharpened = part(run.settings, "posterior").get("kind") == "sharpened"
    found = {}
    for key, value in run.paper.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool) and key in known:
            name = known[key]
            found[f"{name}_bound" if sharpened and name.removesuffix("_dynamic").endswith("_perplexity") else name] = (
                float(value)
            )
    return found


def part(settings: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = settings.get(key)
    return value if isinstance(value, dict) else {}


def spoken(key: str, task: str = "") -> str:
    """A metric's name in words: ``test_perplexity_mc`` is "test perplexity, averaged over draws"."""
    head, _, text = key.rpartition(".")
    head = f"{_HEADS.get(head, head.replace('_', ' '))}: " if head else ""
    if text in _WHOLE:
        return head + _WHOLE[text]
    suffix = next((end for end in _ENDS if text.endswith(end)), "")
    unit = " in %" if text.removesuffix(suffix) in _PERCENT.get(task, ()) else ""
    text = text.removesuffix(suffix).replace("valid_", "validation ", 1).replace("train_", "training ", 1)
    words = [_ACRONYMS.get(word, word) for word in text.replace("_", " ").split()]
    return f"{head}{' '.join(words)}{unit}{_ENDS.get(suffix, '')}"


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


def figure(key: str, values: Sequence[float]) -> str:
    """The mean over seeds in the unit of its measure: shares of a whole are percentages."""
    if is_share(key) and all(0 <= value <= 1 for value in values):
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        return f"{statistics.fmean(values):.1%}" + (f" ± {spread:.1%}" if spread else "")
    return mean(values)


def is_share(key: str) -> bool:
    """Whether the measure is a share of a whole, by its name."""
    return "coverage" in key.split("_") or key.endswith("_share")
