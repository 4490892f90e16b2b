"""A trained forecasting model on a series: distributions at any origin, walking forward, and beyond the end."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bayesrnn.errors import UserError
from bayesrnn.forecasting.autoregression import carried, gather
from bayesrnn.forecasting.mixture import Mixture, running_scale, summary_of_paths
from bayesrnn.forecasting.series import Series
from bayesrnn.lab.console.output import Report
from bayesrnn.lab.reading import counted
from bayesrnn.lab.runs.sizes import memory as machine_memory
from bayesrnn.lab.tasks.forecast.frames import Cut, Frame
from bayesrnn.lab.tasks.forecast.model import Components
from bayesrnn.nn.base import NoisyLayer
from bayesrnn.nn.dropout import SequenceDropout
from bayesrnn.nn.rnn import NoisyRNN
from bayesrnn.posteriors.base import Bayesian

_ROWS = 4096  # windows in one call of the model
PATHS = 20  # sampled futures per draw of the weights
PARTS = ("valid", "test")
_FORGOTTEN = 25  # errors this many memories old count e^-25
_BYTES = 64  # of a forecast of one draw: what the model gives, in double precision, and made wider


@dataclass(frozen=True)
class Walk:
    """Forecasts at consecutive origins, each made with what was known by then.

    ``forecast`` is calibrated: ``raw`` made ``scale`` (N, H) times as wide. ``actual`` (N, H) is NaN where unknown.
    """

    origins: range
    raw: Mixture
    scale: Tensor
    forecast: Mixture
    actual: Tensor

    def rows(self, origins: range) -> slice:
        """Where the forecasts of these origins are."""
        return slice(origins.start - self.origins.start, origins.stop - self.origins.start)

    def table(self, series: Series, origins: range | None = None, level: float = 0.95) -> Any:
        """A DataFrame like that of `bayesrnn.forecasting.Forecaster.backtest`: a row per origin and step ahead.

        Columns: unique_id, cutoff (the last step that was known), step (1 to H), ds, y (NaN: not known), mean, median,
        lo and hi of 80% and of ``level``, deciles, both standard deviations, and crps. ``origins``: these alone.
        """
        import pandas as pd

        origins = self.origins if origins is None else origins
        rows = self.rows(origins)
        found, actual = self.forecast[rows], self.actual[rows]
        columns = {"y": actual, "mean": found.mean, "median": found.quantile(0.5)}
        for percent in dict.fromkeys((80.0, round(100 * level, 6))):
            columns[f"lo-{percent:g}"], columns[f"hi-{percent:g}"] = found.interval(percent / 100)
        columns |= {f"q-{k / 10:g}": found.quantile(k / 10) for k in range(1, 10)}
        columns |= {"aleatoric_std": found.aleatoric.sqrt(), "epistemic_std": found.epistemic.sqrt()}
        columns["crps"] = found.crps(actual)
        horizon = actual.shape[1]
        dates = series.dates(range(origins.start, origins.stop + horizon))
        before = np.repeat(np.arange(len(origins)), horizon)
        ahead = np.tile(np.arange(1, horizon + 1), len(origins))
        about = {"unique_id": series.columns[0], "cutoff": dates[before], "step": ahead, "ds": dates[before + ahead]}
        return pd.DataFrame({**about, **{key: column.flatten().numpy() for key, column in columns.items()}})


@dataclass(frozen=True)
class Ahead:
    """Beyond the end of the series, one entry per step. Uncertainties are standard deviations."""

    mean: Tensor
    low: Tensor
    high: Tensor
    aleatoric_std: Tensor
    epistemic_std: Tensor
    direct: int
    """So many steps come straight from the model; later ones from sampled roll-outs."""


class Forecaster:
    """Forecasts of one series by one model.

    Args:
        model: windows (T, B, F) to (B, H, 2): mean and log sigma of each scaled target.
        frame: how windows and targets are made. values: (n, 1, F) float64, target first. cut: where its parts begin.
        memory: see `mixture.running_scale`; None: forecasts stay as the model makes them.
    """

    def __init__(self, model: nn.Module, frame: Frame, values: Tensor, cut: Cut, *, memory: float | None) -> None:
        self.model, self.frame, self.values, self.cut, self.memory = model, frame, values, cut, memory
        self.features = frame.features(values)[:, 0].float()
        levels = frame.levels(values)[:, 0]
        self.actual = levels.exp() if frame.log else levels

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @torch.no_grad()
    def distribution(self, origins: range, *, samples: int, seed: int, progress: Report = lambda a, b: None) -> Mixture:
        """Forecasts (S, N, H) at these origins; S is 1 for a model without randomness.

        ``progress`` is called with how much of how much is done.
        """
        from bayesrnn import Gaussian, predict

        count = samples if is_random(self.model) else 1
        _check_memory(count, count * len(origins) * self.frame.horizon * _BYTES)
        parts: list[Mixture] = []
        blocks = torch.arange(origins.start, origins.stop).split(_ROWS)

        def report(done: int, draws: int) -> None:
            progress(len(parts) * draws + done, len(blocks) * draws)

        for rows in blocks:
            x = gather(self.features, rows, self.frame.window).to(self.device)
            # The two heads are what the model gives; named Gaussian so that they are not taken for logits.
            noise = Gaussian(1.0, learn=False)
            found = predict(self.model, x, samples=count, seed=seed, likelihood=noise, batch_dim=1, progress=report)
            parts.append(self._levels(found.samples.cpu().double(), self.frame.known(self.values, rows)))
        return Mixture(torch.cat([p.means for p in parts], 1), torch.cat([p.sigmas for p in parts], 1), self.frame.log)

    def _levels(self, output: Tensor, known: Tensor) -> Mixture:
        spread = known.new_tensor(self.frame.target_spread)
        return Mixture(known + spread * output[..., 0], spread * output[..., 1].exp(), self.frame.log)

    def walk(self, *, samples: int, seed: int, recent: bool = False, progress: Report = lambda a, b: None) -> Walk:
        """From the end of the training part to the end of the series, the last origin being the last step.

        ``recent``: only as far back as errors still count in the widths of the last forecast.
        """
        origins = self._after_training()
        if recent:
            needed = 1 if self.memory is None else self.frame.horizon + _FORGOTTEN * self.memory
            origins = origins[-math.ceil(min(needed, len(origins))) :]
        return self._walked(origins, self.distribution(origins, samples=samples, seed=seed, progress=progress))

    def _after_training(self) -> range:
        """At least the last step, should the values end before the training part does."""
        last = len(self.values) - 1
        return range(min(max(self.frame.first, self.cut.train - 1), last), last + 1)

    def _walked(self, origins: range, raw: Mixture) -> Walk:
        steps = torch.tensor(origins).unsqueeze(1) + torch.arange(1, self.frame.horizon + 1)
        actual = self.actual[steps.clamp(max=len(self.actual) - 1)]
        actual = actual.masked_fill(steps >= len(self.actual), math.nan)
        scale = torch.ones_like(actual)
        if self.memory is not None:
            scale = running_scale(raw.standardised(actual), memory=self.memory)
        return Walk(origins, raw, scale, raw.scaled(scale), actual)

    def naive(self, lag: int, *, log: bool | None = None) -> Walk:
        """The value ``lag`` steps (or whole multiples) before, with Gaussian errors of the training part's size.

        With ``log`` errors are of the logarithm, so that they grow with the level; None: as the model has it.
        """
        log = self.frame.log if log is None else log
        plain = replace(self.frame, lag=lag, log=log, target_center=(0.0,) * self.frame.horizon)
        levels = plain.levels(self.values)[:, 0]
        train = self.cut.origins("train", first=lag, horizon=self.frame.horizon)
        ahead = torch.arange(1, self.frame.horizon + 1)
        before = torch.tensor(train).unsqueeze(1)
        errors = levels[before + ahead] - plain.known(self.values, before.squeeze(1))
        origins = self._after_training()
        means = plain.known(self.values, torch.tensor(origins))
        sigmas = errors.square().nanmean(0).sqrt().nan_to_num(1.0).clamp_min(1e-12).expand_as(means)
        return self._walked(origins, Mixture(means.unsqueeze(0), sigmas.unsqueeze(0), log))

    def ahead(self, steps: int, *, samples: int, seed: int, level: float = 0.95, mirrored: bool = True) -> Ahead:
        """What comes after the last step.

        Up to the horizon the model says it directly. Beyond, futures are sampled: each keeps one draw of the weights,
        and what it sampled is what it looks back on. ``mirrored``: each has a twin with the opposite noise, so that
        little of the noise is left in the mean of a draw, and the model's own part is seen well.
        """
        horizon = self.frame.horizon
        if steps > horizon and self.values.shape[-1] > 1:
            raise UserError(
                f"The model has covariates, whose future is not known, so it forecasts at most "
                f"{counted(horizon, 'step')}; ask for no more, or train with a larger data.horizon."
            )
        walk = self.walk(samples=samples, seed=seed, recent=True)
        last = walk.forecast[len(walk.origins) - 1 :]
        found = [column[0][:steps] for column in last.summary(level).values()]
        if steps > horizon:
            futures = self._futures(steps, samples=samples, seed=seed, mirrored=mirrored)[..., horizon:]
            rolled = summary_of_paths(futures, walk.scale[-1, -1], level, self.frame.log)
            found = [torch.cat([a, b]) for a, b in zip(found, rolled, strict=True)]
        mean, low, high, aleatoric, epistemic = found
        return Ahead(mean, low, high, aleatoric, epistemic, direct=min(steps, horizon))

    @torch.no_grad()
    def _futures(self, steps: int, *, samples: int, seed: int, mirrored: bool) -> Tensor:
        """Sampled levels (draws, PATHS, 2 twins or 1, ``steps``)."""
        from bayesrnn import draws

        frame = self.frame
        source = torch.Generator().manual_seed(seed)
        count = samples if is_random(self.model) else 1
        paths = PATHS if count > 1 else PATHS * samples
        _check_memory(samples, count * paths * (1 + mirrored) * steps * 16)
        known = frame.levels(self.values)[-(frame.lag + frame.window) :, 0].clone()
        known[: frame.lag] = carried(frame.levels(self.values), frame.lag)[-len(known) :, 0][: frame.lag]
        bare = replace(frame, log=False)  # levels are logarithms already
        futures = []
        for k in range(count):
            past = known.unsqueeze(1).expand(-1, paths * (1 + mirrored))
            with one_draw_for_the_batch(self.model), draws.draw(self.model, seed=seed * 1_000_003 + k):
                while len(past) < len(known) + steps:
                    x = bare.features(past.unsqueeze(-1))[-frame.window :].float().to(self.device)
                    output = self.model(x).cpu().double()
                    block = self._levels(output, bare.known_at_end(past.unsqueeze(-1)))
                    noise = torch.randn(paths, frame.horizon, generator=source, dtype=torch.float64)
                    noise = torch.cat([noise, -noise]) if mirrored else noise
                    past = torch.cat([past, (block.means + block.sigmas * noise).T])
            futures.append(past[len(known) : len(known) + steps].T.unflatten(0, (-1, paths)).transpose(0, 1))
        return torch.stack(futures)


def _check_memory(draws: int, needed: int) -> None:
    """Refuse more draws than this machine can hold the forecasts of; ``needed`` is in bytes."""
    if needed > machine_memory():
        raise UserError(
            f"Forecasts of {counted(draws, 'draw')} take {needed / 1e9:,.0f} GB, and this machine has "
            f"{machine_memory() / 1e9:,.0f}; use fewer draws, with --samples or evaluate.samples, or fewer steps."
        )


def is_random(model: nn.Module) -> bool:
    """Whether draws of the model differ."""
    return any(
        isinstance(part, (Bayesian, Components))
        or (isinstance(part, NoisyLayer) and part.noisy)
        or (isinstance(part, nn.Dropout) and part.p > 0)
        for part in model.modules()
    )


@contextmanager
def one_draw_for_the_batch(model: nn.Module) -> Iterator[None]:
    """Dropout masks are shared by all rows of a batch inside the block: the futures of one draw of the weights."""
    parts = [part for part in model.modules() if isinstance(part, (NoisyRNN, SequenceDropout, Components))]
    before = [part.share for part in parts]
    try:
        for part in parts:
            part.share = "batch"
        yield
    finally:
        for part, share in zip(parts, before, strict=True):
            part.share = share
