"""Word-level language models."""

COMMANDS = {name: f"{__name__}.commands:{name}" for name in ("predict", "prune", "tokenize", "reproduce")}
"""Commands of this task, found without importing the task."""
EVALUATE_OPTIONS = f"{__name__}.commands:evaluate_options"
"""A function whose parameters are this task's options of ``bayesrnn evaluate``."""
