"""The LSTM recurrence in one launch on a GPU: the code is gpu/lstm.py, the derivation README.md beside this file."""

from bayesrnn.kernels.paths import persistent_path

PATHS = (persistent_path("LSTM", "lstm:lstm"),)
