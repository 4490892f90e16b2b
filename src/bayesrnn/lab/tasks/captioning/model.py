"""The network of captioning: an image's features, then words, through one LSTM (arXiv 1411.4555)."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from bayesrnn.lab.modules import sequence_dropout, word_layers
from bayesrnn.lab.tasks.captioning.settings import Model
from bayesrnn.nn.routing import run_linear

LSTMState = tuple[Tensor, Tensor]


class Captioner(nn.Module):
    """Image features, then words, through one LSTM; with all dropouts zero it has plain ``torch.nn`` layers.

    Features are centred, and divided by their standard deviation over the training images and by sqrt(F) /
    ``image_scale``, so that their root mean square length is ``image_scale``. At 1 an image enters the LSTM as large as
    a word; a larger one is learnt sooner.

    Shape:
        tokens (T, B), with ``features`` (B, F) at the beginning of a caption, later with the state (h, c), each
        (L, B, H); to logits (T, B, V) and the next state.
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, features: int, vocabulary: int, settings: Model) -> None:
        super().__init__()
        m = settings
        self.image_scale = m.image_scale
        self.embed, self.rnn = word_layers(vocabulary, m.hidden, m, layers=m.layers)
        self.image = nn.Linear(features, m.hidden)
        self.image_drop, self.drop = sequence_dropout(m.image_dropout), sequence_dropout(m.output_dropout)
        self.step_drop = nn.Dropout(m.step_dropout)
        self.decoder = nn.Linear(m.hidden, vocabulary)
        if m.tied:
            self.decoder.weight = self.embed.weight
        self.register_buffer("shift", torch.zeros(features))
        self.register_buffer("scale", torch.zeros(features))  # zero: not set yet
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -m.init, m.init)

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
