"""The likelihoods that the rest of the library names."""

from __future__ import annotations

from bayesrnn.likelihoods.categorical import Categorical
from bayesrnn.likelihoods.gaussian import Gaussian

Likelihood = Categorical | Gaussian
