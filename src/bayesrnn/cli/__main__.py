"""``python -m bayesrnn.cli``."""

from bayesrnn.cli import main

main()
