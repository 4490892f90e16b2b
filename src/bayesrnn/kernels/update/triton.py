"""A step of SGD with clipping in three launches on a GPU: the code is gpu/update.py."""

from bayesrnn.kernels.paths import triton_path

PATHS = (triton_path("update", "update:clipped_step"),)
