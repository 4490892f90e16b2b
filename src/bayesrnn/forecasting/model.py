"""What is fitted: a base forecast, networks beside it, their weights, calibration, and dependence across steps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch

from bayesrnn.forecasting import grids
from bayesrnn.forecasting.network import patch_of, tensors
from bayesrnn.forecasting.panel import Panel
from bayesrnn.forecasting.selection import Base, Fold, apart, choose, few, folds, score, structured, validation
from bayesrnn.forecasting.structure import Structure
from bayesrnn.forecasting.training import Member, Settings, combine
from bayesrnn.forecasting.windows import Batch, Shape, Windows

Array = np.ndarray
_SMALL_COUNTS = 30.0  # counts with a mean below are forecast as counts
_VALID = 2_000
_FLOOR = 0.8  # of the lowest value


@dataclass
class Model:
    """Everything a forecast needs but the series: bases first, then networks, in the order of ``weights``."""

    bases: Sequence[Base | Structure]
    members: list[Member]
    weights: Array
    calibration: grids.Calibration
    correlation: Array
    lower: float

    @property
    def shape(self) -> Shape:
        return self.bases[0].shape

    def grid(self, cuts: list[Windows], series: Array, ends: Array, *, seed: int) -> tuple[Array, Array]:
        """Calibrated quantiles (B, H, Q) in the unit of the series, and the epistemic share of the variance (B, H)."""
        used = np.flatnonzero(self.weights).tolist()
        parts = _parts(self.bases, self.members, cuts, series, ends, seed, used)
        floor = self.floor(cuts[0].batch(series, ends))
        grid = sum(self.weights[k] * np.maximum(parts[k][0], floor) for k in used)
        share = sum(self.weights[k] * parts[k][1] for k in used)
        return np.maximum(self.calibration.apply(grid), floor), share  # type: ignore[return-value, arg-type]

    def bounded(self, grid: Array) -> Array:
        return np.maximum(grid, self.lower)

    def floor(self, batch: Batch) -> Array:
        """What forecasts (B, H, Q) of quantities that are never negative do not fall below: near the lowest value of
        the context, since a sum of errors of both signs does not know that such quantities have a lower end."""
        if not math.isfinite(self.lower):
            return np.full((len(batch.ends), 1, 1), -math.inf)
        levels = np.where(batch.known, batch.levels(self.shape, batch.context), math.inf)
        return np.maximum(_FLOOR * levels.min(1), self.lower)[:, None, None]


def _parts(
    bases: Sequence[Base | Structure],
    members: list[Member],
    cuts: list[Windows],
    series: Array,
    ends: Array,
    seed: int,
    used: list[int],
) -> dict[int, tuple[Array, Array]]:
    """Quantiles and epistemic shares of bases and networks, by their numbers."""
    found = {}
    batches = [windows.batch(series, ends) for windows in cuts]
    for k in used:
        member = members[k - len(bases)] if k >= len(bases) else None
        i = k if member is None else member.base
        base, batch, windows = bases[i], batches[i], cuts[i]
        if member is None:
            found[k] = base.levels(windows, batch)
            continue
        assert isinstance(base, Base)  # networks are trained beside these
        levels, share = member.levels(base, windows, batch, seed=seed, draws=member.draws)
        found[k] = levels, 1 - (1 - share) * (1 - base.doubt(batch))
    return found


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
    made = [(log, scalings[0]) for log in logs] + [("none", s) for s in scalings[1:] if "none" in logs]
    lowest = max(float(known.min() + shift) / 2, 1e-300)
    return [Shape(size, horizon, fitting, s, log, shift if log != "none" else 0.0, lowest) for log, s in made]


def context_of(longest: int, horizon: int, seasons: tuple[int, ...]) -> int:
    """Two or three of the longest season, and at least three horizons; twelve where there is no season."""
    first = seasons[0] if seasons else 1
    largest = max(seasons, default=1)
    wanted = 3 * largest if largest <= 60 else 2 * largest if largest < 200 else largest + max(first, horizon)
    wanted = max(wanted, 3 * horizon if seasons else min(12 * horizon, 200), 16)
    wanted = min(wanted, 800, max(8, (longest - horizon) // 2, largest + 1 if 2 * largest < longest else 8))
    grain = first if 1 < first <= wanted // 2 else 4
    return max(4, math.ceil(wanted / grain) * grain)


@dataclass
class Prepared:
    """A model of bases, and what networks are trained and weighed on.

    ``before`` are the bases as fitted to rows before ``fold``. Where there is no fold, networks do not help, and the
    model is finished.
    """

    panel: Panel
    model: Model
    holidays: str | None
    before: list[Base] = field(default_factory=list)
    fold: Fold | None = None

    @cached_property
    def cuts(self) -> list[Windows]:
        """Windows of each base, which learns from rows before the fold."""
        found = [Windows(self.panel, base.shape, holidays=self.holidays) for base in self.model.bases]
        for windows in found:
            windows.seen = self.panel.lengths if self.fold is None else self.fold.cut
        return found

    @cached_property
    def held(self) -> Batch | None:
        """Windows of the fold."""
        return validation(self.cuts[0], self.fold, _VALID, np.random.default_rng(1)) if self.fold else None

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Sizes of a network's inputs."""
        shape = self.model.shape
        batch, patch = (
            self.cuts[0].batch(np.zeros(1, int), np.full(1, shape.least)),
            patch_of(shape.context, shape.season),
        )
        inputs = tensors(batch, patch, batch.spread, batch.target)
        return inputs[0].shape[2], inputs[1].shape[1], inputs[2].shape[2]


def prepare(panel: Panel, shapes: list[Shape], *, calibrate: bool, holidays: str | None, seconds: float, seed: int,
            say: Callable[[str], None], progress: Callable[[str, float], None]) -> Prepared:  # fmt: skip
    """Choose bases."""
    rng = np.random.default_rng(seed)
    known = panel.y[~np.isnan(panel.y)]
    say(
        f"{len(panel.y):,} rows of {len(panel):,} series; {shapes[0].horizon} steps ahead from the last "
        f"{shapes[0].context}"
    )
    lower = 0.0 if known.min() >= 0 else -math.inf
    blank = grids.Calibration.identity(shapes[0].horizon)
    short = few(panel, shapes[0])
    found: list[Structure] = []
    if short:
        found = [structured(panel, shapes, holidays=holidays, calibrate=calibrate, rng=rng, say=say)]
        if not panel.past.shape[1] or not folds(panel, shapes[0]):
            return Prepared(panel, Model(found, [], np.ones(1), blank, found[0].correlation(), lower), holidays)
    bases, before, fold = choose(
        panel, shapes, holidays=holidays, rng=rng, seconds=seconds, say=say, progress=progress
    )  # fmt: skip
    if short:  # a linear forecast knows the past columns
        both = Model([*found, bases[0]], [], np.full(2, 0.5), blank, found[0].correlation(), lower)
        return Prepared(panel, both, holidays)
    model = Model(bases, [], np.eye(len(bases))[0], blank, np.eye(len(blank.centre)), lower)
    prepared = Prepared(panel, model, holidays, before, fold)
    if prepared.held is None:
        say("no values in the last rows to choose on: the first base alone")
        return Prepared(panel, model, holidays)
    return prepared


def likelihoods_of(panel: Panel, likelihood: str) -> list[str]:
    """Those of the networks, in turn."""
    if likelihood != "auto":
        return [likelihood]
    known = panel.y[~np.isnan(panel.y)]
    counts = bool((known >= 0).all() and (known == np.floor(known)).all() and known.mean() < _SMALL_COUNTS)
    return [*(["negative_binomial"] if counts else []), "student", "quantiles"]


def member_of(prepared: Prepared, names: Sequence[str], settings: Settings, k: int) -> Member:
    """Network number k, with its initial weights: it has the k-th likelihood, and one of the bases."""
    number = (k + k // len(names)) % len(prepared.before)
    return Member(names[k % len(names)], prepared.sizes, prepared.model.shape, settings, number)


def finish(prepared: Prepared, members: list[Member], *, likelihood: str, calibrate: bool, seed: int,
           say: Callable[[str], None]) -> Model:  # fmt: skip
    """Weigh bases and networks by what helps on validation, and calibrate."""
    model, held = replace(prepared.model, members=members), prepared.held
    if held is None:
        return model
    bases, count = len(model.bases), len(model.bases) + len(members)
    parts = _parts(prepared.before, members, prepared.cuts, held.series, held.ends, seed, list(range(count)))

    floor = model.floor(held)

    def mixed(weights: Array) -> Array:
        return sum(weights[k] * np.maximum(parts[k][0], floor) for k in np.flatnonzero(weights).tolist())  # type: ignore[return-value]

    allowed = np.arange(count) >= (bases if likelihood != "auto" and members else 0)
    model.weights = combine(lambda w: score(mixed(w), held, model.shape), allowed)
    named = [*(f"base {k + 1}" for k in range(bases)), *(m.likelihood for m in members)]
    shown = ", ".join(f"{n} {w:.2f}" for n, w in zip(named, model.weights, strict=True))
    say(f"weights: {shown}; validation CRPS {score(mixed(model.weights), held, model.shape):.4f}")
    # The base's quantiles are those of errors in all folds, the networks' of the last one.
    several = len(folds(prepared.panel, model.shape)) > 1 and model.weights[bases:].any()
    _calibrated(model, mixed(model.weights), held, calibrate, parts[0][0] if several else None, say)
    return model


def fit_model(panel: Panel, shapes: list[Shape], settings: Settings, *, likelihood: str, members: int | None,
              calibrate: bool, holidays: str | None, seconds: float, seed: int, say: Callable[[str], None],
              progress: Callable[[str, float], None]) -> Model:  # fmt: skip
    """Choose bases, train networks in the time that is left, and keep what helps on validation."""
    started = time.monotonic()
    prepared = prepare(
        panel, shapes, calibrate=calibrate, holidays=holidays, seconds=seconds * (1 if members == 0 else 0.5),
        seed=seed, say=say, progress=progress,
    )  # fmt: skip
    made: list[Member] = []
    if members != 0 and prepared.fold is not None:
        names, left = likelihoods_of(panel, likelihood), 0.9 * seconds - (time.monotonic() - started)
        made = _trained(prepared, prepared.fold, settings, names, members, left, seed, progress)
    return finish(prepared, made, likelihood=likelihood, calibrate=calibrate, seed=seed, say=say)


def _trained(
    prepared: Prepared, fold: Fold, settings: Settings, names: list[str], members: int | None, seconds: float,
    seed: int, progress: Callable[[str, float], None],
) -> list[Member]:  # fmt: skip
    wanted = members if members is not None else max(4, 2 * len(names))
    found: list[Member] = []
    ends = time.monotonic() + seconds
    for k in range(wanted):
        left = ends - time.monotonic()
        if left < 1 and found:
            break
        with torch.random.fork_rng([]):
            torch.manual_seed(seed * 1009 + k)
            member = member_of(prepared, names, settings, k)
            label = f"network {k + 1} of {wanted}"
            member.train(
                prepared.before[member.base], prepared.cuts[member.base], fold, seconds=max(left, 1.0) / (wanted - k),
                seed=seed + k,
                report=lambda steps, score, share, label=label: progress(
                    f"{label}: step {steps}, validation CRPS {score:.4f}", share
                ),
            )  # fmt: skip
        found.append(member)
    return found


def _calibrated(
    model: Model, grid: Array, held: Batch, wanted: bool, usual: Array | None, say: Callable[[str], None]
) -> None:
    """Recalibrate where scores on the other half of the windows improve; and the dependence across steps.

    ``usual``: quantiles from earlier periods too. A last fold that was calm by their account makes widths learnt there
    too narrow for other times, and a wild one too wide: they are brought to the size of usual errors.
    """
    count = apart([held], model.shape)
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
    if wanted and usual is not None:
        factor = np.nanmean(np.abs(z)) / np.nanmean(np.abs(grids.scores_of(usual, held.actual)))
        model.calibration = replace(model.calibration, spread=model.calibration.spread * factor)
        say(f"widths times {factor:.2f}: the last fold against earlier ones")
    model.correlation = correlation_of(z, count)


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
