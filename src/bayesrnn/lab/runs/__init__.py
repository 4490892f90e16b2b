"""Run folders, checkpoints and records."""
