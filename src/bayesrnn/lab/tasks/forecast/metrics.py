"""Metrics of forecasts: scores of the whole distribution, errors of its mean, and what its intervals hold."""

from bayesrnn.lab.metrics import Metric

_SPLITS = {"valid": "validation", "test": "test"}
_KINDS = {
    "crps": ("CRPS", True), "rmse": ("RMSE", True), "mae": ("MAE", True), "nll": ("-log p", True),
    "coverage": ("coverage", None), "width": ("width", None),
}  # fmt: skip

METRICS = (
    *(Metric(f"{split}_crps", f"{name} CRPS") for split, name in _SPLITS.items()),
    *(
        Metric(f"test_{key}", f"test {label}", lower_is_better=lower)
        for key, (label, lower) in _KINDS.items()
        if key != "crps"
    ),
    Metric("naive_crps", "naive CRPS", lower_is_better=None),
    Metric("seasonal_naive_crps", "seasonal naive CRPS", lower_is_better=None),
    Metric("epistemic_share", "epistemic share", "share", None),
)
DETAILS = (
    Metric("seasonal_naive_log_crps", "seasonal naive CRPS, of logarithms", lower_is_better=None),
    *(
        Metric(f"valid_{key}", f"validation {label}", lower_is_better=lower)
        for key, (label, lower) in _KINDS.items()
        if key != "crps"
    ),
    *(
        Metric(f"{split}_{key}_raw", f"{name} {_KINDS[key][0]}, before correction", lower_is_better=_KINDS[key][1])
        for key in ("crps", "coverage", "width")
        for split, name in _SPLITS.items()
    ),
)
