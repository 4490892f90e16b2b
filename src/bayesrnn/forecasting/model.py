"""What is fitted: a base forecast, networks beside it, their weights, calibration, and dependence across steps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from bayesrnn.forecasting import grids
from bayesrnn.forecasting.panel import Panel
from bayesrnn.forecasting.selection import Base, Fold, apart, choose, score, validation
from bayesrnn.forecasting.training import Member, Settings, combine, windows_before
from bayesrnn.forecasting.windows import Batch, Shape, Windows

Array = np.ndarray
_FEW = 300  # windows: with fewer, no network is trained
_SMALL_COUNTS = 30.0  # counts with a mean below are forecast as counts
_VALID = 2_000


@dataclass
class Model:
    """Everything a forecast needs but the series."""

    base: Base
    members: list[Member]
    weights: Array
    calibration: grids.Calibration
    correlation: Array
    lower: float
    notes: list[str] = field(default_factory=list)

    def grid(self, windows: Windows, batch: Batch, *, seed: int) -> tuple[Array, Array]:
        """Calibrated quantiles (B, H, Q) in the unit of the series, and the epistemic share of the variance (B, H)."""
        found, share = _mixed(self, windows, batch, seed)
        return self.bounded(self.calibration.apply(found)), share

    def bounded(self, grid: Array) -> Array:
        return np.maximum(grid, self.lower)


def _parts(base: Base, members: list[Member], windows: Windows, batch: Batch, seed: int) -> list[tuple[Array, Array]]:
    """Quantiles and epistemic shares of the base and of each network."""
    point = base.point(batch)
    levels = batch.levels(base.shape, base.grid(point, base.unit(windows, batch)))
    doubt = np.repeat(base.linear.doubt(batch)[:, None], base.shape.horizon, 1)
    return [(levels, doubt), *(m.levels(base, windows, batch, seed=seed, draws=m.draws) for m in members)]


def _mixed(model: Model, windows: Windows, batch: Batch, seed: int) -> tuple[Array, Array]:
    used = [m for m, w in zip(model.members, model.weights[1:], strict=True) if w > 0]
    weights = [model.weights[0], *(w for w in model.weights[1:] if w > 0)]
    parts = _parts(model.base, used, windows, batch, seed)
    pairs = [(w, g, s) for w, (g, s) in zip(weights, parts, strict=True) if w > 0]
    return sum(w * g for w, g, _ in pairs), sum(w * s for w, _, s in pairs)  # type: ignore[return-value]


def shapes_of(panel: Panel, horizon: int, *, seasons: tuple[int, ...], context: int | None, scaling: str,
              transform: str) -> list[Shape]:  # fmt: skip
    """What is tried on validation: with and without logarithms, scaled in two ways."""
    known = panel.y[~np.isnan(panel.y)]
    longest = int(np.quantile(panel.lengths, 0.75))
    fitting = tuple(s for s in seasons if 2.2 * s + horizon <= longest) or seasons[:1]
    size = context or context_of(longest, horizon, fitting)
    fitting = tuple(s for s in fitting if s < size)
    scalings = ("standard", "mean_abs") if scaling == "auto" else (scaling,)
    logs = ["none"] if transform == "none" else ["all"] if transform == "log" else ["none", "all"]
    if transform == "auto" and len(panel) > 1:
        logs.append("skewed")
    if known.min() < 0 or (transform == "auto" and np.quantile(known, 0.05) <= 0):
        logs = ["none"]
    shift = 0.0 if known.min() > 0 else 1.0
    made = [(log, s) for log in logs for s in scalings if log == "none" or s == scalings[0]]
    return [Shape(size, horizon, fitting, s, log, shift if log != "none" else 0.0) for log, s in made]


def context_of(longest: int, horizon: int, seasons: tuple[int, ...]) -> int:
    first = seasons[0] if seasons else 1
    largest = max(seasons, default=1)
    wanted = max(2 * horizon, 16, 2 * largest if largest < 200 else largest + max(first, horizon))
    wanted = min(wanted, 800, max(8, (longest - horizon) // 2, largest + 1 if 2 * largest < longest else 8))
    grain = first if 1 < first <= wanted // 2 else 4
    return max(4, math.ceil(wanted / grain) * grain)


def fit_model(panel: Panel, shapes: list[Shape], settings: Settings, *, likelihood: str, members: int | None,
              calibrate: bool, holidays: str | None, seconds: float, seed: int, say: Callable[[str], None],
              progress: Callable[[str, float], None]) -> Model:  # fmt: skip
    """Choose the base, train networks in the time that is left, and keep what helps on validation."""
    started, rng = time.monotonic(), np.random.default_rng(seed)
    known = panel.y[~np.isnan(panel.y)]
    base, before, fold = choose(panel, shapes, holidays=holidays, rng=rng, say=say)
    model = Model(
        base, [], np.ones(1), grids.Calibration.identity(base.shape.horizon), np.eye(base.shape.horizon),
        0.0 if known.min() >= 0 else -math.inf,
    )  # fmt: skip
    if fold is None:
        model.correlation = _decaying(base.shape.horizon, 0.7)
        return model
    windows = Windows(panel, base.shape, holidays=holidays)
    held = validation(windows, fold, _VALID, np.random.default_rng(1))
    assert held is not None
    if windows_before(windows, fold) >= _FEW and members != 0:
        counts = bool((known >= 0).all() and (known == np.floor(known)).all() and known.mean() < _SMALL_COUNTS)
        names = [likelihood] if likelihood != "auto" else ["student", "quantiles"]
        names = ["negative_binomial", *names] if counts and likelihood == "auto" else names
        left = seconds - (time.monotonic() - started)
        model.members = _trained(before, windows, fold, settings, names, members, left, seed, progress)
    parts = _parts(before, model.members, windows, held, seed)
    model.weights = combine(lambda w: score(np.maximum(_weighted(w, parts), model.lower), held, base.shape), len(parts))
    if likelihood != "auto" and model.members:
        model.weights[0] = 0.0 if model.weights[1:].any() else 1.0
        model.weights = model.weights / model.weights.sum()
    named = ["base", *(m.likelihood for m in model.members)]
    mixed = ", ".join(f"{n} {w:.2f}" for n, w in zip(named, model.weights, strict=True))
    say(f"weights: {mixed}; validation CRPS {score(_weighted(model.weights, parts), held, base.shape):.4f}")
    _calibrated(model, _weighted(model.weights, parts), held, calibrate and bool(model.weights[1:].any()), say)
    return model


def _weighted(weights: Array, parts: list[tuple[Array, Array]]) -> Array:
    return sum(w * grid for w, (grid, _) in zip(weights, parts, strict=True) if w > 0)  # type: ignore[return-value]


def _trained(
    base: Base, windows: Windows, fold: Fold, settings: Settings, names: list[str], members: int | None, seconds: float,
    seed: int, progress: Callable[[str, float], None],
) -> list[Member]:  # fmt: skip
    batch = windows.batch(np.zeros(1, int), np.full(1, base.shape.least))
    probe = Member(names[0], (1, 1, 1), base, replace(settings, hidden=4))
    patch = probe.patch
    about = 4 + batch.static.shape[1] + batch.calendar.shape[2]
    ahead = batch.calendar.shape[2] + batch.future.shape[2] + 1
    sizes = (patch * (2 + batch.past.shape[2]), about, ahead)
    wanted = members if members is not None else max(2, len(names)) * 2
    found: list[Member] = []
    ends = time.monotonic() + seconds
    for k in range(wanted):
        left = ends - time.monotonic()
        if left < 1 and found:
            break
        with torch.random.fork_rng([]):
            torch.manual_seed(seed * 1009 + k)
            member = Member(names[k % len(names)], sizes, base, settings)
            label = f"network {k + 1} of {wanted}"
            member.train(
                base, windows, fold, seconds=max(left, 1.0) / (wanted - k), seed=seed + k,
                report=lambda steps, score, share, label=label: progress(
                    f"{label}: step {steps}, validation CRPS {score:.4f}", share
                ),
            )  # fmt: skip
        found.append(member)
    return found


def _calibrated(model: Model, grid: Array, held: Batch, wanted: bool, say: Callable[[str], None]) -> None:
    """Recalibrate where scores on the other half of the windows improve; and the dependence across steps."""
    shape, count = model.base.shape, apart([held], model.base.shape)
    z = grids.scores_of(grid, held.actual)
    if wanted and count >= 10:
        order = np.argsort(held.ends / np.maximum(held.ends.max(), 1) if len(set(held.series)) == 1 else held.series,
                           kind="stable")  # fmt: skip
        halves = order[: len(order) // 2], order[len(order) // 2 :]
        gain = 0.0
        for a, b in (halves, halves[::-1]):
            tried = grids.Calibration.fit(z[a], count / 2)
            error = grids.crps(tried.apply(grid[b]), held.actual[b]) - grids.crps(grid[b], held.actual[b])
            gain += float(np.nanmean(error / np.nanmean(grids.crps(grid[b], held.actual[b]))))
        inside = float(np.mean(np.abs(z[~np.isnan(z)]) < 1.645))
        if gain < 0 or abs(inside - 0.9) > 0.03:
            model.calibration = grids.Calibration.fit(z, count)
            say(f"recalibrated: 90% intervals covered {inside:.1%} of validation values")
            grid = model.calibration.apply(grid)
            z = grids.scores_of(grid, held.actual)
    model.correlation = correlation_of(z, count)
    assert model.correlation.shape == (shape.horizon, shape.horizon)


def correlation_of(z: Array, count: float) -> Array:
    """Correlation (H, H) of scores (n, H) across steps, drawn towards one that decays where windows are few."""
    horizon = z.shape[1]
    filled = np.nan_to_num(np.clip(z, -4, 4) - np.nanmean(np.clip(z, -4, 4)))
    size = np.sqrt((filled**2).sum(0))
    size = np.where(size > 0, size, 1.0)
    found = (filled / size).T @ (filled / size)
    np.fill_diagonal(found, 1.0)
    next_to = float(np.clip(np.diagonal(found, 1).mean(), 0, 0.98)) if horizon > 1 else 0.0
    share = count / (count + horizon)
    return share * found + (1 - share) * _decaying(horizon, next_to)


def _decaying(horizon: int, next_to: float) -> Array:
    steps = np.arange(horizon)
    return next_to ** np.abs(steps[:, None] - steps)
