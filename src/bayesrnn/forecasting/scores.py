"""Scores of the tables that `Forecaster.backtest` returns."""

from __future__ import annotations

from typing import Any


def scores(table: Any, *, by: str | None = None, season: int = 1, history: Any = None) -> Any:
    """Scores of a backtest table, or of a forecast merged with what came (column y): one row, or one per value of ``by``.

    Columns: crps, mae, rmse, smape (percent), coverage-80, width-80, msis-80, ...; with ``history`` (a long frame of the
    past) also mase, and MSIS divided by the mean absolute seasonal difference of each series, as in the M4 competition.
    """
    raise NotImplementedError
