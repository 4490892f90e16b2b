"""Metrics of a classifier of digits: errors and calibration, unfamiliar images, pruning.

Errors are in percent, -log p and entropies in nats per image. Images are uint8 (N, 28, 28); ``scale`` is what pixels
are divided by before the model sees them as (N, 1, 28, 28).
"""

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import bayesrnn as br
from bayesrnn.lab.tasks.base import evaluating
from bayesrnn.lab.tasks.digits import not_digits
from bayesrnn.uncertainty import calibration_error
from bayesrnn.uncertainty import detection_auroc as auroc

FRACTIONS = (0.0, 0.25, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.925, 0.95, 0.96, 0.97, 0.98, 0.99, 0.995)
UNFAMILIAR = 2000  # images of each kind
_BATCH = 1000
_TINY = torch.finfo(torch.float32).tiny


def pixels(images: Tensor, scale: float) -> Tensor:
    """What the models take: (N, 1, 28, 28)."""
    return images.unsqueeze(1).float() / scale


class Beliefs(NamedTuple):
    """Class probabilities (N, 10), averaged over draws; their entropy and mutual information, (N,)."""

    probabilities: Tensor
    entropy: Tensor
    mutual_information: Tensor


@torch.no_grad()
def beliefs(
    model: nn.Module, images: Tensor, *, scale: float, samples: int = 0, seed: int = 1, batch: int = _BATCH
) -> Beliefs:
    """Predictions for all images, batch by batch: the average of ``samples`` draws, or with 0 the posterior mean."""
    parts = []
    with evaluating(model):
        for part in images.split(batch):
            x = pixels(part, scale)
            if samples:
                found = br.predict(model, x, samples=samples, seed=seed, keep_samples=False, batch_dim=0)
                parts.append((found.mean, found.entropy, found.mutual_information))
            else:
                probabilities = model(x).softmax(-1)
                entropy = torch.special.entr(probabilities).sum(-1)
                parts.append((probabilities, entropy, torch.zeros_like(entropy)))
    return Beliefs(*map(torch.cat, zip(*parts, strict=True)))


def errors(found: Beliefs, labels: Tensor) -> dict[str, float]:
    """Error in percent, and the mean -log p of the right class."""
    right = found.probabilities.gather(1, labels.unsqueeze(1)).clamp_min(_TINY)
    wrong = found.probabilities.argmax(1) != labels
    return {"error": 100 * float(wrong.double().mean()), "nll": -float(right.double().log().mean())}


def metrics(found: Beliefs, labels: Tensor) -> dict[str, float]:
    """Like :func:`errors`, and the expected calibration error over 15 bins."""
    return {**errors(found, labels), "calibration_error": calibration_error(found.probabilities, labels)}


def unfamiliar(images: Tensor, *, seed: int = 0) -> dict[str, Tensor]:
    """Images that are not digits, by kind; two kinds are made of the digits ``images``."""
    some = images[:UNFAMILIAR]
    made = {
        "uniform noise": not_digits.uniform_noise(len(some), seed=seed),
        "permuted pixels": not_digits.permuted(some, seed=seed),
        "shuffled tiles": not_digits.shuffled_tiles(some, seed=seed),
        "letters": not_digits.letters(len(some), seed=seed),
        "shapes": not_digits.shapes(len(some), seed=seed),
    }
    return {kind: found.to(images.device) for kind, found in made.items()}


def detection(familiar: Beliefs, others: dict[str, Beliefs]) -> list[dict[str, Any]]:
    """How well uncertainty tells each kind from digits: AUROC of entropy and (with draws) mutual information."""
    drawn = bool((familiar.mutual_information > 0).any())
    return [
        {
            "kind": kind,
            "entropy_auroc": auroc(familiar.entropy, those.entropy),
            "mutual_information_auroc": auroc(familiar.mutual_information, those.mutual_information) if drawn else None,
            "mean_entropy": float(those.entropy.mean()),
        }
        for kind, those in others.items()
    ]


def pruning(q: Any, splits: dict[str, tuple[Tensor, Tensor]], *, scale: float) -> list[dict[str, float]]:
    """Error of the posterior mean with ever more weights removed, those of lowest |mean| / sigma first."""
    rows = []
    for fraction in FRACTIONS:
        smaller = copy.deepcopy(q)
        br.prune(smaller, fraction)
        row = {"fraction": fraction}
        for split, (images, labels) in splits.items():
            row[f"{split}_error"] = errors(beliefs(smaller, images, scale=scale), labels)["error"]
        rows.append(row)
    return rows
