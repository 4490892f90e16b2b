"""`Prediction`: averages over Monte Carlo draws, and uncertainty split into its two kinds."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from bayesrnn.likelihoods import Categorical, Gaussian, Likelihood
from bayesrnn.likelihoods.quantiles import gaussian_mixture_quantile


def entropy_of(probabilities: Tensor) -> Tensor:
    """-sum p log p over the last axis, in nats; 0 log 0 = 0."""
    return torch.special.entr(probabilities).sum(-1)


class Prediction:
    """The result of `br.predict`.

    Classifier: `.mean` (probabilities), `.entropy` = `.aleatoric` (expected entropy) + `.epistemic`
    (= `.mutual_information`), all in nats, `.variance` of the probabilities over draws.
    Regressor: `.mean`, `.variance` = `.aleatoric` (noise) + `.epistemic` (spread of draws), `.entropy` of a
    Gaussian with that variance, `.mutual_information` likewise.
    Both: `.samples` (draws first, in the model's dtype) and `.interval(level)`.

    For a model in half precision, all but the samples are float32.
    """

    def __init__(
        self,
        *,
        kind: str,
        count: int,
        mean: Tensor,
        variance_of_draws: Tensor,
        expected_entropy: Tensor | None,
        noise_variance: Tensor | None,
        samples: Tensor | None,
    ) -> None:
        self.kind, self.count, self.mean = kind, count, mean
        self._spread, self._expected_entropy, self._noise = variance_of_draws, expected_entropy, noise_variance
        self._samples = samples

    @property
    def samples(self) -> Tensor:
        """(draws, *output.shape): probabilities of a classifier, means of a regressor."""
        if self._samples is None:
            raise RuntimeError("single draws were not kept: call br.predict with keep_samples=True")
        return self._samples

    @property
    def variance(self) -> Tensor:
        """Regressor: aleatoric + epistemic. Classifier: the variance of the probabilities over draws."""
        return self._spread if self.kind == "classifier" else self.aleatoric + self._spread

    @property
    def aleatoric(self) -> Tensor:
        """Noise in the data: expected entropy (classifier), or observation variance (regressor)."""
        if self._expected_entropy is not None:
            return self._expected_entropy
        return torch.zeros_like(self.mean) if self._noise is None else self._noise.expand_as(self.mean)

    @property
    def epistemic(self) -> Tensor:
        """Not knowing the weights: mutual information (classifier), or variance over draws (regressor)."""
        return self.mutual_information if self.kind == "classifier" else self._spread

    @property
    def entropy(self) -> Tensor:
        """Entropy of the averaged prediction, in nats (regressor: of the Gaussian with its mean and variance)."""
        if self.kind == "classifier":
            return entropy_of(self.mean)
        return 0.5 * torch.log(2 * torch.pi * torch.e * self.variance)

    @property
    def mutual_information(self) -> Tensor:
        """Between the prediction and the weights, in nats; never negative."""
        if self.kind == "classifier":
            return (self.entropy - self.aleatoric).clamp_min(0)
        if self._noise is None:
            raise RuntimeError(
                "mutual information of a regressor needs the noise: give predict likelihood=br.Gaussian(…)"
            )
        return 0.5 * torch.log1p(self._spread / self.aleatoric)

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """(low, high) that hold `level` of the predictive distribution.

        Regressor with noise: quantiles of the mixture of Gaussians, one per draw; without: of the draws. Classifier:
        quantiles of each probability over draws.
        """
        if not 0 < level < 1:
            raise ValueError(f"level must be between 0 and 1, got {level!r}")
        tail = (1 - level) / 2
        if self.kind == "classifier" or self._noise is None:
            values = self.samples.to(self.mean.dtype)
            low, high = torch.quantile(values, values.new_tensor([tail, 1 - tail]), dim=0)
            return low, high
        return self._mixture_quantile(tail), self._mixture_quantile(1 - tail)

    def _mixture_quantile(self, q: float) -> Tensor:
        """Root of the mixture's distribution function."""
        scale = self.aleatoric.double().sqrt()
        return gaussian_mixture_quantile(self.samples.double(), scale, q).to(self.mean.dtype)

    def __repr__(self) -> str:
        return f"Prediction({self.kind}, {self.count} draw{'s' * (self.count != 1)}, shape {tuple(self.mean.shape)})"


class Summary:
    """Running averages over draws, so that single draws need not be kept.

    Chunks are summed in float32 (float64 for a model in float64), and their averages accumulated in float64. For n
    draws the relative error of an average of values of one sign is at most n * 2**-24, and about 2**-24 in practice.
    Results are float32, or float64.
    """

    def __init__(self, likelihood: Likelihood | None, keep_samples: bool, *, draws: int | None = None) -> None:
        """`draws`: how many there will be, if that is known; then the samples are written into one tensor."""
        self.likelihood, self.keep, self._draws = likelihood, keep_samples, draws
        self._all: Any = None
        self.count = 0
        self._mean: Any = None
        self._square: Any = None
        self._entropy: Any = None
        self._dtype = torch.float32
        self._samples: list[Tensor] = []

    def add(self, outputs: Tensor) -> None:
        """`outputs` (draws, *shape), as the model gives them."""
        classifier = isinstance(self.likelihood, Categorical)
        _check_outputs(outputs, classifier)
        self._dtype = torch.promote_types(outputs.dtype, torch.float32)
        values = outputs.softmax(-1, dtype=self._dtype) if classifier else outputs.to(self._dtype)
        n, total = values.shape[0], self.count + values.shape[0]
        if self._mean is None:
            self._mean, self._square = (torch.zeros_like(values[0], dtype=torch.float64) for _ in range(2))
            self._entropy = torch.zeros_like(values[0, ..., 0], dtype=torch.float64) if classifier else None
        mean = values.mean(0) if n > 1 else values[0]
        delta = mean - self._mean  # Welford's update, chunk by chunk
        self._mean.add_(delta, alpha=n / total)
        self._square.addcmul_(delta, delta, value=self.count * n / total)
        if n > 1:
            self._square.add_((values - mean).square_().sum(0))
        if classifier:
            self._entropy.add_(entropy_of(values).sum(0))
        if self.keep and self._draws is not None:
            if self._all is None:
                self._all = outputs.new_empty(self._draws, *values.shape[1:])
            self._all[self.count : self.count + n] = values
        elif self.keep:
            self._samples.append(values.to(outputs.dtype))
        self.count += n

    def prediction(self) -> Prediction:
        classifier = isinstance(self.likelihood, Categorical)
        noise = self.likelihood.sigma.detach().square() if isinstance(self.likelihood, Gaussian) else None
        return Prediction(
            kind="classifier" if classifier else "regressor",
            count=self.count,
            mean=self._mean.to(self._dtype),
            variance_of_draws=(self._square / self.count).to(self._dtype),
            expected_entropy=(self._entropy / self.count).to(self._dtype) if classifier else None,
            noise_variance=None if noise is None else noise.to(self._mean.device, self._dtype),
            samples=None if not self.keep else torch.cat(self._samples) if self._all is None else self._all,
        )


def _check_outputs(outputs: Tensor, classifier: bool) -> None:
    """No NaN and nothing infinite; but logits of -inf are masked classes, if a class is left."""
    if outputs.numel() == 0:
        return
    low, high = torch.stack(torch.aminmax(outputs)).tolist()  # NaN, if there is one
    masked = classifier and low == -math.inf and high < math.inf
    if masked and bool((outputs.amax(-1) > -torch.inf).all()):
        return
    if not (math.isfinite(low) and math.isfinite(high)):
        raise FloatingPointError("the model's output has NaN or infinite values: check its weights and the input")
