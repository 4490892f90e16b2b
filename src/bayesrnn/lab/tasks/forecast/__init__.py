"""Forecasts of a series with intervals."""

SAVED = {"forecaster.json": f"{__name__}.saved:Saved"}
COMMANDS = {"forecast": f"{__name__}.commands:command"}
