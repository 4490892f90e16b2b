"""The model of word-level recipes: embedding, LSTM, decoder."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

import bayesrnn as br
from bayesrnn.kernels.explanation import RunsRecurrent
from bayesrnn.lab.modules import sequence_dropout, word_layers
from bayesrnn.lab.tasks.language.mixture import MixtureOfSoftmaxes, target_logs
from bayesrnn.lab.tasks.language.mogrifier import MogrifierLSTM
from bayesrnn.lab.tasks.language.settings import Model
from bayesrnn.nn.routing import run_linear, run_recurrent

LSTMState = tuple[Tensor, ...]


class LSTMStack(nn.ModuleList):
    """LSTM layers, each with a width and dropout rates of its own.

    Shape:
        x (T, B, F) and the state (h, c, h, c, …) of layer after layer, each (1, B, H of the layer), to the last
        layer's output and the next state.
    """

    def forward(self, x: Tensor, state: LSTMState | None = None) -> tuple[Tensor, LSTMState]:
        after: LSTMState = ()
        for k, layer in enumerate(self):
            x, own = run_recurrent(layer, x, None if state is None else state[2 * k : 2 * k + 2])
            after += own
        return x, after


def stacked_layers(vocabulary: int, m: Model) -> tuple[nn.Embedding, LSTMStack]:
    """Embedding and layers of :attr:`Model.widths`; torch's own where they have no dropout."""
    embed = br.Embedding(vocabulary, m.widths[0], word_dropout=m.word_dropout) if m.word_dropout else None
    between = m.input_dropout if m.between_dropout is None else m.between_dropout
    rates: dict[str, Any] = {name: getattr(m, f"{name}_dropout") for name in ("recurrent", "weight", "cell")}
    layers = LSTMStack()
    for k, (inputs, units) in enumerate(zip(m.widths, m.widths[1:], strict=False)):
        own = {**rates, "input": between if k else m.input_dropout}
        noise: Any = {f"{name}_dropout": rate for name, rate in own.items()}
        if m.mogrifier:
            layers.append(MogrifierLSTM(inputs, units, rounds=m.mogrifier, rank=m.mogrifier_rank, **noise))
        else:
            noisy = any(own.values())
            layers.append(br.LSTM(inputs, units, tied=m.tied_masks, **noise) if noisy else nn.LSTM(inputs, units))
    return embed or nn.Embedding(vocabulary, m.widths[0]), layers


class LanguageModel(RunsRecurrent, nn.Module):
    """Embedding, LSTM and a linear decoder or mixture of softmaxes; without dropout made of plain ``torch.nn`` layers.

    Every parameter starts in U(-init, init); with ``torch_init`` the layers as torch's, and the decoder's bias at 0.
    With ``one_bias`` torch's second bias is 0, but for ``forget_bias``, and is not trained.

    Args:
        vocabulary: number of words V.
        settings: the section ``model`` of a recipe, with H = ``hidden`` and L = ``layers``.

    Shape:
        tokens (T, B) and state (h, c), each (L, B, H), to logits (T, B, V) and the next state. Layers of different
        widths or dropout rates are a :class:`LSTMStack`, with its state. A mixture returns log-probabilities. Given
        targets (T, B), the model returns their log-probabilities alone (T, B).
    """

    def __init__(self, vocabulary: int, settings: Model) -> None:
        super().__init__()
        m = settings
        self.embed: nn.Embedding
        self.rnn: nn.RNNBase | LSTMStack
        if m.stacked:
            self.embed, self.rnn = stacked_layers(vocabulary, m)
        else:
            rates: Any = {"weight_dropout": m.weight_dropout, "cell_dropout": m.cell_dropout}
            self.embed, self.rnn = word_layers(vocabulary, m.hidden, m, layers=m.layers, tied=m.tied_masks, **rates)
        self.drop = sequence_dropout(m.output_dropout)
        self.step_drop = nn.Dropout(m.step_dropout)
        self.mixture: MixtureOfSoftmaxes | None = None
        if m.softmaxes > 1:
            self.mixture = MixtureOfSoftmaxes(m.widths[-1], m.widths[0], m.softmaxes, dropout=m.latent_dropout)
        self.decoder = nn.Linear(m.widths[0 if m.softmaxes > 1 else -1], vocabulary)
        if m.tied:
            self.decoder.weight = self.embed.weight
        ours = (self.embed, self.decoder) if m.torch_init else (self,)
        for parameter in dict.fromkeys(p for module in ours for p in module.parameters()):
            nn.init.uniform_(parameter, -m.init, m.init)
        with torch.no_grad():
            if m.torch_init:
                self.decoder.bias.zero_()
            for name, bias in self.rnn.named_parameters():
                if "bias_hh" not in name:
                    continue
                if m.one_bias:
                    bias.zero_().requires_grad_(False)
                units = len(bias) // 4
                bias[units : 2 * units] += m.forget_bias

    def forward(
        self, tokens: Tensor, state: LSTMState | None = None, targets: Tensor | None = None
    ) -> tuple[Tensor, LSTMState]:
        hidden, state = run_recurrent(self.rnn, self.step_drop(self.embed(tokens)), state)
        hidden = self.step_drop(self.drop(hidden))
        if self.mixture is not None:
            return self.mixture(hidden, self.decoder, targets), state
        if targets is not None:
            return target_logs(hidden, self.decoder, targets), state
        return run_linear(self.decoder, hidden), state


def zero_state(m: Model, rows: int, device: torch.device) -> LSTMState:
    """The state that a text begins with."""
    if m.stacked:
        return tuple(torch.zeros(1, rows, units, device=device) for units in m.widths[1:] for _ in "hc")
    return tuple(torch.zeros(2, m.layers, rows, m.hidden, device=device))


@contextmanager
def activity(model: nn.Module, m: Model) -> Iterator[list[Tensor]]:
    """Inside, each call of the model adds its penalty per word: activation and temporal activation regularisation.

    With h the last layer's output and m its dropout mask, arXiv 1708.01009 adds alpha * L2(m * h_t) and
    beta * L2(h_t - h_{t+1}). As in the published code, L2 is the mean of squares over units, rows and steps:
    activation * mean((m h)^2) + activation_change * mean((h_{t+1} - h_t)^2).
    """
    found: list[Tensor] = []

    def add(module: nn.Module, inputs: tuple[Tensor, ...], dropped: Tensor) -> None:
        (hidden,) = inputs
        change = (hidden[1:] - hidden[:-1]).square().mean() if len(hidden) > 1 else hidden.new_zeros(())
        found.append(m.activation * dropped.square().mean() + m.activation_change * change)

    inner = [part for part in model.modules() if isinstance(part, LanguageModel)]
    handles = [part.drop.register_forward_hook(add) for part in inner if m.activation or m.activation_change]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()
