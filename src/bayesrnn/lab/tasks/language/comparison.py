"""Three language models of one size on one text: plain, variational, Bayes by Backprop. What the quickstart runs."""

import math
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bayesrnn.lab.tasks.language.loop import Epoch, History, fit
from bayesrnn.lab.tasks.language.model import LanguageModel
from bayesrnn.lab.tasks.language.task import perplexity
from bayesrnn.lab.tasks.language.text import Corpus, Vocabulary, batchify, windows

METHODS = {
    "plain": "plain LSTM",
    "variational": "variational LSTM",
    "bayes_by_backprop": "Bayes by Backprop",
}

# Above its best validation perplexity by more than this at the end, a model is said to overfit.
OVERFIT = 0.03


@dataclass(frozen=True)
class Settings:
    """Everything that shapes the comparison.

    Rates, dropouts and the prior were chosen on the validation text with seed 0, with more tries for Bayes by Backprop
    (about 17) than for the plain (4) and the variational model (2). The rate is constant and nothing stops early, so
    that overfitting shows where there is any; a falling rate hides most of it (with x0.85 from epoch 13 the plain LSTM
    ends 2% above its best validation perplexity of 120.1, and Bayes by Backprop is 1% better than that).
    """

    hidden: int = 200
    layers: int = 1
    tied: bool = True
    batch_size: int = 20
    window: int = 35
    epochs: int = 20
    clip: float = 1.0
    min_count: int = 2
    plain_learning_rate: float = 2e-3
    variational_learning_rate: float = 4e-3
    bayes_by_backprop_learning_rate: float = 8e-3
    word_dropout: float = 0.2
    input_dropout: float = 0.5
    recurrent_dropout: float = 0.3
    init_sigma: float = 0.02
    prior_pi: float = 0.75
    prior_sigma1: float = math.exp(-1)
    prior_sigma2: float = math.exp(-7)
    entropy_samples: int = 8
    max_train: int | None = None
    max_valid: int | None = None


FAST = Settings(hidden=24, epochs=3, entropy_samples=2, max_train=8000, max_valid=1500)


class Text:
    """The three splits as streams: the training text in ``batch_size`` of them, the others in few."""

    def __init__(self, corpus: Corpus, settings: Settings) -> None:
        train = corpus.train[: settings.max_train]
        self.vocabulary = Vocabulary(train, min_count=settings.min_count)
        encode = self.vocabulary.encode
        self.train = batchify(encode(train), settings.batch_size)
        self.valid = batchify(encode(corpus.valid[: settings.max_valid]), 4)
        self.test = batchify(encode(corpus.test[: settings.max_valid]), 4)
        self.window = settings.window
        self.unknown = {
            split: self.vocabulary.unknown(tokens) / len(tokens)
            for split, tokens in (("train", train), ("valid", corpus.valid), ("test", corpus.test))
        }

    @property
    def train_targets(self) -> int:
        return self.train.numel() - self.train.shape[1]

    @property
    def steps(self) -> int:
        return math.ceil((len(self.train) - 1) / self.window)

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        return windows(self.train, self.window)


def build(method: str, vocabulary: int, settings: Settings) -> nn.Module:
    """One of the three models, same sizes and same initial distribution of weights."""
    import bayesrnn as br

    if method == "variational":
        return LanguageModel(
            vocabulary,
            settings.hidden,
            settings.layers,
            tied=settings.tied,
            word_dropout=settings.word_dropout,
            input_dropout=settings.input_dropout,
            recurrent_dropout=settings.recurrent_dropout,
        )
    plain = LanguageModel(vocabulary, settings.hidden, settings.layers, tied=settings.tied)
    if method == "plain":
        return plain
    prior = br.ScaleMixture(settings.prior_pi, settings.prior_sigma1, settings.prior_sigma2, group="input")
    return br.BayesByBackprop(plain, prior=prior, init_sigma=settings.init_sigma, exclude=["decoder.bias"])


def train(
    method: str,
    model: nn.Module,
    text: Text,
    settings: Settings,
    *,
    on_step: Callable[[int, int], None] | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
) -> History:
    """Train one model; both perplexities are measured after each epoch at the posterior mean."""
    import bayesrnn as br

    rate = getattr(settings, f"{method}_learning_rate")
    return fit(
        model,
        br.ELBO(model, br.Categorical(), num_data=text.train_targets),
        text.batches,
        optimizer=torch.optim.Adam(model.parameters(), lr=rate),
        epochs=settings.epochs,
        clip=settings.clip,
        validate=lambda: (perplexity(model, text.train), perplexity(model, text.valid)),
        on_step=on_step,
        on_epoch=on_epoch,
    )


def compare(
    text: Text,
    settings: Settings,
    *,
    seed: int,
    on_step: Callable[[str, int, int], None],
    on_epoch: Callable[[str, Epoch], None],
    on_model: Callable[[str, nn.Module, dict[str, Any]], None],
) -> None:
    """Train and measure the three models one after another, each from the same seed.

    ``on_model`` gets each model with its best epoch's weights, and its row of the table.
    """
    for method in METHODS:
        torch.manual_seed(seed)
        start = time.perf_counter()
        model = build(method, len(text.vocabulary), settings)
        history = train(
            method,
            model,
            text,
            settings,
            on_step=lambda epoch, step, method=method: on_step(method, epoch, step),  # type: ignore[misc]
            on_epoch=lambda epoch, method=method: on_epoch(method, epoch),  # type: ignore[misc]
        )
        seconds = time.perf_counter() - start
        model.load_state_dict(history.best_state)
        model.eval()
        on_model(method, model, {**row(method, model, history, text, settings, seed=seed), "seconds": seconds})


def row(
    method: str, model: nn.Module, history: History, text: Text, settings: Settings, *, seed: int
) -> dict[str, Any]:
    """What the table says of one model. What is not called "end" is measured with the best epoch's weights."""
    import bayesrnn as br

    samples = 0 if method == "plain" else settings.entropy_samples
    gap = br.entropy_gap(model, text.test, samples=samples, seed=seed)
    return {
        "method": method,
        "model": METHODS[method],
        "train_end": history.last.train,
        "valid_end": history.last.valid,
        "best_epoch": history.best.number,
        "train_best": history.best.train,
        "valid_best": history.best.valid,
        "test_best": perplexity(model, text.test),
        "entropy_gap": float(gap),
        "prunable": prunable(model, text.valid),
    }


def weight_scores(model: nn.Module) -> tuple[nn.Module, dict[str, Tensor]]:
    """A plain copy of the model to prune, and how much each weight matters (biases stay out).

    Signal-to-noise, abs(mean) / sigma, where there is a posterior over weights; magnitude otherwise.
    """
    import bayesrnn as br

    if isinstance(model, br.BayesByBackprop):
        copy, scores = model.mean_module(), br.signal_to_noise(model)
    else:
        copy, scores = deepcopy(model), {name: weight.detach().abs() for name, weight in model.named_parameters()}
    return copy.eval(), {name: score for name, score in scores.items() if score.dim() > 1}


def prunable(model: nn.Module, stream: Tensor, *, tolerance: float = 0.01) -> float:
    """The fraction of weights that can be set to zero before perplexity rises by more than ``tolerance``.

    The weights of all layers compete. Found by trying fractions upward in steps of 5%, then of 1%.
    """
    limit = perplexity(model, stream) * (1 + tolerance)
    module, scores = weight_scores(model)
    order = torch.cat([score.flatten() for score in scores.values()]).argsort(stable=True)
    shapes = [score.shape for score in scores.values()]
    parameters = dict(module.named_parameters())
    whole = {name: parameters[name].detach().clone() for name in scores}

    def fits(percent: int) -> bool:
        kept = torch.ones(order.numel())
        kept[order[: order.numel() * percent // 100]] = 0
        parts = kept.split([shape.numel() for shape in shapes])
        with torch.no_grad():
            for name, shape, part in zip(scores, shapes, parts, strict=True):
                parameters[name].copy_(whole[name] * part.view(shape))
        return perplexity(module, stream) <= limit

    percent = 0
    for step in (5, 1):
        while percent + step < 100 and fits(percent + step):
            percent += step
    return percent / 100


def findings(rows: list[dict[str, Any]], *, epochs: int) -> list[str]:
    """The table in sentences: what happened, whichever way it went."""
    sentences = []
    for r in rows:
        rise = r["valid_end"] / r["valid_best"] - 1
        if r["best_epoch"] == epochs:
            ending = f"was at its best in the last epoch, {epochs}, and might gain from more"
        elif rise > OVERFIT:
            ending = f"overfits: best in epoch {r['best_epoch']}, {rise:.0%} worse at the end"
        else:
            ending = f"does not overfit: best in epoch {r['best_epoch']}, {rise:.1%} above that at the end"
        subject = f"The {r['model']}" if r["model"].endswith("LSTM") else r["model"]
        sentences.append(
            f"{subject} {ending} (validation {r['valid_best']:.1f}, then {r['valid_end']:.1f}; "
            f"training {r['train_end']:.1f})."
        )
    plain, *others = rows
    for r in others:
        change = r["valid_best"] / plain["valid_best"] - 1
        verb = "beats" if change < 0 else "does not beat"
        subject = f"The {r['model']}" if r["model"].endswith("LSTM") else r["model"]
        sentences.append(
            f"{subject} {verb} the {plain['model']} stopped at its best epoch: validation perplexity {change:+.1%}."
        )
    return sentences
