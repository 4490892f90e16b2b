"""Posteriors q(w) over the weights of any module."""

from bayesrnn.posteriors.base import Bayesian, HasSigma, Posterior, RandomWeights, TwoLevel
from bayesrnn.posteriors.bayes_by_backprop import BayesByBackprop
from bayesrnn.posteriors.dropconnect import DropConnect
from bayesrnn.posteriors.gaussian import DiagonalGaussian
from bayesrnn.posteriors.sharpening import PosteriorSharpening

__all__ = [
    "BayesByBackprop",
    "Bayesian",
    "DiagonalGaussian",
    "DropConnect",
    "HasSigma",
    "Posterior",
    "PosteriorSharpening",
    "RandomWeights",
    "TwoLevel",
]
