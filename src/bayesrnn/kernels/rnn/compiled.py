"""The simple recurrence in C: the code is in cpu/, its README.md has the equations and the measurements."""

from bayesrnn.kernels.cpu.recurrent import compiled
from bayesrnn.kernels.paths import compiled_path
from bayesrnn.kernels.rnn import loop
from bayesrnn.kernels.rnn.reference import RNN

rnn = compiled(RNN, loop.rnn)
PATHS = (compiled_path("RNN", rnn, mapped=True),)
