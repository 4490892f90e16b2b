"""Image captioning in the shape of Show and Tell (arXiv 1411.4555): features of the image are the LSTM's first input.

The features go through a linear layer and enter the LSTM before the first word; the LSTM then predicts word after
word up to the end.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import bayesrnn as br
from bayesrnn.dynamic import exp_or_inf
from bayesrnn.elbo import Terms
from bayesrnn.errors import UserError
from bayesrnn.lab.cards import card_of
from bayesrnn.lab.reading import counted
from bayesrnn.lab.recipes.schema import Recipe
from bayesrnn.lab.runs.opening import OpenedRun
from bayesrnn.lab.tasks.base import Files, Minibatches, Say, State, Task, is_random, posterior, recipe_elbo
from bayesrnn.lab.tasks.captioning import COMMANDS
from bayesrnn.lab.tasks.captioning import search as caption_search
from bayesrnn.lab.tasks.captioning.captions import SPLITS, References, read_captions
from bayesrnn.lab.tasks.captioning.image_features import feature_file, features_of
from bayesrnn.lab.tasks.captioning.metrics import CONDITIONS, DETAILS, METRICS
from bayesrnn.lab.tasks.captioning.model import Captioner, WithFeatures
from bayesrnn.lab.tasks.captioning.settings import SECTIONS
from bayesrnn.lab.tasks.signature import ROWS, STEPS, Signature
from bayesrnn.lab.text import EOS, VOCABULARY, Vocabulary, each_split, vocabulary_of

PADDING = -100
_FEATURES = "features.json"


@dataclass(frozen=True)
class Split:
    """Captions of a split as ids. ``images`` (N,) says which row of ``features`` (I, F) a caption belongs to.

    ``tokens`` (N, T) begin with the end symbol, which stands for the beginning too; ``targets`` (N, T) are the words
    and the end, then ``PADDING``.
    """

    names: list[str]
    features: Tensor
    images: Tensor
    tokens: Tensor
    targets: Tensor

    @property
    def words(self) -> int:
        """Targets that count."""
        return int((self.targets != PADDING).sum())

    def to(self, device: torch.device) -> "Split":
        parts = (self.features, self.images, self.tokens, self.targets)
        return Split(self.names, *(part.to(device) for part in parts))


def split_of(
    references: References, features: Tensor, vocabulary: Vocabulary, *, max_words: int | None = None
) -> Split:
    """Captions as ids; ``max_words``: longer ones are cut, without an end."""
    pairs = [(row, caption) for row, captions in enumerate(references.values()) for caption in captions]
    longest = max(len(caption) for _, caption in pairs)
    steps = (longest if max_words is None else min(longest, max_words)) + 1
    (end,) = vocabulary.encode([EOS]).tolist()
    tokens = torch.full((len(pairs), steps), end)
    targets = torch.full((len(pairs), steps), PADDING)
    for i, (_, caption) in enumerate(pairs):
        ids = vocabulary.encode([*caption, EOS])[:steps]
        targets[i, : len(ids)] = ids
        tokens[i, 1 : len(ids)] = ids[:-1]
    images = torch.tensor([row for row, _ in pairs])
    return Split(list(references), features, images, tokens, targets)


class Captioning(Task):
    """Captions of Flickr8k's or COCO's layout; one caption with its image is one example."""

    sections = SECTIONS
    metric, card = "valid_perplexity", card_of(__file__)
    runs_called = "captioning runs"
    command = "caption"
    artifacts = ("captions.json",)
    unit = "words"
    source = "images"
    metrics, details, conditions = METRICS, DETAILS, CONDITIONS
    draw_options = ("samples", "decode_samples")
    commands = COMMANDS
    panel = "bayesrnn.lab.tasks.captioning.panel:CaptioningPanel"
    report_sections = (
        "bayesrnn.lab.tasks.captioning.sections:selective",
        "bayesrnn.lab.report.weights:signal_to_noise",
        "bayesrnn.lab.report.weights:patterns",
    )

    def __init__(self, recipe: Recipe, data: str | None, device: torch.device) -> None:
        super().__init__(recipe, data, device)
        if data is None:
            raise UserError("Captioning needs images and captions: name a Flickr8k or COCO folder with --data.")
        settings = recipe.data
        self.random = is_random(recipe)
        self.references = read_captions(data)
        file = feature_file(self.references.folder, settings.features)
        features = features_of(self.references, file, device=device)
        train = self.references.train
        tokens = [word for captions in train.values() for caption in captions for word in (*caption, EOS)]
        self.vocabulary = Vocabulary(tokens, min_count=settings.min_count)
        if EOS not in self.vocabulary:
            least = counted(settings.min_count, "caption")
            raise UserError(f"There are fewer than {least} to train on; use a lower min_count.")
        (self.end,) = self.vocabulary.encode([EOS]).tolist()
        self.splits: dict[str, Split] = {}
        for name in SPLITS:
            references = self.references.split(name)
            cut = settings.max_words if name == "train" else None
            rows = features.of(list(references))
            self.splits[name] = split_of(references, rows, self.vocabulary, max_words=cut).to(device)
        self.unknown = {
            name: self.vocabulary.unknown(
                word for captions in self.references.split(name).values() for caption in captions for word in caption
            )
            for name in SPLITS
        }
        whole = self.splits["train"]
        self.batch_size, self.captions = settings.batch_size, len(whole.images)
        self.minibatches = Minibatches(whole.images, whole.tokens, whole.targets, batch_size=self.batch_size)
        self.steps = self.minibatches.steps
        self.words = (whole.targets != PADDING).sum(1)
        self.words_per_caption = whole.words / self.captions
        self.examples_per_step = round(self.batch_size * self.words_per_caption)
        self.limit = 2 * math.log(len(self.vocabulary)) + 2

    @staticmethod
    def build(recipe: Recipe, files: Files) -> nn.Module:
        m = recipe.model
        plain = Captioner(json.loads(files[_FEATURES])["size"], len(vocabulary_of(files)), m)
        exclude = ["decoder.bias"] if m.bayesian_image else ["decoder.bias", "image.*"]
        return posterior(plain, recipe.posterior, recurrent="rnn.*", exclude=exclude)

    def attach(self, model: nn.Module) -> None:
        super().attach(model)
        captioner = captioner_of(model)
        if not bool(captioner.scale.any()):
            captioner.set_scale(self.splits["train"].features)
        words, weight = self.splits["train"].words, self.recipe.model.kl_weight
        likelihood = br.Categorical(PADDING)
        self.elbo = recipe_elbo(model, likelihood, self.recipe.posterior, num_data=words, kl_weight=weight)

    def files(self) -> dict[str, bytes]:
        size = self.splits["train"].features.shape[1]
        return {
            VOCABULARY: self.vocabulary.to_bytes(),
            _FEATURES: (json.dumps({"size": size}) + "\n").encode("utf-8"),
        }

    def content(self) -> Iterator[Tensor | bytes]:
        for name in SPLITS:
            yield json.dumps(list(self.references.split(name).items())).encode()
            yield self.splits[name].features

    def batch(self, position: Tensor) -> tuple[Tensor, ...]:
        images, tokens, targets = self.minibatches(position)
        words = self.minibatches.whole(position, self.words).sum() * (len(images) / self.batch_size)
        return self.splits["train"].features.index_select(0, images), tokens.t(), targets.t(), words

    def objective(self, batch: Any, state: State) -> tuple[Tensor, Terms, State]:
        """Per caption: -log p of its words, plus kl_weight * KL / (number of captions); padding does not count."""
        features, tokens, targets, words = batch
        terms, _ = self.elbo.evaluate(lambda: self.model(tokens, features=features), targets, count=words)
        return self.words_per_caption * terms.loss, terms, ()

    def training(self, totals: Mapping[str, float]) -> dict[str, float]:
        return {
            "train_perplexity": exp_or_inf(totals["nll"] / (self.batch_size * self.words_per_caption)),
            "kl_per_sequence": totals["kl"] / self.captions,
            "sharpening_per_sequence": totals["sharpening"] / self.batch_size,
        }

    def perplexity(self, split: str, *, samples: int = 0, seed: int = 1) -> float:
        """Per word, the end counted as one; of whole captions. ``samples``: draws to average over."""
        part = self.splits[split]
        total = caption_search.log_likelihood(
            self.model, part.features, part.images, part.tokens, part.targets, vocabulary=len(self.vocabulary),
            samples=samples, seed=seed,
        )  # fmt: skip
        return exp_or_inf(-total / part.words)

    def validate(self) -> dict[str, Any]:
        return {"valid_perplexity": self.perplexity("valid")}

    def final(self) -> dict[str, Any]:
        return {"valid_perplexity": self.perplexity("valid"), "test_perplexity": self.perplexity("test")}

    def evaluate(
        self, *, samples: int | None = None, seed: int = 1, say: Say = lambda text: None, beam: int | None = None,
        length_penalty: float | None = None, decode_samples: int | None = None, again: bool = False,
    ) -> dict[str, Any]:  # fmt: skip
        """Perplexity, BLEU and CIDEr; captions go to ``captions.json``, and are searched for again only with ``again``.

        ``decode_samples``, at most ``samples``, are the draws of that search. ``beam`` and ``length_penalty`` replace
        the recipe's, of which the best on validation are taken.
        """
        from bayesrnn.lab.tasks.captioning.evaluation import evaluate

        settings = self.recipe.evaluate
        return evaluate(
            self,
            samples=settings.samples if samples is None else samples,
            decode_samples=settings.decode_samples if decode_samples is None else decode_samples,
            seed=seed,
            beams=settings.beams if beam is None else (beam,),
            length_penalties=settings.length_penalties if length_penalty is None else (length_penalty,),
            again=again,
            say=say,
        )

    @classmethod
    def signature(cls, run: OpenedRun) -> Signature:
        size, device = len(captioner_of(run.model).shift), next(run.model.parameters()).device
        images = torch.zeros(ROWS, size, device=device)
        tokens = torch.zeros(STEPS, ROWS, dtype=torch.long, device=device)
        axes = ("batch", size), ("time", "batch")
        model = WithFeatures(run.model)
        return Signature(model, (images, tokens), ("features", "tokens"), ("logits", "h", "c"), axes)

    def describe(self) -> str:
        images = ", ".join(f"{len(s.names):,} {name}" for name, s in self.splits.items())
        return (
            f"{images} images; {counted(self.captions, 'caption')} to train on, {self.words_per_caption:.1f} words "
            f"each with its end; {len(self.vocabulary):,} word types; unknown words: {each_split(self.unknown)}. "
            f"{counted(self.steps, 'step')} of {counted(self.batch_size, 'caption')} per epoch on {self.device}."
        )

    def about(self) -> dict[str, Any]:
        return {
            "unknown_words": self.unknown,
            "images": {name: len(part.names) for name, part in self.splits.items()},
            "words": {name: part.words for name, part in self.splits.items()},
            "vocabulary": len(self.vocabulary),
        }


def captioner_of(model: nn.Module) -> Captioner:
    """The captioner inside a posterior, or the model itself."""
    return next(part for part in model.modules() if isinstance(part, Captioner))
