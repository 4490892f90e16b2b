"""Word-level language modelling: predict the next word of a text."""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from bayesrnn.data.text import Corpus, Vocabulary, batchify, windows
from bayesrnn.errors import UserError

if TYPE_CHECKING:
    from bayesrnn.elbo import Terms
    from bayesrnn.recipes import Recipe

LSTMState = tuple[Tensor, Tensor]

# Streams side by side for the validation after each epoch; final figures are taken on one stream.
EPOCH_STREAMS = 10
_LOGITS = 1 << 25  # numbers in one evaluation window's logits


class LanguageModel(nn.Module):
    """Embedding, LSTM and a linear decoder; with all dropouts zero it is made of plain ``torch.nn`` layers.

    Args:
        vocabulary: number of words V.
        hidden: units of the embedding and of each LSTM layer, H.
        layers: LSTM layers, L.
        tied: the decoder's weights are the embedding's, counted once.
        word_dropout: whole word types go, per sequence.
        input_dropout: one mask per sequence on each layer's input.
        recurrent_dropout: one mask per sequence on each layer's recurrent input (arXiv 1512.05287, Eq. 7).
        output_dropout: one mask per sequence on what the decoder sees; None: the rate of ``input_dropout``.
        cell_dropout: one mask per sequence on the cell state (Moon et al. 2015).
        weight_dropout: DropConnect on the recurrent weights, one mask per window.
        tied_masks: the four gates share a mask (Eq. 7); False: each has its own (Eq. 5).
        step_dropout: ordinary dropout, new at every step, on the embedding's output, between the layers and before
            the decoder (Zaremba et al. 2014).
        init: every parameter starts in U(-init, init); None: torch's start, the embedding in U(-.1, .1).

    Shape:
        tokens (T, B) and state (h, c), each (L, B, H), to logits (T, B, V) and the next state.
    """

    def __init__(
        self,
        vocabulary: int,
        hidden: int,
        layers: int = 1,
        *,
        tied: bool = False,
        word_dropout: float = 0.0,
        input_dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        output_dropout: float | None = None,
        cell_dropout: float = 0.0,
        weight_dropout: float = 0.0,
        tied_masks: bool = True,
        step_dropout: float = 0.0,
        init: float | None = None,
    ) -> None:
        super().__init__()
        output_dropout = input_dropout if output_dropout is None else output_dropout
        self.embed: nn.Embedding
        self.rnn: nn.Module
        self.drop: nn.Module
        between = step_dropout if layers > 1 else 0.0
        if word_dropout or input_dropout or recurrent_dropout or cell_dropout or weight_dropout or output_dropout:
            import bayesrnn as br

            self.embed = br.Embedding(vocabulary, hidden, word_dropout=word_dropout)
            self.rnn = br.LSTM(
                hidden,
                hidden,
                layers,
                dropout=between,
                input_dropout=input_dropout,
                recurrent_dropout=recurrent_dropout,
                weight_dropout=weight_dropout,
                cell_dropout=cell_dropout,
                tied=tied_masks,
            )
            self.drop = br.SequenceDropout(output_dropout)
        else:
            self.embed = nn.Embedding(vocabulary, hidden)
            self.rnn = nn.LSTM(hidden, hidden, layers, dropout=between)
            self.drop = nn.Identity()
        self.step_drop = nn.Dropout(step_dropout)
        self.decoder = nn.Linear(hidden, vocabulary)
        if tied:
            self.decoder.weight = self.embed.weight
        if init is None:
            # torch's N(0, 1) rows are far larger than what an LSTM of this width wants to see.
            nn.init.uniform_(self.embed.weight, -0.1, 0.1)
        else:
            for parameter in self.parameters():
                nn.init.uniform_(parameter, -init, init)

    def forward(self, tokens: Tensor, state: LSTMState | None = None) -> tuple[Tensor, LSTMState]:
        hidden, state = self.rnn(self.step_drop(self.embed(tokens)), state)
        return self.decoder(self.step_drop(self.drop(hidden))), state


@dataclass(frozen=True)
class Streams:
    """A corpus as ids: training text in ``batch_size`` streams (L, B), the other splits as one, (N, 1)."""

    vocabulary: Vocabulary
    train: Tensor
    valid: Tensor
    test: Tensor
    unknown: dict[str, int]
    window: int

    @property
    def windows(self) -> int:
        """Whole windows per epoch, C; the ragged end of the streams is left out, as in the published code."""
        return (len(self.train) - 1) // self.window

    @property
    def valid_streams(self) -> Tensor:
        """The validation text in several streams, for the quick figure after each epoch."""
        return batchify(self.valid[:, 0], max(1, min(EPOCH_STREAMS, len(self.valid) // (self.window + 1))))

    def to(self, device: torch.device) -> "Streams":
        return replace(self, train=self.train.to(device), valid=self.valid.to(device), test=self.test.to(device))


def streams(corpus: Corpus, recipe: "Recipe", vocabulary: Vocabulary | None = None) -> Streams:
    """The corpus as a recipe cuts it; the vocabulary is the training text's unless one is given."""
    vocabulary = vocabulary or Vocabulary(corpus.train, min_count=recipe.data.min_count)
    texts = {"train": corpus.train, "valid": corpus.valid, "test": corpus.test}
    ids = {split: vocabulary.encode(text) for split, text in texts.items()}
    train = batchify(ids["train"], recipe.data.batch_size)
    window = recipe.data.window
    for split, length in (("train", len(train)), ("valid", len(ids["valid"])), ("test", len(ids["test"]))):
        if length <= window:
            each = f" in each of {recipe.data.batch_size} streams" if split == "train" else ""
            raise UserError(
                f"The {split} text has {length} words{each}, fewer than one window of {window} and the word after it; "
                "use more text, or a smaller data.window or data.batch_size."
            )
    unknown = {split: vocabulary.unknown(text) for split, text in texts.items()}
    return Streams(vocabulary, train, ids["valid"].unsqueeze(1), ids["test"].unsqueeze(1), unknown, window)


def build(recipe: "Recipe", vocabulary: int) -> nn.Module:
    """The recipe's model for a vocabulary of this many words, initialised from torch's global generator."""
    import bayesrnn as br

    m, p = recipe.model, recipe.posterior
    plain = LanguageModel(
        vocabulary,
        m.hidden,
        m.layers,
        tied=m.tied,
        word_dropout=m.word_dropout,
        input_dropout=m.input_dropout,
        recurrent_dropout=m.recurrent_dropout,
        output_dropout=m.output_dropout,
        cell_dropout=m.cell_dropout,
        weight_dropout=m.weight_dropout,
        tied_masks=m.tied_masks,
        step_dropout=m.step_dropout,
        init=m.init,
    )
    if p.kind == "none":
        return plain
    prior = br.ScaleMixture(p.pi, math.exp(p.log_sigma1), math.exp(p.log_sigma2), group=p.group)
    q = br.BayesByBackprop(
        plain,
        prior=prior,
        init_sigma={
            "rnn.*": (prior.sigma * p.lstm_low, prior.sigma * p.lstm_high),
            "*": (prior.sigma * p.other_low, prior.sigma * p.other_high),
        },
        exclude="decoder.bias",
    )
    return q if p.kind == "bayes_by_backprop" else br.PosteriorSharpening(q, p.sigma0, init_eta=p.init_eta)


class Objective:
    """The published loss of one window: -log p summed over its T steps and averaged over its B rows, plus KL / (B C).

    That is T times the loss of :class:`bayesrnn.ELBO` with ``num_data = B * C * T``. Dropout models have no KL here:
    their recipes write the L2 term as weight decay.
    """

    def __init__(self, model: nn.Module, recipe: "Recipe", windows: int) -> None:
        import bayesrnn as br

        self.model, self.kind, self.window = model, recipe.posterior.kind, recipe.data.window
        self.likelihood = br.Categorical()
        self.sequences = recipe.data.batch_size * windows
        self.elbo = br.ELBO(model, self.likelihood, num_data=self.sequences * self.window, check_finite=False)

    def __call__(self, x: Tensor, y: Tensor, state: LSTMState) -> tuple[Tensor, "Terms", LSTMState]:
        """The loss to minimise, its terms as unscaled sums, and the next state."""
        if self.kind == "sharpened":
            return self._sharpened(x, y, state)
        logits, after = self.model(x, state)
        if self.kind == "none":
            from bayesrnn.elbo import Terms

            nll = self.likelihood.nll(logits, y)
            loss, zero = nll / y.shape[1], torch.zeros_like(nll)
            return loss, Terms(loss=loss, nll=nll, kl=zero, sharpening=zero), after
        terms = self.elbo(logits, y)
        return self.window * terms.loss, terms, after

    def _sharpened(self, x: Tensor, y: Tensor, state: LSTMState) -> tuple[Tensor, "Terms", LSTMState]:
        from bayesrnn import draws

        model: Any = self.model
        with draws.bind(model, HeldNoise()), model.sharpen(lambda: self.likelihood.nll(model(x, state)[0], y)):
            logits, after = model(x, state)
            terms = self.elbo(logits, y)
        return self.window * terms.loss, terms, after


class HeldNoise:
    """One draw for both passes of sharpening, from torch's global generator, which a CUDA graph can carry."""

    def __init__(self) -> None:
        self._held: dict[str, Any] = {}

    def _once(self, key: str, make: Any) -> Any:
        if key not in self._held:
            self._held[key] = make()
        return self._held[key]

    def units(self, key: str, noise: Any, shape: Any, like: Tensor, *, rows: int, shared: bool = False) -> Tensor:
        held: Tensor = self._once(key, lambda: noise.sample(shape if shared else (rows, *shape), like))
        return held

    def steps(self, key: str, noise: Any, shape: Any, like: Tensor, *, batch_dim: int | None) -> Tensor:
        sampled: Tensor = noise.sample(shape, like)
        return sampled

    def weights(self, key: str, make: Any, device: torch.device) -> Any:
        return self._once(key, lambda: make(None))


def evaluation_window(stream: Tensor, vocabulary: int) -> int:
    """Steps per call that keep the logits of one window at about 130 MB."""
    return max(1, min(len(stream) - 1, _LOGITS // (stream.shape[1] * vocabulary)))


@torch.no_grad()
def perplexity(model: nn.Module, stream: Tensor, *, window: int = 100, carry_state: bool = True) -> float:
    """exp of the mean negative log probability per word, state carried over the whole stream, in eval mode.

    Args:
        model: (tokens, state) to (logits, state).
        stream: shape (L, B); the model predicts steps 1 to L - 1.
        window: steps per call; with ``carry_state`` it bounds memory and changes nothing else.
        carry_state: False: every window starts from the zero state.
    """
    was_training = model.training
    model.eval()
    try:
        total, state = 0.0, None
        for x, y in windows(stream, min(window, len(stream) - 1)):
            logits, state = model(x, state if carry_state else None)
            total += float(nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum"))
    finally:
        model.train(was_training)
    mean = total / (stream.numel() - stream.shape[1])
    return math.exp(mean) if mean < 700 else math.inf
