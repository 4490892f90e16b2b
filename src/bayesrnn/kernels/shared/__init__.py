"""Code that several kernels share."""
