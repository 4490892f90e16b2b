"""Networks of a forecaster: training within a time budget, and their quantiles."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

import bayesrnn as br
from bayesrnn.elbo import Terms
from bayesrnn.forecasting.network import Encoder, Head, make, tensors
from bayesrnn.forecasting.selection import Base, Fold, score, validation
from bayesrnn.forecasting.windows import Batch, Shape, Windows, origins
from bayesrnn.likelihoods.base import Distribution

Array = np.ndarray
_VALID = 1_500  # validation windows
EVERY = 40  # steps between looks at validation
_PATIENCE = 10  # looks without an improvement
_MEMORY = 0.98  # of the moving average of weights, per step
_TINY = 1e-9
_ALIKE = 0.1  # relative difference of scores that one window of validation cannot tell
_SHARE, _COST = 0.3, 0.01  # of a forecast that makes other errors; what that may cost on validation
_SHARPNESS, _LEAST = 20.0, 0.1  # of weights by scores: one that is 3% worse has about half the weight of the best
_MINUTES, _LONG, _MANY = 1.5, 3.0, 20_000  # time for training, and with more rows than these


def minutes_of(given: float | None, rows: int) -> float:
    """Time for training, if none is given."""
    return float(given) if given is not None else _MINUTES if rows <= _MANY else _LONG


@dataclass(frozen=True)
class Settings:
    """Settings of a network and its training."""

    posterior: str
    cell: str
    hidden: int
    layers: int
    dropout: float
    samples: int


NETWORK = tuple(field.name for field in fields(Settings))


class Member:
    """One trained network; its quantiles are around the forecast of base number ``base``."""

    def __init__(
        self, likelihood: str, sizes: tuple[int, int, int], shape: Shape, settings: Settings, base: int
    ) -> None:
        self.sizes, self.settings, self.likelihood, self.base = sizes, settings, likelihood, base
        self.head = Head(likelihood, shape.horizon)
        rate = settings.dropout if settings.posterior == "variational" else 0.0
        network = Encoder(
            *sizes, shape.horizon, self.head.likelihood.size, cell=settings.cell, hidden=settings.hidden,
            layers=settings.layers, dropout=rate,
        )  # fmt: skip
        self.model: nn.Module = make(network, settings.posterior)
        self.steps = 0  # of training, up to the best validation score

    @property
    def draws(self) -> int:
        return self.settings.samples if self.settings.posterior != "none" else 1

    def levels(self, base: Base, windows: Windows, batch: Batch, *, seed: int, draws: int) -> tuple[Array, Array]:
        """Quantiles (B, H, Q) in the unit of the series, and the epistemic share of the variance (B, H)."""
        point, unit = base.point(windows, batch), base.unit(windows, batch)
        return self._levels(base, batch, point, unit, tensors(batch, base.shape, unit, point), seed=seed, draws=draws)

    @torch.no_grad()
    def _levels(
        self, base: Base, batch: Batch, point: Array, unit: Array, inputs: Sequence[Tensor], *, seed: int, draws: int
    ) -> tuple[Array, Array]:  # fmt: skip
        self.model.eval()
        inputs = [x.to(self.device) for x in inputs]
        if draws == 1:
            found = [self.model(*inputs)]
        else:
            found = []
            for k in range(draws):
                with br.draw(self.model, seed=1000 * seed + k):
                    found.append(self.model(*inputs))
        level = torch.as_tensor(batch.levels(base.shape, point))
        grid, share = self.head.grid(self.head.parameters(torch.stack(found).cpu(), level))
        if self.head.counts:
            return grid, share
        size = unit[:, None] * self.head.size
        return batch.levels(base.shape, point[..., None] + size[..., None] * grid), share

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def sampler(self, base: Base, windows: Windows, fold: Fold, rng: np.random.Generator) -> Sampler:
        """The windows to train on. The head starts from the errors of the base on some of them."""
        draw = Sampler(windows, fold, rng)
        batch = draw(2048)
        self.head.learn_start((batch.target - base.point(windows, batch)) / base.unit(windows, batch)[:, None])
        return draw

    def scored(self, base: Base, windows: Windows, held: Batch) -> Callable[[], float]:
        """A function that scores the weights of the moment, without draws, on these windows."""
        about = base.point(windows, held), base.unit(windows, held)
        inputs = tensors(held, base.shape, *about[::-1])
        return lambda: score(self._levels(base, held, *about, inputs, seed=0, draws=1)[0], held, base.shape)

    def example(self, base: Base, windows: Windows, batch: Batch) -> tuple[Tensor, ...]:
        """What `loss` takes of a batch: inputs of the network, targets (NaN: unknown) and levels of the base."""
        point, unit = base.point(windows, batch), base.unit(windows, batch)
        target = batch.actual if self.head.counts else (batch.target - point) / (unit[:, None] * self.head.size)
        rest = (torch.as_tensor(a, dtype=torch.float32) for a in (target, batch.levels(base.shape, point)))
        return *tensors(batch, base.shape, unit, point), *rest

    def elbo(self, targets: int, model: nn.Module | None = None) -> br.ELBO:
        """The objective of the network, or of a copy of it, for so many training targets."""
        return br.ELBO(model or self.model, Known(self.head.likelihood), num_data=targets, check_finite=False)

    def loss(self, elbo: br.ELBO, example: Sequence[Tensor]) -> Terms:
        *inputs, target, level = example
        return elbo(self.head.parameters(elbo.model(*inputs), level), target)

    def train(
        self, base: Base, windows: Windows, fold: Fold, *, seconds: float, seed: int, report: Callable[..., None]
    ) -> float:
        """Train on windows before the fold, keep the weights with the best validation score, and return that score."""
        started = time.monotonic()
        held = validation(windows, fold, _VALID, np.random.default_rng(0))
        assert held is not None
        measure, draw = self.scored(base, windows, held), self.sampler(base, windows, fold, np.random.default_rng(seed))
        learner = Learner(self, draw.total, rate=3e-3)
        best, kept, since, steps = np.inf, deepcopy(self.model.state_dict()), 0, 0
        while True:
            if steps % EVERY == 0:
                found = measure()
                if found < best - 1e-5:
                    best, kept, since, self.steps = found, deepcopy(self.model.state_dict()), 0, steps
                else:
                    since += 1
                    if since % 4 == 0:
                        learner.slow()
                passed = time.monotonic() - started
                report(steps=steps, score=best, share=min(1.0, max(passed / seconds, since / _PATIENCE)))
                if since >= _PATIENCE or (passed > seconds and steps):
                    break
            learner.step(self.example(base, windows, draw(draw.size)))
            steps += 1
        self.model.load_state_dict(kept)
        return float(best)

    def refit(self, base: Base, windows: Windows, *, until: float, seed: int) -> None:
        """Learn from all windows, the latest ones too, for half as many steps, or up to a time."""
        ends = windows.panel.lengths
        draw = Sampler(windows, Fold(ends, ends), np.random.default_rng(seed))
        learner = Learner(self, draw.total, rate=1e-3)
        for _ in range(self.steps // 2):
            if time.monotonic() > until:
                break
            learner.step(self.example(base, windows, draw(draw.size)))


class Learner:
    """A copy of a member's network that is trained; the member's own weights follow as its moving average."""

    def __init__(self, member: Member, windows: int, rate: float) -> None:
        self.member, self.model = member, deepcopy(member.model)
        self.elbo = member.elbo(windows * member.head.horizon, self.model)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=rate)
        self.average = get_ema_multi_avg_fn(_MEMORY)
        self.model.train()

    def step(self, example: Sequence[Tensor]) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.member.loss(self.elbo, example).loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.average(list(self.member.model.parameters()), list(self.model.parameters()), 0)

    def slow(self) -> None:
        """Half the learning rate."""
        for group in self.optimizer.param_groups:
            group["lr"] /= 2


class Known(nn.Module):
    """A likelihood of the targets that are not NaN."""

    def __init__(self, likelihood: Distribution) -> None:
        super().__init__()
        self.likelihood = likelihood

    def nll(self, output: Tensor, target: Tensor) -> Tensor:
        known = ~target.isnan()
        return -(self.likelihood.log_prob(output, target.nan_to_num()) * known).sum()

    def count(self, target: Tensor) -> Tensor:
        return (~target.isnan()).sum().clamp_min(1)


class Sampler:
    """Random training windows, all targets of which lie before a fold. ``size``: how many to take at a time."""

    def __init__(self, windows: Windows, fold: Fold, rng: np.random.Generator) -> None:
        self.windows, self.rng, shape = windows, rng, windows.shape
        self.low = np.full(len(windows.panel), shape.least)
        self.high = fold.cut - shape.horizon
        self.total = int(np.maximum(self.high - self.low + 1, 0).sum())
        self.size = batch_size(self.total)

    def origins(self, size: int) -> tuple[Array, Array]:
        """Series and ends of windows."""
        return origins(self.windows.panel, self.windows.shape, self.low, self.high, size, self.rng)

    def __call__(self, size: int) -> Batch:
        return self.windows.batch(*self.origins(size))


def batch_size(windows: int) -> int:
    return int(np.clip(windows // 8, 32, 128))


def combine(
    score_of: Callable[[Array], float], allowed: Array, kinds: Array | None = None, *, apart: float = 1000.0,
    rounds: int = 8,
) -> Array:  # fmt: skip
    """Weights (n,) of forecasts whose weighted mean scores best, added one at a time (Caruana et al. 2004).

    ``score_of`` takes weights; lower is better. Up to half of the weight goes to forecasts of the best one's kind (n,)
    by their own scores, as far as that is about as good: what so few windows that do not overlap (``apart``) say of
    small differences is mostly chance. What does not help has weight 0.
    """
    chosen, best, single = np.zeros(len(allowed)), np.inf, np.eye(len(allowed))
    alone = np.array([score_of(row) if ok else np.inf for row, ok in zip(single, allowed, strict=True)])
    for _ in range(rounds):
        tries = {k: score_of((chosen + single[k]) / (chosen.sum() + 1)) for k in np.flatnonzero(allowed)}
        k = min(tries, key=lambda k: tries[k])
        if tries[k] >= best - 1e-6 and chosen.sum():
            break
        chosen[k] += 1
        best = tries[k]
    chosen /= chosen.sum()
    first = chosen.argmax()
    own = ((alone.min() + _TINY) / (alone + _TINY)) ** _SHARPNESS
    own[(own < _LEAST) | (kinds is not None and kinds != kinds[first])] = 0
    own[first] = 1
    for share in (0.5, 0.25):
        found: Array = (1 - share) * chosen + share * own / own.sum()
        if score_of(found) <= (1 + _ALIKE / np.sqrt(apart)) * best:
            return found
    return chosen


def with_share(score_of: Callable[[Array], float], weights: Array, k: int) -> Array:
    """The weights with at least `_SHARE` for forecast ``k``, which makes other errors than the rest, unless validation
    clearly speaks against it: few windows say little of what a mean of unlike forecasts gains later."""
    if weights[k] >= _SHARE:
        return weights
    found: Array = (1 - _SHARE) * weights + _SHARE * np.eye(len(weights))[k]
    return found if score_of(found) <= (1 + _COST) * score_of(weights) else weights
