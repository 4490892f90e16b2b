"""Kernels in C for a CPU, compiled at first use: `library` or the reason `why_not`. README.md has the measurements."""

from bayesrnn.kernels.cpu.build import library, threads, why_not

__all__ = ["library", "threads", "why_not"]
