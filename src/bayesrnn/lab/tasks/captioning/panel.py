"""The panel of captions: pick an image, see its caption, the doubt about each word, and what single draws say."""

import base64
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import Field
from torch import Tensor, nn

from bayesrnn.dynamic import exp_or_inf
from bayesrnn.errors import UserError
from bayesrnn.lab.explore.panel import Draws, Handler, Panel, Part, Request
from bayesrnn.lab.tasks.base import is_random
from bayesrnn.lab.tasks.captioning.description import describe
from bayesrnn.lab.tasks.captioning.request import ENTROPY_LEVELS, INFORMATION_LEVELS, small
from bayesrnn.lab.tasks.captioning.search import log_likelihood

_IMAGES = 200  # to choose from
_SAID = 4  # single draws with a caption of their own
_SCORED = 200  # captions of the validation split


class Chosen(Request):
    """An image by its place in the list."""

    index: int = Field(ge=0, lt=_IMAGES)


class Caption(Chosen):
    """Describe it; the doubt is measured with so many draws."""

    draws: Draws = 16


@dataclass(frozen=True)
class _Image:
    name: str
    file: Path | None
    features: Tensor


class CaptioningPanel(Panel):
    title = "An image"
    score_label = "validation perplexity"

    def about(self) -> dict[str, Any]:
        levels = {"entropy": ENTROPY_LEVELS, "mutual_information": INFORMATION_LEVELS}
        return {"random": is_random(self.run.recipe), "levels": levels}

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "images": Handler(Request, self.list_images),
            "picture": Handler(Chosen, self.picture),
            "caption": Handler(Caption, self.caption),
        }

    @cached_property
    def images(self) -> list[_Image]:
        """Images of the test split; those with a picture first."""
        if self.why_no_data:
            raise UserError(self.why_no_data)
        task: Any = self.task
        split, files = task.splits["test"], task.references.files
        rows = sorted(zip(split.names, split.features, strict=True), key=lambda row: (row[0] not in files, row[0]))
        return [_Image(name, files.get(name), features) for name, features in rows[:_IMAGES]]

    def list_images(self, asked: Request) -> Iterator[Part]:
        yield {"progress": 0.2}
        yield {"images": [{"name": one.name, "picture": one.file is not None} for one in self.images]}

    def _image(self, asked: Chosen) -> _Image:
        if asked.index >= len(self.images):
            raise UserError(f"There are only {len(self.images)} images.")
        return self.images[asked.index]

    def picture(self, asked: Chosen) -> Iterator[Part]:
        image = self._image(asked)
        yield {"jpeg": None if image.file is None else base64.b64encode(small(image.file)).decode("ascii")}

    def caption(self, asked: Caption) -> Iterator[Part]:
        """The caption and its doubt first, then the captions of single draws."""
        image, draws = self._image(asked), asked.draws if is_random(self.run.recipe) else 0
        yield {"progress": 0.1}
        row = image.features[None].to(self.device)
        (found,) = describe(self.run, [image.name], row, samples=draws, draws=0)
        yield {"words": [asdict(word) for word in found.words]}
        if draws:
            yield {"progress": 0.5}
            (found,) = describe(self.run, [image.name], row, samples=0, draws=min(draws, _SAID))
            yield {"said": found.draws}

    def score(self, model: nn.Module) -> float:
        task: Any = self.task
        part, size = task.splits["valid"], len(task.vocabulary)
        rows = part.images[:_SCORED], part.tokens[:_SCORED], part.targets[:_SCORED]
        total = log_likelihood(model, part.features, *rows, vocabulary=size)
        words = int((rows[2] >= 0).sum())
        return exp_or_inf(-total / words) if words else math.nan
