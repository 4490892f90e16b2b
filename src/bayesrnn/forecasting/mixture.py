"""Predictive distributions of a forecast: mixtures of Gaussians, their scores, and how they are calibrated."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesrnn.likelihoods.quantiles import gaussian_mixture_quantile

_ROOT_2PI = math.sqrt(2 * math.pi)
_BLOCK = 1 << 16  # numbers in one block: it stays in the processor's cache


@dataclass(frozen=True)
class Mixture:
    """One Gaussian per draw of the weights, all equally likely; with ``log``, of the logarithm of the quantity.

    Args:
        means, sigmas: (S, ...) float64. ``sigmas`` are standard deviations of the noise, above 0.

    What it says is about the quantity itself: with ``log`` the components are log-normal.
    """

    means: Tensor
    sigmas: Tensor
    log: bool = False

    def __post_init__(self) -> None:
        if self.means.shape != self.sigmas.shape:
            raise ValueError(
                f"means and sigmas have shapes {tuple(self.means.shape)} and {tuple(self.sigmas.shape)}; "
                "they must be alike"
            )

    def __getitem__(self, rows: slice | Tensor) -> "Mixture":
        """The mixture of these rows (of the first axis after the draws)."""
        return Mixture(self.means[:, rows], self.sigmas[:, rows], self.log)

    @property
    def component_means(self) -> Tensor:
        return (self.means + 0.5 * self.sigmas.square()).exp() if self.log else self.means

    @property
    def component_variances(self) -> Tensor:
        variance = self.sigmas.square()
        return torch.expm1(variance) * self.component_means.square() if self.log else variance

    @property
    def mean(self) -> Tensor:
        return self.component_means.mean(0)

    @property
    def aleatoric(self) -> Tensor:
        """Variance of the noise, averaged over draws."""
        return self.component_variances.mean(0)

    @property
    def epistemic(self) -> Tensor:
        """Variance of the draws' means."""
        return self.component_means.var(0, correction=0)

    @property
    def variance(self) -> Tensor:
        return self.aleatoric + self.epistemic

    def cdf(self, y: Tensor) -> Tensor:
        """P(Y <= y); at the value that came about, this is the probability integral transform."""
        return torch.special.ndtr((self._modelled(y) - self.means) / self.sigmas).mean(0)

    def log_density(self, y: Tensor) -> Tensor:
        at = self._modelled(y)
        each = -0.5 * ((at - self.means) / self.sigmas).square() - self.sigmas.log() - math.log(_ROOT_2PI)
        density = each.logsumexp(0) - math.log(len(self.means))
        return density - at if self.log else density

    def quantile(self, q: float) -> Tensor:
        """The value that the quantity stays below with probability q."""
        if not 0 < q < 1:
            raise ValueError(f"a quantile is asked for by a number between 0 and 1, got {q!r}")
        found = gaussian_mixture_quantile(self.means, self.sigmas, q)
        return found.exp() if self.log else found

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """(low, high) with the same probability beyond either end."""
        if not 0 < level < 1:
            raise ValueError(f"level must be between 0 and 1, got {level!r}")
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    def summary(self, level: float) -> dict[str, Tensor]:
        """Mean, interval and both standard deviations, by name."""
        low, high = self.interval(level)
        spreads = {"aleatoric_std": self.aleatoric.sqrt(), "epistemic_std": self.epistemic.sqrt()}
        return {"mean": self.mean, "low": low, "high": high, **spreads}

    def crps(self, y: Tensor) -> Tensor:
        """Continuous ranked probability score, E|Y - y| - E|Y - Y'| / 2, in closed form, in the quantity's unit.

        Of Gaussians E|N(m, s^2)| = m (2 Phi(m/s) - 1) + 2 s phi(m/s) (Grimit et al. 2006); of log-normals the
        corresponding partial expectations. Lower is better; of a point forecast it is the absolute error.
        """
        if self.log:
            first = _log_normal_from(self.means, self.sigmas, y).mean(0)
        else:
            first = _absolute(y - self.means, self.sigmas).mean(0)
        return first - 0.5 * self._spread()

    def _spread(self) -> Tensor:
        r"""E|Y - Y'| of two independent copies, :math:`2 \int F(x) (1 - F(x)) dx`.

        By the trapezoidal rule, whose error falls faster than any power of the spacing for such an integrand: at a
        spacing of 0.7 standard deviations of the narrowest component it is a few 1e-6 of the whole. Where that takes
        more points than there are components, by all pairs.
        """
        flat = [t.flatten(1) for t in (self.means, self.sigmas)]
        parts = zip(*(t.split(max(1, _BLOCK // len(self.means)), 1) for t in flat), strict=True)
        found = [self._integrated(m, s) for m, s in parts]
        return torch.cat(found).view(self.means.shape[1:]) if found else torch.zeros_like(self.means[0])

    def _integrated(self, m: Tensor, s: Tensor) -> Tensor:
        reach = 6.5 * s + (s.square() if self.log else 0)
        low, high = (m - reach).amin(0), (m + reach).amax(0)
        points = math.ceil(float(((high - low) / (0.7 * s.amin(0))).max())) + 1 if m.numel() else 0
        if points > len(m):
            return self._pairs(m, s)
        width, total = (high - low) / (points - 1), torch.zeros_like(low)
        start, each, rate = ((m - low) / s).float(), (width / s).float(), -1 / math.sqrt(2)
        for i in range(1, points - 1):
            below = torch.erfc((each * i - start).mul_(rate)).mean(0).double().mul_(0.5)
            total += below * (1 - below) * (torch.exp(low + i * width) if self.log else 1)
        return 2 * width * total

    def _pairs(self, m: Tensor, s: Tensor) -> Tensor:
        """The same over all pairs of components, in closed form; (K, E) to (E,)."""
        total = torch.zeros_like(m[0])
        own = (m + 0.5 * s.square()).exp() if self.log else m
        for mean, sigma, level in zip(m, s, own, strict=True):
            both = (sigma.square() + s.square()).sqrt()
            if self.log:
                apart = (mean - m) / both
                pairs = level * _odd(apart + sigma.square() / both) + own * _odd(-apart + s.square() / both)
            else:
                pairs = _absolute(mean - m, both)
            total += pairs.sum(0)
        return total / len(m) ** 2

    def standardised(self, y: Tensor) -> Tensor:
        """(y - mean) / standard deviation, on the modelled scale."""
        spread = self.sigmas.square().mean(0) + self.means.var(0, correction=0)
        return (self._modelled(y) - self.means.mean(0)) / spread.sqrt()

    def scaled(self, k: Tensor | float) -> "Mixture":
        """k times as wide about the same mean (on the modelled scale); both kinds of uncertainty keep their share."""
        centre = self.means.mean(0)
        return Mixture(centre + k * (self.means - centre), self.sigmas * k, self.log)

    def _modelled(self, y: Tensor) -> Tensor:
        return y.log() if self.log else y


def together(parts: Sequence[Mixture]) -> Mixture:
    """The even mixture of several with as many draws each."""
    return Mixture(torch.cat([p.means for p in parts]), torch.cat([p.sigmas for p in parts]), parts[0].log)


def _absolute(m: Tensor, s: Tensor) -> Tensor:
    """E|N(m, s^2)|."""
    z = m / s
    return m * _odd(z) + (2 / _ROOT_2PI) * s * torch.exp(-0.5 * z.square())


def _odd(z: Tensor) -> Tensor:
    return 2 * torch.special.ndtr(z) - 1


def _log_normal_from(m: Tensor, s: Tensor, y: Tensor) -> Tensor:
    """E|exp(N(m, s^2)) - y|."""
    z = (y.log() - m) / s
    return y * _odd(z) - (m + 0.5 * s.square()).exp() * _odd(z - s)


def running_scale(z: Tensor, *, memory: float, prior: float = 10.0) -> Tensor:
    """How much wider or narrower forecasts should be, from errors that are known when each is made.

    Args:
        z: standardised errors (N, H) of forecasts at N consecutive origins for 1 to H steps ahead; NaN where the
            future is not known yet.
        memory: errors this many steps old count 1/e; math.inf: all count alike.
        prior: begin as if this many errors had been seen, of the size that was predicted.

    Returns:
        k (N, H): at origin t for step h the root of the running mean of z^2, over origins j with j + h <= t.
    """
    count, horizon = z.shape
    keep = math.exp(-1 / memory)
    squares = z.square().tolist()
    scale = torch.ones(count, horizon, dtype=z.dtype)
    for h in range(1, horizon + 1):
        total = weight = float(prior)
        for t in range(count):
            if t >= h and math.isfinite(squares[t - h][h - 1]):
                total, weight = keep * total + squares[t - h][h - 1], keep * weight + 1
            scale[t, h - 1] = math.sqrt(total / weight)
    return scale.to(z.device)


def histogram(pit: Tensor, bins: int = 10) -> list[float]:
    """Share of probability integral transforms in equal bins of [0, 1]; all 1 / bins where forecasts are calibrated."""
    index = (pit.flatten() * bins).long().clamp(0, bins - 1)
    counts = torch.bincount(index.cpu(), minlength=bins).double()
    return [float(c) for c in counts / counts.sum()]


def measures(forecast: Mixture, actual: Tensor, level: float = 0.95) -> dict[str, float]:
    """Scores of forecasts (S, N, H), averaged over the actual values (N, H) that are known (not NaN)."""
    low, high = forecast.interval(level)
    error = forecast.mean - actual
    return {
        "crps": float(forecast.crps(actual).nanmean()),
        "coverage": float(_inside(actual, low, high).nanmean()),
        "width": float((high - low).mean()),
        "mae": float((forecast.quantile(0.5) - actual).abs().nanmean()),
        "rmse": float(error.square().nanmean().sqrt()),
        "nll": float(-forecast.log_density(actual).nanmean()),
    }


def _inside(actual: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """1 where a value lies between two others, 0 where not, NaN where it is not known."""
    return ((actual >= low) & (actual <= high)).double().masked_fill(actual.isnan(), math.nan)


def by_horizon(forecast: Mixture, actual: Tensor, level: float = 0.95) -> dict[str, list[float]]:
    """CRPS, coverage and mean width for each step ahead."""
    low, high = forecast.interval(level)
    return {
        "crps": forecast.crps(actual).nanmean(0).tolist(),
        "coverage": _inside(actual, low, high).nanmean(0).tolist(),
        "width": (high - low).mean(0).tolist(),
    }


def reliability(forecast: Mixture, actual: Tensor) -> dict[str, list[float]]:
    """The histogram of probability integral transforms, and how much intervals of other levels cover."""
    pit = forecast.cdf(actual)
    pit = pit[~pit.isnan()]
    levels = [0.5, 0.8, 0.9, 0.95]
    inside = [float(((pit >= (1 - p) / 2) & (pit <= (1 + p) / 2)).double().mean()) for p in levels]
    return {"pit": histogram(pit), "levels": levels, "coverage": inside}


def summary_of_paths(futures: Tensor, scale: Tensor, level: float, log: bool) -> list[Tensor]:
    """Mean, interval and the two standard deviations of sampled futures (draws, paths, twins, steps), made wider.

    The variance over the draws' means holds that of the mean of so many paths, which is taken off; and the variance
    around a draw's mean lacks it.
    """
    centre = futures.mean((0, 1, 2))
    futures = centre + scale * (futures - centre)
    if log:
        futures = futures.exp()
    left = (futures.mean(2).var(1) / futures.shape[1]).mean(0)
    aleatoric = futures.var((1, 2), correction=0).mean(0) + left
    epistemic = torch.zeros_like(aleatoric)
    if len(futures) > 1:
        epistemic = (futures.mean((1, 2)).var(0) - left).clamp_min(0)
    flat = futures.flatten(0, 2)
    tails = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=flat.dtype)
    low, high = torch.quantile(flat, tails, dim=0)
    return [flat.mean(0), low, high, aleatoric.sqrt(), epistemic.sqrt()]
