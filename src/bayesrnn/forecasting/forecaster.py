"""The forecaster: one global model for all series of a DataFrame."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bayesrnn.checks import check_choice, check_whole
from bayesrnn.errors import UserError, needed_by
from bayesrnn.forecasting import checks, decisions, grids, paths
from bayesrnn.forecasting.bounds import Bounds
from bayesrnn.forecasting.columns import Columns
from bayesrnn.forecasting.fitting import fit_model
from bayesrnn.forecasting.frames import choose_columns, described, frame_of, rows_before, used
from bayesrnn.forecasting.growth import joined
from bayesrnn.forecasting.model import Model
from bayesrnn.forecasting.panel import Panel, panel_of
from bayesrnn.forecasting.progress import Progress
from bayesrnn.forecasting.seasons import seasons_of
from bayesrnn.forecasting.shapes import shapes_of
from bayesrnn.forecasting.tables import further_frame, long_frame
from bayesrnn.forecasting.training import NETWORK, Settings, minutes_of
from bayesrnn.forecasting.widths import Widths
from bayesrnn.forecasting.windows import Shape, Windows

Array = np.ndarray
_SERIES = 1024  # forecast at once
_POOLED = 5_000  # series with which widths are not adapted: validation was large enough


class Forecaster:
    """Probabilistic forecasts of one to many thousand series by one model.

    A linear forecast in closed form (seasonal naive, last value or mean as its anchor) is chosen by walking forward
    through the training rows. Networks learn its errors, and boosted trees are fitted beside them. Both are used as far
    as they help on the last rows, which they learn from only then. Quantiles are recalibrated there too. All of it
    looks at rows before a cutoff only.

    Args:
        horizon: steps ahead H.
        freq: a pandas frequency ("h", "15min", "D", "MS", ...) or the step of a whole-number axis. None: found.
        posterior: what is random in the networks: "variational" (dropout masks), "bbb" (Bayes by Backprop), "none".
        likelihood: "auto" (chosen on validation), "student", "gaussian", "quantiles", "mixture", "negative_binomial".
        season: steps per season, or several, the shortest first; None: from the frequency, or from the data.
        context: steps that the model looks back on; None: from horizon, seasons and lengths.
        scaling: how a window is scaled: "mean_abs", "standard", "robust"; "auto": chosen on validation.
        transform: "none" or "log" (of 1 + y where there are zeros); "auto": chosen on validation.
        past: names of columns that are known up to now, such as a measured temperature. None: every further column.
        future: names of columns that are known ahead, such as prices; their values go to ``predict(future=frame)``.
        static: names of columns that are constant per series. Columns of text or categories are embedded.
        holidays: a country code such as "DE", for the `holidays` package.
        resample: "mean", "sum" or "last": put irregular stamps on the grid of ``freq`` by this rule. None: refuse them.
        timezone: the zone of the stamps' clock, such as "Europe/Berlin", for local times or times with several offsets
            from UTC. None: that of a tz-aware column, else none.
        members: networks in the ensemble, 0 for none; None: up to six, as the time allows. Trees are fitted beside
            networks where the likelihood is "auto".
        hidden: units of a layer.
        layers: recurrent layers of a network.
        dropout: rate of the dropout masks.
        cell: "gru" or "lstm".
        samples: draws of the weights for a prediction.
        calibrate: recalibrate on validation where that helps.
        minutes: time for training; the best weights so far are used then. None: 1.5, with over 20,000 rows 3.
        seed: makes training and predictions repeatable, unless the time stops training.
        verbose: which columns were taken (``about``), progress and what was chosen, on stderr.
        id_col: name of the column of series in a long frame.
        time_col: name of its column of time stamps.
        target_col: name of its column of values.

    Example::

        f = Forecaster(horizon=24, freq="h").fit(df)  # long frame: unique_id, ds, y
        f.predict(level=[80, 95])  # unique_id, ds, mean, median, lo-80, hi-80, ...
        f = Forecaster(horizon=24, freq="h", future=["price"]).fit(df)  # df has a column price
        f.predict(future=prices)  # unique_id, ds, price of the next 24 hours
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
        past: str | Sequence[str] | None = None,
        future: str | Sequence[str] = (),
        static: str | Sequence[str] = (),
        holidays: str | None = None,
        resample: str | None = None,
        timezone: str | None = None,
        members: int | None = None,
        hidden: int = 64,
        layers: int = 1,
        dropout: float = 0.1,
        cell: str = "gru",
        samples: int = 16,
        calibrate: bool = True,
        minutes: float | None = None,
        seed: int = 0,
        verbose: bool = False,
        id_col: str = "unique_id",
        time_col: str = "ds",
        target_col: str = "y",
    ) -> None:
        given = {k: v for k, v in locals().items() if k not in ("self", "__class__")}
        with needed_by("Forecaster", "'bayesrnn[forecast]'"):
            import pandas  # noqa: F401
        self.settings = checks.check_settings(given)
        self.horizon = int(horizon)
        self.columns = Columns(id_col, time_col, target_col, zone=timezone or "")
        self.model: Model | None = None
        self.panel: Panel | None = None
        self.about = ""  # one line: what was taken from the data, and as what
        self._frame: Any = None  # what `fit` was given, where there are covariates
        self._widths, self._trained = Widths(self.horizon), dict[str, int]()

    def fit(self, data: Any) -> Forecaster:
        """Learn from a long or wide frame, a Series with a DatetimeIndex, or a path to CSV, CSV.gz or Parquet."""
        panel = data if isinstance(data, Panel) else self.panel_of(data)
        Progress(self.settings["verbose"] and panel is not data).say(self.about)
        self._fit(panel)
        self._frame = used(data, self.columns).copy() if self.columns.further else None
        return self

    def panel_of(self, data: Any, ends: Callable[[Panel], Array] | None = None) -> Panel:
        """The series of a frame; covariates are chosen and scaled by rows before ``ends``, None: by all."""
        frame, options = long_frame(data, self.columns), {key: self.settings[key] for key in ("freq", "resample")}
        checks.check_columns(frame, columns := choose_columns(frame, self.columns, self.settings))
        self.about = described(frame, panel := panel_of(frame, columns.learnt(frame), **options))
        if ends is None:
            return panel
        before = frame[rows_before(frame, panel, ends(panel), **options)]
        return panel_of(frame, choose_columns(before, self.columns, self.settings).learnt(before), **options)

    def shapes(self, panel: Panel) -> list[Shape]:
        """Windows that are tried on validation; refuses a panel from which nothing can be learnt."""
        s = self.settings
        checks.check_trainable(panel, self.horizon)
        if s["likelihood"] == "negative_binomial":
            checks.check_counts(panel)
        named = {key: s[key] for key in ("context", "scaling", "transform")}
        return shapes_of(panel, self.horizon, seasons=seasons_of(panel, s["season"]), **named)

    def _fit(self, panel: Panel) -> Forecaster:
        s, shapes = self.settings, self.shapes(panel)
        seconds = 60 * minutes_of(s["minutes"], len(panel.y))
        options: dict[str, Any] = {key: s[key] for key in ("likelihood", "members", "calibrate", "holidays", "seed")}
        with Progress(s["verbose"]) as progress:
            options |= {"say": progress.say, "progress": progress.update}
            model = fit_model(panel, shapes, Settings(**{key: s[key] for key in NETWORK}), seconds=seconds, **options)
        return self.adopt(model, panel)  # only now: an error leaves what was fitted before

    def adopt(self, model: Model, panel: Panel) -> Forecaster:
        """Forecast with this model, which was fitted to this panel."""
        self.model, self.panel, self.columns = model, panel, panel.columns
        self._widths = Widths(self.horizon)
        last = panel.numbers(np.arange(len(panel)), panel.lengths - 1)
        self._trained = dict(zip(panel.ids, last.tolist(), strict=True))
        return self

    def predict(
        self,
        data: Any = None,
        *,
        level: float | Sequence[float] = (80, 95),
        quantiles: float | Sequence[float] = (),
        future: Any = None,
    ) -> Any:
        """Forecasts after the end of each series.

        Args:
            data: series to forecast instead of those of `fit`; they may be new to the model. None: those of `fit`.
            level: one or more intervals in percent, as columns lo-80, hi-80; 0.8 is 80 percent.
            quantiles: probabilities, as columns q-0.1.
            future: a frame with the future-known columns of the horizon: unique_id, ds and the columns.

        Returns:
            A DataFrame with unique_id, ds, mean, median, intervals, quantiles, and (scaled with adapted widths)
            aleatoric_std and epistemic_std.
        """
        level, quantiles = checks.check_levels(level, quantiles)
        return self._table(lambda grid, share, b: grids.summary(grid, share, level, quantiles, b), data, future)

    @property
    def ids(self) -> list[str]:
        """Names of the series."""
        return self._panel.ids

    @property
    def rows(self) -> dict[str, int]:
        """How many rows each series has, on the grid of the frequency."""
        return dict(zip(self._panel.ids, self._panel.lengths.tolist(), strict=True))

    def history(self, series: object = None) -> Any:
        """The rows that forecasts start from, as a long frame in the units of the data; None: of all series."""
        return frame_of(self._panel, series)

    def stream(self, parts: Iterable[Any], **options: Any) -> Iterator[Any]:
        """`predict` for one frame of whole series after the other: memory does not grow with their number."""
        yield from (self.predict(part, **options) for part in parts)

    def sample_paths(self, n: int = 100, data: Any = None, *, future: Any = None, seed: int = 0,
                     method: str = "copula") -> Any:  # fmt: skip
        """Coherent futures: a DataFrame with unique_id, ds, path (0 to n - 1) and y.

        Args:
            method: how steps hang together; each has the distribution of `predict`. "copula": by the correlations of
                errors on validation. "autoregressive": by forecasts one step ahead of the values drawn before; that
                takes H times as long, and keeps past columns at their last values.
        """
        n = check_whole("n", n, least=1, what="paths")
        check_choice("method", method, ("copula", "autoregressive"))
        rng, names = np.random.default_rng(checks.check_seed(seed)), np.arange(n)

        def rows(grid: Array, share: Array, bounds: Bounds) -> dict[str, Array]:
            made = bounds(paths.copula(grid, self.fitted.correlation, n, rng))  # (B, n, H)
            return {"path": np.broadcast_to(names[:, None], made.shape), "y": made}

        table = self._table(rows, data, future, copies=n)
        if method == "autoregressive":
            panel = self._data(data)
            ahead = checks.check_future(panel, future, self.horizon)
            table["y"] = paths.autoregressive(self, panel, ahead, n, rng).reshape(-1)
        return table

    def backtest(
        self,
        data: Any = None,
        windows: int = 5,
        step: int | None = None,
        *,
        level: float | Sequence[float] = (80, 95),
        quantiles: float | Sequence[float] = (),
        refit: bool | None = None,
        adaptive: bool = True,
    ) -> Any:
        """Walk forward: forecasts at the last ``windows`` cutoffs, ``step`` (None: the horizon) apart, and what came.

        Args:
            data: the series with the rows to be forecast and the columns known ahead; None: those of `fit`.
            refit: train a copy on the rows before the first cutoff. None: only if `fit` has seen rows after it.
            adaptive: adapt the widths to errors that are known by each cutoff (after Gibbs and Candes 2021).

        Returns:
            A DataFrame like that of `predict` with cutoff, step (1 to H), y and crps, as `scores` takes it.
        """
        level, quantiles = checks.check_levels(level, quantiles)
        count = check_whole("windows", windows, least=1, what="cutoffs")
        apart = check_whole("step", self.horizon if step is None else step, least=1, what="steps")
        panel = self._data(data)
        first_of = partial(checks.check_windows, horizon=self.horizon, count=count, apart=apart)
        first = first_of(panel)
        cutoffs = (panel.first + (first - 1) * panel.clock.every).tolist()
        seen = any(self._trained.get(name, cut) > cut for name, cut in zip(panel.ids, cutoffs, strict=True))
        if refit or (refit is None and seen):
            other, given = type(self)(**self.settings), self._frame if data is None else data
            if panel.columns.further:  # their roles and scales must not be those of later rows
                panel = other.panel_of(used(panel if given is None else given, self.columns), first_of)
            other._fit(panel.until(first_of(panel)))
            return other.backtest(panel, count, apart, level=level, quantiles=quantiles, refit=False, adaptive=adaptive)
        with Progress(self.settings["verbose"]) as progress:
            return decisions.walk_forward(
                self, panel, first, count, apart, adaptive=adaptive and len(panel) <= _POOLED,
                summary=lambda grid, share, bounds: grids.summary(grid, share, level, quantiles, bounds),
                progress=lambda done, of: progress.update(f"backtest: window {done} of {of}", done / of),
            )  # fmt: skip

    def update(self, data: Any) -> Forecaster:
        """Append new rows (of known or new series) without training; `predict` then starts after them.

        Widths adapt to how the new values of known series fell in what was forecast for them. Rows that are known
        already may be repeated with equal values; others are refused, because the model was trained on the old ones.
        """
        both = joined(old := self._panel, self._data(data, after=old))
        later = both.lengths[: len(old)] > old.lengths  # new series come last
        if later.any() and len(old) <= _POOLED:
            decisions.adapt(self, both, np.flatnonzero(later), old.lengths[later])
        self.panel, self._frame = both, None
        return self

    def save(self, folder: str | Path) -> Path:
        """Write weights (safetensors) and settings (JSON) to a folder, with the series; nothing is pickled."""
        from bayesrnn.forecasting import storage

        return storage.write(self, Path(folder))

    @classmethod
    def load(cls, folder: str | Path) -> Forecaster:
        """Open what `save` wrote."""
        from bayesrnn.forecasting import storage

        return storage.read(cls, Path(folder))

    def newsvendor(self, over: float, under: float, data: Any = None, *, future: Any = None) -> Any:
        """The amount with the least expected cost: ``over`` per unit too much, ``under`` per unit short.

        Returns unique_id, ds, order (the under / (over + under) quantile), its expected cost, and cost_of_mean, that of
        ordering the mean.
        """
        decisions.check_costs(over, under)
        return self._table(lambda grid, share, bounds: decisions.orders(grid, over, under, bounds), data, future)

    def crossing(self, threshold: float | Mapping[Any, float], *, above: bool = True, n: int = 1000, seed: int = 0,
                 data: Any = None, future: Any = None) -> Any:  # fmt: skip
        """The probability that a series crosses the threshold at least once within the horizon, from sample paths.

        Args:
            threshold: a number, or one per series.
            above: True: crossed where y > threshold. False: where y < threshold.

        Returns:
            A DataFrame with unique_id, probability, and the median first step among paths that cross (NaN: none does).
        """
        return decisions.crossing(self, threshold, above, n, seed, data, future)

    def anomalies(self, data: Any, *, false_alarms: float = 0.01) -> Any:
        """Scores of new rows, each forecast one horizon's block at a time from the rows before it.

        Args:
            data: rows that follow those of `fit`, or series of their own with enough rows before.
            false_alarms: share of ordinary rows that raise an alarm.

        Returns:
            A DataFrame with unique_id, ds, y, p_value (two-sided), score = -log10(p_value), alarm (p < false_alarms).
        """
        return decisions.anomalies(self, data, false_alarms)

    @property
    def fitted(self) -> Model:
        """The model; refuses where there is none."""
        if self.model is None:
            raise UserError("The forecaster is not fitted; call fit(df) first.")
        return self.model

    @property
    def _panel(self) -> Panel:
        if self.panel is None:
            raise UserError("The forecaster is not fitted; call fit(df) first.")
        return self.panel

    def _data(self, data: Any, *, after: Panel | None = None) -> Panel:
        """A panel on the clock of `fit`; ``after``: series that its rows follow."""
        own, s = self._panel, self.settings
        if data is None or isinstance(data, Panel):
            return own if data is None else data
        frame = further_frame(data, self.columns, own.ids)
        panel = panel_of(frame, self.columns, freq=s["freq"], clock=own.clock, resample=s["resample"], after=after)
        checks.check_values(panel, self.fitted.lower, counts=s["likelihood"] == "negative_binomial")
        return panel

    def _windows(self, panel: Panel, ahead: Array | None = None, seen: Array | None = None) -> list[Windows]:
        """Those of each base; forecasts may learn from rows before ``seen`` (S,), or from all."""
        holidays = self.settings["holidays"]
        found = [Windows(panel, base.shape, holidays=holidays, ahead=ahead) for base in self.fitted.bases]
        for windows in found:
            windows.seen = panel.lengths if seen is None else seen
        return found

    def _grid(self, cuts: list[Windows], series: Array, ends: Array, *, bounded: bool = True) -> tuple[Array, Array]:
        """Quantiles (B, H, Q) and epistemic shares (B, H), widths as adapted."""
        model, parts = self.fitted, []
        for k in np.flatnonzero(~cuts[0].known(series, ends))[:1]:
            raise UserError(
                f"Series {cuts[0].panel.ids[series[k]]!r} has no value in the {model.shape.context} rows before its "
                "forecast; give it newer rows, or drop it."
            )
        for i in range(0, len(series), _SERIES):
            some, until = series[i : i + _SERIES], ends[i : i + _SERIES]
            grid, share = model.grid(cuts, some, until, seed=self.settings["seed"])
            grid = self._widths.apply(grid)
            parts.append((model.bounds(cuts[0], some, until)(grid) if bounded else grid, share))
        return np.concatenate([g for g, _ in parts]), np.concatenate([s for _, s in parts])

    def _table(self, columns: Callable[[Array, Array, Bounds], dict[str, Array]], data: Any, future: Any,
               copies: int = 0) -> Any:  # fmt: skip
        """A frame of unique_id, ds and the columns made of each chunk's quantiles."""
        import pandas as pd

        ahead = checks.check_future(panel := self._data(data), future, self.horizon)
        windows, found = self._windows(panel, ahead), []
        for i in range(0, len(panel), _SERIES):
            series = np.arange(i, min(i + _SERIES, len(panel)))
            grid, share = self._grid(windows, series, panel.lengths[series])
            made = columns(grid, share, self.fitted.bounds(windows[0], series, panel.lengths[series]))
            numbers = panel.numbers(series[:, None], panel.lengths[series][:, None] + np.arange(self.horizon))
            rows = np.repeat(series, self.horizon * max(copies, 1))
            if copies:
                numbers = np.repeat(numbers[:, None], copies, 1)
            about = {self.columns.id: panel.labels.take(rows)}
            about[self.columns.time] = panel.clock.stamps(numbers.reshape(-1))
            found.append(pd.DataFrame({**about, **{k: np.asarray(v).reshape(-1) for k, v in made.items()}}))
        return pd.concat(found, ignore_index=True) if len(found) > 1 else found[0]
