"""The GRU recurrence in C: the code is in cpu/, its README.md has the equations and the measurements."""

from bayesrnn.kernels.cpu.recurrent import compiled
from bayesrnn.kernels.gru import loop
from bayesrnn.kernels.gru.reference import GRU
from bayesrnn.kernels.paths import compiled_path

gru = compiled(GRU, loop.gru)
PATHS = (compiled_path("GRU", gru, mapped=True),)
