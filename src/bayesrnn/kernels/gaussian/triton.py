"""Diagonal Gaussian weights on a GPU: the code is in gpu/, equations and measurements are in README.md beside this."""

from bayesrnn.kernels.paths import triton_path

PATHS = (
    triton_path("gaussian", "gaussian:draw"),
    triton_path("noise", "gaussian:noise"),
    triton_path("draws", "draws:draw_many"),
    triton_path("sharpening", "sharpening:sharpen"),
)
