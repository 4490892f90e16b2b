"""Kills, full disks and other faults during training."""
