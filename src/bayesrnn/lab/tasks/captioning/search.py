"""Finding captions: beam search for many images at once, with the posterior mean, with one draw, or with an average."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bayesrnn import draws
from bayesrnn.draws import Draw
from bayesrnn.lab.modules import module_of_draw
from bayesrnn.likelihoods import Categorical
from bayesrnn.prediction.result import Summary

StepFunction = Callable[[Tensor, Any], tuple[Tensor, Any]]
_NUMBERS = 1 << 26  # log-probabilities of one step or one pass: a quarter of a gigabyte


@dataclass(frozen=True)
class BeamCaption:
    """The best caption of an image: word ids without the end, and log p of the words and the end."""

    words: list[int]
    log_probability: float
    score: float


@torch.no_grad()
def beam_search(
    step: StepFunction,
    state: Any,
    images: int,
    *,
    start: int,
    end: int,
    beam: int = 5,
    max_words: int = 20,
    length_penalty: float = 0.0,
    banned: Sequence[int] = (),
    device: torch.device | None = None,
) -> list[BeamCaption]:
    """The best caption of each image: 1 to ``max_words`` words and ``end``.

    The score of n words w is log p(w, end) / (n + 1)^length_penalty. Each image keeps ``beam`` unfinished captions and
    the best finished one, until no unfinished one can get a better score.

    Args:
        step: (words (images * beam,), state) to (log-probabilities (images * beam, V) of the next word, next state).
            Rows of one image are neighbours.
        state, start: what the first call gets. In later states rows are dimension 1 of every tensor.
        banned: words that no caption has.
    """
    words = torch.full((images * beam,), start, device=device)
    alive = torch.full((images, beam), -math.inf, device=device)
    alive[:, 0] = 0.0
    kept = torch.empty(images, beam, 0, dtype=torch.long, device=device)
    best = torch.full((images,), -math.inf, device=device)
    caption = torch.full((images, max_words + 1), end, device=device)
    first = torch.arange(images, device=device).unsqueeze(1) * beam
    for length in range(max_words + 1):
        logs, state = step(words, state)
        size = logs.shape[-1]
        total = logs.view(images, beam, size).clone()
        if banned:
            total[..., list(banned)] = -math.inf
        total += alive.unsqueeze(-1)
        if length:
            score, place = (total[..., end] / (length + 1) ** length_penalty).max(1)
            better = score > best
            best = torch.where(better, score, best)
            row = kept[torch.arange(images, device=device), place]
            row = torch.cat([row, row.new_full((images, max_words + 1 - length), end)], 1)
            caption = torch.where(better.unsqueeze(1), row, caption)
        # log p only falls, and no caption has more than max_words + 1 factors: nothing unfinished can do better.
        bound = alive.max(1).values / (max_words + 1) ** length_penalty
        if length == max_words or (length and bool((bound <= best).all())):
            break
        total[..., end] = -math.inf
        alive, index = total.flatten(1).topk(beam)
        parent, word = index // size, index % size
        kept = torch.cat([kept.gather(1, parent.unsqueeze(-1).expand(-1, -1, length)), word.unsqueeze(-1)], -1)
        state = _reordered(state, (first + parent).flatten())
        words = word.flatten()
    found = []
    for ids, value in zip(caption.tolist(), best.tolist(), strict=True):
        ids = ids[: ids.index(end)]
        found.append(BeamCaption(ids, value * (len(ids) + 1) ** length_penalty, value))
    return found


def _reordered(state: Any, rows: Tensor) -> Any:
    if isinstance(state, Tensor):
        return state.index_select(1, rows)
    return type(state)(_reordered(part, rows) for part in state)


def decoder(model: nn.Module, held: Sequence[Draw | None], features: Tensor, each: int) -> StepFunction:
    """A step function, first called with state None: the next word's probabilities, averaged over held draws.

    Args:
        model: tokens (T, R), a state or ``features=`` (R, F) to logits and the next state.
        held: the draws; None is the posterior mean.
        features: (B, F), of images with ``each`` rows per image, which share the noise of their image.
    """
    rows = features.repeat_interleave(each, 0)
    models = [module_of_draw(model, draw) for draw in held]

    def run(words: Tensor, states: Any) -> tuple[Tensor, Any]:
        after, logs = [], []
        for k, (one, draw) in enumerate(zip(models, held, strict=True)):
            with holding(one, draw, each):
                begin = {"features": rows} if states is None else {"state": states[k]}
                logits, state = one(words.unsqueeze(0), **begin)
            after.append(state)
            logs.append(logits[0].log_softmax(-1))
        return torch.stack(logs).logsumexp(0) - math.log(len(held)), after

    return run


class Shared:
    """A draw whose units are drawn per image and shared by its ``each`` neighbouring rows."""

    def __init__(self, draw: Draw, each: int) -> None:
        self.draw, self.each = draw, each

    def units(self, key: str, noise: Any, shape: Any, like: Tensor, *, rows: int, shared: bool = False) -> Tensor:
        if shared:
            return self.draw.units(key, noise, shape, like, rows=rows, shared=True)
        return self.draw.units(key, noise, shape, like, rows=rows // self.each).repeat_interleave(self.each, 0)

    def steps(self, key: str, noise: Any, shape: Any, like: Tensor, *, batch_dim: int | None) -> Tensor:
        return self.draw.steps(key, noise, shape, like, batch_dim=batch_dim)

    def weights(self, key: str, make: Any, device: torch.device) -> Any:
        return self.draw.weights(key, make, device)


def holding(model: nn.Module, draw: Draw | None, each: int = 1) -> AbstractContextManager[Any]:
    """One draw, or the mean, over all calls inside; ``each`` neighbouring rows share their noise."""
    return draws.mean(model) if draw is None else draws.bind(model, Shared(draw, each), torchs=draw)


def _draws(seeds: Sequence[int]) -> list[Draw | None]:
    """Draws of these seeds; without seeds the posterior mean."""
    return [*(Draw(seed) for seed in seeds)] or [None]


class _Passes:
    """A captioner with several draws, or with the posterior mean, over whole captions."""

    def __init__(self, model: nn.Module, samples: int, seed: int) -> None:
        self.held = _draws(seeds(samples, seed))
        self.models = [module_of_draw(model, draw) for draw in self.held]

    def __call__(self, tokens: Tensor, features: Tensor) -> Iterator[Tensor]:
        """The logits (T, B, V) of each draw, for tokens (T, B) and features (B, F)."""
        for model, draw in zip(self.models, self.held, strict=True):
            with holding(model, None if draw is None else Draw(draw.seed)):
                yield model(tokens, features=features)[0]


def seeds(count: int, seed: int) -> list[int]:
    """Seeds of single draws."""
    return [seed * 1_000_003 + k for k in range(count)]


@torch.no_grad()
def find_captions(
    model: nn.Module, features: Tensor, *, end: int, vocabulary: int, beam: int = 5, held: Sequence[int] = (),
    **options: Any,
) -> list[BeamCaption]:  # fmt: skip
    """Captions of images by their features (N, F), as many at once as memory allows.

    Args:
        end: the end symbol, which also begins a caption.
        vocabulary: number of words, for the size of a chunk.
        held: seeds of draws, whose probabilities are averaged; none: the posterior mean.
        options: further ones of :func:`beam_search`.
    """
    chunk = max(1, _NUMBERS // (beam * vocabulary))
    found: list[BeamCaption] = []
    for part in features.split(chunk):
        # Made anew per chunk: unit noise is held for its images; weights come out the same.
        step = decoder(model, _draws(held), part, beam)
        found += beam_search(step, None, len(part), start=end, end=end, beam=beam, device=part.device, **options)
    return found


@torch.no_grad()
def log_likelihood(
    model: nn.Module, features: Tensor, images: Tensor, tokens: Tensor, targets: Tensor, *, vocabulary: int,
    samples: int = 0, seed: int = 1,
) -> float:  # fmt: skip
    """Sum of log p over all targets: with the mean, or with the average of the draws' probabilities.

    Args:
        features: (I, F). images: (N,), the row of features of each caption.
        tokens, targets: (N, T); a target below 0 is padding.
        vocabulary: number of words, for the size of a chunk.
    """
    total = 0.0
    chunk = max(1, _NUMBERS // (tokens.shape[1] * vocabulary))
    passes = _Passes(model, samples, seed)
    for image, x, y in zip(images.split(chunk), tokens.split(chunk), targets.split(chunk), strict=True):
        counted, index = y.t() >= 0, y.t().clamp_min(0).unsqueeze(-1)
        logits = passes(x.t(), features.index_select(0, image))
        logs = torch.stack([each.log_softmax(-1).gather(-1, index).squeeze(-1) for each in logits])
        total += float(((logs.logsumexp(0) - math.log(len(logs))).double() * counted).sum())
    return total


@torch.no_grad()
def word_uncertainty(
    model: nn.Module, features: Tensor, captions: Sequence[Sequence[int]], *, end: int, vocabulary: int,
    samples: int = 0, seed: int = 1,
) -> list[list[tuple[float, float, float]]]:  # fmt: skip
    """(probability, entropy, mutual information) of every word of each caption, and of its end, in nats.

    Entropy is that of the averaged prediction; mutual information is the draws' disagreement, 0 without draws.

    Args:
        features: (B, F). captions: word ids of B captions, without the end.
        end: the end symbol, which also begins a caption.
        vocabulary: number of words, for the size of a chunk.
    """
    steps = max((len(caption) for caption in captions), default=0) + 1
    chunk = max(1, _NUMBERS // 4 // (steps * vocabulary))
    passes = _Passes(model, samples, seed)
    targets = torch.full((steps, len(captions)), end)
    for i, caption in enumerate(captions):
        targets[: len(caption), i] = torch.tensor(caption, dtype=torch.long)
    targets = targets.to(features.device)
    tokens = torch.cat([torch.full_like(targets[:1], end), targets[:-1]])
    found: list[list[tuple[float, float, float]]] = []
    for image, x, y in zip(features.split(chunk), tokens.split(chunk, 1), targets.split(chunk, 1), strict=True):
        summary = Summary(Categorical(), keep_samples=False)
        for logits in passes(x, image):
            summary.add(logits.unsqueeze(0))
        prediction = summary.prediction()
        right = prediction.mean.gather(-1, y.unsqueeze(-1)).squeeze(-1)
        values = [v.t().tolist() for v in (right, prediction.entropy, prediction.mutual_information)]
        found += [list(zip(*of_one, strict=True)) for of_one in zip(*values, strict=True)]
    return [words[: len(caption) + 1] for words, caption in zip(found, captions, strict=True)]
