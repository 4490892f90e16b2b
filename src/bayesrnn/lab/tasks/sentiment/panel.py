"""The panel of film reviews: type one, see the distribution of its rating, and accept or reject it."""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from bayesrnn.lab.explore.panel import Draws, Handler, Panel, Part, Request, risk_curve
from bayesrnn.lab.runs.files import read_own
from bayesrnn.lab.runs.record import RECORD
from bayesrnn.lab.tasks.base import is_random
from bayesrnn.lab.tasks.sentiment.regression import rmse
from bayesrnn.lab.tasks.sentiment.reviews import END, PAD, SPECIAL, START, UNKNOWN
from bayesrnn.lab.tasks.sentiment.task import WORDS, predict
from bayesrnn.likelihoods.quantiles import gaussian_mixture_quantile

_DRAWS = 16
_RISKED, _SCORED = 120, 200  # validation pieces
_TOKEN = re.compile(r"[\w'-]+|[^\w\s]")
_EXAMPLE = "a wonderful film , with a great cast and a story that is moving and funny ."


class Review(Request):
    """The text of a review."""

    text: str = Field(max_length=20_000)
    draws: Draws = _DRAWS


class SentimentPanel(Panel):
    title = "A review"
    score_label = "validation error (RMSE)"

    def about(self) -> dict[str, Any]:
        return {"random": is_random(self.run.recipe), "example": _EXAMPLE}

    def handlers(self) -> Mapping[str, Handler]:
        return {"rate": Handler(Review, self.rate), "risk": Handler(Request, self.risk, background=True)}

    @cached_property
    def scale(self) -> dict[str, Any]:
        """Mean and standard deviation of the ratings, and the words."""
        found: dict[str, Any] = json.loads(self.run.files[WORDS])
        return found

    @cached_property
    def noise(self) -> float:
        """Standard deviation of a rating around the prediction: as fitted on validation, or the recipe's."""
        metrics = read_own(self.run.path / RECORD).get("metrics")
        fitted = metrics.get("noise") if isinstance(metrics, dict) else None
        if isinstance(fitted, float) and 0 < fitted < 10:
            return fitted
        return float(self.run.recipe.model.noise * self.scale["sd"])

    def rate(self, asked: Review) -> Iterator[Part]:
        """The rating by each draw, the noise around it, and the interval of both."""
        ids = {word: i for i, word in enumerate(self.scale["words"]) if i >= len(SPECIAL)}
        words = [*_TOKEN.findall(asked.text.lower()), END]
        length = self.run.recipe.data.length
        tokens = [START, *(ids.get(word, UNKNOWN) for word in words)][:length]
        padded = torch.tensor([PAD] * (length - len(tokens)) + tokens, device=self.device).unsqueeze(1)
        draws = asked.draws if is_random(self.run.recipe) else 0
        found = self._ratings(self.run.model, padded, draws)[:, :1].double().cpu()
        means = found[1:] if draws else found
        sigmas = torch.full_like(means, self.noise)
        low, high = (float(gaussian_mixture_quantile(means, sigmas, q)) for q in (0.05, 0.95))
        yield {
            "ratings": means[:, 0].tolist(), "mean": float(means.mean()), "noise": self.noise, "low": low, "high": high,
            "epistemic": float(means.std(correction=0)), "unknown": tokens.count(UNKNOWN),
            "read": min(len(words), length - 1) - 1, "words": len(words) - 1,
        }  # fmt: skip

    def _ratings(self, model: nn.Module, tokens: Tensor, draws: int) -> Tensor:
        """(1 + draws, B): first the mean weights."""
        return self.scale["mean"] + self.scale["sd"] * predict(model, tokens, draws, 1)

    def risk(self, asked: Request) -> Iterator[Part]:
        """Error of the pieces of reviews on which draws agree most."""
        yield {"progress": 0.05}
        task: Any = self.task
        draws = _DRAWS if is_random(self.run.recipe) else 0
        tokens, ratings = task.parts.valid.tokens[:, :_RISKED], task.parts.valid.ratings[:_RISKED].float()
        parts: list[Tensor] = []
        for some in tokens.split(20, 1):
            parts.append(self._ratings(self.run.model, some.to(self.device), draws).cpu())
            yield {"progress": len(parts) * 20 / tokens.shape[1]}
        found = torch.cat(parts, 1).float()
        means = found[1:] if draws else found
        yield {"curve": risk_curve(means.std(0, correction=0), (means.mean(0) - ratings).square(), root=True)}

    def score(self, model: nn.Module) -> float:
        task: Any = self.task
        tokens, ratings = task.parts.valid.tokens[:, :_SCORED], task.parts.valid.ratings[:_SCORED]
        return rmse(self._ratings(model, tokens.to(self.device), 0)[0].cpu(), ratings)
