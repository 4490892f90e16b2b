"""Convolutional and dense networks on MNIST."""
