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
    kernel,
    path,
)
from bayesrnn.kernels.explanation import explain
from bayesrnn.kernels.graphs import Windows, capture, record
from bayesrnn.kernels.shared.beside import is_recording, recording
from bayesrnn.kernels.shared.precision import float32_precision, round_float32, tf32

__all__ = [
    "Case",
    "Path",
    "Windows",
    "able",
    "asked",
    "capture",
    "choose",
    "explain",
    "float32_precision",
    "force",
    "forced",
    "implementation",
    "is_recording",
    "kernel",
    "path",
    "record",
    "recording",
    "round_float32",
    "tf32",
]
