"""Monte Carlo prediction."""
