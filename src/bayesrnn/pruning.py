"""Pruning by signal-to-noise: weights whose posterior is mostly noise can go (arXiv 1704.02798, section 5.3)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesrnn.checks import is_number
from bayesrnn.posteriors.bayes_by_backprop import BayesByBackprop
from bayesrnn.posteriors.sharpening import PosteriorSharpening
from bayesrnn.wrappers import unwrapped

# rho of a pruned weight: sigma = 4e-18, next to a point mass at 0, with a log that the KL can have. In float16 that
# sigma would be 0; there it is 1.2e-7, about the smallest that float16 has.
_GONE, _GONE_HALF = -40.0, -16.0


@dataclass(frozen=True)
class Pruned:
    """What went where."""

    name: str
    removed: int
    total: int

    @property
    def fraction(self) -> float:
        return self.removed / self.total


@dataclass(frozen=True)
class PruneReport:
    """The outcome of `br.prune`.

    `threshold` is the largest |mean| / sigma that was removed (per tensor: of all tensors), `tensors` has a line for
    each Bayesian parameter.
    """

    fraction: float
    threshold: float
    tensors: tuple[Pruned, ...]

    @property
    def removed(self) -> int:
        return sum(t.removed for t in self.tensors)

    @property
    def total(self) -> int:
        return sum(t.total for t in self.tensors)

    def __str__(self) -> str:
        width = max(len(t.name) for t in self.tensors)
        lines = [f"{t.name:<{width}}  {t.removed:>12,} of {t.total:>12,}  {t.fraction:7.1%}" for t in self.tensors]
        share = self.removed / self.total
        return "\n".join([*lines, f"{'all':<{width}}  {self.removed:>12,} of {self.total:>12,}  {share:7.1%}"])


def gaussian_of(q: BayesByBackprop | PosteriorSharpening) -> BayesByBackprop:
    """The Gaussian posterior itself, without sharpening or wrappers such as `torch.compile` around it."""
    inner = unwrapped(q)
    inner = inner.q if isinstance(inner, PosteriorSharpening) else inner
    if not isinstance(inner, BayesByBackprop):
        raise TypeError(
            f"signal-to-noise needs a br.BayesByBackprop, got {type(inner).__name__}: other posteriors have no sigma"
        )
    return inner


@torch.no_grad()
def signal_to_noise(q: BayesByBackprop | PosteriorSharpening) -> dict[str, Tensor]:
    """|mean| / sigma of every weight, by parameter name, in the parameter's shape; at least in float32."""
    inner = gaussian_of(q)
    return {name: _ratio(mean, inner.posterior.rho[name]) for name, mean in inner.means.items()}


def _ratio(mean: Tensor, rho: Tensor) -> Tensor:
    dtype = torch.promote_types(mean.dtype, torch.float32)  # in float16 a small sigma is 0, and 0 / 0 no number
    sigma = F.softplus(rho.to(dtype)).clamp_min(torch.finfo(dtype).tiny)
    return mean.to(dtype).abs() / sigma


@torch.no_grad()
def prune(q: BayesByBackprop | PosteriorSharpening, fraction: float, *, per_tensor: bool = False) -> PruneReport:
    """Remove the given fraction of the weights, those of lowest |mean| / sigma, in place.

    A removed weight has mean 0 and almost no noise: about 1e-17 in a draw (of 1e-7
    in float16, which has no smaller numbers). Pruning again removes further; `copy.deepcopy(q)` first keeps the
    original. A weight whose |mean| / sigma is NaN goes first.

    Args:
        fraction: of all Bayesian weights, in [0, 1].
        per_tensor: remove this fraction of every parameter, instead of ranking all weights together.
    """
    if not is_number(fraction) or not 0 <= fraction <= 1:
        raise ValueError(f"fraction must be a number in [0, 1], got {fraction!r}: 0.8 removes 80% of the weights")
    fraction, inner = float(fraction), gaussian_of(q)
    ratios = _ordered(inner)
    if per_tensor:
        masks = {name: _masks({name: ratio}, fraction)[name] for name, ratio in ratios.items()}
    else:
        masks = _masks(ratios, fraction)
    remove(inner, masks)
    threshold, report = 0.0, []
    for name, mask in masks.items():
        count = int(mask.sum())
        if count:
            threshold = max(threshold, float(ratios[name][mask].max()))
        report.append(Pruned(name, count, mask.numel()))
    return PruneReport(fraction, threshold, tuple(report))


def lowest(q: BayesByBackprop | PosteriorSharpening, fraction: float) -> dict[str, Tensor]:
    """Which weights `br.prune` would take away, by parameter name: true for the fraction of lowest |mean| / sigma."""
    return _masks(_ordered(q), fraction)


def _ordered(q: BayesByBackprop | PosteriorSharpening) -> dict[str, Tensor]:
    """|mean| / sigma with NaN replaced by 0, so that those weights are pruned first."""
    return {name: ratio.nan_to_num(nan=0.0, posinf=math.inf) for name, ratio in signal_to_noise(q).items()}


@torch.no_grad()
def remove(q: BayesByBackprop | PosteriorSharpening, masks: Mapping[str, Tensor]) -> None:
    """Remove weights in place: set mean 0 and negligible sigma where the mask is true."""
    inner = gaussian_of(q)
    for name, mask in masks.items():
        rho = inner.posterior.rho[name]
        inner.means[name].masked_fill_(mask, 0.0)
        rho.masked_fill_(mask, gone_rho(rho.dtype))


@torch.no_grad()
def scale_sigma(q: BayesByBackprop | PosteriorSharpening, masks: Mapping[str, Tensor], part: float) -> None:
    """Multiply sigma by ``part``, in place, where the mask of a parameter's name is true."""
    inner = gaussian_of(q)
    for name, mask in masks.items():
        rho = inner.posterior.rho[name]
        sigma = part * F.softplus(rho.to(torch.promote_types(rho.dtype, torch.float32)))
        rho.copy_(torch.where(mask, sigma + torch.log(-torch.expm1(-sigma)), rho))


@torch.no_grad()
def removed(q: BayesByBackprop | PosteriorSharpening) -> dict[str, Tensor]:
    """Which weights `br.prune` has taken away, by parameter name: true where mean and noise are gone."""
    inner = gaussian_of(q)
    rhos = {name: inner.posterior.rho[name] for name in inner.means}
    return {name: (mean == 0) & (rhos[name] == gone_rho(rhos[name].dtype)) for name, mean in inner.means.items()}


def count_of(fraction: float, total: int) -> int:
    """How many weights a fraction of them is; of two numbers as near, the larger."""
    return math.floor(fraction * total + 0.5)


def share_of(count: int, total: int) -> float:
    """The share with the fewest digits that is so many weights, as :func:`count_of` counts."""
    shares = (round(count / total, digits) for digits in range(17))
    return next((share for share in shares if count_of(share, total) == count), count / total)


def gone_rho(dtype: torch.dtype) -> float:
    """rho of a weight that was taken away; its sigma is near exp(rho)."""
    return _GONE_HALF if dtype == torch.float16 else _GONE


def _masks(ratios: Mapping[str, Tensor], fraction: float) -> dict[str, Tensor]:
    """True for exactly :func:`count_of` entries of all together, the lowest (of equal ones, the first)."""
    values = torch.cat([ratio.flatten() for ratio in ratios.values()])
    count = count_of(fraction, values.numel())
    mask = torch.zeros_like(values, dtype=torch.bool)
    if count:
        mask[torch.argsort(values, stable=True)[:count]] = True
    parts = mask.split([ratio.numel() for ratio in ratios.values()])
    return {name: part.view_as(ratio) for (name, ratio), part in zip(ratios.items(), parts, strict=True)}
