"""Networks of a forecaster: training within a time budget, and their quantiles."""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import bayesrnn as br
from bayesrnn.forecasting.network import Encoder, Head, make, patch_of, tensors
from bayesrnn.forecasting.selection import Base, Fold, score, validation
from bayesrnn.forecasting.windows import Batch, Shape, Windows, origins

Array = np.ndarray
_VALID = 1_500  # validation windows
_EVERY = 40  # steps between looks at validation
_PATIENCE = 10  # looks without an improvement


@dataclass(frozen=True)
class Settings:
    """Settings of a network and its training."""

    posterior: str
    cell: str
    hidden: int
    layers: int
    dropout: float
    samples: int


class Member:
    """One trained network; its quantiles are around the forecast of base number ``base``."""

    def __init__(
        self, likelihood: str, sizes: tuple[int, int, int], shape: Shape, settings: Settings, base: int
    ) -> None:
        self.sizes, self.settings, self.likelihood, self.base = sizes, settings, likelihood, base
        self.head = Head(likelihood, shape.horizon)
        self.patch = patch_of(shape.context, shape.season)
        rate = settings.dropout if settings.posterior == "variational" else 0.0
        network = Encoder(
            *sizes, shape.horizon, self.head.likelihood.size, cell=settings.cell, hidden=settings.hidden,
            layers=settings.layers, dropout=rate,
        )  # fmt: skip
        self.model: nn.Module = make(network, settings.posterior)

    @property
    def draws(self) -> int:
        return self.settings.samples if self.settings.posterior != "none" else 1

    def levels(self, base: Base, windows: Windows, batch: Batch, *, seed: int, draws: int) -> tuple[Array, Array]:
        """Quantiles (B, H, Q) in the unit of the series, and the epistemic share of the variance (B, H)."""
        point, unit = base.point(windows, batch), base.unit(windows, batch)
        return self._levels(base, batch, point, unit, tensors(batch, self.patch, unit, point), seed=seed, draws=draws)

    @torch.no_grad()
    def _levels(
        self, base: Base, batch: Batch, point: Array, unit: Array, inputs: tuple[Tensor, ...], *, seed: int, draws: int
    ) -> tuple[Array, Array]:  # fmt: skip
        self.model.eval()
        if draws == 1:
            found = [self.model(*inputs)]
        else:
            found = []
            for k in range(draws):
                with br.draw(self.model, seed=1000 * seed + k):
                    found.append(self.model(*inputs))
        level = torch.as_tensor(batch.levels(base.shape, point))
        grid, share = self.head.grid(self.head.parameters(torch.stack(found), level))
        if self.head.counts:
            return grid, share
        size = unit[:, None] * self.head.size
        return batch.levels(base.shape, point[..., None] + size[..., None] * grid), share

    def train(
        self, base: Base, windows: Windows, fold: Fold, *, seconds: float, seed: int, report: Callable[..., None]
    ) -> float:
        """Train on windows before the fold, keep the weights with the best validation score, and return that score."""
        rng, started = np.random.default_rng(seed), time.monotonic()
        held = validation(windows, fold, _VALID, np.random.default_rng(0))
        assert held is not None
        about = base.point(windows, held), base.unit(windows, held)
        inputs = tensors(held, self.patch, *about[::-1])
        draw = _Sampler(base, windows, fold, rng)
        batch = draw(2048)
        self.head.learn_start((batch.target - base.point(windows, batch)) / base.unit(windows, batch)[:, None])
        size = int(np.clip(draw.total // 8, 32, 128))
        elbo = br.ELBO(
            self.model, self.head.likelihood, num_data=draw.total * windows.shape.horizon, check_finite=False
        )
        optimizer = torch.optim.Adam(self.model.parameters(), lr=3e-3)
        best, kept, since, steps = np.inf, deepcopy(self.model.state_dict()), 0, 0
        while True:
            if steps % _EVERY == 0:
                found = score(self._levels(base, held, *about, inputs, seed=0, draws=1)[0], held, base.shape)
                if found < best - 1e-5:
                    best, kept, since = found, deepcopy(self.model.state_dict()), 0
                else:
                    since += 1
                    if since % 4 == 0:
                        for group in optimizer.param_groups:
                            group["lr"] /= 2
                passed = time.monotonic() - started
                report(steps=steps, score=best, share=min(1.0, max(passed / seconds, since / _PATIENCE)))
                if since >= _PATIENCE or (passed > seconds and steps):
                    break
            self._step(elbo, optimizer, base, windows, draw(size))
            steps += 1
        self.model.load_state_dict(kept)
        self.model.eval()
        return float(best)

    def _step(self, elbo: br.ELBO, optimizer: Any, base: Base, windows: Windows, batch: Batch) -> None:
        self.model.train()
        point, unit = base.point(windows, batch), base.unit(windows, batch)
        output = self.model(*tensors(batch, self.patch, unit, point))
        target = batch.actual if self.head.counts else (batch.target - point) / (unit[:, None] * self.head.size)
        level = torch.as_tensor(batch.levels(base.shape, point), dtype=torch.float32)
        known = torch.as_tensor(~np.isnan(target))
        parameters: Tensor = self.head.parameters(output, level)
        if not bool(known.any()):
            return
        loss = elbo(parameters, torch.as_tensor(np.nan_to_num(target), dtype=torch.float32), mask=known).loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        optimizer.step()


class _Sampler:
    """Random training windows, all targets of which lie before a fold."""

    def __init__(self, base: Base, windows: Windows, fold: Fold, rng: np.random.Generator) -> None:
        self.windows, self.rng, shape = windows, rng, base.shape
        self.low = np.full(len(windows.panel), shape.least)
        self.high = fold.cut - shape.horizon
        self.total = int(np.maximum(self.high - self.low + 1, 0).sum())

    def __call__(self, size: int) -> Batch:
        return self.windows.batch(*origins(self.windows.panel, self.windows.shape, self.low, self.high, size, self.rng))


def combine(score_of: Callable[[Array], float], allowed: Array, rounds: int = 8) -> Array:
    """Weights (n,) of forecasts whose weighted mean scores best, added one at a time (Caruana et al. 2004).

    ``score_of`` takes weights; lower is better. What does not help has weight 0.
    """
    chosen, best = np.zeros(len(allowed)), np.inf
    for _ in range(rounds):
        tries = {k: score_of((chosen + np.eye(len(allowed))[k]) / (chosen.sum() + 1)) for k in np.flatnonzero(allowed)}
        k = min(tries, key=lambda k: tries[k])
        if tries[k] >= best - 1e-6 and chosen.sum():
            break
        chosen[k] += 1
        best = tries[k]
    return chosen / chosen.sum()
