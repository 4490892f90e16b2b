"""The LSTM recurrence in C: the code is in cpu/, its README.md has the equations and the measurements."""

from bayesrnn.kernels.cpu.recurrent import compiled
from bayesrnn.kernels.lstm import loop
from bayesrnn.kernels.lstm.reference import LSTM
from bayesrnn.kernels.paths import compiled_path

lstm = compiled(LSTM, loop.lstm)
PATHS = (compiled_path("LSTM", lstm, mapped=True),)
