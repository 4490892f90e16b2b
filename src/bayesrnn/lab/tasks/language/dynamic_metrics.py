"""Metrics of language models in one record: how those of a later evaluation join them, and their names in a report."""

import math
from collections.abc import Mapping
from typing import Any

from bayesrnn.lab.reading import is_number
from bayesrnn.lab.tasks.base import merge_draws

PAPERS_RULE = "sgd"
"""The rule of dynamic evaluation in all published values that recipes have."""
KINDS = {
    "": "draws",
    "_words": "draws that drop words",
    "_units": "draws that keep all weights",
    "_scaled": "draws with scaled noise",
}
"""Suffixes of metric names, each with the draws it stands for; the published protocol has no suffix."""
OF_A_RULE = {
    **{f"dynamic_{name}": name for name in ("lr", "decay", "clip", "tried", "diverged")},
    **{
        f"{split}_perplexity_dynamic{kind}": f"{split}_perplexity{kind}"
        for split in ("valid", "test")
        for kind in ("", "_bound")
    },
}
"""Metrics of dynamic evaluation, and their names in ``dynamic_by_rule``."""


def by_rule(metrics: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Metrics of dynamic evaluation by rule; records of earlier versions have one rule."""
    found = metrics.get("dynamic_by_rule")
    if isinstance(found, dict):
        return {rule: own for rule, own in found.items() if isinstance(own, dict)}
    flat = {name: metrics[key] for key, name in OF_A_RULE.items() if key in metrics}
    return {str(metrics.get("dynamic_rule", PAPERS_RULE)): flat} if "test_perplexity" in flat else {}


def merged(kept: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics of a run with those of a later evaluation, which win where both have one.

    All rules of dynamic evaluation are kept; the rule with the best validation perplexity has the names without a rule.
    """
    whole = merge_draws(kept, new)
    if not by_rule(new):
        return whole
    rules = {**by_rule(kept), **by_rule(new)}
    valid: dict[str, Any] = {rule: own.get("valid_perplexity") for rule, own in rules.items()}
    best = min(rules, key=lambda rule: valid[rule] if is_number(valid[rule]) else math.inf)
    for key in OF_A_RULE:
        whole.pop(key, None)
    flat = {key: rules[best][name] for key, name in OF_A_RULE.items() if name in rules[best]}
    return {**whole, **flat, "dynamic_rule": best, "dynamic_by_rule": rules}


def carried(kept: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """What evaluation.json repeats of a record: dynamic evaluation by other rules."""
    return {"dynamic_by_rule": by_rule(kept)} if by_rule(new) else {}


def named_rules(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Perplexities of dynamic evaluation named by their rule; the papers' rule adds no suffix."""
    names = {key: name for key, name in OF_A_RULE.items() if "_perplexity" in key}
    found = {k: value for k, value in metrics.items() if "_perplexity_dynamic" not in k and k != "dynamic_tried"}
    for rule, own in by_rule(metrics).items():
        end = "" if rule == PAPERS_RULE else f"_{rule}"
        found |= {k.replace("_dynamic", f"_dynamic{end}"): own[n] for k, n in names.items() if n in own}
    return found
