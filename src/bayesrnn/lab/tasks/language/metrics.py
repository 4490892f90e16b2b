"""Metrics of language models: their labels, their places in a report, and the paper's values beside them."""

from collections.abc import Mapping
from typing import Any

from bayesrnn.lab.metrics import Metric
from bayesrnn.lab.tasks.language.dynamic_metrics import KINDS, OF_A_RULE

_SPLITS = {"valid": "validation", "test": "test"}
_PERPLEXITIES = {
    "": "",
    "_mc": ", averaged over draws",
    "_bound": ", sharpened bound",
    "_tempered": ", at the temperature chosen on validation",
    "_dynamic": ", dynamic evaluation",
    "_dynamic_rms": ", dynamic evaluation by the RMS rule",
    "_dynamic_bound": ", dynamic evaluation, sharpened bound",
    "_dynamic_rms_bound": ", dynamic evaluation by the RMS rule, sharpened bound",
}
_GAPS = {"_mean": ", posterior mean", "_1": ", one draw", "": ", with draws"}
_OTHER = {kind: what for kind, what in KINDS.items() if kind}
_OTHER_GAPS = {
    f"{one}{kind}": f", {text} {what}"
    for kind, what in _OTHER.items()
    for one, text in (("_1", "one of the"), ("", "average of"))
}


def _published(name: str) -> str:
    return name if name in ("valid", "test", "test_mc", "valid_dynamic", "test_dynamic") else ""


METRICS = (
    *(
        Metric(
            f"{split}_perplexity{end}", f"{name} perplexity{text}", paper_key=_published(f"{split}{end}")
        )
        for end, text in _PERPLEXITIES.items()
        for split, name in _SPLITS.items()
    ),
    Metric("test_calibration_error", "test calibration error"),
    Metric("test_calibration_error_mc", "test calibration error, averaged over draws"),
    Metric("test_calibration_error_tempered", "test calibration error, at the temperature chosen on validation"),
    Metric("test_entropy", "test entropy", "nats", None),
    Metric("test_entropy_tempered", "test entropy, at the temperature chosen on validation", "nats", None),
    Metric("test_mutual_information", "test mutual information", "nats", None),
    *(
        Metric(
            f"entropy_gap{end}", f"entropy gap{text}", "nats", False,
            paper_key={"": "entropy_gap", "_mean": "entropy_gap_mean"}.get(end, ""),
        )
        for end, text in _GAPS.items()
    ),
)  # fmt: skip
_CONDITIONS = ("samples", "draws_seed", "entropy_samples", "entropy_draws_seed")
DETAILS = (
    *(
        Metric(f"{split}_perplexity_mc{kind}", f"{name} perplexity, averaged over {what}")
        for kind, what in _OTHER.items()
        for split, name in _SPLITS.items()
    ),
    *(Metric(f"entropy_gap{end}", f"entropy gap{text}", "nats", False) for end, text in _OTHER_GAPS.items()),
    *(
        Metric(f"reversed_entropy{end}", f"reversed entropy{text}", "nats", None)
        for end, text in (_GAPS | _OTHER_GAPS).items()
    ),
    *(
        Metric(f"{key}{kind}", f"{key.replace('_mc', '').replace('_', ' ')}, {what}", unit, better)
        for kind, what in _OTHER.items()
        for key, unit, better in (
            ("test_calibration_error_mc", "", True),
            ("test_mutual_information", "nats", None),
            *((each, "", None) for each in _CONDITIONS),
        )
    ),
)
CONDITIONS = (*(f"{key}{kind}" for key in _CONDITIONS for kind in KINDS), "noise_scaled")


def bounds_of(values: Mapping[str, float]) -> dict[str, float]:
    """Published values of a sharpened model, whose perplexities are bounds."""
    return {
        f"{key}_bound" if key.removesuffix("_dynamic").endswith("_perplexity") else key: value
        for key, value in values.items()
    }


def table(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The rows that ``bayesrnn evaluate`` prints, with dynamic evaluation by the rule that was not the best."""
    kept = ("dynamic_lr", "dynamic_decay", *(key for key in OF_A_RULE if "perplexity" in key))
    others = {
        f"{key} ({rule})": own[OF_A_RULE[key]]
        for rule, own in metrics.get("dynamic_by_rule", {}).items() if rule != metrics.get("dynamic_rule")
        for key in kept if OF_A_RULE[key] in own
    }  # fmt: skip
    return {key: value for key, value in {**metrics, **others}.items() if not isinstance(value, list | dict)}


def remarks(metrics: Mapping[str, Any]) -> list[str]:
    """Perplexities of fewer draws, as sentences."""
    found = []
    for key, what in KINDS.items():
        if by_draws := metrics.get(f"test_perplexity_by_draws{key}"):
            each = ", ".join(f"{row['perplexity']:.2f} with {row['draws']}" for row in by_draws)
            found.append(f"Test perplexity by the number of {what}: {each}.")
    return found
