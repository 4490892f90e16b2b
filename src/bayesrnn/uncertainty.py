"""Measures of whether the uncertainty can be trusted: reversed text, calibration, selective prediction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bayesrnn import draws
from bayesrnn.checks import check_whole
from bayesrnn.dynamic import call
from bayesrnn.errors import needed_by
from bayesrnn.prediction.calls import alone, in_eval
from bayesrnn.prediction.result import entropy_of


@dataclass(frozen=True)
class EntropyGap:
    """Mean entropy per word, in nats, of the predictions on a stream read forwards and backwards."""

    forward: float
    reversed: float

    @property
    def gap(self) -> float:
        """How much less certain the model is on reversed text."""
        return self.reversed - self.forward

    def __float__(self) -> float:
        return self.gap


def entropy_gap(
    model: nn.Module, stream: Tensor, *, samples: int = 0, window: int = 35, seed: int | None = None
) -> EntropyGap:
    """Entropy of predictions on reversed text minus that on the text itself (arXiv 1704.02798, section 5.2).

    A model that knows what it does not know is less certain on text that makes no sense. As in `br.predict`, the model
    runs in eval mode and comes back in the mode it was in, and draw k of a seed is the same one.

    Args:
        model: maps (tokens (T, B), state) to (logits (T, B, V), state).
        stream: tokens, (N,) for one stream or (N, B); at least two steps.
        samples: 0: the posterior mean. N: entropy of the average over N draws, each held over the whole stream.
        window: steps per call; the state is carried on.
        seed: makes the draws repeatable; None: taken from torch's global generator.

    Probabilities are computed in float32 or better and averaged in float64: the result of n draws is off by at most
    n * 2**-52 beyond the rounding of one draw's logits.
    """
    if stream.dim() not in (1, 2) or stream.shape[0] < 2 or stream.numel() == 0:
        raise ValueError(
            f"stream must be tokens of shape (N,) or (N, B) with N >= 2 and B >= 1, got {tuple(stream.shape)}"
        )
    check_whole("samples", samples, least=0, what="draws (0: the posterior mean)")
    check_whole("window", window, least=1, what="steps per call")
    base = draws.seed_or_new(seed)
    tokens = stream.unsqueeze(1) if stream.dim() == 1 else stream
    seeds = [draws.mix(base, k) for k in range(int(samples))]
    with alone(model), in_eval(model.modules()):
        return EntropyGap(
            forward=_mean_entropy(model, tokens[:-1], seeds, int(window)),
            reversed=_mean_entropy(model, tokens.flip(0)[:-1], seeds, int(window)),
        )


@torch.no_grad()
def _mean_entropy(model: nn.Module, tokens: Tensor, seeds: Sequence[int], window: int) -> float:
    held: list[draws.Draw | None] = [draws.Draw(seed) for seed in seeds] or [None]
    states: list[Any] = [None] * len(held)
    total = 0.0
    for x in tokens.split(window):
        total_probability: Any = 0.0
        for k, one in enumerate(held):
            with draws.using(model, one):
                logits, states[k] = call(model, x, states[k])
            probabilities = logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
            total_probability = total_probability + (probabilities.double() if len(held) > 1 else probabilities)
        total += float(entropy_of(total_probability / len(held)).sum(dtype=torch.float64))
        if not math.isfinite(total):
            raise FloatingPointError("the model's output has NaN or infinite values: check its weights and the input")
    return total / tokens.numel()


def calibration_error(probabilities: Tensor, targets: Tensor, *, bins: int = 15) -> float:
    """Expected calibration error: |confidence - accuracy| averaged over bins of confidence (torchmetrics).

    Args:
        probabilities: (..., classes), such as `Prediction.mean`.
        targets: (...) class indices.
        bins: number of equal bins of confidence.
    """
    with needed_by("calibration_error", "torchmetrics"):
        from torchmetrics.functional.classification import multiclass_calibration_error

    check_whole("bins", bins, least=1, what="bins")
    flat, labels = _flat(probabilities, targets)
    return float(multiclass_calibration_error(flat, labels, num_classes=flat.shape[-1], n_bins=bins))


@dataclass(frozen=True)
class Reliability:
    """One row per bin of confidence that has any predictions."""

    confidence: Tensor
    accuracy: Tensor
    count: Tensor


def reliability(probabilities: Tensor, targets: Tensor, *, bins: int = 15) -> Reliability:
    """Mean confidence and accuracy in equal bins of confidence: the points of a reliability diagram."""
    check_whole("bins", bins, least=1, what="bins")
    flat, labels = _flat(probabilities, targets)
    confidence, predicted = flat.max(-1)
    index = (confidence * bins).long().clamp(0, bins - 1)
    count = torch.bincount(index, minlength=bins)
    used = count > 0
    sums = torch.zeros(bins, dtype=flat.dtype, device=flat.device).index_add(0, index, confidence)
    right = torch.zeros_like(sums).index_add(0, index, (predicted == labels).to(flat.dtype))
    return Reliability((sums / count)[used], (right / count)[used], count[used])


@dataclass(frozen=True)
class RiskCoverage:
    """Error rate (or mean loss) of the most certain part of the predictions, for every size of that part."""

    coverage: Tensor
    risk: Tensor

    @property
    def area(self) -> float:
        """Area under the curve (AURC): lower is better."""
        return float(self.risk.mean())

    def risk_at(self, coverage: float) -> float:
        """Risk of the most certain `coverage` of the predictions."""
        if not 0 < coverage <= 1:
            raise ValueError(f"coverage must be in (0, 1], got {coverage!r}")
        return float(self.risk[max(math.ceil(coverage * len(self.risk)) - 1, 0)])


def risk_coverage(uncertainty: Tensor, losses: Tensor) -> RiskCoverage:
    """Selective prediction: mean loss of the predictions with the lowest `uncertainty`.

    Args:
        uncertainty: (...), any score that is larger where the model knows less.
        losses: (...), 0/1 errors or any loss.
    """
    if uncertainty.shape != losses.shape or uncertainty.numel() == 0:
        raise ValueError(
            "uncertainty and losses must have one shape and at least one entry, "
            f"got {tuple(uncertainty.shape)} and {tuple(losses.shape)}"
        )
    _check_no_nan(uncertainty=uncertainty, losses=losses)
    order = uncertainty.flatten().argsort(stable=True)
    sorted_losses = losses.flatten()[order].double()
    n = torch.arange(1, len(order) + 1, device=order.device, dtype=torch.float64)
    return RiskCoverage(coverage=n / len(order), risk=sorted_losses.cumsum(0) / n)


def detection_auroc(uncertainty_in: Tensor, uncertainty_out: Tensor) -> float:
    """Area under the ROC curve of telling unfamiliar inputs from familiar ones by their uncertainty (torchmetrics)."""
    with needed_by("detection_auroc", "torchmetrics"):
        from torchmetrics.functional.classification import binary_auroc

    for name, values in (("uncertainty_in", uncertainty_in), ("uncertainty_out", uncertainty_out)):
        if values.numel() == 0:
            raise ValueError(f"{name} is empty: give the uncertainty of at least one input on either side")
    _check_no_nan(uncertainty_in=uncertainty_in, uncertainty_out=uncertainty_out)
    scores = torch.cat([uncertainty_in.flatten(), uncertainty_out.flatten()])
    labels = torch.cat([torch.zeros_like(uncertainty_in.flatten()), torch.ones_like(uncertainty_out.flatten())]).long()
    _, inverse = torch.unique(scores, return_inverse=True)  # ranks: torchmetrics takes scores in [0, 1]
    ranks = inverse.float() / max(int(inverse.max()), 1)
    return float(binary_auroc(ranks, labels.to(ranks.device)))


def interval_coverage(low: Tensor, high: Tensor, targets: Tensor) -> float:
    """Share of targets inside their interval; compare with the interval's level."""
    if not low.shape == high.shape == targets.shape or targets.numel() == 0:
        raise ValueError(
            "low, high and targets must have one shape and at least one entry: they are not broadcast, "
            f"got {tuple(low.shape)}, {tuple(high.shape)} and {tuple(targets.shape)}"
        )
    _check_no_nan(low=low, high=high, targets=targets)
    return float(((targets >= low) & (targets <= high)).double().mean())


def _flat(probabilities: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    if probabilities.shape[:-1] != targets.shape or targets.numel() == 0 or probabilities.numel() == 0:
        raise ValueError(
            "probabilities (..., classes) and targets (...) do not go together: "
            f"{tuple(probabilities.shape)} and {tuple(targets.shape)}"
        )
    flat, labels, classes = probabilities.flatten(0, -2), targets.flatten(), probabilities.shape[-1]
    if labels.is_floating_point():
        raise ValueError("targets must be class indices (torch.long), got real values")
    if int(labels.min()) < 0 or int(labels.max()) >= classes:
        raise ValueError(
            f"targets must be classes 0 to {classes - 1}, got {int(labels.min())} to {int(labels.max())}: "
            "leave padding out"
        )
    _check_probabilities(flat)
    return flat.clamp(0, 1), labels.long()  # torchmetrics treats values just above 1 as logits


def _check_probabilities(rows: Tensor) -> None:
    if not rows.is_floating_point():
        raise ValueError(f"probabilities must be real numbers, got {rows.dtype}: give softmax(-1) of the logits")
    tolerance = max(1e-3, 4 * torch.finfo(rows.dtype).eps)
    off = (rows.sum(-1, dtype=torch.float64) - 1).abs().max()
    if not float(rows.min()) >= -tolerance or not float(off) <= tolerance:  # NaN is neither
        raise ValueError(
            "probabilities must be at least 0 and sum to 1 over the last axis: give softmax(-1) of the logits, or "
            "`Prediction.mean`"
        )


def _check_no_nan(**tensors: Tensor) -> None:
    for name, values in tensors.items():
        if bool(values.isnan().any()):
            raise ValueError(f"{name} has NaN: leave those entries out, or look where they come from")
