"""A step of SGD with clipping by the global norm, over all parameters at once."""
