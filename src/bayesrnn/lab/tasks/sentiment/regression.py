"""How good a regressor and its intervals are: errors, observation noise, coverage, error against uncertainty.

Predictions are draws (S, N): S settings of the weights, N targets. With noise sigma the predictive distribution of a
target is the mixture of the S Gaussians N(draw, sigma^2). A model without randomness has S = 1.
"""

import math
from typing import Any

import torch
from torch import Tensor

import bayesrnn as br
from bayesrnn.prediction.result import Summary

LEVELS = (0.5, 0.8, 0.9, 0.95)
SHARES = 20


def rmse(predicted: Tensor, targets: Tensor) -> float:
    """Root of the mean squared error; one shape for both, no broadcasting."""
    if predicted.shape != targets.shape:
        raise ValueError(f"predictions {tuple(predicted.shape)} and targets {tuple(targets.shape)} differ in shape")
    return float((predicted.double() - targets.double()).square().mean().sqrt())


def slope(predicted: Tensor, targets: Tensor) -> float | None:
    """Slope of the least-squares line of targets on predictions: below 1 they are too bold, above 1 too timid.

    None if all predictions are the same.
    """
    p, t = (values.double() - values.double().mean() for values in (predicted, targets))
    spread = float(p.square().sum())
    return float((p * t).sum()) / spread if spread > 0 else None


def log_likelihood(draws: Tensor, targets: Tensor, sigma: float) -> float:
    """Mean over targets of the log density of the mixture, in nats."""
    scaled = (targets.double() - draws.double()) / sigma
    each = torch.logsumexp(-0.5 * scaled.square(), 0) - math.log(len(draws))
    return float(each.mean()) - math.log(sigma) - 0.5 * math.log(2 * math.pi)


def fit_noise(draws: Tensor, targets: Tensor) -> float:
    """The sigma of greatest likelihood on these targets, to three digits or better.

    Call it with targets that were not trained on: on training targets the noise is too small by the overfitting.
    """
    error = rmse(draws.mean(0), targets)
    if error == 0:
        raise ValueError("every prediction is exact, so there is no noise to fit")
    # The best sigma is at most the error of a single draw; a fine grid, and a finer one around its best point.
    spread = float(draws.double().var(0, correction=0).mean()) ** 0.5
    low, high = math.log(error * 1e-3), math.log(2 * math.hypot(error, spread))
    for _ in range(3):
        grid = torch.linspace(low, high, 41, dtype=torch.float64).tolist()
        best = max(range(len(grid)), key=lambda i: log_likelihood(draws, targets, math.exp(grid[i])))
        low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    return math.exp((low + high) / 2)


def intervals(draws: Tensor, sigma: float, level: float) -> tuple[Tensor, Tensor]:
    """(low, high), each (N,): equal tails of the mixture."""
    summary = Summary(br.Gaussian(sigma, learn=False), keep_samples=True)
    summary.add(draws.double())
    low, high = summary.prediction().interval(level)
    return low, high


def interval_metrics(draws: Tensor, targets: Tensor, sigma: float) -> list[dict[str, float]]:
    """For every level of ``LEVELS``: the share of targets inside their interval, and its mean width."""
    found = []
    for level in LEVELS:
        low, high = intervals(draws, sigma, level)
        coverage = br.uncertainty.interval_coverage(low, high, targets.to(low))
        found.append({"level": level, "coverage": coverage, "width": float((high - low).mean())})
    return found


def selective_risk(draws: Tensor, targets: Tensor) -> dict[str, Any] | None:
    """Error against uncertainty, the standard deviation of the draws; None if all predictions are equally uncertain.

    Returns:
        ``risk``: RMSE of the most certain predictions, for ``SHARES`` shares of them (``coverage``).
    """
    spread = draws.double().std(0, correction=0)
    if float(spread.max()) == float(spread.min()):
        return None
    curve = br.uncertainty.risk_coverage(spread, (draws.double().mean(0) - targets.double()).square())
    coverage = [(i + 1) / SHARES for i in range(SHARES)]
    return {"risk": {"coverage": coverage, "rmse": [math.sqrt(curve.risk_at(c)) for c in coverage]}}
