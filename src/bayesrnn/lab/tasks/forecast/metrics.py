"""Metrics of forecasts: scores of the whole distribution, errors of its centre, and what its intervals hold."""

from bayesrnn.lab.metrics import Metric

METRICS = (
    Metric("test_crps", "test CRPS"),
    Metric("test_mae", "test MAE"),
    Metric("test_rmse", "test RMSE"),
    Metric("test_coverage", "test coverage", lower_is_better=None),
    Metric("test_width", "test width", lower_is_better=None),
    Metric("naive_crps", "naive CRPS", lower_is_better=None),
    Metric("seasonal_naive_crps", "seasonal naive CRPS", lower_is_better=None),
    Metric("epistemic_share", "epistemic share", "share", None),
    Metric("valid_crps", "validation CRPS of the networks, scaled"),
)
DETAILS = tuple(
    Metric(f"{name}_{key}", f"{name.replace('_', ' ')} {key}", lower_is_better=None)
    for name in ("naive", "seasonal_naive")
    for key in ("coverage", "width")
)
