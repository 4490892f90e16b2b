"""`python -m bayesrnn` is the `bayesrnn` command."""

import runpy

runpy.run_module("bayesrnn.lab", run_name="__main__", alter_sys=True)
