"""Captions for images."""

COMMANDS = {"caption": f"{__name__}.commands:command"}
