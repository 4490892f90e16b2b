"""Windows of a series: split by time, transformed, scaled on the training part, and back.

cut = Cut.of(len(series), valid=0.15, test=0.15, window=24, horizon=4)
frame = Frame.fit(values, cut, window=24, horizon=4, lag=1)
x, y = frame.windows(values, origins), frame.targets(values, origins)
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from bayesrnn.errors import UserError
from bayesrnn.forecasting.autoregression import carried, gather, linear, moments, ridge_weights
from bayesrnn.lab.reading import counted

_LEAST = 20  # training windows
_SOME = 5  # validation and test windows
_RIDGE_WINDOWS = 20_000
_FOLDS = 6  # blocks that decide on the lag


@dataclass(frozen=True)
class Cut:
    """Where a series of ``length`` steps is cut: train is [0, train), valid [train, valid), test [valid, length).

    A forecast made at origin t has seen steps up to and including t. An origin belongs to a part if all steps that it
    forecasts do; what it looks back on may lie in an earlier part, as it will when the model is used.
    """

    train: int
    valid: int
    length: int

    @classmethod
    def of(cls, length: int, *, valid: float, test: float, window: int, horizon: int) -> "Cut":
        """Cut by fractions; refuses parts that are too short for windows of these lengths."""
        if valid + test >= 1 or test > 1 - valid - test:
            raise UserError(
                f"The test part ({test:.0%}) is longer than the training part ({max(0.0, 1 - valid - test):.0%}); "
                "lower data.test or data.valid."
            )
        end_test = max(1, round(length * test))
        end_valid = max(1, round(length * valid))
        cut = cls(length - end_test - end_valid, length - end_test, length)
        needed = {"train": window + horizon + _LEAST - 1, "valid": horizon + _SOME - 1, "test": horizon + _SOME - 1}
        sizes = {"train": cut.train, "valid": end_valid, "test": end_test}
        for part, least in needed.items():
            if sizes[part] < least:
                raise UserError(
                    f"The series is too short: its {part} part has {sizes[part]} of {length} steps, and {least} are "
                    f"needed for a window of {window} and a horizon of {horizon}; use a longer series, or a smaller "
                    "data.window or data.horizon."
                )
        return cut

    def origins(self, part: str, *, first: int, horizon: int) -> range:
        """The origins of "train", "valid" or "test"; ``first`` is the earliest with a whole window behind it."""
        parts = {"train": (0, self.train), "valid": (self.train, self.valid), "test": (self.valid, self.length)}
        start, end = parts[part]
        return range(max(first, start - 1), end - horizon)


@dataclass(frozen=True)
class Frame:
    """From levels to what the model sees and says, and back.

    A target is forecast as its difference from a value that is known at the origin: with ``lag`` 0 from nothing, with
    1 from the last value, with s from the value of the same phase one season (of s steps) earlier. So a Gaussian for
    the difference is one for the level, moved. Inputs are differences at the same lag. All are scaled by means and
    standard deviations of the training part: inputs column by column, targets for each step ahead.

    Missing values are NaN. A window has the scaled mean (0) in their place, and with ``masked`` a further column per
    column, 1 where the value is missing. Targets that are missing are NaN. A difference from a missing value is one
    from the last value that was known then, of the same phase if there is a season: nothing looks ahead.

    Args:
        window: steps the model looks back on, T. horizon: steps it looks ahead, H.
        log: the target's logarithm is modelled, zeros as half of the smallest value above; covariates stay as they are.
        center, spread: of inputs, one per column. target_center, target_spread: one per step ahead.
        masked: the series has missing values, and windows show where.

    Shapes: values (n, B, F) are B series side by side, target first; origins are steps t, forecast from t + 1 on.
    """

    window: int
    horizon: int
    lag: int
    log: bool
    center: tuple[float, ...]
    spread: tuple[float, ...]
    target_center: tuple[float, ...]
    target_spread: tuple[float, ...]
    masked: bool = False

    @classmethod
    def fit(cls, values: Tensor, cut: Cut, *, window: int, horizon: int, lag: int = 0, log: bool = False) -> "Frame":
        """Scales from the training part of ``values`` (n, 1, F), float64."""
        columns, masked = values.shape[-1], bool(values.isnan().any())
        bare = cls(window, horizon, lag, log, (0.0,) * columns, (1.0,) * columns, (0.0,) * horizon, (1.0,) * horizon)
        train = cut.origins("train", first=bare.first, horizon=horizon)
        if len(train) < _LEAST:
            raise UserError(
                f"The series is too short: {counted(max(len(train), 0), 'training window')} with differences at lag "
                f"{lag}, and {_LEAST} are needed; use a longer series, a smaller data.window, or another "
                "data.difference."
            )
        inputs = bare.differences(values)[lag : cut.train, 0]
        targets = bare.targets(values, _long(train))
        seen = int((~targets.isnan()).any(1).sum())
        if seen < _LEAST:
            raise UserError(
                f"Only {counted(seen, 'training window')} of {len(train)} have a value to forecast, and {_LEAST} are "
                "needed; use a series with fewer missing values, or fill them."
            )
        (center, spread), (target_center, target_spread) = moments(inputs), moments(targets)
        if not bool(spread[0] > 0) or not bool((target_spread > 0).all()):
            columns_seen = [p[~p.isnan()] for p in (inputs[:, 0], *targets.T)]
            if any(len(p) and bool((p == p[0]).all()) for p in columns_seen):
                raise UserError("The training part of the series is constant; there is nothing to learn from it.")
            raise UserError(
                "The training part of the series changes by so little that its variance is 0 in double precision; "
                "multiply its values by a large number."
            )
        spread = torch.where(spread > 0, spread, torch.ones_like(spread))  # a constant covariate says nothing
        scales = [tuple(t.tolist()) for t in (center, spread, target_center, target_spread)]
        return cls(window, horizon, lag, log, scales[0], scales[1], scales[2], scales[3], masked)

    @property
    def first(self) -> int:
        """The earliest origin."""
        return self.lag + self.window - 1

    def settings(self) -> dict[str, object]:
        """For a file; ``Frame(**settings)`` is this frame again, lists being read as tuples."""
        return asdict(self)

    @classmethod
    def of(cls, settings: dict[str, object]) -> "Frame":
        """From what :meth:`settings` wrote."""
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()})  # type: ignore[arg-type]

    def levels(self, values: Tensor) -> Tensor:
        """The target as it is modelled, (n, B)."""
        target = values[..., 0]
        if not self.log:
            return target
        wrong, above = target[target < 0], target[target > 0]
        if len(wrong) or not len(above):
            raise UserError(
                f"data.log needs values of at least 0, and the series has {counted(len(wrong), 'value')} below, "
                f"down to {float(target.nan_to_num(0).min()):g}; omit data.log, or add a constant to the column first."
            )
        return torch.where(target == 0, above.min() / 2, target).log()

    def differences(self, values: Tensor) -> Tensor:
        """Differences at the lag, (n, B, F), not scaled; NaN where a value is missing, 0 in the first ``lag`` steps."""
        levels = torch.cat([self.levels(values).unsqueeze(-1), values[..., 1:]], -1)
        if self.lag == 0:
            return levels
        seen = torch.zeros_like(levels)
        seen[self.lag :] = levels[self.lag :] - carried(levels, self.lag)[: -self.lag]
        return seen

    def features(self, values: Tensor) -> Tensor:
        """What the model sees of each step, (n, B, F), or (n, B, 2 F) if masked; the first ``lag`` are not used."""
        seen = self.differences(values)
        scaled = (seen - seen.new_tensor(self.center)) / seen.new_tensor(self.spread)
        if not self.masked:
            return scaled
        return torch.cat([scaled.nan_to_num(nan=0.0), values.isnan().to(scaled)], -1)

    def windows(self, values: Tensor, origins: Tensor) -> Tensor:
        """Inputs (T, N, F) of the first series at N origins."""
        return gather(self.features(values)[:, 0], origins, self.window)

    def known(self, values: Tensor, origins: Tensor) -> Tensor:
        """What targets are differences from, (N, H), with the training mean of the differences added."""
        center = values.new_tensor(self.target_center)
        if self.lag == 0:
            return center.expand(len(origins), -1)
        steps = origins.unsqueeze(1) + self._offsets(origins.device)
        return carried(self.levels(values), self.lag)[:, 0][steps] + center

    def known_at_end(self, values: Tensor) -> Tensor:
        """The same at the last step of B series side by side, (B, H)."""
        center = values.new_tensor(self.target_center)
        if self.lag == 0:
            return center.expand(values.shape[1], -1)
        return carried(self.levels(values), self.lag)[len(values) - 1 + self._offsets(values.device)].T + center

    def _offsets(self, device: torch.device) -> Tensor:
        """From the origin to the values that the H steps ahead are compared with: 0 or before."""
        ahead = torch.arange(1, self.horizon + 1, device=device)
        return ahead - -(-ahead // self.lag) * self.lag  # whole seasons back

    def targets(self, values: Tensor, origins: Tensor) -> Tensor:
        """Scaled targets (N, H); NaN where missing or beyond the end."""
        levels = self.levels(values)[:, 0]
        ahead = torch.arange(1, self.horizon + 1, device=origins.device)
        steps = origins.unsqueeze(1) + ahead
        future = levels[steps.clamp(max=len(levels) - 1)]
        future = future.masked_fill(steps >= len(levels), math.nan)
        return (future - self.known(values, origins)) / values.new_tensor(self.target_spread)


def choose_lag(
    values: Tensor, cut: Cut, lags: Sequence[int], *, window: int, horizon: int, log: bool, ridge: float = 1.0
) -> int:
    """The lag with which a linear autoregression of the same window forecasts best; the test part is not used.

    The second half of what lies before the test part is forecast in blocks, each from all that comes before it. One
    block alone may favour levels by chance, and a series that drifts is then forecast where nothing was learnt. Where
    the blocks would be too short, the validation part decides.
    """

    def errors(cut: Cut, lags: Sequence[int]) -> dict[int, float]:
        found = {}
        for lag in lags:
            try:
                frame = Frame.fit(values[: cut.valid], cut, window=window, horizon=horizon, lag=lag, log=log)
            except UserError:
                if lag == 0:
                    raise
                continue  # a season that the series is too short for
            found[lag] = _linear_error(values[: cut.valid], cut, frame, ridge)
        return found

    whole = errors(cut, lags)
    totals = dict.fromkeys(whole, 0.0)
    for block in _blocks(cut, horizon):
        try:
            found = errors(block, list(whole))
        except UserError:
            continue
        if found.keys() == whole.keys():
            totals = {lag: totals[lag] + error for lag, error in found.items()}
    best = totals if any(totals.values()) else whole
    return min(best, key=lambda lag: best[lag])


def _blocks(cut: Cut, horizon: int) -> list[Cut]:
    """Cuts whose validation parts are, one after the other, the second half of what lies before the test part."""
    ends = [cut.valid * (_FOLDS + k) // (2 * _FOLDS) for k in range(_FOLDS + 1)]
    return [Cut(a, b, b) for a, b in itertools.pairwise(ends) if b - a > horizon]


def _linear_error(values: Tensor, cut: Cut, frame: Frame, ridge: float) -> float:
    """Mean square on the validation part of a linear model of the training part."""
    train = _long(cut.origins("train", first=frame.first, horizon=frame.horizon))
    train = train[:: -(-len(train) // _RIDGE_WINDOWS)]
    valid = _long(cut.origins("valid", first=frame.first, horizon=frame.horizon))
    targets = frame.targets(values, train)
    seen = ~targets.isnan().any(1)
    weights = ridge_weights(frame.windows(values, train)[:, seen], targets[seen], ridge)
    error = frame.targets(values, valid) - linear(frame.windows(values, valid), weights)
    return float((error * values.new_tensor(frame.target_spread)).square().nanmean())


def _long(origins: range) -> Tensor:
    return torch.arange(origins.start, origins.stop)
