"""Fitting: bases are chosen, trees and networks are trained beside them, and all are weighed on the last rows."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch

from bayesrnn.forecasting import calibration, grids, trees
from bayesrnn.forecasting.bounds import kinds
from bayesrnn.forecasting.empirical import empirical
from bayesrnn.forecasting.model import Model, Part, parts_of
from bayesrnn.forecasting.network import tensors
from bayesrnn.forecasting.panel import Panel
from bayesrnn.forecasting.selection import Base, Fold, apart, choose, few, folds, score, structured, validation
from bayesrnn.forecasting.structure import Structure
from bayesrnn.forecasting.training import Member, Settings, combine, with_share
from bayesrnn.forecasting.trees import Trees
from bayesrnn.forecasting.windows import Batch, Shape, Windows, origins

Array = np.ndarray
_VALID = 2_000  # windows
_POWER = 4.0  # of scores, in the weights of forecasts of few rows
_FLOOR, _RARELY = 0.8, 0.005  # of the lowest value; how often values may fall below that


@dataclass
class Prepared:
    """A model of bases, and what networks are trained and weighed on.

    ``before`` are the linear bases as fitted to rows before ``fold``, ``past`` the further parts likewise. Where
    there is no fold, networks do not help, and the model is finished.
    """

    panel: Panel
    model: Model
    holidays: str | None
    before: list[Base] = field(default_factory=list)
    past: list[Part] = field(default_factory=list)
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
        batch = self.cuts[0].batch(np.zeros(1, int), np.full(1, shape.least))
        inputs = tensors(batch, shape, batch.spread, batch.target)
        return inputs[0].shape[2], inputs[1].shape[1], inputs[2].shape[2]


def prepare(panel: Panel, shapes: list[Shape], *, likelihood: str, calibrate: bool, holidays: str | None,
            seconds: float, seed: int, say: Callable[[str], None],
            progress: Callable[[str, float], None]) -> Prepared:  # fmt: skip
    """Choose bases."""
    rng = np.random.default_rng(seed)
    say(
        f"{len(panel.y):,} rows of {len(panel):,} series; forecasts {shapes[0].horizon} steps from the last "
        f"{shapes[0].context}"
    )
    never, small = kinds(panel)
    counts = {"negative_binomial": 1.0, "auto": float(small.mean())}.get(likelihood, 0.0)
    ends = _share(panel, shapes[0], never, np.random.default_rng(seed)), float(never.mean()), counts
    blank = grids.Calibration.identity(shapes[0].horizon)
    short = few(panel, shapes[0])
    found: list[Structure] = []
    if short:
        one, earlier = structured(panel, shapes, holidays=holidays, calibrate=calibrate, rng=rng, say=say)
        found = [one]
        if not panel.past.shape[1] or not folds(panel, shapes[0]):
            every: list[Part] = [one, *empirical(panel, one.shape)]
            model = Model(every, [], np.eye(len(every))[0], blank, one.correlation(), *ends)
            if earlier:
                model.weights = _shares(model, panel, earlier, holidays=holidays)
                say(f"weights of structure and past values: {model.weights.round(2).tolist()}")
            return Prepared(panel, model, holidays)
    bases, before, fold = choose(
        panel, shapes, holidays=holidays, rng=rng, seconds=seconds, say=say, progress=progress
    )  # fmt: skip
    if short:  # a linear forecast knows the past columns
        both = Model([*found, bases[0]], [], np.full(2, 0.5), blank, found[0].correlation(), *ends)
        return Prepared(panel, both, holidays)
    past: list[Part] = [*empirical(panel, bases[0].shape)]
    every = [*bases, *past]
    model = Model(every, [], np.eye(len(every))[0], blank, np.eye(len(blank.centre)), *ends)
    prepared = Prepared(panel, model, holidays, before, past, fold)
    if prepared.held is None:
        say("no values in the last rows to choose on: the first base alone")
        return Prepared(panel, model, holidays)
    return prepared


def with_trees(prepared: Prepared, *, year: bool, seed: int, seconds: float, progress: Callable[[str, float], None],
               ) -> Prepared:  # fmt: skip
    """The same with boosted trees, fitted to rows before the fold and to all rows. ``year``: whether they may look at
    the place in the year."""
    panel, model, fold = prepared.panel, prepared.model, prepared.fold
    assert fold is not None
    started, made = time.monotonic(), list[Trees]()
    windows = Windows(panel, replace(model.shape, year=year), holidays=prepared.holidays)
    for k, cut in enumerate((fold.cut, panel.lengths)):
        progress("fitting trees" if k == 0 else "fitting trees to the latest rows", k / 2)
        one = trees.fitted(windows, cut, seed=seed + k, until=started + seconds * (k + 1) / 2)
        if one is None:
            return prepared
        made.append(one)
    bases = [*model.bases, made[1]]
    model = replace(model, bases=bases, weights=np.append(model.weights, 0.0))
    return replace(prepared, model=model, past=[*prepared.past, made[0]])


def likelihoods_of(panel: Panel, likelihood: str) -> list[str]:
    """Those of the networks, in turn."""
    if likelihood != "auto":
        return [likelihood]
    return [*(["negative_binomial"] if kinds(panel)[1].all() else []), "student", "quantiles"]


def member_of(prepared: Prepared, names: Sequence[str], settings: Settings, k: int) -> Member:
    """Network number k, with its initial weights. Likelihoods and bases take turns. One turn in three has a recurrent
    layer; the others have none."""
    turn = k // len(names)
    if turn % 3:
        settings = replace(settings, cell="none")
        number = (turn % 3 - 1) % len(prepared.before)
    else:
        number = (k + turn // 3) % len(prepared.before)
    return Member(names[k % len(names)], prepared.sizes, prepared.model.shape, settings, number)


def finish(prepared: Prepared, members: list[Member], *, likelihood: str, calibrate: bool, seed: int,
           say: Callable[[str], None]) -> Model:  # fmt: skip
    """Weigh bases and networks by what helps on validation, and calibrate."""
    model = replace(prepared.model, members=members)
    if prepared.held is not None:
        _weigh(model, prepared, prepared.held, likelihood=likelihood, calibrate=calibrate, seed=seed, say=say)
    if calibrate:
        model.cold = calibration.cold_start(model, prepared.panel, holidays=prepared.holidays, seed=seed)
    return model


def _weigh(model: Model, prepared: Prepared, held: Batch, *, likelihood: str, calibrate: bool, seed: int,
           say: Callable[[str], None]) -> None:  # fmt: skip
    members, learnt, past = model.members, len(prepared.before), prepared.past
    bases, count = len(model.bases), len(model.bases) + len(members)
    parts = parts_of(
        [*prepared.before, *past], members, prepared.cuts, held.series, held.ends, seed, list(range(count))
    )

    floor = model.floor(prepared.cuts[0], held)

    def mixed(weights: Array) -> Array:
        return sum(weights[k] * np.maximum(parts[k][0], floor) for k in np.flatnonzero(weights).tolist())  # type: ignore[return-value]

    allowed = np.arange(count) >= (bases if likelihood != "auto" and members else 0)
    kinds = np.repeat([0, 1, 2], [learnt, len(past), len(members)])
    several = apart([held], model.shape)

    def scored(weights: Array) -> float:
        return score(mixed(weights), held, model.shape)

    model.weights = combine(scored, allowed, kinds, apart=several)
    for k, part in enumerate(past, learnt):
        if isinstance(part, Trees) and allowed[k]:
            model.weights = with_share(scored, model.weights, k)
    named = [
        *(f"linear {k + 1}" for k in range(learnt)),
        *("trees" if isinstance(part, Trees) else "past values" for part in past),
    ]
    named += [m.likelihood for m in members]
    shown = ", ".join(f"{n} {w:.0%}" for n, w in zip(named, model.weights, strict=True) if w)
    say(f"weights: {shown}; scaled validation CRPS {score(mixed(model.weights), held, model.shape):.4f}")
    # The base's quantiles are those of errors in all folds, the networks' of the last one.
    earlier = len(folds(prepared.panel, model.shape)) > 1 and model.weights[bases:].any()
    calibration.calibrate(model, mixed(model.weights), held, calibrate, parts[0][0] if earlier else None, say)


def _shares(model: Model, panel: Panel, earlier: list[tuple[Structure, Batch]], *, holidays: str | None) -> Array:
    """Weights (n,) of a structure and of past values, as the inverse of their scores on earlier folds to a power. What
    is chosen on few rows is chosen by chance; shares that change smoothly with the scores are not."""
    cuts = [Windows(panel, base.shape, holidays=holidays) for base in model.bases]
    total = np.zeros(len(cuts))
    for before, held in earlier:
        for k, (base, windows) in enumerate(zip([before, *model.bases[1:]], cuts, strict=True)):
            grid = base.levels(windows, windows.batch(held.series, held.ends))[0]
            lower = model.bounds(windows, held.series, held.ends).lower[:, None, None]
            total[k] += len(held.ends) * score(np.maximum(grid, lower), held, model.shape)
    found: Array = (total / total.min()) ** -_POWER if total.min() > 0 else 1.0 * (total == 0)
    return found / found.sum()


def _share(panel: Panel, shape: Shape, never: Array, rng: np.random.Generator) -> float:
    """The share of the lowest value of a context that values after it do not fall below, of series that are ``never``
    (S,) negative: 0 where they do, as in a decline."""
    low, high = np.full(len(panel), shape.least), np.where(never, panel.lengths - shape.horizon, -1)
    batch = Windows(panel, shape).batch(*origins(panel, shape, low, high, _VALID, rng))
    if np.isnan(batch.actual).all():
        return 0.0
    lowest = np.where(batch.known, batch.levels(shape, batch.context), math.inf).min(1)
    below = np.nanmean(np.where(np.isnan(batch.actual), np.nan, batch.actual < _FLOOR * lowest[:, None]))
    return _FLOOR if below < _RARELY else 0.0


def fit_model(panel: Panel, shapes: list[Shape], settings: Settings, *, likelihood: str, members: int | None,
              calibrate: bool, holidays: str | None, seconds: float, seed: int, say: Callable[[str], None],
              progress: Callable[[str, float], None]) -> Model:  # fmt: skip
    """Choose bases, train networks in the time that is left, and keep what helps on validation."""
    started = time.monotonic()
    prepared = prepare(
        panel, shapes, likelihood=likelihood, calibrate=calibrate, holidays=holidays,
        seconds=seconds * (1 if members == 0 else 0.5), seed=seed, say=say, progress=progress,
    )  # fmt: skip
    made: list[Member] = []
    fold = prepared.fold
    if members != 0 and fold is not None:
        if likelihood == "auto":
            year = all(shape.year for shape in shapes)
            prepared = with_trees(prepared, year=year, seed=seed, seconds=0.25 * seconds, progress=progress)
        names, left = likelihoods_of(panel, likelihood), 0.75 * seconds - (time.monotonic() - started)
        made = _trained(prepared, fold, settings, names, members, left, seed, progress)
    model = finish(prepared, made, likelihood=likelihood, calibrate=calibrate, seed=seed, say=say)
    _refit(model, prepared, started + 0.95 * seconds, seed, progress)
    return model


def _refit(model: Model, prepared: Prepared, until: float, seed: int, progress: Callable[[str, float], None]) -> None:
    """Networks that are used learn from the latest rows too."""
    used = np.flatnonzero(model.weights[len(model.bases) :]).tolist()
    for i, k in enumerate(used):
        member = model.members[k]
        base = model.bases[member.base]
        assert isinstance(base, Base)
        progress(f"training network {k + 1} on the latest rows", i / len(used))
        left = until - time.monotonic()
        windows = Windows(prepared.panel, base.shape, holidays=prepared.holidays)
        with torch.random.fork_rng([]):
            torch.manual_seed(seed * 1009 + 500 + k)
            member.refit(base, windows, until=time.monotonic() + left / (len(used) - i), seed=seed + 500 + k)


def _trained(
    prepared: Prepared, fold: Fold, settings: Settings, names: list[str], members: int | None, seconds: float,
    seed: int, progress: Callable[[str, float], None],
) -> list[Member]:  # fmt: skip
    wanted = members if members is not None else max(4, 3 * len(names))
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
                    f"{label}: step {steps}, scaled validation CRPS {score:.4f}", share
                ),
            )  # fmt: skip
        found.append(member)
    return found
