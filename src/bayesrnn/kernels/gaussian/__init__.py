"""Diagonal Gaussian weights: sampling with the sums that the KL needs, forward and backward in one pass each."""
