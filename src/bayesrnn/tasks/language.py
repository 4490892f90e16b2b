"""Word-level language modelling: predict the next word of a text."""

import math

import torch
from torch import Tensor, nn

from bayesrnn.data.text import windows

LSTMState = tuple[Tensor, Tensor]


class LanguageModel(nn.Module):
    """Embedding, LSTM and a linear decoder; with all dropouts zero it is made of plain ``torch.nn`` layers.

    Args:
        vocabulary: number of words V.
        hidden: units of the embedding and of each LSTM layer, H.
        layers: LSTM layers, L.
        tied: the decoder's weights are the embedding's, counted once.
        word_dropout: whole word types go, per sequence.
        input_dropout: one mask per sequence on each layer's input, and one on what the decoder sees.
        recurrent_dropout: one mask per sequence on each layer's recurrent input (arXiv 1512.05287, Eq. 7).

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
    ) -> None:
        super().__init__()
        self.embed: nn.Embedding
        self.rnn: nn.Module
        self.drop: nn.Module
        if word_dropout or input_dropout or recurrent_dropout:
            import bayesrnn as br

            self.embed = br.Embedding(vocabulary, hidden, word_dropout=word_dropout)
            self.rnn = br.LSTM(hidden, hidden, layers, input_dropout=input_dropout, recurrent_dropout=recurrent_dropout)
            self.drop = br.SequenceDropout(input_dropout)
        else:
            self.embed = nn.Embedding(vocabulary, hidden)
            self.rnn = nn.LSTM(hidden, hidden, layers)
            self.drop = nn.Identity()
        self.decoder = nn.Linear(hidden, vocabulary)
        if tied:
            self.decoder.weight = self.embed.weight
        # torch's N(0, 1) rows are far larger than what an LSTM of this width wants to see.
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)

    def forward(self, tokens: Tensor, state: LSTMState | None = None) -> tuple[Tensor, LSTMState]:
        hidden, state = self.rnn(self.embed(tokens), state)
        return self.decoder(self.drop(hidden)), state


@torch.no_grad()
def perplexity(model: nn.Module, stream: Tensor, *, window: int = 100) -> float:
    """exp of the mean negative log probability per word, state carried over the whole stream, in eval mode.

    Args:
        model: (tokens, state) to (logits, state).
        stream: shape (L, B); the model predicts steps 1 to L - 1.
        window: steps per call; it bounds memory and changes nothing else.
    """
    was_training = model.training
    model.eval()
    try:
        total, state = 0.0, None
        for x, y in windows(stream, min(window, len(stream) - 1)):
            logits, state = model(x, state)
            total += float(nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum"))
    finally:
        model.train(was_training)
    mean = total / (stream.numel() - stream.shape[1])
    return math.exp(mean) if mean < 700 else math.inf
