"""The model of word-level recipes: embedding, LSTM, decoder."""

from typing import Any

import torch
from torch import Tensor, nn

from bayesrnn.lab.modules import sequence_dropout, word_layers
from bayesrnn.lab.tasks.language.settings import Model
from bayesrnn.nn.routing import run_linear, run_recurrent

LSTMState = tuple[Tensor, Tensor]


class LanguageModel(nn.Module):
    """Embedding, LSTM and a linear decoder; with all dropouts zero it is made of plain ``torch.nn`` layers.

    Every parameter starts in U(-init, init). With ``one_bias`` torch's second bias is 0, but for
    ``forget_bias``, and is not trained.

    Args:
        vocabulary: number of words V.
        settings: the section ``model`` of a recipe, with H = ``hidden`` and L = ``layers``.

    Shape:
        tokens (T, B) and state (h, c), each (L, B, H), to logits (T, B, V) and the next state.
    """

    runs_recurrent = True  # torch's own layers in it run by `run_recurrent`

    def __init__(self, vocabulary: int, settings: Model) -> None:
        super().__init__()
        m = settings
        rates: Any = {"weight_dropout": m.weight_dropout, "cell_dropout": m.cell_dropout}
        self.embed, self.rnn = word_layers(vocabulary, m.hidden, m, layers=m.layers, tied=m.tied_masks, **rates)
        self.drop = sequence_dropout(m.output_dropout)
        self.step_drop = nn.Dropout(m.step_dropout)
        self.decoder = nn.Linear(m.hidden, vocabulary)
        if m.tied:
            self.decoder.weight = self.embed.weight
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -m.init, m.init)
        with torch.no_grad():
            for layer in range(m.layers):
                bias = self.rnn.get_parameter(f"bias_hh_l{layer}")
                if m.one_bias:
                    bias.zero_().requires_grad_(False)
                bias[m.hidden : 2 * m.hidden] += m.forget_bias

    def forward(self, tokens: Tensor, state: LSTMState | None = None) -> tuple[Tensor, LSTMState]:
        hidden, state = run_recurrent(self.rnn, self.step_drop(self.embed(tokens)), state)
        return run_linear(self.decoder, self.step_drop(self.drop(hidden))), state
