"""Forecasts of a series with intervals."""

COMMANDS = {"forecast": f"{__name__}.commands:command"}
