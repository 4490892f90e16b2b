"""Sentiment regression: the rating of a film from a piece of its review (arXiv 1512.05287, section 5.2)."""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

import bayesrnn as br
from bayesrnn.elbo import Terms
from bayesrnn.errors import UserError
from bayesrnn.lab.cards import card_of
from bayesrnn.lab.modules import sequence_dropout, word_layers
from bayesrnn.lab.reading import counted
from bayesrnn.lab.recipes import Recipe
from bayesrnn.lab.runs.opening import OpenedRun
from bayesrnn.lab.tasks.base import Files, Minibatches, Say, State, Task, is_random, posterior, recipe_elbo
from bayesrnn.lab.tasks.sentiment import regression, reviews
from bayesrnn.lab.tasks.sentiment.metrics import DETAILS, METRICS
from bayesrnn.lab.tasks.sentiment.settings import SECTIONS, Model
from bayesrnn.lab.tasks.signature import ROWS, STEPS, Signature

WORDS = "words.json"
_SEED = 1  # of the draws after each epoch: the same noise every time, so that curves show the weights change
_TOKENS = {"cuda": 1 << 20, "cpu": 1 << 13}  # in one pass of a measurement
_BYTES = {"cuda": None, "cpu": 1 << 26}  # of draws in one pass: a CPU spends as long again on new pages for larger ones


class RatingModel(nn.Module):
    """Embedding, LSTM or GRU, and a linear output from the last state: tokens (T, B) to (B, 1).

    Without noise it has torch.nn's layers. Weights start as in the published code (embedding U(-.05, .05), input
    weights Glorot) but for two. Recurrent weights are torch's, U(-1/sqrt(H), 1/sqrt(H)): with masks that double what
    they keep, orthogonal ones make gradients of 10^5 over 200 steps. Biases start for memories of 1 to T - 1 steps,
    log U(1, T - 1) for the forget (or update) gate and the negative for the input gate (arXiv 1804.11188), since a
    dropped word leaves the gate to its bias; all others start at 0.

    Args:
        words: rows of the embedding; row 0 is the padding's, learnt like the others.
        length: T, for the initial biases.
    """

    def __init__(self, words: int, settings: Model, length: int = 200) -> None:
        super().__init__()
        m = settings
        self.embed, self.rnn = word_layers(words, m.embedding, m, cell=m.cell.upper())
        self.drop = sequence_dropout(m.output_dropout)
        self.step_drop = nn.Dropout(m.step_dropout)
        self.head = nn.Linear(m.hidden, 1)
        self._initialise(m.hidden, length)

    def _initialise(self, hidden: int, length: int) -> None:
        nn.init.uniform_(self.embed.weight, -0.05, 0.05)
        for name, parameter in self.rnn.named_parameters():
            if "bias" in name:
                nn.init.zeros_(parameter)
            elif "hh" in name:
                nn.init.uniform_(parameter, -(hidden**-0.5), hidden**-0.5)
            else:
                for gate in parameter.data.split(hidden):
                    nn.init.xavier_uniform_(gate)
            if name == "bias_ih_l0":
                memory = torch.empty(hidden).uniform_(1, max(length - 1, 2)).log()
                parameter.data[hidden : 2 * hidden] = memory  # the LSTM's forget gate, the GRU's update gate
                if isinstance(self.rnn, nn.LSTM):
                    parameter.data[:hidden] = -memory
        nn.init.xavier_uniform_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.rnn(self.step_drop(self.embed(tokens)))
        last = self.step_drop(self.drop(states[-1:]))
        out: Tensor = self.head(last[0])
        return out


class Sentiment(Task):
    """Ratings from pieces of reviews. The objective is on standardised ratings, all metrics are in rating units."""

    sections = SECTIONS
    metric, unit, source = "valid_rmse", "chunks", "reviews"
    metrics, details = METRICS, DETAILS
    card = card_of(__file__)
    panel = "bayesrnn.lab.tasks.sentiment.panel:SentimentPanel"
    report_sections = (
        "bayesrnn.lab.report.uncertainty:coverage",
        "bayesrnn.lab.report.uncertainty:selective",
        "bayesrnn.lab.report.weights:signal_to_noise",
        "bayesrnn.lab.report.weights:patterns",
    )

    def __init__(self, recipe: Recipe, data: str | None, device: torch.device) -> None:
        super().__init__(recipe, data, device)
        if data is None:
            raise UserError(f"This recipe needs reviews; name the folder with {reviews.ARCHIVE} with --data.")
        d = recipe.data
        self.parts = reviews.cut(reviews.read(data), by=d.split, length=d.length, words=d.words, valid=d.valid)
        self.mean, self.sd = self.parts.mean, self.parts.sd
        train = self.parts.train
        standard = ((train.ratings - self.mean) / self.sd).float()
        self.minibatches = Minibatches(
            train.tokens.t().contiguous().to(device), standard.to(device), batch_size=d.batch_size
        )
        self.steps, self.batch_size = self.minibatches.steps, d.batch_size
        self.examples_per_step = d.batch_size
        self.limit = 10 + self._constant
        # Validation and test side by side: one pass serves both.
        held_out = torch.cat([self.parts.valid.tokens, self.parts.test.tokens], 1)
        self.held_out = held_out.to(device)
        self.ratings = torch.cat([self.parts.valid.ratings, self.parts.test.ratings]).to(device)
        self.random = is_random(recipe)
        samples = recipe.evaluate.samples if self.random else 0
        self.at_end = torch.full((1 + samples, held_out.shape[1]), math.nan, device=device)
        self.epoch = torch.zeros((), dtype=torch.long)

    @property
    def _constant(self) -> float:
        """The terms of -log N(y; f, noise^2) besides the squared error."""
        return math.log(self.recipe.model.noise) + 0.5 * math.log(2 * math.pi)

    @staticmethod
    def build(recipe: Recipe, files: Files) -> nn.Module:
        plain = RatingModel(len(json.loads(files[WORDS])["words"]), recipe.model, recipe.data.length)
        return posterior(plain, recipe.posterior, recurrent="rnn.*", exclude="head.bias")

    def attach(self, model: nn.Module) -> None:
        super().attach(model)
        likelihood = br.Gaussian(self.recipe.model.noise, learn=False).to(self.device)
        weight = self.recipe.model.kl_weight
        count = len(self.parts.train)
        self.elbo = recipe_elbo(model, likelihood, self.recipe.posterior, num_data=count, kl_weight=weight)

    def files(self) -> dict[str, bytes]:
        about = {"mean": self.mean, "sd": self.sd, "words": self.parts.words}
        return {WORDS: json.dumps(about, indent=0).encode()}

    def content(self) -> Iterator[Tensor | bytes]:
        yield json.dumps(self.parts.words).encode()
        for part in (self.parts.train, self.parts.valid, self.parts.test):
            yield from (part.tokens, part.ratings, part.review)

    def tensors(self) -> dict[str, Tensor]:
        return {**self.minibatches.tensors(), "at_end": self.at_end, "epoch": self.epoch}

    def start_epoch(self, epoch: int) -> None:
        self.epoch.fill_(epoch)
        self.minibatches.shuffle()

    def batch(self, position: Tensor) -> tuple[Tensor, Tensor]:
        rows, ratings = self.minibatches(position)
        return rows.t(), ratings.unsqueeze(1)

    def objective(self, batch: Any, state: State) -> tuple[Tensor, Terms, State]:
        tokens, ratings = batch
        terms, _ = self.elbo.evaluate(lambda: self.model(tokens), ratings)
        return terms.loss, terms, ()

    def training(self, totals: Mapping[str, float]) -> dict[str, float]:
        squared = 2 * self.recipe.model.noise**2 * (totals["nll"] / self.examples_per_step - self._constant)
        return {"train_rmse": self.sd * math.sqrt(max(squared, 0.0)), "kl": totals["kl"]}

    def predictions(self, samples: int, seed: int = _SEED) -> Tensor:
        """(1 + samples, N) in rating units, validation then test: first the standard approximation, then draws."""
        rows = max(1, _TOKENS.get(self.device.type, _TOKENS["cpu"]) // len(self.held_out))
        made = [predict(self.model, part, samples, seed) for part in self.held_out.split(rows, 1)]
        return self.mean + self.sd * torch.cat(made, 1)

    def validate(self) -> dict[str, Any]:
        recipe, at_end = self.recipe, len(self.at_end) - 1
        draws, last = recipe.evaluate.epoch_samples if self.random else 0, int(self.epoch) == recipe.train.epochs
        found = self.predictions(max(draws, at_end) if last else draws)  # the first draws are the same
        if last:
            self.at_end.copy_(found[: 1 + at_end])
        errors = {
            key: value
            for way, each in _averages(found[: 1 + draws]).items()
            for key, value in self._errors(each, way).items()
        }
        return {key: value for key, value in errors.items() if "rmse" in key}

    def _errors(self, predicted: Tensor, way: str) -> dict[str, float | None]:
        """RMSE and slope of predictions (N,) on both splits; ``way`` ends their names."""
        n = len(self.parts.valid)
        found: dict[str, float | None] = {}
        for split, part in (("valid", slice(0, n)), ("test", slice(n, None))):
            found[f"{split}_rmse{way}"] = regression.rmse(predicted[part], self.ratings[part])
            found[f"{split}_slope{way}"] = regression.slope(predicted[part], self.ratings[part])
        return found

    def measures(self, predictions: Tensor) -> dict[str, Any]:
        """All metrics of these predictions; the noise of the intervals is fitted on the validation part."""
        averages = _averages(predictions)
        found = {key: value for way, each in averages.items() for key, value in self._errors(each, way).items()}
        n, draws = len(self.parts.valid), predictions[1:] if len(predictions) > 1 else predictions
        valid, test, ratings = draws[:, :n], draws[:, n:], self.ratings[n:]
        review = self.parts.test.review.to(self.device)
        noise = regression.fit_noise(valid, self.ratings[:n])
        return {
            **found,
            "test_review_rmse": regression.rmse(by_review(test.mean(0), review), by_review(ratings, review)),
            "samples": len(predictions) - 1,
            "noise": noise,
            "test_log_likelihood": regression.log_likelihood(test, ratings, noise),
            "intervals": regression.interval_metrics(test, ratings, noise),
            "uncertainty": regression.selective_risk(test, ratings),
        }

    def final(self) -> dict[str, Any]:
        """Metrics of the best epoch's weights and, under ``end``, the last epoch's: the paper does not stop early."""
        end = None if bool(self.at_end.isnan().any()) else self.measures(self.at_end)
        if end is not None and torch.equal(self.predictions(0)[0], self.at_end[0]):  # the best epoch was the last one
            return {**end, "end": end}
        return {**self.measures(self.predictions(len(self.at_end) - 1)), "end": end}

    def evaluate(self, *, samples: int | None = None, seed: int = 1, say: Say = lambda text: None) -> dict[str, Any]:
        count = (self.recipe.evaluate.samples if samples is None else samples) if self.random else 0
        say(f"{counted(count, 'draw') if count else 'no draws'} on {counted(len(self.ratings), 'piece')} of reviews")
        found = self.measures(self.predictions(count, seed))
        found |= {"draws_seed": seed} if count else {}
        return {**found, **{f"test_coverage_{100 * i['level']:.0f}": i["coverage"] for i in found["intervals"]}}

    @classmethod
    def signature(cls, run: OpenedRun) -> Signature:
        tokens = torch.zeros(STEPS, ROWS, dtype=torch.long, device=next(run.model.parameters()).device)
        return Signature(run.model, (tokens,), ("tokens",), ("rating",), (("time", "batch"),))

    def describe(self) -> str:
        p = self.parts
        return (
            f"{counted(len(p.train), 'piece')} of reviews to train on, {len(p.valid):,} to validate, {len(p.test):,} "
            f"to test, divided by {self.recipe.data.split}; {len(p.words):,} word types. {super().describe()}"
        )

    def about(self) -> dict[str, Any]:
        p = self.parts
        unknown = {
            split: float((c.tokens == reviews.UNKNOWN).double().mean())
            for split, c in (("train", p.train), ("test", p.test))
        }
        return {
            "chunks": {"train": len(p.train), "valid": len(p.valid), "test": len(p.test)},
            "ratings": {"mean": self.mean, "sd": self.sd},
            "constant_rmse": float((p.test.ratings - self.mean).square().mean().sqrt()),
            "unknown_share": unknown,
        }


@torch.no_grad()
def predict(model: nn.Module, tokens: Tensor, samples: int, seed: int) -> Tensor:
    """(1 + samples, B), standardised: the model as it is in eval mode, then draws."""
    mean = model(tokens)[:, 0]
    if samples == 0:
        return mean[None]
    limit = _BYTES.get(tokens.device.type)
    draws = br.predict(model, tokens, samples=samples, seed=seed, batch_dim=1, memory_limit=limit).samples[:, :, 0]
    return torch.cat([mean[None], draws.to(mean)])


def _averages(predictions: Tensor) -> dict[str, Tensor]:
    """The standard approximation and, where there are draws, their mean, by the ends of their metrics' names."""
    return {"": predictions[0], **({"_mc": predictions[1:].mean(0)} if len(predictions) > 1 else {})}


def by_review(values: Tensor, review: Tensor) -> Tensor:
    """Means over the pieces of each review, (N,) to (reviews,)."""
    _, group, counts = torch.unique(review, return_inverse=True, return_counts=True)
    sums = torch.zeros(len(counts), dtype=torch.float64, device=values.device)
    return sums.index_add_(0, group, values.double()) / counts
