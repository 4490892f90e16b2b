"""Handwritten digits (MNIST): Bayesian convnets (arXiv 1506.02158), and Bayes by Backprop for MLPs (arXiv 1505.05424).

The last ``data.valid`` training images are the validation set, which chooses the epoch. Errors are in percent.
"""

import itertools
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bayesrnn as br
from bayesrnn.elbo import Terms
from bayesrnn.errors import UserError
from bayesrnn.lab.cards import card_of
from bayesrnn.lab.reading import counted
from bayesrnn.lab.recipes.schema import Recipe
from bayesrnn.lab.runs.opening import OpenedRun
from bayesrnn.lab.tasks.base import Files, Minibatches, Say, State, Task, is_random, posterior, recipe_elbo
from bayesrnn.lab.tasks.digits import images as data_
from bayesrnn.lab.tasks.digits import measures
from bayesrnn.lab.tasks.digits.metrics import DETAILS, METRICS
from bayesrnn.lab.tasks.digits.settings import SECTIONS, Model
from bayesrnn.lab.tasks.signature import ROWS, Signature
from bayesrnn.nn import Dropout
from bayesrnn.posteriors import DropConnect

_CONVOLUTIONS = (20, 50)  # LeNet's channels
_KERNEL = 5


class LeNet(nn.Module):
    """conv 20, pool, conv 50, pool, inner product, ReLU, inner product; kernels of 5 x 5, no ReLU after them.

    Images (B, 1, 28, 28) to logits (B, 10). Noise is after the ReLU (``dropout``; "lenet-ip") and after each
    convolution (``conv_dropout``; both: "lenet-all"). Weights start as Caffe's "xavier", U(-a, a) with
    a = sqrt(3 / fan in), biases at 0.
    """

    def __init__(
        self, hidden: int = 500, *, dropout: float = 0.0, conv_dropout: float = 0.0, noise: str = "bernoulli"
    ) -> None:
        super().__init__()
        first, second = _CONVOLUTIONS
        self.conv1, self.conv2 = nn.Conv2d(1, first, _KERNEL), nn.Conv2d(first, second, _KERNEL)
        self.drop1, self.drop2 = _noise(conv_dropout, noise), _noise(conv_dropout, noise)
        side = ((data_.SIDE - _KERNEL + 1) // 2 - _KERNEL + 1) // 2
        self.inner, self.drop = nn.Linear(second * side**2, hidden), _noise(dropout, noise)
        self.out = nn.Linear(hidden, data_.CLASSES)
        for layer in (self.conv1, self.conv2, self.inner, self.out):
            bound = math.sqrt(3 / layer.weight[0].numel())
            nn.init.uniform_(layer.weight, -bound, bound)
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]

    def forward(self, images: Tensor) -> Tensor:
        x = F.max_pool2d(self.drop1(self.conv1(images)), 2)
        x = F.max_pool2d(self.drop2(self.conv2(x)), 2)
        logits: Tensor = self.out(self.drop(F.relu(self.inner(x.flatten(1)))))
        return logits


class MLP(nn.Module):
    """Linear and ReLU layers, noise on pixels and hidden outputs; images (B, 1, 28, 28) to logits (B, 10)."""

    def __init__(
        self, hidden: int = 400, layers: int = 2, *, dropout: float = 0.0, input_dropout: float = 0.0,
        noise: str = "bernoulli",
    ) -> None:  # fmt: skip
        super().__init__()
        sizes = [data_.SIDE**2] + [hidden] * layers
        self.drop_in = _noise(input_dropout, noise)
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))
        self.drops = nn.ModuleList(_noise(dropout, noise) for _ in self.hidden)
        self.out = nn.Linear(hidden, data_.CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        x = self.drop_in(images.flatten(1))
        for layer, drop in zip(self.hidden, self.drops, strict=True):
            x = drop(F.relu(layer(x)))
        logits: Tensor = self.out(x)
        return logits


def _noise(p: float, kind: str) -> nn.Module:
    return Dropout(p, noise=kind) if p else nn.Identity()


class Digits(Task):
    """Classification of digits; the epoch with the lowest validation error is kept."""

    metric, unit, source = "valid_error", "images", "images"
    card = card_of(__file__)
    sections, metrics, details = SECTIONS, METRICS, DETAILS
    panel = "bayesrnn.lab.tasks.digits.panel:DigitsPanel"
    report_sections = (
        "bayesrnn.lab.tasks.digits.sections:unfamiliar",
        "bayesrnn.lab.report.weights:signal_to_noise",
        "bayesrnn.lab.report.weights:pruning",
        "bayesrnn.lab.report.weights:patterns",
    )
    limit = 20.0

    def __init__(self, recipe: Recipe, data: str | None, device: torch.device) -> None:
        super().__init__(recipe, data, device)
        if data is None:
            raise UserError("Digits need --data, a folder with the four idx files of MNIST.")
        self.random = is_random(recipe)
        digits = data_.read_folder(data)
        kept = len(digits.train_images) - recipe.data.valid
        if kept < recipe.data.batch_size:
            raise UserError(
                f"Of {counted(len(digits.train_images), 'training image')}, {recipe.data.valid:,} for validation leave "
                f"{max(kept, 0):,}, fewer than one batch; lower data.valid or data.batch_size."
            )
        images, labels = digits.train_images.to(device), digits.train_labels.to(device).long()
        self.valid = images[kept:], labels[kept:]
        self.test = digits.test_images.to(device), digits.test_labels.to(device).long()
        self.minibatches = Minibatches(images[:kept], labels[:kept], batch_size=recipe.data.batch_size)
        self.steps, self.batch_size = self.minibatches.steps, recipe.data.batch_size
        self.examples_per_step = self.batch_size

    @staticmethod
    def build(recipe: Recipe, files: Files) -> nn.Module:
        m: Model = recipe.model
        plain: nn.Module
        if m.kind == "lenet":
            plain = LeNet(m.hidden, dropout=m.dropout, conv_dropout=m.conv_dropout, noise=m.noise)
        else:
            plain = MLP(m.hidden, m.layers, dropout=m.dropout, input_dropout=m.input_dropout, noise=m.noise)
        if not m.weight_dropout:
            made: Any = posterior(plain, recipe.posterior)
            if recipe.posterior.kind == "sharpened" and recipe.train.optimizer == "adam":
                # Adam steps by the learning rate whatever the scale of what it trains; eta is of the order of 1e-5.
                made.eta.requires_grad_(False)
            return made
        if recipe.posterior.kind != "none":
            raise UserError("model.weight_dropout is a posterior of its own; set posterior.kind=none with it.")
        return DropConnect(plain, m.weight_dropout, noise=m.noise, exclude="out.weight")

    def attach(self, model: nn.Module) -> None:
        super().attach(model)
        targets, weight = self.steps * self.batch_size, self.recipe.model.kl_weight
        self.elbo = recipe_elbo(model, br.Categorical(), self.recipe.posterior, num_data=targets, kl_weight=weight)

    def batch(self, position: Tensor) -> tuple[Tensor, ...]:
        return (*self.minibatches(position), position)

    def objective(self, batch: tuple[Tensor, ...], state: State) -> tuple[Tensor, Terms, State]:
        images, labels, position = batch
        x = measures.pixels(images, self.recipe.data.scale)
        geometric = self.recipe.data.kl_weighting == "geometric"
        share: Any = self.steps * kl_share(position, self.steps) if geometric else 1.0
        terms, _ = self.elbo.evaluate(lambda: self.model(x), labels, share=share)
        return terms.loss, terms, ()

    def validate(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for split, (images, labels) in self._splits().items():
            found |= {f"{split}_{key}": v for key, v in measures.errors(self._beliefs(images), labels).items()}
        return found

    @classmethod
    def signature(cls, run: OpenedRun) -> Signature:
        images = torch.zeros(ROWS, 1, data_.SIDE, data_.SIDE, device=next(run.model.parameters()).device)
        return Signature(run.model, (images,), ("images",), ("logits",), (("batch", 1, data_.SIDE, data_.SIDE),))

    def evaluate(self, *, samples: int | None = None, seed: int = 1, say: Say = lambda text: None) -> dict[str, Any]:
        """Errors, calibration, detection of images that are not digits, pruning.

        Keys that end in ``_mc`` are for the average over draws, the others for the posterior mean (dropout: the usual
        scaling of the weights).
        """
        draws = self.recipe.evaluate.samples if samples is None else samples
        ways = {"": 0, "_mc": draws} if draws and self.random else {"": 0}
        found: dict[str, Any] = {"samples": draws, "draws_seed": seed} if len(ways) > 1 else {}
        unfamiliar = measures.unfamiliar(self.test[0])
        for suffix, count in ways.items():
            passes = counted(count, "draw") if count else "the mean"
            for split, (images, labels) in self._splits().items():
                say(f"{passes} on {split}")
                on_split = self._beliefs(images, count, seed)
                found |= {f"{split}_{key}{suffix}": v for key, v in measures.metrics(on_split, labels).items()}
            say(f"{passes} on images that are not digits")
            others = {kind: self._beliefs(made, count, seed) for kind, made in unfamiliar.items()}
            found[f"unfamiliar{suffix}"] = measures.detection(on_split, others)
            found[f"test_entropy{suffix}"] = float(on_split.entropy.mean())
        if self.recipe.posterior.kind != "none":
            say("pruning")
            found["pruning"] = measures.pruning(self._model_to_draw(), self._splits(), scale=self.recipe.data.scale)
        return found

    def _beliefs(self, images: Tensor, samples: int = 0, seed: int = 1) -> measures.Beliefs:
        return measures.beliefs(self._model_to_draw(), images, scale=self.recipe.data.scale, samples=samples, seed=seed)

    def _model_to_draw(self) -> nn.Module:
        """The model to draw from; for a sharpened one the posterior of phi, whose draws run batched on a GPU."""
        model: Any = self.model
        return model.q if self.recipe.posterior.kind == "sharpened" else model

    def _splits(self) -> dict[str, tuple[Tensor, Tensor]]:
        return {"valid": self.valid, "test": self.test}

    def describe(self) -> str:
        return (
            f"{counted(self.minibatches.count, 'image')} to train on, {len(self.valid[1]):,} to validate, "
            f"{len(self.test[1]):,} to test. "
            f"{self.steps:,} batch{'es' * (self.steps != 1)} of {self.batch_size} per epoch on {self.device}."
        )


def kl_share(position: Tensor, steps: int) -> Tensor:
    """2^(M-i) / (2^M - 1) of batch i = position + 1 of M: the shares of an epoch add up to 1."""
    return torch.exp2(-(position + 1.0)) / (1 - 2.0**-steps)
