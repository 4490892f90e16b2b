"""The forecaster: one global model for all series of a DataFrame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class Forecaster:
    """Probabilistic forecasts of one to many thousand series by one model.

    Args:
        horizon: steps ahead H.
        freq: a pandas frequency ("h", "15min", "D", "B", "W", "MS", "ME", "QS", "YS", ...), or the step of a whole-number
            time axis. None: found from the stamps.
        posterior: what is random in the network: "variational" (dropout masks), "bbb" (Bayes by Backprop) or "none".
        likelihood: "auto" (chosen on validation), "student", "gaussian", "quantiles", "mixture", "negative_binomial".
        season: steps per season, or several; None: from the frequency, confirmed by the data.
        context: steps that the model looks back on; None: from horizon, seasons and lengths.
        scaling: how a window is scaled: "mean_abs", "standard", "robust"; "auto": chosen on validation.
        transform: "none" or "log" (log1p where there are zeros); "auto": chosen on validation.
        past, future, static: names of columns that are known up to now, known ahead, or constant per series. Columns of
            text or categories are embedded. None: every further column is past, except those constant per series.
        holidays: a country code such as "DE", for the `holidays` package.
        resample: "mean", "sum" or "last": put irregular stamps on the grid of ``freq`` by this rule. None: refuse them.
        members: networks in the ensemble; None: as many as the time allows, at most 4.
        hidden, layers, dropout, cell: size of the network; ``cell`` is "gru" or "lstm".
        samples: draws of the weights for a prediction.
        calibrate: recalibrate on validation where that helps.
        minutes: time for training; the best model so far is used when it is over.
        seed: makes training and predictions repeatable (as far as ``minutes`` is not what stops training).
        verbose: progress and what was chosen, on stderr.
        id_col, time_col, target_col: names of the columns of long frames.

    Example::

        from bayesrnn.forecasting import Forecaster
        f = Forecaster(horizon=24, freq="h").fit(df)            # long frame: unique_id, ds, y
        f.predict(level=[80, 95])                               # unique_id, ds, mean, median, lo-80, hi-80, ...
    """

    def __init__(
        self,
        horizon: int = 24,
        freq: str | int | None = None,
        *,
        posterior: str = "variational",
        likelihood: str = "auto",
        season: int | Sequence[int] | None = None,
        context: int | None = None,
        scaling: str = "auto",
        transform: str = "auto",
        past: Sequence[str] | None = None,
        future: Sequence[str] = (),
        static: Sequence[str] = (),
        holidays: str | None = None,
        resample: str | None = None,
        members: int | None = None,
        hidden: int = 64,
        layers: int = 1,
        dropout: float = 0.1,
        cell: str = "gru",
        samples: int = 16,
        calibrate: bool = True,
        minutes: float = 2.0,
        seed: int = 0,
        verbose: bool = False,
        id_col: str = "unique_id",
        time_col: str = "ds",
        target_col: str = "y",
    ) -> None:
        raise NotImplementedError

    def fit(self, data: Any) -> Forecaster:
        """Learn from a long or wide frame, a Series with a DatetimeIndex, or a path to CSV, CSV.gz or Parquet."""
        raise NotImplementedError

    def predict(
        self,
        data: Any = None,
        *,
        level: Sequence[float] = (80, 95),
        quantiles: Sequence[float] = (),
        future: Any = None,
    ) -> Any:
        """Forecasts after the end of each series.

        Args:
            data: series to forecast instead of those of `fit`; they may be new to the model. None: those of `fit`.
            level: intervals in percent, as columns lo-80, hi-80.
            quantiles: probabilities, as columns q-0.1.
            future: a frame with the future-known columns of the horizon: unique_id, ds and the columns.

        Returns:
            A DataFrame with unique_id, ds, mean, median, intervals, quantiles, aleatoric_std and epistemic_std.
        """
        raise NotImplementedError

    def sample_paths(self, n: int = 100, data: Any = None, *, future: Any = None, seed: int = 0) -> Any:
        """Coherent futures: a DataFrame with unique_id, ds, path (0 to n - 1) and y. Marginals are those of `predict`."""
        raise NotImplementedError

    def backtest(
        self,
        data: Any = None,
        windows: int = 5,
        step: int | None = None,
        *,
        level: Sequence[float] = (80, 95),
        quantiles: Sequence[float] = (),
        refit: bool | None = None,
        adaptive: bool = True,
    ) -> Any:
        """Walk forward: forecasts at the last ``windows`` cutoffs, ``step`` (None: the horizon) apart, beside what came.

        Args:
            refit: train a copy on the rows before the first cutoff. None: only if `fit` has seen rows after it.
            adaptive: adapt the widths to errors that are known by each cutoff (adaptive conformal inference).

        Returns:
            A DataFrame like that of `predict` with cutoff, step (1 to H), y and crps, for `bayesrnn.forecasting.scores`.
        """
        raise NotImplementedError

    def update(self, data: Any) -> Forecaster:
        """Append new rows (of known or new series) without training; `predict` then starts after them."""
        raise NotImplementedError

    def save(self, folder: str | Path) -> Path:
        """Write weights (safetensors) and settings (JSON) to a folder; nothing is pickled."""
        raise NotImplementedError

    @classmethod
    def load(cls, folder: str | Path) -> Forecaster:
        """Open what `save` wrote."""
        raise NotImplementedError

    def newsvendor(self, over: float, under: float, **options: Any) -> Any:
        """The amount with the least expected cost, and that cost: ``over`` per unit too much, ``under`` per unit short.

        Returns unique_id, ds, order, cost (and cost_of_mean, for the mean forecast).
        """
        raise NotImplementedError

    def crossing(self, threshold: float | Mapping[str, float], *, above: bool = True, n: int = 1000, **options: Any) -> Any:
        """The probability that a series crosses the threshold at least once within the horizon, from sample paths."""
        raise NotImplementedError

    def anomalies(self, data: Any, *, false_alarms: float = 0.01) -> Any:
        """Scores of new rows that follow those of `fit`: p-value, score and an alarm at the stated false-alarm rate."""
        raise NotImplementedError
