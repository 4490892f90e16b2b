"""The GRU recurrence in C: the code is in cpu/, its README.md has the equations and the measurements."""

from bayesrnn.kernels.cpu.paths import compiled_path
from bayesrnn.kernels.cpu.recurrent import compiled
from bayesrnn.kernels.gru import loop
from bayesrnn.kernels.gru.reference import GRU

gru = compiled(GRU, loop.gru)
PATHS = (compiled_path("GRU", gru, mapped=True),)
