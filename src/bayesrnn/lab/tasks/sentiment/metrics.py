"""Metrics of ratings: errors in rating units, and the likelihood of the ratings."""

from bayesrnn.lab.metrics import Metric

_SPLITS = {"valid": "validation", "test": "test"}
_WAYS = {"": "", "_mc": ", averaged over draws"}
_KINDS = {"rmse": ("RMSE", True), "slope": ("slope", None)}


def _metric(split: str, key: str, way: str, *, end: bool = False) -> Metric:
    label, lower = _KINDS[key]
    head, text = ("end.", "after the last epoch: ") if end else ("", "")
    name = f"{text}{_SPLITS[split]} {label}{_WAYS[way]}"
    return Metric(f"{head}{split}_{key}{way}", name, lower_is_better=lower)


METRICS = (
    *(_metric(split, "rmse", way) for way in ("", "_mc") for split in _SPLITS),
    Metric("test_review_rmse", "test RMSE of whole reviews"),
    *(_metric("test", "slope", way) for way in ("", "_mc")),
    Metric("test_log_likelihood", "test log likelihood", "nats", False),
    Metric("noise", "noise of a rating, standard deviation", lower_is_better=None),
    Metric("test_coverage_90", "test ratings inside 90% intervals, share", lower_is_better=None),
)
DETAILS = (
    *(_metric("valid", "slope", way) for way in ("", "_mc")),
    *(_metric(split, key, way, end=True) for key in _KINDS for way in _WAYS for split in _SPLITS),
    Metric("end.test_review_rmse", "after the last epoch: test RMSE of whole reviews"),
    Metric("end.test_log_likelihood", "after the last epoch: test log likelihood", "nats", False),
)
