"""Targets' log-probabilities with one pass over the logits each way on a GPU: the code is gpu/decoder.py."""

from bayesrnn.kernels.paths import triton_path

PATHS = (triton_path("decoder", "decoder:target_logs"),)
