"""Negative binomial likelihood."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesrnn.likelihoods.base import Distribution
from bayesrnn.likelihoods.quantiles import betainc, lgamma_difference

_LEAST = -30.0  # log dispersion at which even a mean of a million is Poisson's


class NegativeBinomial(Distribution):
    r"""Counts whose variance exceeds their mean.

    .. math:: p(y) = \frac{\Gamma(y + r)}{\Gamma(r) \, y!} \Big(\frac{r}{r + \mu}\Big)^r
              \Big(\frac{\mu}{r + \mu}\Big)^y,
              \quad r = 1 / \alpha, \quad \mathrm{E} = \mu, \quad \mathrm{Var} = \mu + \alpha \mu^2

    Shapes: output (..., 2), log mean :math:`\log \mu` and log dispersion :math:`\log \alpha`; target (...) or (..., 1)
    of whole numbers from 0. At a dispersion towards 0 it is Poisson's. Computed in float64.

    Example::

        elbo = br.ELBO(model, br.NegativeBinomial(), num_data=len(counts))
        br.predict(model, x, likelihood=br.NegativeBinomial()).quantile(0.95)  # a whole number
    """

    size, discrete = 2, True

    def _parts(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """r, and log(mu / r)."""
        log_mean, log_dispersion = output.double().unbind(-1)
        log_dispersion = log_dispersion.clamp_min(_LEAST)
        return torch.exp(-log_dispersion), log_mean + log_dispersion

    def matched(self, output: Tensor, target: Tensor) -> Tensor:
        y = super().matched(output, target)
        if not y.is_cuda and bool((bad := (y < 0) | (y != y.floor()) | y.isinf()).any()):
            wrong = y[bad].flatten()[0]
            raise ValueError(f"targets of br.NegativeBinomial are counts, whole numbers from 0, got {float(wrong):g}")
        return y

    def log_prob(self, output: Tensor, y: Tensor) -> Tensor:
        (r, odds), y = self._parts(output), y.double()
        chosen = lgamma_difference(r, y) - torch.lgamma(y + 1)
        return (chosen - r * F.softplus(odds) + y * F.logsigmoid(odds)).to(output.dtype)

    def mean(self, output: Tensor) -> Tensor:
        return output[..., 0].exp()

    def variance(self, output: Tensor) -> Tensor:
        mean = self.mean(output)
        return mean + output[..., 1].exp() * mean.square()

    def cdf(self, output: Tensor, y: Tensor) -> Tensor:
        r, odds = self._parts(output)
        y = y.double().floor()
        found = betainc(r, y.clamp_min(0) + 1, torch.sigmoid(-odds), torch.sigmoid(odds))
        return torch.where(y < 0, torch.zeros_like(found), found)

    def reach(self, output: Tensor) -> tuple[Tensor, Tensor]:
        mean = self.mean(output)
        return torch.zeros_like(mean), mean + 4 * self.variance(output).sqrt()
