"""Likelihoods p(y | output): negative log-likelihood for training, moments for prediction."""

from bayesrnn.likelihoods.base import Likelihood
from bayesrnn.likelihoods.categorical import Categorical
from bayesrnn.likelihoods.gaussian import Gaussian

__all__ = ["Categorical", "Gaussian", "Likelihood"]
