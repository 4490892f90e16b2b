"""Scores of the tables that `Forecaster.backtest` returns, and where values fell in their forecasts."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from bayesrnn.errors import UserError


def scores(table: Any, *, by: str | None = None, history: Any = None, season: int = 1, id_col: str = "unique_id",
           time_col: str = "ds", target_col: str = "y") -> Any:  # fmt: skip
    """Scores of a backtest table, or of a forecast merged with what came (column y).

    Args:
        table: columns y, mean, median, lo-L and hi-L (and crps, where there).
        by: a column to group by, such as "step" or "unique_id"; None: one row.
        history: a long frame of the past; with it mase, and MSIS in units of each series' mean absolute seasonal
            difference, as in the M4 competition. A series without such differences (constant, or shorter than the
            season) has no unit: mase and MSIS leave it out, and are NaN where no series is left.
        season: steps of that difference.
        time_col: column by which the history is sorted; without it, its rows are in order.

    Returns:
        A DataFrame with mae, rmse, smape (percent), crps, mase, and coverage-L, width-L, msis-L for each level.
    """
    import pandas as pd

    target = target_col if target_col in table else "y"  # that of a backtest
    needed = {"table": (table, [target, "mean", "median", *([by] if by else []), *([id_col] * (history is not None))]),
              "history": (history, [id_col, target_col] * (history is not None))}  # fmt: skip
    for name, (frame, columns) in needed.items():
        for missing in [c for c in columns if c not in frame][:1]:
            raise UserError(
                f"The {name} has no column {missing!r}; give a table of Forecaster.backtest and a long frame, and name "
                "other columns with id_col, time_col and target_col."
            )
    y = table[target].to_numpy(dtype=float)
    unit = np.ones(len(table))
    if history is not None:
        past = history.sort_values([id_col, *([time_col] if time_col in history else [])], kind="stable")
        change = past.groupby(id_col, sort=False, observed=True)[target_col].diff(season).abs()
        step = change.groupby(past[id_col].to_numpy(), sort=False).mean()
        unit = table[id_col].map(step.where(step > 0)).to_numpy(dtype=float)
    off = np.abs(y - table["median"].to_numpy())
    size = np.abs(y) + np.abs(table["median"].to_numpy())
    scored = {"mae": off, "rmse": (y - table["mean"].to_numpy()) ** 2}
    scored["smape"] = 200 * np.divide(off, size, out=np.zeros_like(off), where=size > 0)
    scored["smape"][np.isnan(y)] = np.nan
    if "crps" in table:
        scored["crps"] = table["crps"].to_numpy()
    if history is not None:
        scored["mase"] = off / unit
    for name in [c for c in table if re.fullmatch(r"lo-[\d.]+", str(c))]:
        level = name[3:]
        low, high, alpha = table[name].to_numpy(), table[f"hi-{level}"].to_numpy(), 1 - float(level) / 100
        beyond = np.maximum(low - y, 0) + np.maximum(y - high, 0)
        scored[f"coverage-{level}"] = np.where(np.isnan(y), np.nan, (y >= low) & (y <= high))
        scored[f"width-{level}"] = high - low
        scored[f"msis-{level}"] = (high - low + 2 / alpha * beyond) / unit
    frame = pd.DataFrame(scored)
    grouped = frame.groupby(table[by].to_numpy()) if by else frame.groupby(np.zeros(len(frame)))
    found = grouped.mean()
    found["rmse"] = np.sqrt(found["rmse"])
    return found.rename_axis(by) if by else found.reset_index(drop=True)


def pit(table: Any, *, target_col: str = "y") -> tuple[list[float], list[float]]:
    """Edges of bins in [0, 1], and the share of values whose probability under their forecast lies in each.

    Shares are the widths of the bins where forecasts are calibrated. The bins are those of the table's quantiles, as
    from ``backtest(quantiles=[0.1, ..., 0.9])``; without any, both lists are empty.
    """
    quantiles = sorted(float(c[2:]) for c in table if re.fullmatch(r"q-[\d.]+", str(c)))
    y = table[target_col].to_numpy(dtype=float)
    known = ~np.isnan(y)
    if not quantiles or not known.any():
        return [], []
    below = np.sum([y > table[f"q-{q:g}"].to_numpy() for q in quantiles], axis=0)
    counts = np.bincount(below[known], minlength=len(quantiles) + 1)
    return [0.0, *quantiles, 1.0], (counts / known.sum()).tolist()
