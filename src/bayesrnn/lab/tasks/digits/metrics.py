"""Metrics of classifiers of digits. Errors are in percent, -log p and entropies in nats per image."""

from bayesrnn.lab.metrics import Metric

_KINDS = {
    "error": ("error in %", "%", True),
    "calibration_error": ("calibration error", "", True),
    "entropy": ("entropy", "nats", None),
    "nll": ("-log p", "nats", True),
}


def _metric(split: str, key: str, way: str) -> Metric:
    label, unit, lower = _KINDS[key]
    name, text = {"valid": "validation", "test": "test"}[split], ", averaged over draws" if way else ""
    paper = f"test_error{way}" if (split, key) == ("test", "error") else ""
    return Metric(f"{split}_{key}{way}", f"{name} {label}{text}", unit, lower, paper)


METRICS = (
    *(_metric(split, "error", way) for way in ("", "_mc") for split in ("valid", "test")),
    *(_metric("test", key, way) for way in ("", "_mc") for key in _KINDS if key != "error"),
)
DETAILS = (
    *(_metric("valid", key, way) for way in ("", "_mc") for key in _KINDS if key != "error"),
    Metric("train_error", "training error in %", "%"),
)
