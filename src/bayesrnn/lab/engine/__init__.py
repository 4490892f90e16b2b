"""Training: from a recipe to a finished run."""
