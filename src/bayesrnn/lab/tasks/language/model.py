"""The model of word-level recipes: embedding, LSTM, decoder."""

import torch
from torch import Tensor, nn

from bayesrnn.nn.routing import run_linear, run_recurrent

LSTMState = tuple[Tensor, Tensor]


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
        forget_bias: added to the forget gates' first bias, so that a fresh cell keeps what it has.
        one_bias: gates have one bias, as in other frameworks: torch's second one is zero (but for ``forget_bias``) and
            stays what it is.

    Shape:
        tokens (T, B) and state (h, c), each (L, B, H), to logits (T, B, V) and the next state.
    """

    runs_recurrent = True  # torch's own layers in it run by `run_recurrent`

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
        forget_bias: float = 0.0,
        one_bias: bool = False,
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
        with torch.no_grad():
            for layer in range(layers):
                bias = self.rnn.get_parameter(f"bias_hh_l{layer}")
                if one_bias:
                    bias.zero_().requires_grad_(False)
                bias[hidden : 2 * hidden] += forget_bias

    def forward(self, tokens: Tensor, state: LSTMState | None = None) -> tuple[Tensor, LSTMState]:
        hidden, state = run_recurrent(self.rnn, self.step_drop(self.embed(tokens)), state)
        return run_linear(self.decoder, self.step_drop(self.drop(hidden))), state
