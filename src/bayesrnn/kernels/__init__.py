"""Kernels: for each a plain `reference` and fast versions; `dispatch` chooses, `explain` says in words what and why."""

from bayesrnn.kernels.dispatch import (
    Case,
    Path,
    able,
    asked,
    choose,
    force,
    forced,
    implementation,
    is_recording,
    kernel,
    path,
    recording,
)
from bayesrnn.kernels.explanation import explain
from bayesrnn.kernels.shared.precision import tf32

__all__ = [
    "Case",
    "Path",
    "able",
    "asked",
    "choose",
    "explain",
    "force",
    "forced",
    "implementation",
    "is_recording",
    "kernel",
    "path",
    "recording",
    "tf32",
]
