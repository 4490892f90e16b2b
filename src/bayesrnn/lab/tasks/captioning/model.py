"""The network of captioning: an image's features, then words, through one LSTM (arXiv 1411.4555)."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from bayesrnn.nn.routing import run_linear

LSTMState = tuple[Tensor, Tensor]


class Captioner(nn.Module):
    """Image features, then words, through one LSTM; with all dropouts zero it is made of plain ``torch.nn`` layers.

    Features are first put on a common scale: centred, divided by their standard deviation over the training images,
    and by the square root of their number over ``image_scale``, which so is their length (the root of the mean squared
    one). At 1 an image enters the LSTM as large as a word whose embedding has the same prior; larger, it is heard
    sooner.

    Args:
        features: numbers per image, F.
        vocabulary: number of words, V.
        hidden: units of the embedding and of each LSTM layer, H.
        layers: LSTM layers, L.
        image_dropout: one mask per image on its features.
        word_dropout: whole word types go, per caption.
        input_dropout: one mask per caption on each layer's input; the image is the first.
        recurrent_dropout: one mask per caption on each layer's recurrent input (arXiv 1512.05287, Eq. 7).
        output_dropout: one mask per caption on what the decoder sees.
        step_dropout: ordinary dropout, new at every step, on each layer's input and before the decoder.
        init: every parameter starts in U(-init, init).
        image_scale: length of an image's features.
        tied: the decoder's weights are the embedding's, counted once.

    Shape:
        tokens (T, B), with ``features`` (B, F) for the beginning of a caption, or the state (h, c), each (L, B, H),
        where it goes on; to logits (T, B, V) and the next state.
    """

    shift: Tensor
    scale: Tensor

    def __init__(
        self,
        features: int,
        vocabulary: int,
        hidden: int,
        layers: int = 1,
        *,
        image_dropout: float = 0.0,
        word_dropout: float = 0.0,
        input_dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        output_dropout: float = 0.0,
        step_dropout: float = 0.0,
        init: float = 0.05,
        image_scale: float = 1.0,
        tied: bool = False,
    ) -> None:
        super().__init__()
        import bayesrnn as br

        self.image_scale = image_scale

        self.embed: nn.Embedding
        self.rnn: nn.Module
        between = step_dropout if layers > 1 else 0.0
        if word_dropout or input_dropout or recurrent_dropout:
            self.embed = br.Embedding(vocabulary, hidden, word_dropout=word_dropout)
            self.rnn = br.LSTM(
                hidden,
                hidden,
                layers,
                dropout=between,
                input_dropout=input_dropout,
                recurrent_dropout=recurrent_dropout,
            )
        else:
            self.embed = nn.Embedding(vocabulary, hidden)
            self.rnn = nn.LSTM(hidden, hidden, layers, dropout=between)
        self.image = nn.Linear(features, hidden)
        self.image_drop = br.SequenceDropout(image_dropout) if image_dropout else nn.Identity()
        self.drop = br.SequenceDropout(output_dropout) if output_dropout else nn.Identity()
        self.step_drop = nn.Dropout(step_dropout)
        self.decoder = nn.Linear(hidden, vocabulary)
        if tied:
            self.decoder.weight = self.embed.weight
        self.register_buffer("shift", torch.zeros(features))
        self.register_buffer("scale", torch.zeros(features))  # zero: not set yet
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -init, init)

    @torch.no_grad()
    def set_scale(self, features: Tensor) -> None:
        """Take the scale from the training images' features, (N, F)."""
        wide = features.double()
        spread = wide.std(0, correction=0)
        # A feature that never changes says nothing, and would blow up what little noise another image has in it.
        spread = torch.where(spread > 1e-4 * spread.max(), spread, spread.max().clamp_min(1e-12))
        self.shift.copy_(wide.mean(0))
        self.scale.copy_(self.image_scale / (spread * math.sqrt(features.shape[1])))

    def forward(
        self, tokens: Tensor, state: LSTMState | None = None, *, features: Tensor | None = None
    ) -> tuple[Tensor, LSTMState]:
        inputs = self.embed(tokens)
        if features is not None:
            scaled = ((features - self.shift) * self.scale).unsqueeze(0)
            inputs = torch.cat([self.image(self.image_drop(scaled)), inputs])
        hidden, state = self.rnn(self.step_drop(inputs), state)
        if features is not None:
            hidden = hidden[1:]
        return run_linear(self.decoder, self.step_drop(self.drop(hidden))), state


class WithFeatures(nn.Module):
    """A captioner that is called with positional arguments: features of the image, and the words so far."""

    def __init__(self, captioner: nn.Module) -> None:
        super().__init__()
        self.captioner = captioner

    def forward(self, features: Tensor, tokens: Tensor) -> Any:
        return self.captioner(tokens, features=features)
