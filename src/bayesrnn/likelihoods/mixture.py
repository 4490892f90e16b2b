"""Mixtures of likelihoods."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bayesrnn.likelihoods.base import Distribution
from bayesrnn.likelihoods.gaussian import Gaussian
from bayesrnn.likelihoods.quantiles import gaussian_mixture_quantile


class GaussianHeads(Distribution):
    """N(y; m, s^2) with both from the model. Shapes: output (..., 2), mean m and log s; target (...) or (..., 1)."""

    size = 2

    def log_prob(self, output: Tensor, y: Tensor) -> Tensor:
        mean, log_sigma = output.unbind(-1)
        return -0.5 * ((y - mean) * torch.exp(-log_sigma)).square() - log_sigma - 0.5 * math.log(2 * math.pi)

    def mean(self, output: Tensor) -> Tensor:
        return output[..., 0]

    def variance(self, output: Tensor) -> Tensor:
        return torch.exp(2 * output[..., 1])

    def cdf(self, output: Tensor, y: Tensor) -> Tensor:
        return torch.special.ndtr((y - output[..., 0]) * torch.exp(-output[..., 1]))

    def reach(self, output: Tensor) -> tuple[Tensor, Tensor]:
        width = 4 * torch.exp(output[..., 1])
        return output[..., 0] - width, output[..., 0] + width

    def quantile(self, parameters: Tensor, q: float) -> Tensor:
        wide = parameters.double()
        return gaussian_mixture_quantile(wide[..., 0], wide[..., 1].exp(), q)


class Mixture(Distribution):
    r"""Several distributions with weights that the model predicts too, for targets with more than one likely value.

    .. math:: p(y) = \sum_{k=1}^{K} w_k \, p_k(y), \quad w = \mathrm{softmax}(\text{logits})

    (a mixture density network, Bishop 1994).

    Args:
        component: `br.Gaussian` (mean and log sigma of each from the model), or a distribution such as `br.StudentT`,
            as a class or made.
        components: the number K of components.

    Shapes: output (..., K + K P) with P parameters of a component: first K logits, then the first component's
    parameters, the second's, and so on; target (...) or (..., 1).

    Example::

        likelihood = br.Mixture(br.Gaussian, components=3)           # 9 outputs
        elbo = br.ELBO(model, likelihood, num_data=len(y))
        br.predict(model, x, likelihood=likelihood).quantile(0.9)
    """

    def __init__(self, component: type | Distribution = Gaussian, components: int = 3) -> None:
        super().__init__()
        made = GaussianHeads() if component is Gaussian else component() if isinstance(component, type) else component
        if not isinstance(made, Distribution) or isinstance(made, Mixture):
            raise TypeError(f"component must be br.Gaussian or a distribution such as br.StudentT, got {component!r}")
        if not isinstance(components, int) or components < 1:
            raise ValueError(f"components must be a whole number from 1, got {components!r}")
        self.component, self.components, self.discrete = made, components, made.discrete
        self.size = components * (1 + made.size)

    def _parts(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """log w (..., K), and the components' parameters (..., K, P)."""
        logits, rest = output.split([self.components, self.size - self.components], -1)
        return logits.log_softmax(-1), rest.unflatten(-1, (self.components, self.component.size))

    def matched(self, output: Tensor, target: Tensor) -> Tensor:
        y = super().matched(output, target)
        self.component.matched(self._parts(output)[1][..., 0, :], y)  # what a component refuses
        return y

    def log_prob(self, output: Tensor, y: Tensor) -> Tensor:
        weights, parts = self._parts(output)
        return (weights + self.component.log_prob(parts, y.unsqueeze(-1).expand_as(weights))).logsumexp(-1)

    def mean(self, output: Tensor) -> Tensor:
        weights, parts = self._parts(output)
        return (weights.exp() * self.component.mean(parts)).sum(-1)

    def variance(self, output: Tensor) -> Tensor:
        weights, parts = self._parts(output)
        apart = self.component.mean(parts) - self.mean(output).unsqueeze(-1)
        return (weights.exp() * (self.component.variance(parts) + apart.square())).sum(-1)

    def cdf(self, output: Tensor, y: Tensor) -> Tensor:
        weights, parts = self._parts(output)
        return (weights.exp() * self.component.cdf(parts, y.unsqueeze(-1).expand_as(weights))).sum(-1)

    def reach(self, output: Tensor) -> tuple[Tensor, Tensor]:
        low, high = self.component.reach(self._parts(output)[1])
        return low.amin(-1), high.amax(-1)

    def bends(self, output: Tensor) -> Tensor:
        return self.component.bends(self._parts(output)[1]).flatten(-2)

    def quantile(self, parameters: Tensor, q: float) -> Tensor:
        if not isinstance(self.component, GaussianHeads):
            return super().quantile(parameters, q)
        weights, parts = self._parts(parameters.double())
        mean, log_sigma, share = (p.movedim(-1, 0).flatten(0, 1) for p in (*parts.unbind(-1), weights))
        return gaussian_mixture_quantile(mean, log_sigma.exp(), q, share.exp() / len(parameters))
