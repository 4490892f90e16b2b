"""Quantile regression."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bayesrnn.likelihoods.base import Distribution


class Quantiles(Distribution):
    r"""Quantiles that the model predicts directly, trained by the pinball loss (Koenker and Bassett 1978).

    .. math:: -\log p(y) = \sum_l \max\big(\tau_l (y - q_l), (\tau_l - 1)(y - q_l)\big)

    up to a constant: the density of an asymmetric Laplace distribution for each level. Outputs are sorted, so that
    quantiles do not cross (Chernozhukov et al. 2010).

    Args:
        levels: at least two probabilities :math:`\tau_l` between 0 and 1, in rising order.

    Shapes: output (..., levels), one quantile each; target (...) or (..., 1). For prediction the distribution function
    is linear between quantiles. Beyond the outermost ones it continues with the same slope to 0 and 1.

    Example::

        elbo = br.ELBO(model, br.Quantiles([0.05, 0.5, 0.95]), num_data=len(y))
        low, high = br.predict(model, x, likelihood=br.Quantiles([0.05, 0.5, 0.95])).interval(0.9)
    """

    levels: Tensor

    def __init__(self, levels: Sequence[float]) -> None:
        super().__init__()
        found = [float(level) for level in levels]
        if len(found) < 2 or not all(0 < level < 1 for level in found) or found != sorted(set(found)):
            raise ValueError(
                f"levels must be at least two probabilities between 0 and 1 in rising order, got {levels!r}"
            )
        self.size = len(found)
        self.register_buffer("levels", torch.tensor(found, dtype=torch.float64), persistent=False)

    def extra_repr(self) -> str:
        return str(self.levels.tolist())

    def log_prob(self, output: Tensor, y: Tensor) -> Tensor:
        error = y.unsqueeze(-1) - output.sort(-1).values
        levels = self.levels.to(error)
        return -torch.maximum(levels * error, (levels - 1) * error).sum(-1)

    def knots(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """Where the distribution function bends, (..., levels + 2), and its values there, from 0 to 1."""
        q, p = output.sort(-1).values, self.levels.to(output)
        first = q[..., :1] - (q[..., 1:2] - q[..., :1]) * (p[0] / (p[1] - p[0]))
        last = q[..., -1:] + (q[..., -1:] - q[..., -2:-1]) * ((1 - p[-1]) / (p[-1] - p[-2]))
        return torch.cat([first, q, last], -1), torch.cat([p.new_zeros(1), p, p.new_ones(1)])

    def mean(self, output: Tensor) -> Tensor:
        return _mean(*self.knots(output))

    def variance(self, output: Tensor) -> Tensor:
        at, p = self.knots(output)
        off = at - _mean(at, p).unsqueeze(-1)
        a, b = off[..., :-1], off[..., 1:]
        return ((a.square() + a * b + b.square()) / 3 * p.diff()).sum(-1)

    def cdf(self, output: Tensor, y: Tensor) -> Tensor:
        at, p = self.knots(output)
        share = (y.unsqueeze(-1) - at[..., :-1]) / at.diff(dim=-1).clamp_min(1e-300)
        return (share.clamp(0, 1) * p.diff()).sum(-1)

    def reach(self, output: Tensor) -> tuple[Tensor, Tensor]:
        at, _ = self.knots(output)
        return at[..., 0], at[..., -1]

    def bends(self, output: Tensor) -> Tensor:
        return self.knots(output)[0]


def _mean(at: Tensor, p: Tensor) -> Tensor:
    return ((at[..., 1:] + at[..., :-1]) / 2 * p.diff()).sum(-1)
