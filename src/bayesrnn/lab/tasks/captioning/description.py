"""Captions of images by a trained run, how sure the model is of each word, and the captions of single draws."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from bayesrnn.errors import UserError
from bayesrnn.lab.runs.files import read_own
from bayesrnn.lab.runs.opening import OpenedRun
from bayesrnn.lab.runs.record import EVALUATION
from bayesrnn.lab.tasks.captioning import search as caption_search
from bayesrnn.lab.tasks.captioning.task import captioner_of
from bayesrnn.lab.text import EOS, UNK, noise_of_draws, vocabulary_of


@dataclass(frozen=True)
class CaptionWord:
    """A word, its probability, and the uncertainty of the prediction it was taken from, in nats."""

    word: str
    probability: float
    entropy: float
    mutual_information: float


@dataclass(frozen=True)
class Description:
    """An image's caption, word by word, and the captions of single draws."""

    image: str
    words: list[CaptionWord]
    draws: list[str]

    @property
    def caption(self) -> str:
        return " ".join(word.word for word in self.words)


def describe(
    run: OpenedRun, names: list[str], features: Tensor, *, samples: int = 20, draws: int = 3,
    beam: int | None = None, length_penalty: float | None = None, seed: int = 1,
) -> list[Description]:  # fmt: skip
    """Captions of images by their features, (len(names), F).

    Args:
        samples: draws for the uncertainty; 0: the mean's entropy alone.
        draws: how many single draws find a caption of their own.
        beam, length_penalty: None: what ``bayesrnn evaluate`` has chosen for this run, or the recipe's first.
    """
    expected = captioner_of(run.model).image.in_features
    if features.shape[1] != expected:
        raise UserError(
            f"{run.path} was trained on {expected} features per image, these have {features.shape[1]}; "
            "give the features it was trained on."
        )
    vocabulary = vocabulary_of(run.files)
    (end,), banned = vocabulary.encode([EOS]).tolist(), vocabulary.encode([UNK]).tolist()
    chosen = settings(run)
    search: dict[str, Any] = {
        "end": end,
        "banned": banned,
        "vocabulary": len(vocabulary),
        "beam": chosen["beam"] if beam is None else beam,
        "length_penalty": chosen["length_penalty"] if length_penalty is None else length_penalty,
        "max_words": run.recipe.evaluate.max_words,
    }
    seeds = caption_search.seeds(max(samples, draws), seed)
    with noise_of_draws(run.model):
        found = caption_search.find_captions(run.model, features, **search)
        ids = [one.words for one in found]
        unsure = caption_search.word_uncertainty(
            run.model, features, ids, end=end, vocabulary=len(vocabulary), samples=samples, seed=seed
        )
        each = [caption_search.find_captions(run.model, features, **search, held=[s]) for s in seeds[:draws]]
    return [
        Description(
            name,
            [CaptionWord(w, *values) for w, values in zip(vocabulary.decode(words), unsure[i], strict=False)],
            [" ".join(vocabulary.decode(of_draw[i].words)) for of_draw in each],
        )
        for i, (name, words) in enumerate(zip(names, ids, strict=True))
    ]


def settings(run: OpenedRun) -> dict[str, Any]:
    """Beam and length penalty that validation chose, if the run has been evaluated; otherwise the recipe's first."""
    first = {"beam": run.recipe.evaluate.beams[0], "length_penalty": run.recipe.evaluate.length_penalties[0]}
    measured = read_own(run.path / EVALUATION)
    return {key: measured.get(key, value) for key, value in first.items()}
