"""Predictions of likelihoods that are a `Distribution`: the mixture of one distribution per draw."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bayesrnn.likelihoods.base import Distribution
from bayesrnn.prediction.result import Prediction, Summary


class DistributionPrediction(Prediction):
    """A regressor whose noise the model predicts: each draw is a distribution, and the prediction their even mixture.

    ``mean``, ``variance`` = ``aleatoric`` (mean of the draws' variances) + ``epistemic`` (variance of their means),
    ``quantile(q)``, ``interval(level)`` and ``crps(y)``, all (...) for outputs (..., size). ``samples`` are the draws'
    means.
    """

    def __init__(self, likelihood: Distribution, parameters: Tensor | None, **options: Any) -> None:
        super().__init__(kind="regressor", **options)
        self.likelihood, self._parameters = likelihood, parameters

    @property
    def parameters(self) -> Tensor:
        """(draws, *output.shape): what the model said in each draw."""
        if self._parameters is None:
            raise RuntimeError("single draws were not kept: call br.predict with keep_samples=True")
        return self._parameters

    def quantile(self, q: float) -> Tensor:
        if not 0 < q < 1:
            raise ValueError(f"q must be between 0 and 1, got {q!r}")
        return self.likelihood.quantile(self.parameters, q).to(self.mean.dtype)

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        if not 0 < level < 1:
            raise ValueError(f"level must be between 0 and 1, got {level!r}")
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    def crps(self, y: Tensor) -> Tensor:
        target = self.likelihood.matched(self.parameters[0], y)
        return self.likelihood.crps(self.parameters, target).to(self.mean.dtype)


class DistributionSummary(Summary):
    """Running averages of the draws' means and variances."""

    likelihood: Distribution

    def __init__(self, likelihood: Distribution, keep_samples: bool, *, draws: int | None = None) -> None:
        super().__init__(None, keep_samples, draws=draws)
        self.distribution, self._kept = likelihood, list[Tensor]()
        self._noise = torch.zeros((), dtype=torch.float64, device="cpu")

    def add(self, outputs: Tensor) -> None:
        """`outputs` (draws, ..., size)."""
        self.distribution.matched(outputs, outputs.new_zeros(outputs.shape[:-1]))
        super().add(self.distribution.mean(outputs))
        self._noise = self._noise.to(outputs.device) + self.distribution.variance(outputs.double()).sum(0)
        if self.keep:
            self._kept.append(outputs)

    def prediction(self) -> DistributionPrediction:
        plain = super().prediction()
        return DistributionPrediction(
            self.distribution,
            torch.cat(self._kept) if self.keep else None,
            count=self.count,
            mean=plain.mean,
            variance_of_draws=plain.epistemic,
            expected_entropy=None,
            noise_variance=(self._noise / self.count).to(plain.mean),
            samples=plain.samples if self.keep else None,
        )
