"""Probabilistic forecasts of one or many time series: DataFrames in, calibrated quantiles and sample paths out."""

from bayesrnn.forecasting.forecaster import Forecaster
from bayesrnn.forecasting.scores import scores

__all__ = ["Forecaster", "scores"]
