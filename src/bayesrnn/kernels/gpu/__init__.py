"""Kernels in Triton for a GPU: what the kernels' folders offer as paths `persistent` and `triton`."""
