"""Posteriors q(w) over the weights of any module."""

from bayesrnn.posteriors.base import Bayesian, Posterior
from bayesrnn.posteriors.bayes_by_backprop import BayesByBackprop, DiagonalGaussian
from bayesrnn.posteriors.dropconnect import DropConnect
from bayesrnn.posteriors.sharpening import PosteriorSharpening

__all__ = ["BayesByBackprop", "Bayesian", "DiagonalGaussian", "DropConnect", "Posterior", "PosteriorSharpening"]
