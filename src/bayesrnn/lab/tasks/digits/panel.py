"""The panel of digits: draw one, see what the draws of the weights take it for, and accept or reject it."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

import bayesrnn as br
from bayesrnn.lab.explore.panel import Draws, Handler, Panel, Part, Request, risk_curve
from bayesrnn.lab.tasks.base import evaluating, is_random
from bayesrnn.lab.tasks.digits.images import SIDE
from bayesrnn.lab.tasks.digits.measures import Beliefs, beliefs, errors, pixels

_SCORED = 1000  # validation images
_SAMPLES = 100  # test images to choose from
_DRAWS = 16


class Image(Request):
    """An image, row by row, black 0 to white 255."""

    pixels: list[Annotated[int, Field(ge=0, le=255)]] = Field(min_length=SIDE**2, max_length=SIDE**2)
    draws: Draws = _DRAWS


class Sample(Request):
    """One of the test images."""

    index: int = Field(ge=0, lt=_SAMPLES)


class DigitsPanel(Panel):
    title = "A digit"
    score_label = "validation error in percent"

    def about(self) -> dict[str, Any]:
        return {"random": is_random(self.run.recipe), "side": SIDE, "samples": _SAMPLES}

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "classify": Handler(Image, self.classify),
            "sample": Handler(Sample, self.sample),
            "risk": Handler(Request, self.risk, background=True),
        }

    @property
    def model(self) -> nn.Module:
        """For a sharpened posterior the one of phi, as in ``bayesrnn evaluate``."""
        model: Any = self.run.model
        return model.q if self.run.recipe.posterior.kind == "sharpened" else model

    def classify(self, asked: Image) -> Iterator[Part]:
        """Probabilities of the ten digits: the average over draws, and each draw's."""
        image = centred(torch.tensor(asked.pixels, dtype=torch.uint8).view(1, SIDE, SIDE)).to(self.device)
        draws = asked.draws if is_random(self.run.recipe) else 0
        found = self._beliefs(image, draws)
        each = self._each(image, draws) if draws else found.probabilities
        yield {
            "probabilities": found.probabilities[0].tolist(),
            "draws": each.tolist() if draws else [],
            "entropy": float(found.entropy),
            "mutual_information": float(found.mutual_information),
        }

    def _beliefs(self, images: Tensor, draws: int) -> Beliefs:
        return beliefs(self.model, images, scale=self.run.recipe.data.scale, samples=draws)

    def _each(self, image: Tensor, draws: int) -> Tensor:
        """(draws, 10), of the same draws."""
        with evaluating(self.model), torch.no_grad():
            x = pixels(image, self.run.recipe.data.scale)
            return br.predict(self.model, x, samples=draws, seed=1, batch_dim=0).samples[:, 0]

    def sample(self, asked: Sample) -> Iterator[Part]:
        yield {"progress": 0.1}
        task: Any = self.task
        images, labels = task.test
        index = asked.index % len(images)
        yield {"pixels": images[index].flatten().tolist(), "label": int(labels[index])}

    def risk(self, asked: Request) -> Iterator[Part]:
        """Error rate of the images that the model is surest of, by the entropy of its prediction."""
        yield {"progress": 0.1}
        task: Any = self.task
        images, labels = (part[:_SCORED] for part in task.valid)
        draws = _DRAWS if is_random(self.run.recipe) else 0
        parts, done = [], 0
        for some in images.split(200):
            parts.append(self._beliefs(some, draws))
            done += len(some)
            yield {"progress": done / len(images)}
        found = Beliefs(*map(torch.cat, zip(*parts, strict=True)))
        wrong = (found.probabilities.argmax(1) != labels).float()
        yield {"curve": risk_curve(found.entropy, wrong)}

    def score(self, model: nn.Module) -> float:
        task: Any = self.task
        images, labels = (part[:_SCORED] for part in task.valid)
        return errors(beliefs(model, images, scale=self.run.recipe.data.scale), labels)["error"]


def centred(images: Tensor) -> Tensor:
    """Images (N, 28, 28) moved so that their centre of mass is in the middle, as in MNIST."""
    weights, places = images.double(), torch.arange(SIDE, dtype=torch.float64)
    total = weights.sum((1, 2)).clamp_min(1.0)
    moved = []
    for image, rows, columns, mass in zip(images, weights.sum(2), weights.sum(1), total, strict=True):
        shifts = [round((SIDE - 1) / 2 - float((line * places).sum() / mass)) for line in (rows, columns)]
        moved.append(torch.roll(image, shifts, (0, 1)) if image.any() else image)
    return torch.stack(moved)
