"""Tasks: what joins data, model, likelihood and metrics."""
