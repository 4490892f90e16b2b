"""Word-level language models."""

COMMANDS = {name: f"{__name__}.commands:{name}" for name in ("predict", "prune", "tokenize", "reproduce")}
"""Commands of this task, found without importing the task."""
EVALUATE_OPTIONS = f"{__name__}.options:EvaluateOptions"
"""A class whose parameters are this task's options of ``bayesrnn evaluate``."""
