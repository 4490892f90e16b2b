"""The figures of one evaluation among those that a record has: which stay, and which are replaced."""

import math
from collections.abc import Mapping
from typing import Any

PAPERS_RULE = "sgd"
"""Of dynamic evaluation, in all published figures that recipes have."""
WORDS = "_words"
"""The end of the names of all figures of draws that drop words, which is not the published protocol."""
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
    """Figures of dynamic evaluation, rule by rule; those of an earlier version's record are of one rule alone."""
    found = metrics.get("dynamic_by_rule")
    if isinstance(found, dict):
        return {rule: figures for rule, figures in found.items() if isinstance(figures, dict)}
    flat = {name: metrics[key] for key, name in OF_A_RULE.items() if key in metrics}
    return {str(metrics.get("dynamic_rule", PAPERS_RULE)): flat} if "test_perplexity" in flat else {}


def merged(kept: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics of a run with those of another evaluation, which count where both have one.

    Of dynamic evaluation every rule is kept; the one that is best on the validation text has the names without a rule.
    """
    whole = {**kept, **new}
    if new.get("samples") == 0:  # of the mean now, under the names that figures of draws have in this task
        for key in [k for k in kept if k == "draws_seed" or "_mc" in k]:
            if key not in new:
                del whole[key]
    for kind in ("", WORDS):
        if f"samples{kind}" in new:  # other draws
            for key in {f"valid_perplexity_mc{kind}", f"valid_perplexity_by_draws{kind}"} - new.keys():
                whole.pop(key, None)
    if not by_rule(new):
        return whole
    rules = {**by_rule(kept), **by_rule(new)}
    best = min(rules, key=lambda rule: _on_validation(rules[rule]))
    for key in OF_A_RULE:
        whole.pop(key, None)
    flat = {key: rules[best][name] for key, name in OF_A_RULE.items() if name in rules[best]}
    return {**whole, **flat, "dynamic_rule": best, "dynamic_by_rule": rules}


def _on_validation(figures: Mapping[str, Any]) -> float:
    found = figures.get("valid_perplexity")
    return found if isinstance(found, int | float) else math.inf
