"""Bayes by Backprop: an independent Gaussian for every weight (Blundell et al. 2015; arXiv 1704.02798)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn

from bayesrnn.posteriors.base import Bayesian, HasSigma
from bayesrnn.posteriors.gaussian import DiagonalGaussian, Spread
from bayesrnn.posteriors.weights import Patterns
from bayesrnn.priors import Normal, Prior, check_prior


class BayesByBackprop(Bayesian, HasSigma):
    """Make any module Bayesian: an independent Gaussian posterior for every weight.

    One draw per call in train mode, the posterior mean in eval mode; see `br.draw` to hold a draw.

    Args:
        module: any `nn.Module`; its present weights are the first means. It is copied, not changed.
        prior: `br.Normal`, `br.ScaleMixture`, or anything with `log_prob(w)`. None: `br.Normal(1.0)`, which learns on
            data sets of all sizes; see the guide on priors before you choose a narrower one.
        init_sigma: first standard deviation of the weights: a number, a pair (low, high) for a random start in
            between (uniform in rho), or a dict of name patterns to either. Start small: noise of 0.1 on every weight
            hides what the network could learn from.
        include: name patterns of the parameters that become random; None: all. The others stay ordinary.
        exclude: name patterns of parameters that stay ordinary.

    Example::

        prior = br.ScaleMixture(0.25, math.exp(-1), math.exp(-7))
        q = br.BayesByBackprop(model, prior=prior, exclude="head.bias")
        elbo = br.ELBO(q, br.Categorical(), num_data=929_589)
        logits, state = q(x, state)
        elbo(logits, y).loss.backward()
    """

    posterior: DiagonalGaussian
    weights_kernel = "gaussian"

    def __init__(
        self,
        module: nn.Module,
        prior: Prior | None = None,
        init_sigma: Spread | Mapping[str, Spread] = 0.02,
        include: Patterns = None,
        exclude: Patterns = None,
    ) -> None:
        chosen = check_prior(Normal(1.0) if prior is None else prior)
        make = partial(DiagonalGaussian, prior=chosen, init_sigma=init_sigma)
        super().__init__(module, make, include=include, exclude=exclude)

    def _draw(self, noise: Any) -> Mapping[str, Tensor]:
        return self.posterior.weights(self.means, noise, autocast=True)

    def named_posteriors(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """(name, mean, sigma) of every Bayesian parameter, under the wrapped module's own names."""
        for name, mean in self.means.items():
            yield name, mean, self.posterior.sigma(name)
