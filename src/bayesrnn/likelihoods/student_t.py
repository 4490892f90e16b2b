"""Student's t likelihood."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from bayesrnn.checks import is_number
from bayesrnn.likelihoods.base import Distribution
from bayesrnn.likelihoods.quantiles import betainc, lgamma_difference
from bayesrnn.likelihoods.scores import FAR


class StudentT(Distribution):
    r"""Student's t, for targets with outliers: its tails fall as a power, not as a Gaussian's.

    .. math:: p(y) = \frac{\Gamma(\frac{\nu + 1}{2})}{\Gamma(\frac{\nu}{2}) \sqrt{\nu \pi} s}
              \Big(1 + \frac{1}{\nu} \big(\frac{y - m}{s}\big)^2\Big)^{-(\nu + 1) / 2}

    Args:
        df: degrees of freedom :math:`\nu`; None: the model predicts them too.

    Shapes: output (..., 2), location m and log scale, or (..., 3) with log df; target (...) or (..., 1). The variance
    is :math:`s^2 \nu / (\nu - 2)`, infinite for :math:`\nu \le 2`. ``mean`` is the location for every :math:`\nu`.

    Example::

        elbo = br.ELBO(model, br.StudentT(df=4), num_data=len(y))
        elbo(model(x), y).loss.backward()                            # model(x): (batch, 2)
        br.predict(model, x, likelihood=br.StudentT(df=4)).interval(0.9)
    """

    def __init__(self, df: float | None = None) -> None:
        super().__init__()
        if df is not None and not (is_number(df) and math.isfinite(df) and df > 0):
            raise ValueError(f"df must be a positive number of degrees of freedom, or None, got {df!r}")
        self.df, self.size = df, 2 if df is not None else 3

    def extra_repr(self) -> str:
        return f"df={self.df}"

    def _parts(self, output: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        df = output[..., 2].exp() if self.df is None else torch.full_like(output[..., 0], self.df)
        return output[..., 0], output[..., 1], df

    def log_prob(self, output: Tensor, y: Tensor) -> Tensor:
        location, log_scale, df = self._parts(output)
        z = (y - location) * torch.exp(-log_scale)
        norm = lgamma_difference(df / 2, df.new_tensor(0.5)) - 0.5 * torch.log(df * math.pi) - log_scale
        return norm - (df + 1) / 2 * torch.log1p(z.square() / df)

    def mean(self, output: Tensor) -> Tensor:
        return output[..., 0]

    def variance(self, output: Tensor) -> Tensor:
        _, log_scale, df = self._parts(output)
        return torch.where(df > 2, torch.exp(2 * log_scale) * df / (df - 2).clamp_min(1e-30), math.inf)

    def cdf(self, output: Tensor, y: Tensor) -> Tensor:
        location, log_scale, df = self._parts(output)
        z = (y - location) * torch.exp(-log_scale)
        square = z.square()
        tail = 0.5 * betainc(df / 2, df.new_tensor(0.5), df / (df + square), square / (df + square))
        return torch.where(z > 0, 1 - tail, tail)

    def crps(self, parameters: Tensor, y: Tensor) -> Tensor:
        """Infinite where a draw has 1/2 degree of freedom or fewer."""
        wide, y = parameters.double(), y.double()
        df = self._parts(wide)[2]
        least = df.amin(0)
        bends = torch.cat([self.bends(wide).movedim(-1, 0).flatten(0, 1), y[None]])
        far = FAR * (bends.amax(0) - bends.amin(0))
        # Beyond, a tail falls as a power: with t = far exp(u), the rest is an integral over exp(-rate u).
        rate, tail, total = (2 * least - 1).clamp_min(1e-12), self.cdf(wide, -far.expand(df.shape)), torch.zeros_like(y)
        for v, weight in zip(*np.polynomial.laguerre.laggauss(32), strict=True):
            total += weight * (tail * torch.exp(-(df - least) * float(v) / rate)).mean(0).square()
        return torch.where(least > 0.5, super().crps(parameters, y) + 2 * far * total / rate, math.inf)

    def reach(self, output: Tensor) -> tuple[Tensor, Tensor]:
        width = 4 * torch.exp(output[..., 1])
        return output[..., 0] - width, output[..., 0] + width
