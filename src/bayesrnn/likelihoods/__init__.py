"""Likelihoods p(y | output): negative log-likelihood for training, moments and quantiles for prediction."""

from bayesrnn.likelihoods.base import Distribution, Likelihood
from bayesrnn.likelihoods.categorical import Categorical
from bayesrnn.likelihoods.gaussian import Gaussian
from bayesrnn.likelihoods.mixture import GaussianHeads, Mixture
from bayesrnn.likelihoods.negative_binomial import NegativeBinomial
from bayesrnn.likelihoods.quantile_levels import Quantiles
from bayesrnn.likelihoods.student_t import StudentT

__all__ = [
    "Categorical",
    "Distribution",
    "Gaussian",
    "GaussianHeads",
    "Likelihood",
    "Mixture",
    "NegativeBinomial",
    "Quantiles",
    "StudentT",
]
