"""Training: the loop and the run folder it writes to."""
