"""The network: a recurrent encoder over patches of the context, and heads for all steps ahead at once."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import bayesrnn as br
from bayesrnn.forecasting import grids
from bayesrnn.forecasting.windows import Batch, Shape
from bayesrnn.likelihoods.base import Distribution
from bayesrnn.likelihoods.mixture import GaussianHeads
from bayesrnn.likelihoods.quantiles import solve_quantile

Array = np.ndarray
LIKELIHOODS = ("student", "gaussian", "quantiles", "mixture", "negative_binomial")
_DF = 4.0  # degrees of freedom; calibration corrects the shape
_LATEST = 24  # values that the heads read directly
_MEANS = (3, 6, 12, 24, 72, 168)  # steps that the heads read the mean of
_RARE = 4.0  # past columns, in standard deviations: networks do not extrapolate beyond
_CHANGES = (2, 3, 5, 12, 24)  # steps over which they read the change of past columns
_ALIKE = 8  # seasons whose values at one place are averaged
_POINTS = 48  # at which the distribution function of a mixture is known


def make_likelihood(name: str) -> Distribution:
    made: dict[str, Any] = {
        "student": lambda: br.StudentT(df=_DF), "gaussian": GaussianHeads,
        "quantiles": lambda: br.Quantiles(grids.KNOTS),
        "mixture": lambda: br.Mixture(br.Gaussian, components=3), "negative_binomial": br.NegativeBinomial,
    }  # fmt: skip
    return made[name]()


class Encoder(nn.Module):
    """From windows to the parameters of a distribution for each step ahead.

    The recurrent layer reads ``patch`` steps of the context at a time: values, whether they are known, and covariates.
    Heads read its last state, a summary of the context, and what is known of each step ahead (calendar, future
    covariates). They start at zero, so that the network starts as the base forecast. With ``cell="none"`` there is no
    recurrent layer: fewer weights, which learn more from a single series with covariates.

    Shapes:
        x (T / patch, B, F), about (B, K), ahead (B, H, C) to (B, H, size).
    """

    def __init__(self, inputs: int, about: int, ahead: int, horizon: int, size: int, *, cell: str, hidden: int,
                 layers: int, dropout: float) -> None:  # fmt: skip
        super().__init__()
        self.horizon, self.size, self.rnn = horizon, size, None
        if cell != "none":
            kind: Any = br.GRU if cell == "gru" else br.LSTM
            self.rnn = kind(inputs, hidden, layers, input_dropout=dropout / 2, recurrent_dropout=dropout, share="batch")
        self.mix = nn.Linear(about + (hidden if self.rnn is not None else 0), hidden)
        self.drop = br.SequenceDropout(dropout, share="batch")
        self.whole = nn.Linear(hidden, horizon * size)
        self.step_in = nn.Linear(hidden + ahead, hidden // 2)
        self.step_out = nn.Linear(hidden // 2, size)
        for layer in (self.whole, self.step_out):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor, about: Tensor, ahead: Tensor) -> Tensor:
        if self.rnn is not None:
            hidden, _ = self.rnn(x)
            about = torch.cat([hidden[-1], about], 1)
        state = torch.relu(self.mix(about))
        state = self.drop(state.unsqueeze(0))[0]
        found = self.whole(state).unflatten(1, (self.horizon, self.size))
        each = torch.cat([state.unsqueeze(1).expand(-1, self.horizon, -1), ahead], 2)
        return found + self.step_out(torch.relu(self.step_in(each)))


class Head:
    """What the network's outputs mean: errors of the base forecast in a unit of each window times the mean ``size`` of
    errors at each step (H,), or counts themselves."""

    def __init__(self, name: str, horizon: int) -> None:
        self.name, self.likelihood, self.horizon = name, make_likelihood(name), horizon
        self.counts = name == "negative_binomial"
        self.start = torch.zeros(horizon, self.likelihood.size)
        self.size = np.ones(horizon)

    def learn_start(self, errors: Array) -> None:
        """First parameters from errors (n, H) of the base, so that training starts from its distribution."""
        horizon = self.horizon
        if self.counts:
            self.start[:, 1] = -1.0
            return
        columns = [c[~np.isnan(c)] for c in errors.T]
        pooled = np.concatenate(columns)
        columns = [c if len(c) > 20 else pooled for c in columns]
        self.size = np.array([max(float(np.abs(c - np.median(c)).mean()), 1e-4) for c in columns])
        columns = [c / size for c, size in zip(columns, self.size, strict=True)]
        middle = torch.tensor([float(np.median(c)) for c in columns])
        size = torch.ones(horizon)
        if self.name == "quantiles":
            self.start = torch.tensor(np.stack([np.quantile(c, grids.KNOTS) for c in columns]), dtype=torch.float32)
        elif self.name == "mixture":
            for k, factor in enumerate((0.6, 1.0, 2.0)):
                self.start[:, 3 + 2 * k], self.start[:, 4 + 2 * k] = middle, (factor * size).log()
        else:
            self.start = torch.stack([middle, size.log() + (-0.3 if self.name == "student" else 0.2)], 1)
        assert self.start.shape == (horizon, self.likelihood.size)

    def parameters(self, output: Tensor, level: Tensor) -> Tensor:
        """The likelihood's parameters from outputs (..., H, size); ``level`` (B, H) is the base as a count."""
        found = output + self.start.to(output)
        if self.counts:
            return torch.stack([found[..., 0] + level.clamp_min(0.05).log(), found[..., 1].clamp(-8, 4)], -1)
        return found

    def grid(self, parameters: Tensor) -> tuple[Array, Array]:
        """Quantiles (B, H, Q) of draws (S, B, H, size), and the epistemic share of the variance (B, H).

        The draws' mean quantiles, widened about the median until the variance holds that of the draws' means: exact
        for Gaussian noise and a Gaussian posterior of the mean. For mixtures and counts, quantiles of the mixture over
        draws themselves.
        """
        wide = parameters.double()
        means = self.likelihood.mean(wide)
        doubt = means.var(0, correction=0)
        noise = self.likelihood.variance(wide).mean(0)
        share = (doubt / (doubt + noise).clamp_min(1e-30)).numpy()
        if self.name in ("mixture", "negative_binomial"):
            return self._mixed(wide).numpy(), share
        if self.name == "quantiles":
            knots = wide.sort(-1).values.mean(0).numpy()
            found = grids.interpolated(knots)
        else:
            scores = torch.as_tensor(grids.Z if self.name == "gaussian" else _student())
            found = (wide[..., :1] + wide[..., 1:].exp() * scores).mean(0).numpy()
        middle = found[..., grids.MEDIAN : grids.MEDIAN + 1]
        return middle + (found - middle) / np.sqrt(1 - np.minimum(share, 0.9))[..., None], share

    def _mixed(self, wide: Tensor) -> Tensor:
        """Quantiles (B, H, Q) of the mixture over draws: exact at both ends and, for counts within `_POINTS` of each
        other, between them; else from its distribution function at even points, linear on the normal scale."""
        low, high = (self.likelihood.quantile(wide, float(q)) for q in grids.LEVELS[[0, -1]])
        y = low + torch.linspace(0, 1, _POINTS, dtype=low.dtype)[:, None, None] * (high - low)
        y = y.round() if self.counts else y
        cdf = self.likelihood.mixed(wide)
        scores = torch.special.ndtri(torch.stack([cdf(point) for point in y]).clamp(1e-9, 1 - 1e-9))
        found = [low]
        for z in grids.Z[1:-1]:
            place = ((scores < z).sum(0) - 1).clamp(0, _POINTS - 2)[None]
            (a, b), (za, zb) = ([t.gather(0, place + k)[0] for k in (0, 1)] for t in (y, scores))
            value = a + ((z - za) / (zb - za).clamp_min(1e-12)).clamp(0, 1) * (b - a)
            found.append(value.ceil() if self.counts else value)
        return torch.stack([*found, high], -1)


@cache
def _student() -> Array:
    """Quantiles of Student's t at the levels of a grid."""
    likelihood, zero = br.StudentT(df=_DF), torch.zeros(1, 2, dtype=torch.float64)
    bound = torch.full((1,), 20.0, dtype=torch.float64)
    found = [solve_quantile(lambda y: likelihood.cdf(zero, y), float(q), -bound, bound) for q in grids.LEVELS]
    return torch.cat(found).numpy()


def tensors(batch: Batch, shape: Shape, unit: Array, point: Array) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs of `Encoder`: patches of the context, what is known of the window, and of each step ahead."""
    rows, size = batch.context.shape
    steps, past = size // patch_of(shape.context, shape.season), np.clip(batch.past, -_RARE, _RARE)
    parts = [np.clip(batch.context, -12, 12)[..., None], batch.known[..., None] - 0.5, past]
    x = np.concatenate(parts, 2).reshape(rows, steps, -1).transpose(1, 0, 2)
    logs = [np.log(unit), np.log(batch.spread), np.arcsinh(batch.centre / batch.scale), 1 - batch.known.mean(1)]
    values, latest = parts[0][..., 0], slice(-_LATEST, None)
    means = [values[:, -w:].mean(1) - values[:, -1] for w in _MEANS if w <= size]
    summary = [np.stack([*logs, *means, values[:, latest].std(1)], 1), values[:, latest]]
    summary += [past[:, -1], *(past[:, -1] - past[:, -1 - lag] for lag in _CHANGES if lag < size)]
    summary += [past[:, -w:].mean(1) for w in (6, 24)]
    about = np.concatenate([*summary, batch.static, batch.calendar[:, 0]], 1)
    level, before = np.clip(point, -12, 12)[..., None], _same_phase(batch, shape, unit, point)
    ahead = np.concatenate([batch.calendar, batch.future, level, before], 2)
    return tuple(torch.as_tensor(np.ascontiguousarray(a), dtype=torch.float32) for a in (x, about, ahead))  # type: ignore[return-value]


def _same_phase(batch: Batch, shape: Shape, unit: Array, point: Array) -> Array:
    """(B, H, K): how far from the base forecast the last value is, and the values at the same places of the last two
    seasons, and the mean of those of up to eight; and which step it is."""
    step, found = np.arange(shape.horizon), [np.broadcast_to(batch.context[:, -1:], point.shape)]
    for season in shape.seasons:
        count = min(shape.context // season, _ALIKE)
        values = batch.context[:, shape.context - season * np.arange(1, count + 1)[:, None] + step % season]
        found += [*np.moveaxis(values[:, :2], 1, 0), *([values.mean(1)] if count > 2 else [])]
    off = np.clip((np.stack(found, 2) - point[..., None]) / unit[:, None, None], -8, 8)
    place = np.broadcast_to((step / max(len(step) - 1, 1) - 0.5)[:, None], (*point.shape, 1))
    return np.concatenate([off, place], 2)


def make(model: Encoder, posterior: str) -> nn.Module:
    """The model with the posterior over its weights."""
    if posterior == "bbb":
        return br.BayesByBackprop(model, prior=br.Normal(0.3), init_sigma=0.01)
    return model


def patch_of(context: int, season: int) -> int:
    """Steps of a patch: about fifteen of them cover the context, in whole parts of a season where there is one."""
    sizes = [p for p in range(1, context + 1) if context % p == 0]
    return min(sizes, key=lambda p: abs(math.log(context / p / 14)) + (0.3 if season > 1 and season % p else 0))
