"""The forecaster as a scikit-learn estimator: rows in time order in, values of the rows that follow out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data

from bayesrnn.errors import needed_by
from bayesrnn.forecasting.forecaster import Forecaster

_OWN = ("horizon", "freq", "random_state")


class BayesianForecaster(RegressorMixin, BaseEstimator):
    """A `Forecaster` of one series behind scikit-learn's interface.

    Rows are in time order, and `predict` is for the rows that follow those of `fit`, up to ``horizon`` of them; for
    cross-validation use ``TimeSeriesSplit(test_size=horizon)``. The index of y or X gives the stamps; without dates the
    rows are numbered. NaN in y is a missing value. Arguments that are not listed here are those of `Forecaster`.

    Args:
        horizon: steps ahead H.
        freq: a pandas frequency such as "h" or "D"; None: found.
        random_state: seed of training and draws.
    """

    def __init__(
        self, horizon: int = 24, freq: str | None = None, *, posterior: str = "variational", likelihood: str = "auto",
        season: int | Sequence[int] | None = None, context: int | None = None, scaling: str = "auto",
        transform: str = "auto", holidays: str | None = None, members: int | None = None, hidden: int = 64,
        dropout: float = 0.1, samples: int = 16, minutes: float | None = None, random_state: Any = 0,
    ) -> None:  # fmt: skip
        for name, value in list(locals().items()):
            if name != "self":
                setattr(self, name, value)

    def fit(self, X: Any, y: Any) -> BayesianForecaster:
        """Learn from columns X (n, F) that are known ahead, None for none, and values y (n,)."""
        with needed_by("BayesianForecaster", "'bayesrnn[forecast]'"):
            import pandas as pd

        values = pd.Series(column_or_1d(y, warn=True))
        names = []
        if X is not None:
            check_consistent_length(X, y)
            validate_data(self, X, skip_check_array=True)
            names = [f"x{k}" for k in range(self.n_features_in_)]
        dated = [part.index for part in (y, X) if isinstance(getattr(part, "index", None), pd.DatetimeIndex)]
        stamps = dated[0] if dated else np.arange(len(values))
        if dated and not dated[0].is_monotonic_increasing:
            raise ValueError("the rows are not in time order; sort them by their index")
        frame = pd.DataFrame({"unique_id": "y", "ds": stamps, "y": values.to_numpy()})
        frame = frame.join(self._columns(X, names)) if names else frame
        settings = {name: value for name, value in self.get_params().items() if name not in _OWN}
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.forecaster_ = Forecaster(self.horizon, self.freq, future=names, seed=seed, **settings).fit(frame)
        return self

    def predict(self, X: Any = None, steps: int | None = None, return_std: bool = False) -> Any:
        """Means (n,) of the rows X after those of `fit`, or of the next ``steps``; with ``return_std`` also standard
        deviations. Dates in the index of X may leave rows out."""
        found = self._forecast(X, steps)
        mean = found["mean"].to_numpy()
        std = np.hypot(found["aleatoric_std"], found["epistemic_std"]).to_numpy()
        return (mean, std) if return_std else mean

    def predict_interval(self, X: Any = None, level: float = 0.9, steps: int | None = None) -> tuple[Any, Any]:
        """(low, high) that hold a value with probability ``level``."""
        if not 0 < level < 1:
            raise ValueError(f"level must be a probability between 0 and 1, got {level!r}")
        found, percent = self._forecast(X, steps, level), f"{round(100 * level, 9):g}"
        return found[f"lo-{percent}"].to_numpy(), found[f"hi-{percent}"].to_numpy()

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """R² of the means of the rows that follow."""
        return float(r2_score(y, self.predict(X, len(y) if X is None else None), sample_weight=sample_weight))

    def _forecast(self, X: Any, steps: int | None, level: float = 0.9) -> Any:
        """Rows of the forecaster's table."""
        check_is_fitted(self)
        made, names, horizon = self.forecaster_, self.forecaster_.columns.future, self.horizon
        if X is None and names:
            raise ValueError("the model needs X, the columns known ahead, of the rows that follow")
        if X is not None and hasattr(self, "n_features_in_"):
            validate_data(self, X, reset=False, skip_check_array=True)
        count = len(X) if X is not None else horizon if steps is None else steps
        if not 1 <= count <= horizon:
            raise ValueError(f"the horizon is {horizon} rows, got {count}; fit with a larger horizon")
        place, stamps = self._placed(X, count)
        near = np.maximum(np.searchsorted(place, np.arange(horizon), side="right") - 1, 0)
        future = self._columns(X, list(names)).iloc[near].assign(unique_id="y", ds=stamps) if names else None
        return made.predict(level=round(100 * level, 9), future=future).iloc[place]

    def _placed(self, X: Any, count: int) -> tuple[Any, Any]:
        """Steps ahead (from 0) of so many rows, by the dates of X if it has any; and stamps of the whole horizon."""
        panel = self.forecaster_.panel
        assert panel is not None
        steps, one = np.arange(self.horizon), np.zeros(self.horizon, int)
        stamps = panel.clock.stamps(panel.numbers(one, panel.lengths[one] + steps))
        index = getattr(X, "index", None)
        if panel.clock.unit == "number" or index is None or index.dtype.kind != "M":
            return steps[:count], stamps
        place = stamps.get_indexer(index)
        for row in np.flatnonzero((place < 0) | (np.diff(place, prepend=-1) < 1))[:1]:
            raise ValueError(f"X has {index[row]} in row {row}; its rows lie in order from {stamps[0]} to {stamps[-1]}")
        return place, stamps

    def _columns(self, X: Any, names: list[str]) -> Any:
        """Columns of X under plain names."""
        import pandas as pd

        return pd.DataFrame(X).set_axis(names, axis=1).reset_index(drop=True)
