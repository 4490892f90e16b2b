"""Scores of a text by a trained language model, with the posterior mean or with draws held over the whole text."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bayesrnn import draws
from bayesrnn.dynamic import exp_or_inf
from bayesrnn.lab.text import windows
from bayesrnn.likelihoods import Categorical
from bayesrnn.nn.base import NoisyLayer
from bayesrnn.posteriors.base import Bayesian
from bayesrnn.prediction.weights import HeldDraws

_NUMBERS = 1 << 27  # logits in one window of all draws: half a gigabyte
_CACHED = 1 << 20  # the same on a CPU, whose caches should hold them: twice as fast there
_STEPS = 16  # steps in a window, at least, where they fit
_ROWS = 256  # draws of unit noise side by side
_WEIGHTS = 12  # draws of all weights, likewise
TEMPERATURES = (0.1, 10.0)
"""Between these one is looked for."""
_LOWEST = -1e4  # log-probability that is looked at: below it may be infinite
_NODES = 9  # inverse temperatures in one pass


def draws_weights(model: nn.Module) -> bool:
    """Whether a draw replaces whole weights, so that rows of a batch cannot have draws of their own."""
    return any(isinstance(m, Bayesian) or (isinstance(m, NoisyLayer) and m.draws_weights) for m in model.modules())


def pieces(stream: Tensor, length: int, reset: int | None) -> Iterator[tuple[Tensor, Tensor, bool]]:
    """(x, y, whether the state starts from zero) of at most ``length`` steps; ``reset``: a zero state every so many."""
    for start, (x, y) in enumerate(windows(stream, min(reset or length, len(stream) - 1))):
        parts = zip(x.split(length), y.split(length), strict=True)
        for part, (inputs, targets) in enumerate(parts):
            yield inputs, targets, part == 0 and (start == 0 or reset is not None)


@torch.no_grad()
def log_probabilities(
    model: nn.Module, stream: Tensor, *, samples: int = 0, seed: int = 0, first: int = 0, reset: int | None = None,
    models: Sequence[nn.Module] = (),
) -> Iterator[tuple[Tensor, Tensor]]:  # fmt: skip
    """Window after window of one stream: targets (T,) and log-probabilities (draws, T, V).

    Each draw is held over the whole stream and carries its own state; with ``reset`` that starts from zero every so
    many words. ``samples=0`` is the posterior mean, as one draw. Draws of unit noise are rows of one batch; draws of
    weights run at once where that is faster, and take turns elsewhere. ``first``: how many draws of this seed were
    taken before. ``models``: plain modules with the weights of the draws, if they have been made before.
    """
    model.eval()
    count = max(samples, 1)
    with torch.no_grad():
        vocabulary = model(stream[:1])[0].shape[-1]
    each = count * vocabulary
    wanted = _NUMBERS if stream.is_cuda else max(_CACHED, _STEPS * each)
    length = max(1, min(len(stream) - 1, min(wanted, _NUMBERS) // each))
    if samples and not draws_weights(model):
        state: Any = None
        with draws.draw(model, seed=draws.mix(seed, first)):
            for x, y, fresh in pieces(stream, length, reset):
                logits, state = model(x.expand(-1, count), None if fresh else state)
                yield y[:, 0], logits.transpose(0, 1).log_softmax(-1)
        return
    if samples > 1 and not models and HeldDraws.serve(model):
        weights = HeldDraws(model, [draws.Draw(draws.mix(seed, first + k)) for k in range(samples)])
        state = None
        for x, y, fresh in pieces(stream, length, reset):
            logits, state = weights(x, None if fresh else state)
            yield y[:, 0], logits[:, :, 0].log_softmax(-1)
        return
    held: list[draws.Draw | None] = [draws.Draw(draws.mix(seed, first + k)) for k in range(samples)] or [None]
    if models:
        held = [None] * count
    states: list[Any] = [None] * count
    for x, y, fresh in pieces(stream, length, reset):
        outputs = []
        for k, one in enumerate(held):
            own = models[k] if models else model
            with draws.using(own, one):
                logits, states[k] = own(x, None if fresh else states[k])
            outputs.append(logits[:, 0].log_softmax(-1))
        yield y[:, 0], torch.stack(outputs)


@torch.no_grad()
def monte_carlo_perplexities(
    model: nn.Module, stream: Tensor, *, samples: int, seed: int = 0, reset: int | None = None
) -> dict[int, float]:
    """Perplexity of the average of the draws' probabilities: of the first 1, 2, 5, 10, … draws, and of all."""
    each = min(_WEIGHTS if HeldDraws.serve(model) else 1 if draws_weights(model) else _ROWS, samples)
    wanted = _round_counts(samples)
    before: Tensor | None = None
    found: dict[int, float] = {}
    for start in range(0, samples, each):
        count = min(each, samples - start)
        here = [n - start - 1 for n in wanted if start < n <= start + count]
        parts = []
        for y, logs in log_probabilities(model, stream, samples=count, seed=seed, first=start, reset=reset):
            target = logs.gather(-1, y.expand(count, -1).unsqueeze(-1)).squeeze(-1)
            parts.append(target.double().logcumsumexp(0)[[*here, count - 1]])  # of so many draws from `start` on
        sums = torch.cat(parts, 1)
        if before is not None:
            sums = torch.logaddexp(before, sums)
        before = sums[-1]
        for k, row in zip(here, sums, strict=False):
            drawn = start + k + 1
            found[drawn] = exp_or_inf(-float((row - math.log(drawn)).mean()))
    return found


def _round_counts(samples: int) -> list[int]:
    """1, 2, 5, 10, 20, 50, … below the number, and the number itself."""
    rounds = (digit * 10**power for power in range(len(str(samples))) for digit in (1, 2, 5))
    return [*(count for count in rounds if count < samples), samples]


@dataclass(frozen=True)
class Scores:
    """Scores of the (averaged) predictions on a text."""

    perplexity: float
    entropy: float
    mutual_information: float
    calibration_error: float
    reliability: list[dict[str, float]]
    deciles: list[dict[str, float]]
    """Mean entropy and mean -log p of a tenth of the words each, from the surest predictions to the least sure."""
    entropies: list[float]
    """Entropies of the first draw, of the average of the first two, and so on; the last is ``entropy``."""


def scores(
    model: nn.Module,
    stream: Tensor,
    *,
    samples: int = 0,
    seed: int = 0,
    bins: int = 15,
    reset: int | None = None,
    temperature: float = 1.0,
) -> Scores:
    """Perplexity, mean entropy and mutual information (nats per word) and calibration of the top word.

    ``temperature`` is that of every draw, or of the posterior mean: softmax(logits / temperature).
    """
    count = torch.zeros(bins, dtype=torch.float64, device=stream.device)
    confidence, right = torch.zeros_like(count), torch.zeros_like(count)
    expected, losses, doubts = 0.0, list[Tensor](), list[Tensor]()
    entropies = torch.zeros(max(samples, 1), dtype=torch.float64, device=stream.device)
    for y, logs in log_probabilities(model, stream, samples=samples, seed=seed, reset=reset):
        if temperature != 1:
            logs = logs.div_(temperature).log_softmax(-1)
        total = logs[0]
        for k, one in enumerate(logs):
            total = torch.logaddexp(total, one) if k else one
            entropies[k] += entropy_of_logs(total - math.log(k + 1)).double().sum()
        mean = total - math.log(len(logs))
        losses.append(-mean.gather(-1, y.unsqueeze(-1)).squeeze(-1).double())
        doubts.append(entropy_of_logs(mean).double())
        expected += float(entropy_of_logs(logs).mean(0).double().sum())
        top, word = mean.max(-1)
        index = (top.exp() * bins).long().clamp(0, bins - 1)
        count.index_add_(0, index, torch.ones_like(top, dtype=torch.float64))
        confidence.index_add_(0, index, top.exp().double())
        right.index_add_(0, index, (word == y).double())
    words = len(stream) - 1
    nll, doubt = torch.cat(losses), torch.cat(doubts)
    tenths = doubt.argsort(stable=True).tensor_split(10)
    entropy = float(entropies[-1])
    rows = [
        {"confidence": c / n, "accuracy": r / n, "count": n}
        for n, c, r in zip(count.tolist(), confidence.tolist(), right.tolist(), strict=True)
        if n
    ]
    return Scores(
        perplexity=exp_or_inf(float(nll.mean())),
        entropy=entropy / words,
        mutual_information=(entropy - expected) / words,
        calibration_error=float((confidence - right).abs().sum() / count.sum()),
        reliability=rows,
        deciles=[{"entropy": float(doubt[i].mean()), "nll": float(nll[i].mean())} for i in tenths if len(i)],
        entropies=(entropies / words).tolist(),
    )


@dataclass(frozen=True)
class EntropyGaps:
    """Scores of a text and of the same text backwards."""

    forward: Scores
    reverse: Scores

    @property
    def gaps(self) -> list[float]:
        """Entropy on the reversed text less that on the text, of the first draw, of the first two, and so on."""
        return [r - f for r, f in zip(self.reverse.entropies, self.forward.entropies, strict=True)]


def entropy_gaps(
    model: nn.Module, text: Tensor, *, samples: int = 0, seed: int = 0, reset: int | None = None
) -> EntropyGaps:
    """Score a text (N, 1) in both directions."""
    both = (scores(model, each, samples=samples, seed=seed, reset=reset) for each in (text, torch.flip(text, (0,))))
    return EntropyGaps(*both)


def entropy_of_logs(logs: Tensor) -> Tensor:
    """Entropy in nats of log-probabilities over the last axis."""
    return -(logs.exp() * logs.clamp_min(_LOWEST)).sum(-1)


def best_temperature(model: nn.Module, stream: Tensor, *, reset: int | None = None) -> float:
    """The T at which softmax(logits / T) of the posterior mean has the lowest -log p of a text (arXiv 1706.04599).

    -log p is convex in 1/T, so its slope never falls. Three passes find the zero of the slope to factors of 1.8, 1.07
    and 1.01; between those two T is interpolated. Without a zero T is an end of ``TEMPERATURES``.
    """
    low, high = (1 / T for T in reversed(TEMPERATURES))
    for _ in range(3):
        inverse = torch.logspace(math.log10(low), math.log10(high), _NODES, dtype=torch.float64).tolist()
        slopes = _slopes(model, stream, inverse, reset)
        if slopes[0] >= 0 or slopes[-1] <= 0:
            return 1 / inverse[0 if slopes[0] >= 0 else -1]
        right = next(k for k in range(_NODES) if slopes[k] > 0)
        low, high = inverse[right - 1], inverse[right]
    share = slopes[right - 1] / (slopes[right - 1] - slopes[right])
    return 1 / (low + share * (high - low))


@torch.no_grad()
def _slopes(model: nn.Module, stream: Tensor, inverse: list[float], reset: int | None) -> list[float]:
    """The derivative of a text's -log p by the inverse temperature, at each of these.

    With l the log-probabilities at temperature 1 it is E[l] - l(target), summed over words.
    """
    sums = torch.zeros(len(inverse), dtype=torch.float64, device=stream.device)
    for y, logs in log_probabilities(model, stream, reset=reset):
        part = logs[0].clamp_min_(_LOWEST)
        target = part.gather(-1, y.unsqueeze(-1)).squeeze(-1)
        for k, beta in enumerate(inverse):
            mean = (beta * part).softmax(-1).mul_(part).sum(-1)
            sums[k] += (mean - target).double().sum()
    return sums.tolist()


def sharpened_perplexity(model: Any, stream: Tensor, *, window: int, carry_state: bool = True) -> float:
    """The sharpened bound on the perplexity at the posterior mean, the sharpening KL of every window included."""
    likelihood, total, state = Categorical(), 0.0, None
    model.eval()
    for x, y in windows(stream, window):
        with model.sharpen(lambda x=x, y=y, state=state: likelihood.nll(model(x, state)[0], y)), torch.no_grad():
            logits, after = model(x, state)
            total += float(likelihood.nll(logits, y) + model.sharpening_kl())
        state = after if carry_state else None
    return exp_or_inf(total / (stream.numel() - stream.shape[1]))
